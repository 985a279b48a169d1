"""What charts say in words and in tables."""

import math

from lmcompose.reporting.report.charts import (
    DIAMONDS,
    FAR_AWAY,
    MOST_ROWS,
    NO_DIFFERENCE,
    NO_INTERVAL,
    TICKS,
    Costs,
    Curves,
    Line,
    Mark,
    Point,
    Row,
    Rows,
)
from lmcompose.reporting.report.estimates import Estimate, from_count, from_figure, from_mean, from_triple

SURE, UNSURE = Estimate(-0.5, -0.75, -0.25), Estimate(0.25, -0.25, 0.75)


def test_estimates_are_read_from_every_form():
    assert from_triple([1, 0, 2], 100) == Estimate(100, 0, 200)
    assert from_figure({"mean": 1.5, "documents": [1, 2], "seeds": None}) == Estimate(1.5, 1, 2)
    assert from_mean({"mean": None, "interval": None}).text(2) == "infinite"
    assert from_count({"correct": 3, "total": 4}) == Estimate(75)
    assert from_count({"correct": 3, "total": 4, "interval": [0.5, 0.75]}).text() == "75.0 [50.0, 75.0]"
    assert SURE.text(2, signed=True) == "-0.50 [-0.75, -0.25]"


def test_a_difference_whose_interval_holds_zero_is_none_shown():
    rows = [Row("sure", [Mark(SURE, said="better")]), Row("unsure", [Mark(UNSURE)]), Row("once", [Mark(Estimate(3.0))])]
    chart = Rows("minus", "points", rows, bars=False, differences=True, digits=2)
    assert chart.table.rows == [
        ["sure", "-0.50 [-0.75, -0.25]", "better"],
        ["unsure", "+0.25 [-0.25, +0.75]", NO_DIFFERENCE],
        ["once", "+3.00", NO_DIFFERENCE],
    ]
    assert [chart.tone(row.marks[0]) for row in rows] == ["", "none", "none"]
    assert NO_INTERVAL in chart.all_notes
    concluded = Rows("minus", "points", [Row("a", [Mark(SURE, said=NO_DIFFERENCE)])], differences=True)
    assert concluded.tone(concluded.rows[0].marks[0]) == "none", "a correction may take back what an interval shows"


def test_several_series_are_columns_and_seeds_a_column_of_one():
    two = Rows("t", "%", [Row("som", [Mark(SURE, "a"), Mark(UNSURE, "b")]), Row("orm", [Mark(SURE, "b")])], digits=2)
    assert two.table.columns == ["", "a", "b"]
    assert two.table.rows[1] == ["orm", "", "-0.50 [-0.75, -0.25]"]
    assert NO_INTERVAL not in two.all_notes
    one = Rows("t", "%", [Row("x", [Mark(SURE, by_seed=[-0.25, -0.75])], strong=True)], digits=2)
    assert one.table.columns == ["", "%", "by seed"]
    assert one.table.rows == [["x", "-0.50 [-0.75, -0.25]", "-0.25, -0.75"]]
    assert list(one.table.strong) == [0]


def test_bars_begin_at_zero_and_points_may_leave_one_out():
    rows = [Row(str(value), [Mark(Estimate(value, value - 0.01, value + 0.01))]) for value in (0.95, 0.97, 4.0)]
    assert Rows("t", "x", rows).scale.low == 0
    points = Rows("t", "x", rows, bars=False)
    assert not points.scale.holds(4.0)
    assert FAR_AWAY in points.all_notes
    assert points.table.rows[2][1].startswith("4.0"), "the table has it"


def test_a_long_curve_has_a_table_one_can_read_and_says_so():
    line = Line("loss", [(float(step), Estimate(1 / step)) for step in range(1, 101)])
    chart = Curves("t", "step", "loss", [line], digits=3)
    assert len(chart.table.rows) <= MOST_ROWS + 1
    assert [chart.table.rows[0], chart.table.rows[-1]] == [["1", "1.000"], ["100", "0.010"]]
    assert "One of every 5 points is in the table; the file has all." in chart.table.notes
    short = Curves("t", "alpha", "gap", [line, Line("other", [(1.0, SURE)])])
    assert short.table.columns == ["alpha", "loss", "other"]
    assert "Bands: 95 % intervals." in short.all_notes


def test_what_is_below_the_floor_is_counted():
    line = Line("a", [(0.0, Estimate(50.0, 40.0, 60.0)), (1.0, Estimate(-300.0, -310.0, -290.0))])
    chart = Curves("t", "alpha", "gap closed, %", [line], floor=-80)
    assert chart.y.low == -80
    assert "Below the axis, and in the table: 1 of 2 points." in chart.all_notes
    assert chart.table.rows[1] == ["1", "-300.0 [-310.0, -290.0]"]


def test_infinite_figures_have_no_place_on_an_axis():
    chart = Curves("t", "alpha", "loss", [Line("a", [(0.0, Estimate(1.0)), (1.0, Estimate(math.inf))])])
    assert chart.y.high < 2
    assert chart.table.rows[1] == ["1", "infinite"]


def test_points_that_are_close_share_one_label():
    points = [
        Point("a", 10.0, "10", Estimate(1.0)),
        Point("b", 10.1, "10.1", Estimate(1.0)),
        Point("c", 20.0, "20", SURE),
    ]
    chart = Costs("t", "cost", "quality", points)
    assert [label.text for label in chart.labels] == ["1 2", "3"]
    assert chart.table.rows[2] == ["c", "20", "-0.5 [-0.8, -0.2]"]


def test_a_table_has_the_notes_of_its_chart_but_for_what_is_only_drawn():
    rows = [Row("a", [Mark(SURE, by_seed=[-0.25, -0.75], published=1.0)])]
    chart = Rows("t", "%", rows, notes=["Greedy. Whiskers: 95 % intervals."])
    assert chart.all_notes == ["Greedy. Whiskers: 95 % intervals.", DIAMONDS, TICKS]
    assert list(chart.table.notes) == ["Greedy. Brackets: 95 % intervals."]
