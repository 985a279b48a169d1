"""Law 4: cached = uncached = chunked prefill = static cache = beam search = assisted = prompt lookup, token for token.

Greedy decoding forbids repeated bigrams, or else many random models would soon repeat one token, and any cache would
agree with any other. ``tests/test_tiny.py`` shows which plain members decode rightly with a static cache; the others
are left out of that one mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch._dynamo
from transformers import CompileConfig

from lmcompose import CalmForCausalLM
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import ConfigurationError
from tests.compositions import (
    assert_same_logits,
    chunks_of,
    pair_params,
    pieces_of,
    plain_logits,
    random_composition,
    static_cache_is_right,
    takes_back,
)
from tests.tiny import EOS_ID, PAD_ID, PAIRS, Pair, padded, random_ids, tiny_model

NEW = 10
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]
IDS, MASK, _ = padded(ROWS, "left")


@dataclass
class Composed:
    """A composition that several tests share; generation must leave it as it was."""

    pair: Pair
    model: CalmForCausalLM

    def generate(self, rows: slice = slice(None), seed: int = 5, **arguments: Any) -> Any:
        """Left-padded rows, NEW tokens, greedy unless told; returns sequences and scores."""
        torch.manual_seed(seed)
        ids, mask = IDS[rows], MASK[rows]
        if len(ids) == 1:
            ids, mask = ids[mask.bool()][None], mask[mask.bool()][None]
        settings: dict[str, Any] = {
            "max_new_tokens": NEW,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": PAD_ID,
            "no_repeat_ngram_size": 2,
            "output_scores": True,
            "return_dict_in_generate": True,
        }
        return self.model.generate(ids, attention_mask=mask, **(settings | arguments))


@cache
def _composed(name: str) -> Composed:
    return Composed(PAIRS[name], random_composition(PAIRS[name]))


@pytest.fixture(params=pair_params())
def composed(request: pytest.FixtureRequest) -> Composed:
    return _composed(request.param.name)


def _assert_same(got: Any, expected: Any) -> None:
    """Token for token, and the scores of every step within the tolerance."""
    assert torch.equal(got.sequences, expected.sequences)
    assert len(got.scores) == len(expected.scores)
    for step, reference in zip(got.scores, expected.scores, strict=True):
        finite = torch.isfinite(reference)
        assert torch.equal(torch.isfinite(step), finite)
        assert_same_logits(step[finite], reference[finite])


def _decode(model: CalmForCausalLM, pieces: list[int]) -> torch.Tensor:
    """Logits of IDS fed in pieces of these lengths through one cache: [batch, length, vocabulary]."""
    state, start, logits = None, 0, []
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        for length in pieces:
            stop = start + length
            output = model(
                IDS[:, start:stop],
                attention_mask=MASK[:, :stop],
                position_ids=positions[:, start:stop],
                use_cache=True,
                **{CACHE_ARGUMENT: state},
            )
            state, start = output[CACHE_ARGUMENT], stop
            logits.append(output.logits)
    return torch.cat(logits, dim=1)


def test_logits_in_any_pieces_are_those_of_one_pass(composed: Composed) -> None:
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    expected = plain_logits(composed.model, IDS, attention_mask=MASK, position_ids=positions)
    for pieces in pieces_of([14], [1] * 14, [8, 1, 1, 4], [3, 5, 6], names=composed.pair.names):
        assert_same_logits(_decode(composed.model, pieces)[MASK.bool()], expected[MASK.bool()])


def test_greedy_decoding(composed: Composed) -> None:
    expected = composed.generate(use_cache=False)
    assert all(len(set(row[-NEW:].tolist())) >= 3 for row in expected.sequences), "too dull to show anything"
    _assert_same(composed.generate(), expected)
    for size in chunks_of(1, 4, 100, names=composed.pair.names):
        _assert_same(composed.generate(prefill_chunk_size=size), expected)
    if static_cache_is_right(composed.pair):
        _assert_same(composed.generate(cache_implementation="static"), expected)


def test_beam_search(composed: Composed) -> None:
    expected = composed.generate(use_cache=False, num_beams=3, num_return_sequences=2)
    for size in chunks_of(100, 4, names=composed.pair.names):
        arguments = {} if size == 100 else {"prefill_chunk_size": size}
        got = composed.generate(num_beams=3, num_return_sequences=2, **arguments)
        assert torch.equal(got.sequences, expected.sequences)
        assert_same_logits(got.sequences_scores, expected.sequences_scores)


def test_sampling(composed: Composed) -> None:
    arguments = {"do_sample": True, "num_return_sequences": 2, "top_p": 0.9, "temperature": 0.8}
    expected = composed.generate(use_cache=False, **arguments)
    assert expected.sequences.shape[0] == 2 * len(ROWS)
    assert not torch.equal(composed.generate(seed=6, **arguments).sequences, expected.sequences)
    _assert_same(composed.generate(**arguments), expected)


def test_assisted_decoding_and_prompt_lookup(composed: Composed) -> None:
    """Batch 1, as generate itself demands; the assistant is another model, and so often wrong: the cache is cropped."""
    row = slice(1, 2)
    expected = composed.generate(row, use_cache=False)
    assistant = tiny_model("llama", seed=9, num_hidden_layers=2)
    if not takes_back(composed.pair.names):
        for draft in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
            with pytest.raises(ConfigurationError, match=r"keeps a state that runs on.*could not be taken back"):
                composed.generate(row, **draft)
        return
    _assert_same(composed.generate(row, assistant_model=assistant), expected)
    _assert_same(composed.generate(row, prompt_lookup_num_tokens=3), expected)
    with composed.model.disable():
        _assert_same(composed.generate(row, prompt_lookup_num_tokens=3), composed.generate(row, use_cache=False))


@pytest.mark.parametrize("name", ["llama+gpt2", "gemma2+mistral_deep"])
def test_a_composition_assists_another_model(name: str) -> None:
    """Its proposals are often refused, so its cache is cropped, also where sliding windows are long full."""
    plain, ids = tiny_model("llama", seed=7), random_ids(1, 14)
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    expected = plain.generate(ids, **settings)  # type: ignore[operator]
    got = plain.generate(ids, assistant_model=_composed(name).model, **settings)  # type: ignore[operator]
    assert torch.equal(got, expected)


def test_every_decoded_token_passes_once_through_both_models() -> None:
    """Nothing is recomputed: the prompt once, then one new token per step, in m_A as in the anchor."""
    composed = _composed("llama+gpt2")
    lengths: dict[str, list[int]] = {"anchor": [], "augmenting": []}
    (augmenting,) = composed.model.augmenting.values()
    handles = [
        member.get_input_embeddings().register_forward_hook(
            lambda module, args, output, seen=lengths[name]: seen.append(output.shape[1])
        )
        for name, member in (("anchor", composed.model.anchor), ("augmenting", augmenting))
    ]
    composed.generate()
    for handle in handles:
        handle.remove()
    assert lengths == {name: [IDS.shape[1]] + [1] * (NEW - 1) for name in lengths}


@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama"])
def test_the_augmenting_state_of_a_decoded_token_is_used_later(name: str) -> None:
    """Changing what m_A makes of one decoded token changes the scores after it, and none up to it."""
    composed = _composed(name)
    (augmenting,) = composed.model.augmenting.values()
    step = 4  # the pass that reads the fourth decoded token
    passes = 0

    def disturb(module: torch.nn.Module, args: Any, embedded: torch.Tensor) -> torch.Tensor | None:
        nonlocal passes
        passes += 1
        return embedded + 1.0 if passes == step + 1 else None

    expected = composed.generate(max_new_tokens=step + 3)
    handle = augmenting.get_input_embeddings().register_forward_hook(disturb)
    got = composed.generate(max_new_tokens=step + 3)
    handle.remove()
    changed = [(a - b).nan_to_num().abs().max().item() for a, b in zip(got.scores, expected.scores, strict=True)]
    assert max(changed[:step]) == 0.0
    assert changed[step] > 1e-3  # by way of its own bridge key
    same_so_far = (got.sequences == expected.sequences)[:, : IDS.shape[1] + step + 1].all(dim=1)
    later = (got.scores[step + 1] - expected.scores[step + 1]).nan_to_num().abs().amax(dim=1)
    assert not same_so_far.any() or later[same_so_far].min() > 1e-4  # and by way of the cache


def test_a_streamer_sees_every_token() -> None:
    composed = _composed("llama+gpt2")
    row = slice(1, 2)

    class Collect:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer = Collect()
    generated = composed.generate(row, streamer=streamer)
    assert streamer.tokens == generated.sequences[0].tolist()
    assert streamer.ended


def test_rows_stop_at_the_anchors_eos() -> None:
    """Each row by itself, padded after its end; the token is the anchor's, from its generation config."""
    composed = _composed("llama+gpt2")
    free = composed.generate()
    first = free.sequences[0, IDS.shape[1] + 2].item()  # row 0 then stops at its third token, if not before
    del free
    expected = composed.generate(use_cache=False, eos_token_id=first)
    _assert_same(composed.generate(eos_token_id=first), expected)
    assert first in expected.sequences[0, IDS.shape[1] : IDS.shape[1] + 3]
    assert composed.model.generation_config.eos_token_id == EOS_ID
    assert composed.model.generation_config.pad_token_id == PAD_ID


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama"])
def test_decoding_in_bf16(name: str, attn_implementation: str) -> None:
    """Logits within the tolerance of bf16; tokens can differ at a near tie there, so they are not compared."""
    model = random_composition(PAIRS[name], torch.bfloat16, attn_implementation)
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    expected = plain_logits(model, IDS, attention_mask=MASK, position_ids=positions)
    got = _decode(model, [8] + [1] * 6)
    assert_same_logits(got[MASK.bool()], expected[MASK.bool()], torch.bfloat16)


