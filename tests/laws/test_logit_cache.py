"""Laws 2, 3 and 4 for logit compositions: causality, padding, and every way to decode gives the same tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch._dynamo
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CompileConfig,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    PreTrainedTokenizerFast,
    TextIteratorStreamer,
)

from lmcompose import LogitForCausalLM, combine, proxy_tune
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import CacheError, ConfigurationError
from tests.compositions import assert_same_logits, chunks_of, pieces_of, plain_logits, takes_back
from tests.logit_compositions import (
    EOS_ID,
    FEW_TRIOS,
    IDS,
    MASK,
    NEW,
    PAD_ID,
    POSITIONS,
    ROWS,
    TRIOS,
    Trio,
    antiexpert_of,
    base_of,
    composition,
    decode,
    expert_of,
    trio_params,
)
from tests.tiny import VOCAB_SIZE, padded, random_ids, tiny_model, tiny_tokenizer, valid_rows


@cache
def _model(name: str) -> LogitForCausalLM:
    """A composition that several tests share; decoding must leave it as it was."""
    return composition(TRIOS[name])


@pytest.fixture(params=trio_params(default=FEW_TRIOS))
def trio(request: pytest.FixtureRequest) -> Trio:
    trio: Trio = request.param
    return trio


def _assert_same(got: Any, expected: Any) -> None:
    """Token for token, and the scores of every step within the tolerance."""
    assert torch.equal(got.sequences, expected.sequences)
    assert len(got.scores) == len(expected.scores)
    for step, reference in zip(got.scores, expected.scores, strict=True):
        finite = torch.isfinite(reference)
        assert torch.equal(torch.isfinite(step), finite)
        assert_same_logits(step[finite], reference[finite])


def _in_pieces(model: LogitForCausalLM, pieces: list[int], **call: Any) -> torch.Tensor:
    """Logits of IDS fed in pieces of these lengths through one cache: [batch, length, vocabulary]."""
    state, start, logits = None, 0, []
    with torch.no_grad():
        for length in pieces:
            stop = start + length
            output = model(
                IDS[:, start:stop], attention_mask=MASK[:, :stop], use_cache=True, **{CACHE_ARGUMENT: state}, **call
            )
            state, start = output[CACHE_ARGUMENT], stop
            logits.append(output.logits)
    return torch.cat(logits, dim=1)


# ------------------------------------------------------------------------------- law 2


def test_a_token_changes_no_logits_before_it(trio: Trio) -> None:
    model, ids = _model(trio.name), random_ids(1, 12)
    expected = plain_logits(model, ids)
    for at in (3, 9):
        changed = ids.clone()
        changed[0, at] = 4 if ids[0, at] != 4 else 5
        got = plain_logits(model, changed)
        assert_same_logits(got[:, :at], expected[:, :at])
        assert (got[:, at:] - expected[:, at:]).abs().amax(dim=-1).min() > 1e-4


# ------------------------------------------------------------------------------- law 3


def test_padding_changes_nothing(trio: Trio) -> None:
    model = _model(trio.name)
    alone = [plain_logits(model, row[None])[0] for row in ROWS]
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        for inputs in ({"attention_mask": mask, "position_ids": positions}, {"attention_mask": mask}):
            logits = plain_logits(model, ids, **inputs)
            for got, expected in zip(valid_rows(logits, mask), alone, strict=True):
                assert_same_logits(got, expected)


def test_a_batch_decodes_its_rows_one_by_one(trio: Trio) -> None:
    settings = {"no_repeat_ngram_size": 0}  # which counts what stands in pad slots as text
    together = decode(_model(trio.name), **settings).sequences[:, IDS.shape[1] :]
    for row in range(len(ROWS)):
        alone = decode(_model(trio.name), slice(row, row + 1), **settings).sequences[:, len(ROWS[row]) :]
        assert torch.equal(alone[0], together[row])


# ------------------------------------------------------------------------------- law 4


def test_logits_in_any_pieces_are_those_of_one_pass(trio: Trio) -> None:
    expected = plain_logits(_model(trio.name), IDS, attention_mask=MASK, position_ids=POSITIONS)
    for pieces in pieces_of([14], [8, 1, 1, 4], names=trio.names):
        assert_same_logits(_in_pieces(_model(trio.name), pieces)[MASK.bool()], expected[MASK.bool()])


def test_greedy_decoding(trio: Trio) -> None:
    model = _model(trio.name)
    expected = decode(model, use_cache=False)
    assert all(len(set(row[-NEW:].tolist())) >= 3 for row in expected.sequences), "too dull to show anything"
    _assert_same(decode(model), expected)
    for size in chunks_of(4, names=trio.names):
        _assert_same(decode(model, prefill_chunk_size=size), expected)
    if trio.static_cache:
        _assert_same(decode(model, cache_implementation="static"), expected)


def test_beam_search(trio: Trio) -> None:
    arguments: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2}
    expected = decode(_model(trio.name), use_cache=False, **arguments)
    got = decode(_model(trio.name), **arguments)
    assert got.sequences.shape[0] == 2 * len(ROWS)
    assert torch.equal(got.sequences, expected.sequences)
    assert_same_logits(got.sequences_scores, expected.sequences_scores)


def test_sampling(trio: Trio) -> None:
    model = _model(trio.name)
    arguments: dict[str, Any] = {"do_sample": True, "num_return_sequences": 2, "top_p": 0.9, "temperature": 0.8}
    expected = decode(model, use_cache=False, **arguments)
    assert not torch.equal(decode(model, seed=6, **arguments).sequences, expected.sequences)
    _assert_same(decode(model, **arguments), expected)


def test_assisted_decoding_and_prompt_lookup(trio: Trio) -> None:
    """Batch 1, as generate itself demands; the assistant is often wrong, so the cache is cropped."""
    model, row = _model(trio.name), slice(1, 2)
    expected = decode(model, row, use_cache=False)
    assistant = tiny_model("llama", seed=9, num_hidden_layers=2)
    if not takes_back(trio.names):
        for draft in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
            with pytest.raises(ConfigurationError, match=r"keeps a state that runs on.*could not be taken back"):
                decode(model, row, **draft)
        return
    _assert_same(decode(model, row, assistant_model=assistant), expected)
    _assert_same(decode(model, row, prompt_lookup_num_tokens=3), expected)


def test_assistants_are_not_called_with_the_compositions_arguments() -> None:
    """A schedule and its step counter made a plain assistant refuse to start."""
    model, row = _model("llama+gpt2"), slice(1, 2)
    assistant = tiny_model("llama", seed=9, num_hidden_layers=2)
    for alpha in ([1.0, 0.0, 0.5], torch.tensor([0.5])):
        expected = decode(model, row, use_cache=False, alpha=alpha)
        _assert_same(decode(model, row, alpha=alpha, assistant_model=assistant), expected)
        _assert_same(decode(model, row, alpha=alpha, assistant_model=composition(TRIOS["qwen2+qwen2"])), expected)
        _assert_same(decode(model, row, alpha=alpha, prompt_lookup_num_tokens=3), expected)


def test_a_composition_assists_another_model() -> None:
    plain, ids = tiny_model("llama", seed=7), random_ids(1, 14)
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    expected = plain.generate(ids, **settings)  # type: ignore[operator]
    for name in ("llama+gpt2", "gemma2+mistral"):
        got = plain.generate(ids, assistant_model=_model(name), **settings)  # type: ignore[operator]
        assert torch.equal(got, expected)


def test_every_token_passes_once_through_every_member() -> None:
    """Nothing is recomputed: the prompt once, then one new token per step."""
    model = composition(TRIOS["llama+gpt2"])
    lengths: dict[str, list[int]] = {role: [] for role in model.members}
    for role in lengths:
        model.member(role).get_input_embeddings().register_forward_hook(
            lambda module, args, output, seen=lengths[role]: seen.append(output.shape[1])
        )
    decode(model)
    assert lengths == {role: [IDS.shape[1]] + [1] * (NEW - 1) for role in lengths}


@pytest.mark.parametrize("trio", trio_params(["gemma2+mistral", "qwen3+qwen2_sliding"], ["gemma2+mistral"]))
def test_long_texts_of_windows(trio: Trio) -> None:
    """The text outgrows every sliding window several times over."""
    row = slice(1, 2)
    expected = decode(_model(trio.name), row, use_cache=False, max_new_tokens=20)
    for settings in ({}, {"prompt_lookup_num_tokens": 2}):
        _assert_same(decode(_model(trio.name), row, max_new_tokens=20, **settings), expected)


def test_one_cache_continues_over_turns() -> None:
    model, row = _model("gpt2+opt"), slice(1, 2)
    first = decode(model, row)
    more = torch.cat([first.sequences, random_ids(1, 5, seed=8)], dim=1)
    arguments: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    expected = model.generate(more, attention_mask=torch.ones_like(more), use_cache=False, **arguments)
    lengths: list[int] = []
    handle = model.leader.get_input_embeddings().register_forward_hook(
        lambda module, args, output: lengths.append(output.shape[1])
    )
    got = model.generate(
        more, attention_mask=torch.ones_like(more), **{CACHE_ARGUMENT: first[CACHE_ARGUMENT]}, **arguments
    )
    handle.remove()
    assert torch.equal(got, expected)
    assert lengths[0] == 6  # the last token of the first turn was decoded and not yet read


def test_a_cache_that_some_members_did_not_fill_is_refused() -> None:
    model = _model("llama+gpt2")
    with torch.no_grad(), model.disable():
        state = model(IDS, use_cache=True)[CACHE_ARGUMENT]
    with pytest.raises(CacheError, match="disabled"):
        model(IDS[:, :1], **{CACHE_ARGUMENT: state})
    with torch.no_grad():
        foreign = tiny_model("llama")(IDS, use_cache=True)[CACHE_ARGUMENT]
    with pytest.raises(CacheError, match="not filled by this composition"):
        model(IDS[:, :1], **{CACHE_ARGUMENT: foreign})


def test_a_disabled_composition_decodes_in_every_way() -> None:
    """Only its leader runs: the layers of the others stay empty, and beams must not reorder them."""
    shared = tiny_model("gpt2", seed=1)
    for model in (_model("llama+gpt2"), proxy_tune(tiny_model("llama"), shared, shared)):
        base = tiny_model("llama", num_hidden_layers=model.leader.config.num_hidden_layers)
        with model.disable():
            for settings in ({}, {"num_beams": 3}, {"cache_implementation": "static"}, {"prefill_chunk_size": 4}):
                assert torch.equal(decode(model, **settings).sequences, decode(base, **settings).sequences)
            assert torch.equal(
                decode(model, slice(1, 2), prompt_lookup_num_tokens=3).sequences, decode(base, slice(1, 2)).sequences
            )


# ------------------------------------------------------------------------------- what generate offers besides


def test_a_streamer_sees_every_token() -> None:
    model, row = _model("llama+gpt2"), slice(1, 2)

    class Collect:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer = Collect()
    generated = decode(model, row, streamer=streamer)
    assert streamer.tokens == generated.sequences[0].tolist()
    assert streamer.ended
    tokenizer = tiny_tokenizer()
    text = TextIteratorStreamer(tokenizer, skip_prompt=True)
    decode(model, row, streamer=text)
    assert "".join(text) == tokenizer.decode(generated.sequences[0, len(ROWS[1]) :])


def _letters() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of one letter per token: transformers' stop strings need one that spells every text."""
    letters = [chr(letter) for letter in range(33, 127)][: VOCAB_SIZE - 4]
    words = ["<pad>", "<s>", "</s>", "Ġ", *letters]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")


