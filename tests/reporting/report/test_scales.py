"""Where figures are on an axis, and the round numbers beside it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcompose.reporting.report.scales import Scale, linear, logarithmic, without_far


def test_places_are_in_proportion_and_ends_hold():
    scale = Scale(10, 30)
    assert [scale.at(value) for value in (10, 15, 30)] == [0, 25, 100]
    assert (scale.at(5), scale.at(99)) == (0, 100)
    assert (scale.beyond(5), scale.beyond(50)) == (-25, 200)
    assert (scale.holds(5), scale.holds(30)) == (False, True)


def test_powers_are_equally_far_apart():
    scale = Scale(1, 10_000, log=True)
    assert [scale.at(value) for value in (1, 10, 100, 10_000)] == [0, 25, 50, 100]
    assert [tick.label for tick in scale.ticks] == ["1", "10", "100", "1000", "10000"]
    assert [tick.label for tick in logarithmic([5.12, 70.5]).ticks] == ["5", "10", "20", "50"]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(0, 100, ["0", "50", "100"]), (-0.2, 0.04, ["-0.2", "-0.1", "0.0"]), (0.93, 1.21, ["1.0", "1.1", "1.2"]),
     (0, 1200, ["0", "500", "1,000"])],
)  # fmt: skip
def test_ticks_are_round_numbers(low, high, labels):
    assert [tick.label for tick in Scale(low, high).ticks] == labels


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_every_axis_has_ticks_and_each_is_where_its_label_says(low, width):
    scale = Scale(low, low + width)
    if low + width - low < width / 2:  # too narrow for its place to be told apart
        return
    assert 1 <= len(scale.ticks) <= 7
    step = math.inf if len(scale.ticks) < 2 else width * (scale.ticks[1].at - scale.ticks[0].at) / 100
    for tick in scale.ticks:
        assert 0 <= tick.at <= 100
        value = float(tick.label.replace(",", ""))
        assert value == pytest.approx(low + width * tick.at / 100, abs=min(step, width) / 50 + 1e-3 * width)


def test_an_axis_holds_all_values_and_is_never_without_width():
    scale = linear([3.0, 5.0, math.inf], include=[0.0])
    assert scale.low == 0
    assert scale.holds(5)
    assert not math.isinf(scale.high)
    assert linear([2.0]).holds(2.0)
    assert linear([]).low < linear([]).high


def test_what_is_far_away_is_left_out_of_the_axis():
    near = [[0.95, 0.97], [0.96, 0.99]]
    assert without_far([*near, [3.8, 4.1]]) == [0.95, 0.97, 0.96, 0.99]
    assert 1.1 in without_far([*near, [1.05, 1.1]])
    assert without_far([[-0.2], [-0.19], [0.11]], [0.0]) == [-0.2, -0.19, 0.11], "0 is on the axis too"
    assert without_far([[-0.04], [-0.01], [-3.0]], [0.0]) == [-0.04, -0.01]
    assert without_far([[0.0, 0.1], [9.0, 9.1]]) == [0.0, 0.1, 9.0, 9.1], "of two, neither is the far one"