def test_generating_after_a_long_text_of_windows() -> None:
    """The text outgrows every sliding window several times over; a window's cache has then dropped most of it."""
    for name in ("gemma2+mistral_deep", "qwen2_sliding+qwen3_wide", "gpt_neo+phi3_wide"):
        composed = _composed(name)
        expected = composed.generate(use_cache=False, max_new_tokens=30)
        _assert_same(composed.generate(max_new_tokens=30), expected)
        row = slice(1, 2)
        expected = composed.generate(row, use_cache=False, max_new_tokens=30)
        _assert_same(composed.generate(row, max_new_tokens=30, prompt_lookup_num_tokens=2), expected)


def test_one_cache_continues_over_turns() -> None:
    """A chat keeps its cache between turns: the second turn computes its new tokens only, with the same result."""
    composed = _composed("gpt2+llama_wide_deep")
    row = slice(1, 2)
    first = composed.generate(row)
    more = torch.cat([first.sequences, random_ids(1, 5, seed=8)], dim=1)
    mask = torch.ones_like(more)
    arguments: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "attention_mask": mask}
    expected = composed.model.generate(more, use_cache=False, **arguments)
    lengths: list[int] = []
    handle = composed.model.anchor.get_input_embeddings().register_forward_hook(
        lambda module, args, output: lengths.append(output.shape[1])
    )
    got = composed.model.generate(more, **{CACHE_ARGUMENT: first[CACHE_ARGUMENT]}, **arguments)
    handle.remove()
    assert torch.equal(got, expected)
    assert lengths[0] == 6  # the last token of the first turn was decoded and not yet read


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(Pair("llama", "qwen3", {"num_hidden_layers": 1}, {"num_hidden_layers": 1}), id="llama+qwen3"),
        *pair_params(["bloom+falcon_wide", "cohere+granite_deep", "qwen3+qwen2_sliding"]),  # slow ones
    ],
)
def test_a_compiled_static_cache_decodes_the_same_in_one_graph(pair: Pair) -> None:
    """The whole forward compiles without a graph break, hooks and all, and notices ``disable()``."""
    composed = Composed(pair, random_composition(pair))
    compile_config = CompileConfig(
        fullgraph=True, backend="eager", mode=None
    )  # what is captured, not how it is lowered
    compile_config._compile_all_devices = True
    arguments: dict[str, Any] = {"cache_implementation": "static", "compile_config": compile_config}
    torch._dynamo.reset()
    captured = torch._dynamo.utils.counters["stats"]
    captured.clear()
    expected = composed.generate(use_cache=False)
    _assert_same(composed.generate(**arguments), expected)
    assert captured["unique_graphs"] > 0, "nothing was compiled"
    with composed.model.disable():
        _assert_same(composed.generate(**arguments), composed.generate(use_cache=False))
    _assert_same(composed.generate(**arguments), expected)
    torch._dynamo.reset()