def test_rows_stop_each_at_its_own_end() -> None:
    """At the leader's EOS and at stop strings: a row that has stopped is padded, and the others go on."""
    model, tokenizer = _model("llama+gpt2"), _letters()
    free = decode(model).sequences[:, IDS.shape[1] :]
    stop = [tokenizer.decode(free[0, 1:3]), tokenizer.decode(free[2, 4:5])]
    for settings in (
        {"stop_strings": stop, "tokenizer": tokenizer, "eos_token_id": EOS_ID},  # HF pads only beside an EOS
        {"eos_token_id": [int(free[0, 2]), int(free[2, 4])]},
    ):
        got = decode(model, **settings).sequences[:, IDS.shape[1] :]
        assert torch.equal(got, decode(model, use_cache=False, **settings).sequences[:, IDS.shape[1] :])
        ends = [len(row) - int((row.flip(0) != PAD_ID).int().argmax()) for row in got]
        assert ends[0] <= 3, "the first row did not stop"
        assert len(set(ends)) > 1, "all rows stopped at once"
        assert all(torch.equal(row[:end], whole[:end]) for row, whole, end in zip(got, free, ends, strict=True))
    assert model.generation_config.eos_token_id == EOS_ID


def test_logits_processors_see_the_composed_scores() -> None:
    model = _model("llama+gpt2")
    seen: list[torch.Tensor] = []

    def forbid(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.clone())
        return scores.index_fill(1, scores.argmax(dim=-1).unique(), -torch.inf)

    settings: dict[str, Any] = {"no_repeat_ngram_size": 0, "logits_processor": LogitsProcessorList([forbid])}
    got = decode(model, **settings).sequences
    assert torch.equal(got, decode(model, use_cache=False, **settings).sequences)
    composed = plain_logits(model, IDS, attention_mask=MASK, position_ids=POSITIONS)[:, -1]
    assert_same_logits(seen[0], composed)
    assert not bool((got[:, IDS.shape[1]] == composed.argmax(dim=-1)).any())
    least = LogitsProcessorList([MinNewTokensLengthLogitsProcessor(IDS.shape[1], NEW, EOS_ID)])
    assert decode(model, eos_token_id=EOS_ID, logits_processor=least).sequences.shape[1] == IDS.shape[1] + NEW


