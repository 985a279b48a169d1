"""The ablations' tables and figure from a small result, the figures read off by eye."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from lmcompose.errors import DataError
from lmcompose.reporting.kv_ablation_plots import ablations_figure
from lmcompose.reporting.kv_ablation_tables import ablations_grids, ablations_markdown, with_section
from lmcompose.reporting.marked import BEGIN, END

TASKS = ("kv_subs", "num_math", "kv_math")


def result_of(seeds: list[int]) -> dict[str, Any]:
    cell = {"correct": 3, "total": 4, "accuracy": 0.75, "interval": [0.301, 0.954]}
    found = {
        "mean": -0.125, "documents": [-0.3, 0.05], "seeds": [-1.5, 1.25], "by_seed": [[-0.25, 0, 1], [0.0, 0, 1]],
        "verdict": "no difference shown", "correction": "holm over 3", "mde": 0.4,
    }  # fmt: skip
    shown = {**found, "verdict": "worse", "mde": None}
    if len(seeds) == 1:
        found, shown = ({**each, "seeds": None, "by_seed": each["by_seed"][:1]} for each in (found, shown))
    arms = {"augmenting": "m_A alone", "composition": "composition", "lora": "LoRA on m_B", "heads_1": "N_H = 1"}
    ones = [[0.75, 0.5, 0.9]] * len(seeds)
    figure = {"mean": 0.75, "documents": [0.5, 0.9], "seeds": None, "by_seed": ones}
    return {
        "profile": "demo",
        "command": "make it",
        "seeds": seeds,
        "titles": arms,
        "ladder": ["augmenting", "composition", "lora"],
        "curves": {"heads": {"title": "heads N_H", "points": [[1, "heads_1"], [8, "composition"]]}},
        "results": {arm: dict.fromkeys(TASKS, cell) for arm in arms},
        "differences": {"augmenting": dict.fromkeys(TASKS, found), "lora": dict.fromkeys(TASKS, shown)},
        "routing": {"product": figure, "minus": figure, "either": cell},
        "parameters": {"composition": 20480, "lora": 20481},
        "seconds": {"composition": [60.0, 70.0][: len(seeds)], "lora": [10.0, 20.0][: len(seeds)]},
    }


def test_rows_read_as_they_should() -> None:
    ladder, differences, seeds, heads, routing = ablations_grids(result_of([0, 1]))
    cells = ["75.0 [30.1, 95.4]"] * 3
    assert ladder.rows == [
        ["m_A alone", *cells, "", ""],
        ["composition", *cells, "20.5 k", "1 min 05 s"],
        ["LoRA on m_B", *cells, "20.5 k", "15.0 s"],
    ]
    assert ladder.strong == [1]
    assert differences.rows == [
        ["m_A alone", *["-12.5 [-30.0, +5.0] (=)"] * 3],
        ["LoRA on m_B", *["-12.5 [-30.0, +5.0]"] * 3],
    ]
    assert "(holm over 3)" in differences.notes[-1]
    assert seeds.rows == [
        ["m_A alone", "-12.5 [-150.0, +125.0]", "-25.0, +0.0", "40.0"],
        ["LoRA on m_B", "-12.5 [-150.0, +125.0]", "-25.0, +0.0", ""],
    ]
    assert heads.rows == [["1", *cells], ["8", *cells]]
    assert heads.strong == [1]
    assert routing.rows[1] == ["m_A's KV-SUBS x m_B's NUM-MATH", "75.0 [50.0, 90.0]", "75.0, 75.0"]
    assert routing.rows[2] == ["composition minus this product", "+75.0 [+50.0, +90.0]", "+75.0, +75.0"]
    assert ablations_markdown(result_of([0, 1])).endswith("Made by `make it`.\n")


def test_one_seed_has_no_interval_over_seeds() -> None:
    grid = ablations_grids(result_of([3]))[2]
    assert grid.rows[0] == ["m_A alone", "-12.5", "-25.0", "40.0"]
    assert len(grid.notes) == 1


def test_the_marked_part_of_a_page_is_replaced_and_nothing_else() -> None:
    page = with_section(f"before\n{BEGIN}\nold\n{END}\nafter\n", result_of([0, 1]))
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    assert with_section(page, result_of([0, 1])) == page
    with pytest.raises(DataError, match="Put both there"):
        with_section("a page without a place", result_of([0]))


@pytest.mark.parametrize("curves", [True, False])
def test_the_figure_is_drawn(tmp_path: Path, curves: bool) -> None:
    result = result_of([0, 1]) if curves else {**result_of([0, 1]), "curves": {}}
    assert imread(ablations_figure(result, tmp_path / "figure.png")).std() > 0.05
