"""The tiny members by themselves keep the laws that their compositions must keep.

A failure in ``tests/laws`` is then the composition's own, and never its member's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lmcompose.architecture import CACHE_ARGUMENT, runs_on
from lmcompose.cache import member_cache
from tests.rarer_architectures import RARER
from tests.tiny import (
    ARCHITECTURES,
    DEFAULT_PAIRS,
    EOS_ID,
    PAD_ID,
    PAIRS,
    VOCAB_SIZE,
    architecture_params,
    padded,
    random_ids,
    save_tiny,
    tiny_model,
    tiny_tokenizer,
    valid_rows,
)

ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]


@pytest.fixture(params=architecture_params())
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_pairs_are_those_that_the_laws_promise() -> None:
    anchors = {pair.anchor for pair in PAIRS.values()}
    assert len(anchors) >= 12
    connected = {name for name in ARCHITECTURES if ARCHITECTURES[name].connects}
    assert anchors == connected, "every claimed architecture is an anchor somewhere"
    assert {pair.augmenting for pair in PAIRS.values()} >= connected & set(RARER)
    assert len({ARCHITECTURES[name].model_type for name in connected}) >= 60
    mixed = [name for name in DEFAULT_PAIRS if PAIRS[name].anchor != PAIRS[name].augmenting]
    assert len(mixed) >= 6
    assert any("wide" in name for name in mixed)
    assert any("deep" in name for name in mixed)


def test_a_model_depends_on_its_seed_only(arch: str) -> None:
    first = tiny_model(arch).state_dict()
    torch.manual_seed(123)
    again, other = tiny_model(arch).state_dict(), tiny_model(arch, seed=1).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_padding_does_not_change_a_plain_member(arch: str) -> None:
    model = tiny_model(arch)
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        extra = {"position_ids": positions} if ARCHITECTURES[arch].takes_position_ids else {}
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, **extra).logits
            for row, got in zip(ROWS, valid_rows(logits, mask), strict=True):
                torch.testing.assert_close(got, model(row[None]).logits[0], atol=4e-5, rtol=0)


def _greedy(model: PreTrainedModel, **arguments: object) -> torch.Tensor:
    ids, mask, _ = padded(ROWS, "left")
    tokens: torch.Tensor = model.generate(  # type: ignore[operator]
        ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=PAD_ID, **arguments
    )
    return tokens


def test_cached_decoding_of_a_plain_member_equals_uncached(arch: str) -> None:
    model, architecture = tiny_model(arch), ARCHITECTURES[arch]
    expected = _greedy(model, use_cache=False)
    assert torch.equal(_greedy(model), expected)
    if architecture.pieces:
        assert torch.equal(_greedy(model, prefill_chunk_size=4), expected)
    assert torch.equal(_greedy(model, cache_implementation="static"), expected) == architecture.static_cache
    assert runs_on(model) != architecture.takes_back


def _logits(model: PreTrainedModel, pieces: list[int], takes_position_ids: bool) -> torch.Tensor:
    """Logits of unpadded slots of left-padded rows, read in pieces of these lengths."""
    ids, mask, positions = padded(ROWS, "left")
    cache, start, logits = member_cache(model.config), 0, []
    for length in pieces:
        now = slice(start, start + length)
        extra = {"position_ids": positions[:, now]} if takes_position_ids else {}
        mask_so_far = mask[:, : start + length]
        with torch.no_grad():
            output = model(ids[:, now], attention_mask=mask_so_far, use_cache=True, **{CACHE_ARGUMENT: cache}, **extra)
        logits.append(output.logits)
        start += length
    return torch.cat(logits, dim=1)[mask.bool()]


def test_which_pieces_of_a_text_a_plain_member_reads(arch: str) -> None:
    """A recurrent state takes up padding that comes token by token; some begin anew with every longer piece."""
    model, architecture = tiny_model(arch), ARCHITECTURES[arch]
    longest = max(map(len, ROWS))
    expected = _logits(model, [longest], architecture.takes_position_ids)
    for pieces, right in (
        ([1] * longest, architecture.padded_steps),
        ([longest - 6, 6], architecture.pieces),
        ([longest - 6] + [1] * 6, True),
    ):
        difference = (_logits(model, pieces, architecture.takes_position_ids) - expected).abs().max()
        assert bool(difference < 1e-4) == right, (pieces, difference)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["zamba2", "nemotron_h"])
def test_plain_members_that_hold_prompts_to_a_least_step_and_single_tokens_not(arch: str) -> None:
    """So the table leaves the least step out. Where this fails, transformers is mended: take the entries' note away."""
    model = tiny_model(arch, time_step_min=0.5)
    assert (_logits(model, [8] + [1] * 6, True) - _logits(model, [14], True)).abs().max() > 1e-2


def test_tokenizer_and_saved_folder(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == VOCAB_SIZE
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD_ID, EOS_ID)
    assert tokenizer.decode(tokenizer("w1 + 3 = w5")["input_ids"]) == "w1 + 3 = w5"
    folder = save_tiny(tmp_path / "model", "llama", hidden_size=48)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    ids = random_ids(1, 5)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, tiny_model("llama", hidden_size=48)(ids).logits)
    prompt = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": "w1 w2"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "user : w1 w2 </s> assistant : "