def test_constraints_by_prefix_and_bad_words() -> None:
    """Functions of the text so far, which beams reorder."""
    model = _model("gemma3+llama-gemma3")
    allowed = list(range(20, 60))
    arguments: dict[str, Any] = {"num_beams": 2, "prefix_allowed_tokens_fn": lambda row, ids: allowed}
    got = decode(model, **arguments).sequences
    assert torch.equal(got, decode(model, use_cache=False, **arguments).sequences)
    assert set(got[:, IDS.shape[1] :].flatten().tolist()) <= set(allowed)


def test_hidden_states_are_refused_in_words() -> None:
    """There is no one model whose they are."""
    with pytest.raises(ValueError, match="output_hidden_states"):
        decode(_model("llama+gpt2"), output_hidden_states=True)


def test_alpha_per_request_goes_with_its_text() -> None:
    """A tensor with a value per text: with beams and several sequences each copy keeps its text's value."""
    model = _model("llama+gpt2")
    values = torch.tensor([0.0, 1.0, 2.0])
    for settings in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        several = settings.get("num_return_sequences", 1)
        got = [
            decode(model, **call, **settings).sequences
            for call in ({"alpha": values}, {"parameters": {"alpha": values}})
        ]
        assert torch.equal(*got)
        for row, value in enumerate(values.tolist()):
            alone = decode(model, slice(row, row + 1), alpha=value, **settings).sequences[:, len(ROWS[row]) :]
            assert torch.equal(alone, got[0][row * several : (row + 1) * several, IDS.shape[1] :])
    for settings in ({"cache_implementation": "static"}, {"do_sample": True, "num_return_sequences": 2}):
        got = [decode(model, alpha=values, **settings, **way).sequences for way in ({}, {"use_cache": False})]
        assert torch.equal(*got)


