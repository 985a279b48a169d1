"""Law 1: an untrained composition gives the anchor's logits, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose import compose
from tests.compositions import anchor_of, augmenting_of, pair_params, plain_logits, untrained_composition
from tests.tiny import ARCHITECTURES, PAIRS, Pair, padded, random_ids

ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]


def _generate(model: PreTrainedModel, **arguments: Any) -> Any:
    ids, mask, _ = padded(ROWS, "left")
    torch.manual_seed(5)
    return model.generate(  # type: ignore[operator]
        ids,
        attention_mask=mask,
        max_new_tokens=8,
        no_repeat_ngram_size=2,
        output_scores=True,
        return_dict_in_generate=True,
        **arguments,
    )


def _assert_same_generation(composed: Any, plain: Any) -> None:
    assert torch.equal(composed.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(composed.scores, plain.scores, strict=True))


@pytest.mark.parametrize("pair", pair_params())
def test_logits_and_generation_are_the_anchors(pair: Pair) -> None:
    anchor, composition = anchor_of(pair), untrained_composition(pair)
    ids = random_ids(2, 14)
    assert torch.equal(plain_logits(composition, ids), plain_logits(anchor, ids))
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        inputs: dict[str, Any] = {"attention_mask": mask}
        if ARCHITECTURES[pair.anchor].takes_position_ids:
            inputs["position_ids"] = positions
        assert torch.equal(
            plain_logits(composition, ids, **inputs)[mask.bool()], plain_logits(anchor, ids, **inputs)[mask.bool()]
        )
    for arguments in ({"do_sample": False}, {"do_sample": False, "use_cache": False}, {"do_sample": True}):
        _assert_same_generation(_generate(composition, **arguments), _generate(anchor, **arguments))


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama", "starcoder2+mixtral"])
def test_in_every_dtype_and_attention(name: str, dtype: torch.dtype, attn_implementation: str) -> None:
    pair = PAIRS[name]
    anchor = anchor_of(pair, dtype, attn_implementation)
    composition = untrained_composition(pair, dtype, attn_implementation)
    ids = random_ids(2, 14)
    logits = plain_logits(composition, ids)
    assert logits.dtype == dtype
    assert torch.equal(logits, plain_logits(anchor, ids))
    _assert_same_generation(_generate(composition, do_sample=False), _generate(anchor, do_sample=False))


def test_loss_is_the_anchors() -> None:
    pair = PAIRS["llama+gpt2"]
    anchor, composition = anchor_of(pair), untrained_composition(pair)
    ids = random_ids(2, 14)
    labels = ids.masked_fill(torch.arange(14) < 5, -100)
    assert torch.equal(composition(ids, labels=labels).loss, anchor(ids, labels=labels).loss)


@pytest.mark.parametrize("projection", ["linear", "mlp"])
def test_the_default_connections_and_every_projection_start_as_the_anchor(projection: str) -> None:
    pair = PAIRS["gpt2+llama_wide_deep"]
    composition = compose(anchor=anchor_of(pair), augmenting=augmenting_of(pair), projection=projection)
    ids = random_ids(2, 14)
    assert torch.equal(plain_logits(composition, ids), plain_logits(anchor_of(pair), ids))


def test_composing_leaves_every_member_tensor_alone() -> None:
    """Trap: transformers' ``post_init`` draws afresh the weights of modules that it does not know."""
    for name in ("llama+gpt2", "gpt2+llama_wide_deep", "granite+bloom", "starcoder2+mixtral"):
        pair = PAIRS[name]
        anchor, augmenting = anchor_of(pair), augmenting_of(pair)
        compose(anchor=anchor, augmenting=augmenting)
        for live, fresh in ((anchor, anchor_of(pair)), (augmenting, augmenting_of(pair))):
            expected = fresh.state_dict()
            assert live.state_dict().keys() == expected.keys()
            assert all(torch.equal(value, expected[key]) for key, value in live.state_dict().items())
