"""How many tokens are drafted next, and what is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from lmcompose.decoding.acceptance import Emitted, lockstep
from lmcompose.decoding.counts import Statistics
from lmcompose.decoding.lengths import DraftLength, best_length, expected_tokens
from lmcompose.errors import ConfigurationError


def test_expected_tokens_are_the_papers() -> None:
    """Leviathan et al. 2023, table 1: the speed-up for a drafter that costs nothing."""
    for rate, length, factor in [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 10, 6.86)]:
        assert expected_tokens(rate, length) == pytest.approx(factor, abs=0.005)
    assert (expected_tokens(1.0, 4), expected_tokens(0.0, 4), expected_tokens(0.0, 0)) == (5, 1, 1)
    assert (expected_tokens(0.5, 2, bonus=False), expected_tokens(0.5, 1, bonus=False)) == (1.5, 1)


def test_the_best_length_by_hand() -> None:
    # a = 0.8, c = 0.25: 1.8 / 1.25 = 1.44, 2.44 / 1.5 = 1.627, 2.952 / 1.75 = 1.687, 3.362 / 2 = 1.681
    assert best_length(0.8, 0.25, 1, 10) == 3
    # without the token after the draft: 1 / 1.25, 1.8 / 1.5 = 1.2, 2.44 / 1.75 = 1.394, 1.476, 1.494, 1.476
    assert best_length(0.8, 0.25, 1, 10, bonus=False) == 5
    assert best_length(0.0, 0.1, 1, 10) == 1
    assert best_length(1.0, 0.1, 1, 10) == 10
    assert best_length(1.0, 1.0, 2, 10) == 2  # equals: the least
    best = [best_length(rate / 100, 0.05, 1, 50) for rate in range(101)]
    assert best == sorted(best)


@pytest.mark.parametrize(("rate", "batch"), [(0.2, 1), (0.95, 1), (0.95, 3)])
def test_the_length_settles_where_it_is_best(rate: float, batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    chooser = DraftLength(cost=0.1, memory=0.99, maximum=12)
    assert chooser.acceptance == 0.7
    for _ in range(400):
        drafted = chooser.next()
        passed = torch.rand(batch, drafted, generator=generator) < rate
        chooser.observe(lockstep(passed.long().cumprod(1).sum(1)), drafted)
    assert chooser.acceptance == pytest.approx(rate**batch, abs=0.05)
    assert abs(chooser.next() - best_length(rate**batch, 0.1, 1, 12)) <= 1


def test_what_was_thrown_away_unjudged_does_not_count() -> None:
    short, long = DraftLength(maximum=20), DraftLength(maximum=20)
    short.observe(1, 2)
    long.observe(1, 20)  # two tokens were judged in either
    assert short == long
    assert short.acceptance == pytest.approx((0.7 * 8 + 1) / (8 + 2))
    short.observe(4, 4)
    assert short.acceptance == pytest.approx((5.6 + 0.95 * 1 + 4) / (8 + 0.95 * 2 + 4))


def test_an_older_acceptance_fades_and_bounds_hold() -> None:
    chooser = DraftLength(minimum=2, maximum=6, cost=0.05)
    for _ in range(100):
        chooser.observe(chooser.next(), chooser.next())
    assert chooser.next() == 6
    assert (chooser.next(room=3), chooser.next(room=1), chooser.next(room=0), chooser.next(room=-1)) == (3, 1, 0, 0)
    for _ in range(100):
        chooser.observe(0, chooser.next())
    assert chooser.acceptance < 0.3
    assert chooser.next() == 2
    assert DraftLength(minimum=5, maximum=5).next() == 5


@pytest.mark.parametrize(
    "wrong",
    [{"minimum": 0}, {"minimum": 9}, {"cost": -0.1}, {"cost": float("nan")}, {"cost": float("inf")}, {"prior": 1.5},
     {"prior_weight": 0}, {"memory": 1.1}],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="give"):
        DraftLength(**wrong)


def test_statistics_count_unfinished_rows() -> None:
    statistics = Statistics()
    assert (statistics.acceptance, statistics.passes_per_token, statistics.draft_length) == (None, None, None)
    finished = torch.tensor([False, True, False])
    emitted = Emitted(torch.zeros(3, 3, dtype=torch.long), 2, torch.tensor([2, 0, 4]))
    statistics.add(emitted, drafted=4, finished=finished, drafter_passes=4)
    statistics.add(Emitted(torch.zeros(3, 1, dtype=torch.long), 0, torch.zeros(3, dtype=torch.long)), drafted=0)
    assert json.loads(json.dumps(statistics.to_dict())) == {
        "drafted": 8, "accepted": 6, "rounds": 1, "positions": 4, "passes": 2, "drafter_passes": 4, "tokens": 4,
        "guessed": 0, "right": 0,
        "acceptance": 0.75, "passes_per_token": 0.5, "draft_length": 4.0,
    }  # fmt: skip