def test_alpha_per_step() -> None:
    """Step 0 predicts the first new token, however the prompt was read; a list's last value goes on."""
    model = _model("llama+gpt2")
    schedule = [1.0, 0.0, 3.0]
    steps: list[int] = []

    def as_function(step: int) -> float:
        steps.append(step)
        return schedule[min(step, 2)]

    expected = decode(model, use_cache=False, alpha=schedule)
    plain = {value: decode(model, alpha=value).sequences for value in (0.0, 1.0, 3.0)}
    assert not any(torch.equal(expected.sequences, other) for other in plain.values())
    first = expected.sequences[:, IDS.shape[1]]
    assert torch.equal(first, plain[1.0][:, IDS.shape[1]])
    for settings in ({}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}):
        _assert_same(decode(model, alpha=as_function, **settings), expected)
    assert min(steps) == 0
    assert max(steps) == NEW - 1
    beams = decode(model, alpha=schedule, num_beams=3).sequences
    assert torch.equal(beams, decode(model, alpha=schedule, num_beams=3, use_cache=False).sequences)
    # by hand: the second step's logits are the base's alone
    with torch.no_grad():
        text = expected.sequences[:, : IDS.shape[1] + 1]
        mask = torch.cat([MASK, torch.ones_like(text[:, :1])], dim=1)
        base = plain_logits(base_of(TRIOS["llama+gpt2"]), text, attention_mask=mask, position_ids=_positions(mask))
        got = model(text, attention_mask=mask, alpha=schedule, context_length=IDS.shape[1]).logits
    assert_same_logits(got[:, -1], base[:, -1])


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def test_several_parameters_by_name() -> None:
    trio = TRIOS["llama+gpt2"]
    members = {"base": base_of(trio), "expert": expert_of(trio), "antiexpert": antiexpert_of(trio)}
    model = combine("base + a * expert - b * antiexpert", members, parameters={"a": 0.5, "b": 0.25})
    base, expert, antiexpert = (plain_logits(member, IDS) for member in members.values())
    assert_same_logits(plain_logits(model, IDS), base + 0.5 * expert - 0.25 * antiexpert)
    assert_same_logits(plain_logits(model, IDS, parameters={"a": 2}), base + 2 * expert - 0.25 * antiexpert)
    both = {"a": torch.tensor([1.0, 2.0, 3.0]), "b": [0.1]}
    factors = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    assert_same_logits(plain_logits(model, IDS, parameters=both), base + factors * expert - 0.1 * antiexpert)
    got = decode(model, parameters=both, num_beams=2, num_return_sequences=2)
    assert torch.equal(
        got.sequences,
        decode(model, parameters=both, num_beams=2, num_return_sequences=2, use_cache=False).sequences,
    )


