"""What each table says, read back as text, and that it fits the terminal that it is meant for."""

import io

import pytest
from rich.console import Console

from lmcompose.errors import DataError
from lmcompose.experiments.overhead import worked_example
from lmcompose.reporting.overhead_tables import overhead_grids, overhead_markdown
from lmcompose.reporting.tables import Grid, count, duration, grids, kv_grid, markdown
from tests.reporting.results import decode_result, kv_result, stories_result, train_result


def all_grids(result):
    return overhead_grids(result) if result["what"] == "overhead" else grids(result)


def terminal(result, width=80):
    console = Console(file=io.StringIO(), width=width)
    for grid in all_grids(result):
        console.print(grid.to_rich())
    return console.file.getvalue()


def line_with(text, start):
    return next(line for line in text.splitlines() if line.strip("│| *").startswith(start))


def test_table_1_has_our_figures_with_intervals_and_the_papers():
    text = terminal(kv_result())
    assert "86.1 [83.8, 88.1]" in line_with(text, "composition")
    grid = kv_grid(kv_result())
    paper = grid.rows[[row[0] for row in grid.rows].index("composition") + 1]
    assert [cell.strip() for cell in paper] == ["paper", "92.9", "72.0", "84.3"]
    assert "0.4 [0.2, 1.0]" in line_with(text, "random m_A")


def test_table_1_shows_a_model_that_it_does_not_know_and_leaves_gaps_empty():
    result = kv_result()
    result["results"]["longer_schedule"] = {"kv_math": {"correct": 1, "total": 4}}
    assert kv_grid(result).rows[-1] == ["longer schedule", "", "", "25.0"]


def test_probe_and_times_follow_table_1_only_where_there_are_any():
    assert [grid.title.split(":")[0] for grid in grids(kv_result())][1:] == [
        "Linear probe of m_A at the key",
        "Wall time",
    ]
    bare = kv_result() | {"probe": None, "stages": []}
    assert len(grids(bare)) == 1
    assert "1 h 10 min" in line_with(terminal(kv_result()), "total")


@pytest.mark.parametrize(
    "result",
    [kv_result(), decode_result(), train_result(), stories_result(), worked_example()],
    ids=lambda r: r["what"],
)
def test_no_figure_is_broken_in_a_terminal_of_80(result):
    text = terminal(result, width=80)
    for grid in all_grids(result):
        for row in grid.rows:
            for cell in row:
                assert cell in text, f"{cell!r} was wrapped"


def test_overhead_puts_the_three_figures_side_by_side():
    text = overhead_markdown(worked_example())
    assert "1.5 %" in line_with(text, "paper, as printed")
    assert "4.4 %" in line_with(text, "corrected |")
    assert "5.7 %" in line_with(text, "corrected, with W_O")
    assert "335 M" in line_with(text, "exact count")


def test_markdown_is_a_table_and_ends_with_the_command():
    lines = markdown(kv_result()).splitlines()
    assert lines[2].count("|") == lines[3].count("|") == 5
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[-1] == "Made by `lmcompose demo`."


def test_markdown_escapes_what_would_break_a_row():
    grid = Grid("title", ["name", "value"], [["a|b", "1\n2"]])
    assert r"| a\|b | 1<br>2 |" in grid.to_markdown()


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(DataError, match="Did you mean 'kv_arithmetic'"):
        grids({"what": "kv_arithmetics", "results": {}})


@pytest.mark.parametrize(
    ("number", "text"), [(14_680_064, "14.7 M"), (1_014_104_064, "1.01 B"), (999, "999"), (333_000, "333 k")]
)
def test_counts_read_well(number, text):
    assert count(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(48.26, "48.3 s"), (425, "7 min 05 s"), (4800, "1 h 20 min")])
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text
