"""Differences as a table: what is printed is what was concluded."""

from typing import Any

from lmcompose.reporting.comparison_tables import comparisons_grid

CELL: dict[str, Any] = {
    "mean": -0.0125,
    "documents": [-0.02, -0.005],
    "seeds": [-0.03, 0.005],
    "by_seed": [[-0.01, -0.02, 0.0], [-0.015, -0.02, -0.01]],
    "count": 40,
    "better": "lower",
    "confidence": 0.95,
    "test": "sign flips",
    "p": 0.0004,
    "adjusted_p": 0.012,
    "correction": "holm over 3",
    "mde": 0.0211,
    "verdict": "no difference shown",
}


def test_rows_read_as_they_should() -> None:
    grid = comparisons_grid("a title", {"random": CELL}, first_column="minus", items="documents")
    assert grid.columns == ["minus", "difference", "over documents", "over seeds", "p", "detectable", ""]
    cells = ["-0.0125", "[-0.0200, -0.0050]", "[-0.0300, +0.0050]", "0.012", "0.0211", "no difference shown"]
    assert grid.rows == [["random", *cells]]
    assert "over 2 seeds" in grid.notes[0]
    assert "p: over documents (sign flips), adjusted: holm over 3." in grid.notes[0]
    assert "95 %" in grid.notes[0]
    assert "p is at most 0.05" in grid.notes[1]


def test_one_seed_no_correction_and_percentage_points() -> None:
    alone = {"seeds": None, "by_seed": CELL["by_seed"][:1], "adjusted_p": None, "correction": None, "mde": None}
    grid = comparisons_grid("a title", {"task": {**CELL, **alone, "verdict": "better"}}, scale=100, digits=1)
    assert grid.rows == [["task", "-1.2", "[-2.0, -0.5]", "", "< 0.001", "", "better"]]
    assert "one seed says nothing about others" in grid.notes[0]
    assert "adjusted" not in grid.notes[0]


def test_no_comparison_is_an_empty_table() -> None:
    assert comparisons_grid("a title", {}).rows == []