def test_members_scores_come_with_the_result() -> None:
    model = _model("llama+gpt2")
    with torch.no_grad():
        output = model(IDS, output_member_scores=True, logits_to_keep=2)
    assert list(output.member_scores) == ["base", "expert", "antiexpert"]
    trio = TRIOS["llama+gpt2"]
    for role, build in (("base", base_of), ("expert", expert_of), ("antiexpert", antiexpert_of)):
        assert_same_logits(output.member_scores[role], plain_logits(build(trio), IDS)[:, -2:])
    assert model(IDS).member_scores is None


@pytest.mark.parametrize("keep", [1, 3, torch.tensor([0, 4, 13])], ids=["last", "last three", "chosen"])
def test_positions_to_keep(keep: Any) -> None:
    for name in ("llama+gpt2", "falcon+mpt"):
        whole = plain_logits(_model(name), IDS)
        expected = whole[:, -keep:] if isinstance(keep, int) else whole[:, keep]
        assert_same_logits(plain_logits(_model(name), IDS, logits_to_keep=keep), expected)


def test_the_loss_is_that_of_the_composed_logits() -> None:
    model = _model("llama+gpt2")
    labels = IDS.masked_fill(MASK == 0, -100)
    loss = model(IDS, attention_mask=MASK, labels=labels).loss
    logits = plain_logits(model, IDS, attention_mask=MASK)
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)


@pytest.mark.slow
def test_a_compiled_static_cache_decodes_the_same_in_one_graph() -> None:
    """The whole forward compiles without a graph break, and notices ``disable()``."""
    model = proxy_tune(
        *(tiny_model(arch, seed, num_hidden_layers=1) for seed, arch in enumerate(("llama", "qwen3", "qwen3")))
    )
    config = CompileConfig(fullgraph=True, backend="eager", mode=None)
    config._compile_all_devices = True
    arguments: dict[str, Any] = {"cache_implementation": "static", "compile_config": config}
    torch._dynamo.reset()
    captured = torch._dynamo.utils.counters["stats"]
    captured.clear()
    expected = decode(model, use_cache=False)
    _assert_same(decode(model, **arguments), expected)
    assert captured["unique_graphs"] > 0, "nothing was compiled"
    with model.disable():
        _assert_same(decode(model, **arguments), decode(model, use_cache=False))
    _assert_same(decode(model, **arguments), expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama-gemma3"])
def test_decoding_in_bf16(name: str) -> None:
    """Within a tolerance of bf16 on three members' scores; tokens can differ at a near tie and are not compared."""
    model = composition(TRIOS[name], torch.bfloat16)
    expected = plain_logits(model, IDS, attention_mask=MASK)
    got = _in_pieces(model, [8] + [1] * 6)
    torch.testing.assert_close(got[MASK.bool()], expected[MASK.bool()], atol=0.2, rtol=0)
