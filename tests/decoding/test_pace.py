"""When drafting stops: by how sure the drafter is, by what was kept, and by what a pass costs."""

from __future__ import annotations

from typing import Any

import pytest

from lmcompose.decoding.pace import SUPPOSED, Calibration, Pace
from lmcompose.errors import ConfigurationError


def drafted(pace: Pace, sure: list[float], room: int | None = None) -> int:
    """How many tokens a round drafts for a drafter that is so sure of them."""
    plan = pace.start(room)
    count = 0
    while plan.goes_on(count):
        plan.drafted([[sure[count]]])
        count += 1
    return count


def kept(pace: Pace, sure: list[float], accepted: int) -> None:
    """One round in which so many of these tokens were kept."""
    plan = pace.start(None)
    plan.drafted([[one] for one in sure])
    plan.judged([accepted], accepted, len(sure))
    plan.done(accepted + 1, len(sure), len(sure))


def test_a_class_of_tokens_is_as_good_as_it_was() -> None:
    calibration = Calibration()
    assert [calibration.chance(sure) for sure in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)] == pytest.approx(SUPPOSED)
    for _ in range(200):
        calibration.observe(0.5, False)
        calibration.observe(0.1, True)
    assert calibration.chance(0.55) < 0.1
    assert calibration.chance(0.15) > 0.9
    assert calibration.chance(0.3) == pytest.approx(SUPPOSED[1])


@pytest.mark.parametrize("bonus", [False, True])
def test_it_stops_where_the_drafter_is_not_sure(bonus: bool) -> None:
    pace = Pace(8, cost=0.4, bonus=bonus)
    assert drafted(pace, [0.99] * 8) > drafted(pace, [0.7] * 8) >= drafted(pace, [0.1] * 8) == 1
    assert drafted(pace, [0.99, 0.99, 0.1] + [0.99] * 5) == 3
    assert drafted(pace, [0.99] * 8, room=2) == 2
    assert drafted(pace, [0.99] * 8, room=0) == drafted(pace, [0.99] * 8, room=-1) == 0
    dear, cheap = Pace(8, cost=0.9, bonus=False), Pace(8, cost=0.05, bonus=False)
    assert drafted(dear, [0.9] * 8) < drafted(cheap, [0.9] * 8)


def test_the_rule_by_hand() -> None:
    """A token costs 1.2; a drafted one 0.5 and a position of 0.1."""
    pace = Pace(8, cost=0.6, position=0.1)
    pace._cost, pace._tokens, pace._kept, pace._judged = 1.2, 1.0, 0.8, 1.0
    # a pass too many costs 0.5 (1 - r), a position 0.1, and what may be won behind is 0.8 r (1.2 - 0.5)
    assert [pace.worth(reach) for reach in (0.56, 0.57)] == [False, True]  # r > 0.6 / (0.56 + 0.5) = 0.566
    assert [pace.worth_ahead(reach) for reach in (0.14, 0.15)] == [False, True]  # r 0.7 > 0.1
    pace.bonus = True
    assert [pace.worth(reach) for reach in (0.62, 0.63)] == [False, True]  # r 0.8 1.2 > 0.6


def test_all_rows_of_a_batch_must_keep_a_token() -> None:
    plan, other = Pace(8, cost=0.4).start(None), Pace(8, cost=0.4).start(None)
    plan.drafted([[0.9]])
    other.drafted([[0.9, 0.5, 0.5]])
    assert plan.goes_on(1)
    assert not other.goes_on(1)


def test_looking_ahead() -> None:
    pace = Pace(4, cost=0.4)
    for room, ahead in ((None, True), (2, True), (1, False)):  # with one token to write there is none after it
        plan = pace.start(room)
        plan.drafted([[0.5]])
        assert plan.looks_ahead(1) == ahead
    assert not pace.start(None).looks_ahead(0)
    unsure = pace.start(None)
    unsure.drafted([[0.1]] * 3)
    assert not unsure.looks_ahead(3)
    outside = Pace(4, cost=0.4, bonus=True).start(None)
    outside.drafted([[0.99]])
    assert not outside.looks_ahead(1)  # it is scored there in any case


def test_a_drafter_in_the_formula_that_is_never_right_costs_what_plain_decoding_costs() -> None:
    """Its pass is due at every token; so one token is drafted, and it is seen at once when it is right again."""
    pace = Pace(8, cost=0.4)
    for _ in range(60):
        kept(pace, [0.7], 0)
    plan = pace.start(None)
    plan.drafted([[0.7]])
    assert (plan.goes_on(1), plan.looks_ahead(1)) == (False, False)
    assert pace.cost_per_token == pytest.approx(1 + pace.drafter, abs=0.02)
    for _ in range(60):
        kept(pace, [0.7], 1)
    assert drafted(pace, [0.7] * 8) > 1


def test_a_drafter_outside_that_does_not_pay_is_asked_seldom() -> None:
    pace = Pace(8, cost=0.8, bonus=True)
    counts = []
    for _ in range(150):
        counts.append(drafted(pace, [0.7] * 8))
        if counts[-1]:
            kept(pace, [0.7] * counts[-1], 0)
    assert sum(counts[:10]) >= 3
    assert 2 <= sum(counts[50:]) <= 5
    assert set(counts[10:]) == {0, 1}
    for _ in range(600):
        if count := drafted(pace, [0.7] * 8):
            plan = pace.start(None)
            plan.drafted([[0.7]] * count)
            plan.judged([count], count, count)
            plan.done(count + 1, count, count)
        else:
            pace.start(None).done(1, 0, 0)
    assert drafted(pace, [0.7] * 8) > 1  # it pays now


@pytest.mark.parametrize(
    "wrong", [{"maximum": 0}, {"cost": -0.1}, {"cost": float("nan")}, {"cost": float("inf")}], ids=str
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="give"):
        Pace(**wrong)
