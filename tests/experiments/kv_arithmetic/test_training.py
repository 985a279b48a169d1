"""What disturbs m_B in its training, and which matrices of a bridge decay how strongly."""

from __future__ import annotations

import torch

from lmcompose.experiments.kv_arithmetic.composition import CompositionProfile, Phase, compose_members, train_phase
from lmcompose.experiments.kv_arithmetic.members import MemberProfile, build_anchor, mixed_in, with_full_vocabulary
from lmcompose.experiments.kv_arithmetic.task import EQUALS, FIRST_DIGIT, FIRST_KEY, PLUS, Task

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
    phase = Phase(
        connections=((0, 0),), steps=1, rows=4, learning_rate=1e-3, mix=(0, 1), weight_decay=0.0, warmup=1, decay=0.0,
        written=1.0, written_decay=1e3,
    )  # fmt: skip
    profile = CompositionProfile(num_heads=2, initializer_range=1.0, phases=(phase,))
    model = compose_members(TASK, *members, profile, seed=0)
    before = {name: parameter.detach().clone() for name, parameter in model.composition_parameters()}
    train_phase(model, TASK, phase, 0, [])
    for name, parameter in model.composition_parameters():
        if "o_proj" in name:
            continue  # it begins at zero
        kept = (parameter.norm() / before[name].norm()).item()
        assert (kept > 0.9) == ("q_proj" in name or "k_proj" in name), (name, kept)
