"""What a judge's reply says, in all the ways that models say it, and what many verdicts say together."""

from __future__ import annotations

from typing import Any

import pytest

from lmcompose.evaluation.judging.verdicts import points, read_verdict, summarise
from lmcompose.evaluation.statistics import paired_bootstrap, wilson_interval


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Both are fine, A is shorter.\n\nVerdict: A", "A"),
        ("**Verdict:** B", "B"),
        ("**Verdict: tie**.", "tie"),
        ("Verdict: a tie", "tie"),
        ("Verdict: A tie.", "tie"),
        ("The verdict is B.", "B"),
        ("verdict: Answer B", "B"),
        ("Verdict: `A`", "A"),
        ("Verdict: [[B]]", "B"),
        ("My choice: [[A]]", "A"),
        ("[[C]]", "tie"),
        ("Verdict: A, because B forgets the date.", "A"),
        ("Verdict: B \u2014 it is complete.", "B"),
        ("Verdict: A (B is too long)", "A"),
        ("Verdict:\n\nB", "B"),
        ("B", "B"),
        (" **A**. ", "A"),
        ("Tie", "tie"),
        ("<think>Verdict: B? No, A is right.</think>\nVerdict: A", "A"),
        ("Verdict: B. To say it again, verdict: B", "B"),
        # What is unreadable.
        ("", None),
        ("Both answers are good.", None),
        ("Answer A is better.", None),
        ("Verdict: A or B", None),
        ("Verdict: A/B", None),
        ("Verdict: A, B", None),
        ("Verdict: A better answer is B", None),
        ("Verdict: a better answer is B", None),
        ("Verdict: neither", None),
        ("Verdict: C", None),
        ("Verdict: AB", None),
        ("Verdict: A\nOn reflection, verdict: B", None),
        ("End with `Verdict: A`, `Verdict: B`, or `Verdict: tie`.", None),
        ("The answer said 'Verdict: A'. Verdict: neither of the two", None),
        ("<think>Verdict: A", None),
        ("A and B are alike", None),
        ("[[A]] or [[B]]", None),
    ],
)
def test_what_a_reply_says(reply: str, verdict: str | None) -> None:
    assert read_verdict(reply) == verdict


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("A", "B"), 1.0),
        (("B", "A"), 0.0),
        (("tie", "tie"), 0.5),
        (("A", "A"), 0.5),
        (("A", "tie"), 0.75),
        (("tie", "A"), 0.25),
        (("A", None), None),
        ((None, None), None),
    ],
)
def test_an_instruction_gives_points_over_both_orders(pair: Any, expected: float | None) -> None:
    assert points(*pair) == expected


def test_all_verdicts_together() -> None:
    pairs: Any = [("A", "B")] * 4 + [("B", "A")] * 2 + [("tie", "tie"), ("A", "tie"), ("A", "A"), ("A", None)]
    found = summarise(pairs)
    values = [1.0] * 4 + [0.0] * 2 + [0.5, 0.75, 0.5]
    assert found["win_rate"]["estimate"] == pytest.approx(sum(values) / 9)
    assert found["win_rate"]["count"] == 9
    low, high = found["win_rate"]["interval"]
    assert low < found["win_rate"]["estimate"] < high
    assert found["counts"] == {"wins": 4, "losses": 2, "ties": 1, "half": 1, "flipped": 1, "unreadable": 1}
    assert found["verdicts"] == {"all": 20, "unreadable": 1}
    # the unreadable one was shown with the first system as B: "A" would go against it, "B" for it
    assert found["at_least"] == pytest.approx((sum(values) + 0.5) / 10)
    assert found["at_most"] == pytest.approx((sum(values) + 1.0) / 10)
    difference = paired_bootstrap(values, [1 - value for value in values])
    assert found["comparison"]["mean"] == pytest.approx(difference.estimate)
    assert found["comparison"]["documents"] == pytest.approx(list(difference[1:]))
    assert found["comparison"]["verdict"] == "no difference shown"
    assert found["position"]["estimate"] == pytest.approx((4 + 2 + 1 + 2 + 1) / (8 + 4 + 1 + 2 + 1))
    assert found["flips"]["interval"] == list(wilson_interval(1, 9)[1:])


def test_a_judge_that_always_says_the_same_gives_nobody_a_win() -> None:
    found = summarise([("A", "A")] * 12)
    assert (found["win_rate"]["estimate"], found["position"]["estimate"], found["flips"]["estimate"]) == (0.5, 1, 1)
    assert found["comparison"]["verdict"] == "no difference shown"


def test_a_clear_difference_is_called_one_and_too_little_is_not_hidden() -> None:
    assert summarise([("A", "B")] * 20)["comparison"]["verdict"] == "better"
    assert summarise([("B", "A")] * 20)["comparison"]["verdict"] == "worse"
    one = summarise([("A", "B")])
    assert (one["win_rate"]["interval"], one["comparison"]) == (None, None)
    none = summarise([(None, "A")])
    assert (none["win_rate"], none["at_least"], none["at_most"]) == (None, 0.0, 0.5)
    assert summarise([("tie", "tie")])["position"] is None
