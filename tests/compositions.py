"""Tiny compositions for the laws: random in every composition parameter, and shown to differ from their anchor.

A W_O of zero makes most laws pass with a broken bridge, so ``random_composition`` is what they run on; only the law of
identity runs on ``untrained_composition``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose import CalmForCausalLM, compose
from tests.tiny import ARCHITECTURES, DEFAULT_PAIRS, PAIRS, Pair, random_ids, tiny_model

TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10, torch.bfloat16: 6e-2}
"""Largest difference of two logits that count as equal, by the dtype of the members.

The logits of the tiny models have a standard deviation near 1. In fp32 the plain members themselves differ by up to
6e-6 between padded and unpadded rows, compositions by 1e-5; in bf16 one rounding step at 4 is 0.03.
"""

DIFFERENT = 1e-3
"""Random composition parameters must move the anchor's logits by more than this (the second sentence of the laws)."""


def pair_params(names: Iterable[str] = PAIRS) -> list[Any]:
    """The pairs as pytest parameters: those outside the representative dozen are marked slow."""
    return [
        pytest.param(PAIRS[name], id=name, marks=() if name in DEFAULT_PAIRS else pytest.mark.slow) for name in names
    ]


def anchor_of(
    pair: Pair, dtype: torch.dtype = torch.float32, attn_implementation: str | None = None
) -> PreTrainedModel:
    """A fresh anchor of the pair, frozen: every call gives the same weights.

    Frozen, since torch's matmul folds a strided batch into one matrix or not by whether a weight wants a gradient, and
    the two orders of summation differ in the last bit (seen in the head of ``generate``'s prefill).
    """
    model = tiny_model(pair.anchor, seed=0, attn_implementation=attn_implementation, **pair.anchor_sizes)
    return model.to(dtype).requires_grad_(False)


def augmenting_of(
    pair: Pair, dtype: torch.dtype = torch.float32, attn_implementation: str | None = None
) -> PreTrainedModel:
    """A fresh augmenting model of the pair, frozen: every call gives the same weights."""
    model = tiny_model(pair.augmenting, seed=1, attn_implementation=attn_implementation, **pair.augmenting_sizes)
    return model.to(dtype).requires_grad_(False)


def crossed_connections(augmenting: PreTrainedModel, anchor: PreTrainedModel) -> list[tuple[int, int]]:
    """Three connections that use both ends of both models: embeddings, a first, and a last layer (before its norm)."""
    ends = [(augmenting.config.num_hidden_layers, 1), (0, 0), (1, anchor.config.num_hidden_layers)]
    return list(dict.fromkeys(ends))  # two of them are one between models of one layer


def untrained_composition(
    pair: Pair,
    dtype: torch.dtype = torch.float32,
    attn_implementation: str | None = None,
    **arguments: Any,
) -> CalmForCausalLM:
    """What ``lmcompose.compose`` gives for live members; members and bridges use the named attention."""
    anchor = anchor_of(pair, dtype, attn_implementation)
    augmenting = augmenting_of(pair, dtype, attn_implementation)
    arguments.setdefault("connections", crossed_connections(augmenting, anchor))
    model = compose(anchor=anchor, augmenting=augmenting, **arguments)
    if attn_implementation is not None:
        model.set_attn_implementation(attn_implementation)
    return model


def random_composition(pair: Pair, *arguments: Any, seed: int = 0, **keywords: Any) -> CalmForCausalLM:
    """A composition of the pair with all composition parameters random."""
    return randomise(untrained_composition(pair, *arguments, **keywords), seed)


def draw(model: CalmForCausalLM, seed: int = 0, std: float = 0.1) -> None:
    """Draw every composition parameter, W_O too, from N(0, std^2)."""
    generator = torch.Generator().manual_seed(seed + 77)
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * std
            parameter.copy_(drawn.to(parameter.device, parameter.dtype))


def randomise(model: CalmForCausalLM, seed: int = 0, std: float = 0.1) -> CalmForCausalLM:
    """Draw every composition parameter, W_O too, from N(0, std^2), and assert that the logits show it."""
    draw(model, seed, std)
    ids = random_ids(2, 10, seed=3).to(model.device)
    with torch.no_grad():
        logits = model(ids).logits
        with model.disable():
            bare = model(ids).logits
    difference = (logits - bare).abs().amax(dim=-1)
    assert difference.min() > DIFFERENT, f"the composition parameters do not reach the logits: {difference}"
    return model


def plain_logits(model: PreTrainedModel, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Logits [batch, length, vocabulary] of one uncached pass."""
    with torch.no_grad():
        logits: torch.Tensor = model(ids, use_cache=False, **inputs).logits
    return logits


def assert_same_logits(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Equal within the stated tolerance of the dtype."""
    torch.testing.assert_close(got.float(), expected.float(), atol=TOLERANCE[dtype], rtol=0)


def static_cache_is_right(pair: Pair) -> bool:
    """Whether both plain members generate rightly with a static cache (``tests/test_tiny.py`` shows which do not)."""
    return ARCHITECTURES[pair.anchor].static_cache and ARCHITECTURES[pair.augmenting].static_cache


def pieces_of(*ways: list[int], names: Iterable[str]) -> list[list[int]]:
    """Those ways to cut the left-padded rows of the laws into pieces that the plain members read rightly themselves.

    Padding is in the first five columns at most. `tests/test_tiny.py` shows which plain members fail at the others.
    """
    members = [ARCHITECTURES[name] for name in names]
    kept = list(ways)
    if not all(member.padded_steps for member in members):
        kept = [pieces for pieces in kept if pieces[0] > 1]
    if not all(member.pieces for member in members):
        kept = [pieces for pieces in kept if len(pieces) == 1] + [[8] + [1] * 6]
    return kept


def chunks_of(*sizes: int, names: Iterable[str]) -> list[int]:
    """The same for prompts that are read in chunks; one of 100 holds the whole prompt."""
    members = [ARCHITECTURES[name] for name in names]
    if not all(member.pieces for member in members):
        return [size for size in sizes if size == 100]
    steps = all(member.padded_steps for member in members)
    return [size for size in sizes if size > 1 or steps]


def takes_back(names: Iterable[str]) -> bool:
    """Whether no member keeps a state that cannot go back to an earlier token."""
    return all(ARCHITECTURES[name].takes_back for name in names)
