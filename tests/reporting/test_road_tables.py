"""The roads' tables and figure from a small result, the figures read off by eye."""

from pathlib import Path
from typing import Any

from matplotlib.image import imread

from lmcompose.reporting.road_plots import roads_figure
from lmcompose.reporting.road_tables import roads_grids, roads_markdown


def result_of(seeds: list[int]) -> dict[str, Any]:
    cell = {"correct": 3, "total": 4, "accuracy": 0.75, "interval": [0.301, 0.954]}
    found = {"mean": 0.125, "documents": [-0.05, 0.3], "seeds": [-1.5, 1.75], "by_seed": [[0.25, 0, 1], [0.0, 0, 1]]}
    if len(seeds) == 1:
        found |= {"seeds": None, "by_seed": found["by_seed"][:1]}
    tasks = ("kv_subs", "num_math", "kv_math")
    return {
        "profile": "demo",
        "command": "make it",
        "seeds": seeds,
        "recipe": {"roads": {"default": {"title": "as it was"}, "gate": {"title": "with a gate"}}},
        "results": {road: dict.fromkeys(tasks, cell) for road in ("default", "gate")},
        "differences": {"gate": dict.fromkeys(tasks, found)},
        "parameters": {"default": 20480, "gate": 20481},
        "seconds": {"default": [60.0, 70.0][: len(seeds)], "gate": [10.0, 20.0][: len(seeds)]},
    }


def test_rows_read_as_they_should() -> None:
    accuracy, differences, seeds = roads_grids(result_of([0, 1]))
    cells = ["75.0 [30.1, 95.4]"] * 3
    assert accuracy.rows == [
        ["as it was", *cells, "20.5 k", "1 min 05 s"],
        ["with a gate", *cells, "20.5 k", "15.0 s"],
    ]
    assert "mean over seeds 0, 1." in accuracy.notes[-1]
    assert differences.rows == [["with a gate", *["+12.5 [-5.0, +30.0]"] * 3]]
    assert seeds.rows == [["with a gate", "+12.5 [-150.0, +175.0]", "+25.0, +0.0"]]
    assert roads_markdown(result_of([0, 1])).endswith("Made by `make it`.\n")


def test_one_seed_has_no_interval_over_seeds() -> None:
    *_, seeds = roads_grids(result_of([3]))
    assert (seeds.rows, list(seeds.notes)) == ([["with a gate", "+12.5", "+25.0"]], [])


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    assert imread(roads_figure(result_of([0, 1]), tmp_path / "roads.png")).std() > 0.05
