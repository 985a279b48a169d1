"""Scores of several models on tasks as tables, for the terminal and for Markdown; see `tables.Grid`."""

from collections.abc import Mapping
from typing import Any

from lmcompose.reporting.comparison_tables import comparisons_grid
from lmcompose.reporting.tables import Grid

Result = dict[str, Any]

INTERVALS = "Brackets: 95 % intervals, Wilson's where every example is right or wrong, else a bootstrap over examples."
UNITS: dict[str | None, str] = {"share": "percentage points", "chrF": "chrF"}
"""What differences of scores are in, by the unit of the scores."""


def evaluation_grids(result: Result) -> list[Grid]:
    """All tables of an evaluation: one for every task that there is in several languages, the other tasks, the rest."""
    grids = [family_grid(result, name) for name in result["families"]]
    tables = [*grids, tasks_grid(result), *minus_first_grids(result), others_grid(result), cut_grid(result)]
    return [grid for grid in tables if grid.rows]


def evaluation_markdown(result: Result) -> str:
    """All tables in Markdown, and the command that made them."""
    return "\n".join([*(grid.to_markdown() for grid in evaluation_grids(result)), f"Made by `{result['command']}`.\n"])


def family_grid(result: Result, name: str) -> Grid:
    """One task in every language, with the mean over languages and in how many of them a model beats the first."""
    family, labels = result["families"][name], list(result["models"])
    score = result["headlines"][family["tasks"][0]]
    rows = [[task.removeprefix(f"{name}_"), *_cells(result, task, score)] for task in family["tasks"]]
    unit = result["scores"][family["tasks"][0]][score][labels[0]]["unit"]
    rows.append(["mean", *(_figure(family["mean"][label], unit) for label in labels)])
    if family["beats"]:
        count = len(family["tasks"])
        rows.append([f"#(> {labels[0]})", "", *(f"{family['beats'][label]} of {count}" for label in labels[1:])])
    return Grid(
        f"{name}, by language: {score_title(score, unit)}",
        ["language", *labels],
        rows,
        notes=[INTERVALS],
        strong=range(len(family["tasks"]), len(rows)),
    )


def tasks_grid(result: Result) -> Grid:
    """Every other task by its main score."""
    in_families = {task for family in result["families"].values() for task in family["tasks"]}
    rows = []
    for task, score in result["headlines"].items():
        if task not in in_families and score:
            unit = next(iter(result["scores"][task][score].values()))["unit"]
            rows.append([f"{task}: {score_title(score, unit)}", *_cells(result, task, score)])
    return Grid("Tasks", ["task", *result["models"]], rows, notes=[INTERVALS])


def minus_first_grids(result: Result) -> list[Grid]:
    """Every model minus the first, example by example: a table for each unit of scores, none where one model ran."""
    first = next(iter(result["models"]))
    by_unit: dict[str | None, dict[str, Result]] = {}
    for task, by_model in result.get("minus_first", {}).items():
        unit = result["scores"][task][result["headlines"][task]][first]["unit"]
        for label, each in by_model.items():
            by_unit.setdefault(unit, {})[f"{task}: {label}"] = each
    return [
        comparisons_grid(
            f"Minus {first}, {UNITS.get(unit, 'in the score')}",
            rows,
            first_column="task: model",
            items="examples",
            scale=100 if unit == "share" else 1,
            digits=1 if unit in UNITS else 4,
        )
        for unit, rows in by_unit.items()
    ]


def others_grid(result: Result) -> Grid:
    """All further scores of all tasks."""
    rows = []
    for task, by_score in result["scores"].items():
        for score, by_model in by_score.items():
            if score != result["headlines"][task]:
                unit = next(iter(by_model.values()))["unit"]
                rows.append([f"{task}: {score_title(score, unit)}", *_cells(result, task, score)])
    return Grid("Further scores", ["score", *result["models"]], rows, notes=[INTERVALS])


def cut_grid(result: Result) -> Grid:
    """Prompts that were longer than the model reads."""
    return Grid(
        "Prompts that lost their beginning",
        ["model, task", "prompts"],
        [[name, str(count)] for name, count in result["cut"].items()],
        notes=["They are longer than the model reads. Fewer --shots or --max-new-tokens leave more room."],
    )


def _cells(result: Result, task: str, score: str) -> list[str]:
    return [_cell(result["scores"][task][score][label]) for label in result["models"]]


def _cell(found: Mapping[str, Any]) -> str:
    """`31.2 [29.0, 33.4]`."""
    figure = _figure(found["estimate"], found["unit"])
    if found["interval"] is None:
        return figure
    low, high = (_figure(end, found["unit"]) for end in found["interval"])
    return f"{figure} [{low}, {high}]"


def _figure(value: float, unit: str | None) -> str:
    return f"{100 * value:.1f}" if unit == "share" else f"{value:.1f}" if unit == "chrF" else f"{value:.4g}"


def score_title(score: str, unit: str | None) -> str:
    """A score in words: "exact_match, % (strict-match)"."""
    metric, _, chosen = score.partition(",")
    metric = {"chrf1": "chrF1", "chrf2": "chrF2"}.get(metric, metric) + (", %" if unit == "share" else "")
    return metric if chosen in ("", "none", "first_line", "code", "docstring") else f"{metric} ({chosen})"
