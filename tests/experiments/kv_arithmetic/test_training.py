"""What disturbs m_B in its training, and which matrices of a bridge decay how strongly."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from lmcompose.experiments.kv_arithmetic.composition import CompositionProfile, compose_members, train_composition
from lmcompose.experiments.kv_arithmetic.members import (
    MemberProfile,
    build_anchor,
    mixed_in,
    train_anchor,
    with_full_vocabulary,
)
from lmcompose.experiments.kv_arithmetic.task import BECOMES, EQUALS, FILLER, FIRST_DIGIT, FIRST_KEY, PLUS, Kind, Task

TASK = Task(keys=60, operands=2)
SMALL = MemberProfile(width=16, layers=1, heads=2, mlp=16, steps=1, rows=4, learning_rate=1e-3)


def test_other_digits_are_mixed_into_a_digit_and_into_nothing_else() -> None:
    words = torch.randn(FIRST_KEY, 8)
    ids = torch.tensor([[PLUS, FIRST_DIGIT, FIRST_DIGIT + 9, EQUALS, FIRST_KEY - 1, 0]])
    added = mixed_in(words, ids, std=0.5)
    is_digit = torch.tensor([False, True, True, False, True, False])
    assert (added[0, ~is_digit] == 0).all()
    assert (added[0, is_digit].norm(dim=-1) > 0).all()
    digits = words[FIRST_DIGIT : FIRST_DIGIT + 10]
    directions = digits - digits.mean(dim=0)
    coefficients = torch.linalg.lstsq(directions.T, added[0, is_digit].T).solution
    torch.testing.assert_close(directions.T @ coefficients, added[0, is_digit].T, atol=1e-4, rtol=0)
    many = mixed_in(words, torch.full((4000, 1), FIRST_DIGIT), std=0.5)
    expected = 0.5 * directions.pow(2).sum().sqrt()
    torch.testing.assert_close(many.pow(2).sum(-1).mean().sqrt(), expected, rtol=0.05, atol=0)


def test_what_a_bridge_writes_decays_apart_from_what_it_asks() -> None:
    """With a decay that removes a matrix at once, only f_proj, W_V and W_O lose what they began with."""
    members = [with_full_vocabulary(build_anchor(TASK, SMALL, seed), TASK).requires_grad_(False) for seed in (0, 1)]
    profile = CompositionProfile(
        connections=((0, 0),), num_heads=2, initializer_range=1.0, steps=1, rows=4, learning_rate=1e-3, mix=(0, 1),
        weight_decay=0.0, warmup=1, decay=0.0, written=1.0, written_decay=1e3,
    )  # fmt: skip
    model = compose_members(TASK, *members, profile, seed=0)
    before = {name: parameter.detach().clone() for name, parameter in model.composition_parameters()}
    train_composition(model, TASK, profile, seed=0)
    for name, parameter in model.composition_parameters():
        if "o_proj" in name:
            continue  # it begins at zero
        kept = (parameter.norm() / before[name].norm()).item()
        assert (kept > 0.9) == ("q_proj" in name or "k_proj" in name), (name, kept)


def test_an_anchor_that_repeats_has_seen_numbers_only_and_learns_the_sign() -> None:
    """With `echo` the sign `->` is trained, and without it stays at zero; keys and fillers stay at zero in both."""
    for echo in (0.0, 0.5):
        profile = dataclasses.replace(SMALL, steps=6, mix=(0, 1), unknown=0.5, echo=echo)
        model, _ = train_anchor(TASK, (profile,), seed=0)
        words = model.transformer.wte.weight
        assert (words[BECOMES].abs().max() > 0) == (echo > 0)
        assert words[FILLER].abs().max() == 0
        assert words[FIRST_KEY:].abs().max() == 0


def test_what_is_echoed_is_the_expression_itself() -> None:
    numbers = TASK.sample(np.random.default_rng(0), 50, 2)
    ids, prompt = TASK.encode(numbers, Kind.KV_SUBS)
    assert (ids[:, prompt - 1] == BECOMES).all()
    assert (ids[:, prompt:-1] == ids[:, 1 : prompt - 1]).all()
    assert (ids < FIRST_KEY).all()
