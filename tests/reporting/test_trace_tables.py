"""Traces, comparisons and sweeps as tables."""

import pytest

from lmcompose.errors import DataError
from lmcompose.reporting.trace_tables import trace_grids
from tests.reporting.traces import comparison_result, sweep_result, trace_result, with_tuned


def test_a_trace_has_a_row_for_each_token():
    (grid,) = trace_grids(trace_result())
    assert grid.columns == ["token", "base", "expert", "composition", "shift", "base says", "composition says"]
    assert grid.rows[1] == ['" cat"', "10.0", "50.0", "40.0", "+1.39", '" dog"', '" cat"']
    assert grid.rows[2][0] == r'"\n"'
    assert list(grid.strong) == [1, 3]
    assert "+1.700 nats" in grid.notes[0]
    assert "At 2 of 4 tokens" in grid.notes[1]


def test_a_trace_with_a_tuned_model_and_a_token_that_is_ruled_out():
    trace = with_tuned(trace_result())
    trace["tokens"][0]["shift"] = None
    trace["summary"] |= {"shift": None}
    (grid,) = trace_grids(trace)
    assert grid.columns[3:6] == ["composition", "tuned", "shift"]
    assert grid.rows[0][4:6] == ["30.0", "ruled out"]
    assert "infinite" in grid.notes[0]


def test_a_comparison_has_losses_pairs_and_classes():
    losses, pairs, classes = trace_grids(comparison_result())
    assert [row[0] for row in losses.rows] == ["base", "composition", "directly tuned"]
    assert losses.rows[0][1:] == ["2.500 [2.400, 2.600]", "25.0 [18.1, 33.4]"]
    assert losses.rows[1][1] == "2.100"
    assert "closes 80.0 [70.0, 90.0] %" in losses.notes[1]
    assert pairs.rows[0] == ["directly tuned | composition", "0.500 [0.400, 0.600]", "infinite", "87.5 [80.0, 95.0]"]
    assert pairs.rows[1][0] == "directly tuned | base"
    assert classes.rows == [["digits", "120", "0.500 [0.400, 0.600]", "infinite", "87.5 [80.0, 95.0]"]]
    assert classes.notes == ["digits: a digit and no letter."]
    assert len(trace_grids(comparison_result(gap_closed=None))[0].notes) == 1


def test_a_sweep_has_its_best_row_bold():
    (grid,) = trace_grids(sweep_result())
    assert grid.columns == ["alpha", "temperature", "loss, nats per token", "minus the best"]
    assert list(grid.strong) == [2]
    assert grid.rows[2] == ["1", "1", "3.000 [2.900, 3.100]", ""]
    assert grid.rows[0] == ["0", "1", "4.000 [3.900, 4.100]", "+1.000 [+0.900, +1.100]"]
    assert "stories" in grid.title
    assert "|" in grid.to_markdown()


def test_another_result_is_refused():
    with pytest.raises(DataError, match="Did you mean 'sweep'"):
        trace_grids({"what": "sweeps"})
