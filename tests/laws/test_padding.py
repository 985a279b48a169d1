"""Law 3: left-padded, right-padded and unpadded rows agree; a batch agrees with its rows one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lmcompose import CalmForCausalLM
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.training.packing import Collator, packed_row
from tests.compositions import assert_same_logits, pair_params, plain_logits, random_composition
from tests.tiny import PAIRS, Pair, padded, random_ids, valid_rows

ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]


def _assert_rows_agree(composition: CalmForCausalLM, dtype: torch.dtype = torch.float32) -> None:
    """Positions are given, or left to the composition, which counts them from the mask."""
    alone = [plain_logits(composition, row[None])[0] for row in ROWS]
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        for inputs in ({"position_ids": positions}, {}):
            logits = plain_logits(composition, ids, attention_mask=mask, **inputs)
            for got, expected in zip(valid_rows(logits, mask), alone, strict=True):
                assert_same_logits(got, expected, dtype)


@pytest.mark.parametrize("pair", pair_params())
def test_padded_rows_agree_with_themselves_alone(pair: Pair) -> None:
    _assert_rows_agree(random_composition(pair))


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama"])
def test_in_every_dtype_and_attention(name: str, dtype: torch.dtype, attn_implementation: str) -> None:
    _assert_rows_agree(random_composition(PAIRS[name], dtype, attn_implementation), dtype)


def test_eager_and_sdpa_agree() -> None:
    for name in ("llama+gpt2", "qwen2_sliding+qwen3_wide"):
        eager = random_composition(PAIRS[name], attn_implementation="eager")
        sdpa = random_composition(PAIRS[name], attn_implementation="sdpa")
        ids, mask, positions = padded(ROWS, "left")
        inputs = {"attention_mask": mask, "position_ids": positions}
        assert_same_logits(
            plain_logits(eager, ids, **inputs)[mask.bool()], plain_logits(sdpa, ids, **inputs)[mask.bool()]
        )


def test_what_stands_in_a_pad_slot_does_not_matter() -> None:
    composition = random_composition(PAIRS["llama+gpt2"])
    ids, mask, positions = padded(ROWS, "left")
    other = torch.where(mask.bool(), ids, 50)
    assert not torch.equal(ids, other)
    inputs = {"attention_mask": mask, "position_ids": positions}
    assert_same_logits(
        plain_logits(composition, ids, **inputs)[mask.bool()], plain_logits(composition, other, **inputs)[mask.bool()]
    )


def test_generation_of_a_left_padded_batch_is_that_of_its_rows() -> None:
    composition = random_composition(PAIRS["gpt2+llama_wide_deep"])
    ids, mask, _ = padded(ROWS, "left")
    arguments: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "no_repeat_ngram_size": 2}
    batch = composition.generate(ids, attention_mask=mask, eos_token_id=None, **arguments)[:, ids.shape[1] :]
    for row, generated in zip(ROWS, batch, strict=True):
        alone = composition.generate(row[None], eos_token_id=None, **arguments)
        assert torch.equal(alone[0, len(row) :], generated)


def test_packed_texts_do_not_see_each_other() -> None:
    """Positions that restart at 0, without an attention mask, mark the texts of a packed row."""
    for name in ("llama+gpt2", "qwen2_sliding+qwen3_wide"):
        composition = random_composition(PAIRS[name])
        packed = torch.cat(ROWS)[None]
        positions = torch.cat([torch.arange(len(row)) for row in ROWS])[None]
        logits = plain_logits(composition, packed, position_ids=positions)[0]
        for row, got in zip(ROWS, logits.split([len(row) for row in ROWS]), strict=True):
            assert_same_logits(got, plain_logits(composition, row[None])[0])


def test_packed_texts_do_not_see_each_other_by_default_either() -> None:
    """As training gives them: labels and restarting positions, in evaluation mode and with no word about a cache."""
    for name in ("llama+gpt2", "qwen2_sliding+qwen3_wide"):
        composition = random_composition(PAIRS[name])
        batch = Collator(0)([packed_row([(row.numpy(), row.numpy()) for row in ROWS])])
        assert "attention_mask" not in batch
        with torch.no_grad():
            output = composition(**batch)
        assert output.get(CACHE_ARGUMENT) is None
        for row, got in zip(ROWS, output.logits[0].split([len(row) for row in ROWS]), strict=True):
            assert_same_logits(got, plain_logits(composition, row[None])[0])
