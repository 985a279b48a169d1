"""The roads that the paper left open, as tables, and the part of their page that is made of them."""

from typing import Any

from lmcompose.reporting.marked import with_marked
from lmcompose.reporting.paper import KV_TASKS
from lmcompose.reporting.tables import Grid, accuracy, count, duration, points, seeds_of

Result = dict[str, Any]


def roads_grids(result: Result) -> list[Grid]:
    """All tables of the experiment."""
    return [accuracy_grid(result), differences_grid(result), seeds_grid(result)]


def roads_markdown(result: Result) -> str:
    """All tables, and the command that made them."""
    return "\n".join([*(grid.to_markdown() for grid in roads_grids(result)), f"Made by `{result['command']}`.\n"])


def with_section(page: str, result: Result) -> str:
    """`page` with its marked part made anew from `result`; raises DataError where no part is marked."""
    figure = "![The roads beside the default](../results/kv_arithmetic/roads.png)\n"
    return with_marked(page, f"{roads_markdown(result)}\n{figure}")


def accuracy_grid(result: Result) -> Grid:
    """Exact match of every road on the three tasks, pooled over the seeds, with what was trained and how long."""
    seconds = {road: sum(times) / len(times) for road, times in result["seconds"].items()}
    rows = [
        [
            road_title(result, road),
            *(accuracy(cells[task]) for task in KV_TASKS),
            count(result["parameters"][road]),
            duration(seconds[road]),
        ]
        for road, cells in result["results"].items()
    ]
    return Grid(
        f"The roads, {result['profile']} profile: exact match, %",
        ["road", *KV_TASKS.values(), "trained", "time"],
        rows,
        notes=[
            "Brackets: 95 % Wilson intervals of the answers of all seeds together.",
            f"trained: parameters; time: of training, mean over {seeds_of(result)}.",
        ],
        strong=[0],
    )


def differences_grid(result: Result) -> Grid:
    """What each road gains over the default on each task, on the same expressions with the same seeds."""
    rows = [
        [
            road_title(result, road),
            *(points(cells[task]["mean"], cells[task]["documents"]) for task in KV_TASKS),
        ]
        for road, cells in result["differences"].items()
    ]
    return Grid(
        "Minus the default, percentage points",
        ["road", *KV_TASKS.values()],
        rows,
        notes=["Brackets: 95 % paired bootstrap intervals over the test expressions, for these seeds."],
    )


def seeds_grid(result: Result) -> Grid:
    """The same difference on KV-MATH, with the seeds as the thing that varies."""
    rows = []
    for road, cells in result["differences"].items():
        found = cells["kv_math"]
        by_seed = ", ".join(f"{100 * estimate:+.1f}" for estimate, *_ in found["by_seed"])
        rows.append([road_title(result, road), points(found["mean"], found["seeds"]), by_seed])
    return Grid(
        "Minus the default on KV-MATH by seed, percentage points",
        ["road", "mean over seeds", "by seed"],
        rows,
        notes=[f"Brackets: 95 % paired t-intervals over {seeds_of(result)}."] if len(result["seeds"]) > 1 else [],
    )


def road_title(result: Result, road: str) -> str:
    """The name of a road in tables."""
    return str(result["recipe"]["roads"][road]["title"])
