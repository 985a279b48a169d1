"""What `lmcompose evaluate` found as a section: languages, tasks, gains and losses together."""

from collections.abc import Sequence
from typing import Any

from lmcompose.reporting.evaluation_tables import INTERVALS, cut_grid, others_grid, score_title
from lmcompose.reporting.report.charts import NO_DIFFERENCE, Block, Mark, Row, Rows, Section
from lmcompose.reporting.report.estimates import Estimate, from_score
from lmcompose.reporting.tables import Grid

Result = dict[str, Any]


def evaluation(result: Result) -> Section:
    """One chart for every task that there is in several languages, one for the others of each unit, and the tables."""
    labels = list(result["models"])
    in_families = [task for family in result["families"].values() for task in family["tasks"]]
    others = [task for task, score in result["headlines"].items() if task not in in_families and score]
    units = dict.fromkeys(_unit(result, task) for task in others)
    blocks: list[Block] = [
        *(_languages(result, name, family["tasks"]) for name, family in result["families"].items()),
        *(_tasks(result, [task for task in others if _unit(result, task) == unit]) for unit in units),
    ]
    if len(labels) > 1:
        blocks += [grid for name in result["families"] if (grid := _means(result, name)).rows]
        blocks.append(changes_grid(result))
    tasks = len(result["headlines"])
    settings = result.get("settings") or {}
    limit = settings.get("limit")
    return Section(
        f"{', '.join(labels)} on {_listed(result)}",
        blocks,
        headline=_headline(result) if len(labels) > 1 else f"{labels[0]}: {tasks} task{'s' if tasks > 1 else ''}.",
        caveat=f"Only the first {limit} examples of each task." if limit else "",
        more=[grid for grid in (others_grid(result), cut_grid(result)) if grid.rows],
    )


def changes_grid(result: Result) -> Grid:
    """What every other model gained and lost beside the first, all tasks in one table."""
    first, *others = result["models"]
    order = ("higher", "lower", NO_DIFFERENCE)
    rows: list[list[str]] = []
    for label in others:
        own = []
        for task in _scored(result):
            theirs, ours = _estimate(result, task, first), _estimate(result, task, label)
            texts = (each.text(_digits(result, task)) for each in (theirs, ours))
            own.append([_task(result, task), label, *texts, _said(result, task, label)])
        rows += sorted(own, key=lambda row: order.index(row[-1]))
    return Grid(
        f"Gains and losses beside {first}",
        ["task", "model", first, "model's score", ""],
        rows,
        notes=[
            f"higher, lower: {_rule(result)}; {NO_DIFFERENCE}: anything else. Higher is a gain, but of a perplexity or "
            "a loss."
        ],
    )


def _headline(result: Result) -> str:
    first, *others = result["models"]
    parts = []
    for label in others:
        said = [_said(result, task, label) for task in _scored(result)]
        parts.append(
            f"{label} beside {first}: higher on {said.count('higher')}, lower on {said.count('lower')}, "
            f"{NO_DIFFERENCE} on {said.count(NO_DIFFERENCE)} of {len(said)} tasks."
        )
    return " ".join(parts)


def _rule(result: Result) -> str:
    if "minus_first" in result:
        return (
            "example by example, the 95 % interval of the difference leaves out 0 and p, corrected for all pairs of "
            "task and model (Holm), is at most 0.05; where a task has no scores by example, the intervals do not meet"
        )
    return "the two 95 % intervals do not meet; a paired test of the examples would find smaller differences"


def _said(result: Result, task: str, label: str) -> str:
    """What may be said of a model beside the first: by the paired comparison where there is one."""
    compared = result.get("minus_first", {}).get(task, {}).get(label)
    if compared is not None:
        return NO_DIFFERENCE if compared["verdict"] == NO_DIFFERENCE else "higher" if compared["mean"] > 0 else "lower"
    ours, theirs = _estimate(result, task, label), _estimate(result, task, next(iter(result["models"])))
    if ours.has_interval and theirs.has_interval:
        if ours.ends[0] > theirs.ends[1]:
            return "higher"
        if ours.ends[1] < theirs.ends[0]:
            return "lower"
    return NO_DIFFERENCE


def _languages(result: Result, name: str, tasks: Sequence[str]) -> Rows:
    """One task by language, the best language of the first model on top."""
    first = next(iter(result["models"]))
    ordered = sorted(tasks, key=lambda task: _estimate(result, task, first).value, reverse=True)
    return Rows(
        f"{name}, by language",
        _axis(result, tasks[0]),
        [Row(task.removeprefix(f"{name}_"), _marks(result, task)) for task in ordered],
        first_column="language",
        notes=[INTERVALS],
    )


def _tasks(result: Result, tasks: Sequence[str]) -> Rows:
    """Tasks whose scores have one unit."""
    unit = _unit(result, tasks[0])
    scores = {result["headlines"][task] for task in tasks}
    axis = _axis(result, tasks[0]) if len(scores) == 1 else {"share": "score, %", None: "score"}.get(unit, str(unit))
    return Rows(
        "Tasks" if unit is not None else "Tasks with scores of their own",
        axis,
        [Row(task if len(scores) == 1 else _task(result, task), _marks(result, task)) for task in tasks],
        first_column="task",
        digits=_digits(result, tasks[0]),
        notes=[INTERVALS] if unit else [],
    )


def _means(result: Result, name: str) -> Grid:
    """The mean over languages, and in how many a model beats the first."""
    family, (first, *others) = result["families"][name], result["models"]
    factor = 100 if _unit(result, family["tasks"][0]) == "share" else 1
    count = len(family["tasks"])
    rows = [
        [
            label,
            f"{factor * family['mean'][label]:.1f}",
            f"{family['beats'][label]} of {count}" if label in others else "",
        ]
        for label in result["models"]
    ]
    return Grid(
        f"{name}, over all {count} languages",
        ["model", f"mean {_axis(result, family['tasks'][0])}", f"#(> {first})"],
        rows,
        notes=["The mean is over these languages and has no interval; those of the languages are above."],
    )


def _marks(result: Result, task: str) -> list[Mark]:
    return [Mark(_estimate(result, task, label), label) for label in result["models"]]


def _estimate(result: Result, task: str, label: str) -> Estimate:
    score = result["scores"][task][result["headlines"][task]][label]
    return from_score(score, 100 if score["unit"] == "share" else 1)


def _scored(result: Result) -> list[str]:
    return [task for task, score in result["headlines"].items() if score]


def _unit(result: Result, task: str) -> str | None:
    by_model = result["scores"][task][result["headlines"][task]]
    unit: str | None = next(iter(by_model.values()))["unit"]
    return unit


def _digits(result: Result, task: str) -> int:
    """What is a percentage or chrF has one place; of other scores nobody knows how large they are."""
    return 1 if _unit(result, task) else 4


def _axis(result: Result, task: str) -> str:
    return score_title(result["headlines"][task], _unit(result, task))


def _task(result: Result, task: str) -> str:
    return f"{task}: {_axis(result, task)}"


def _listed(result: Result) -> str:
    """The names of the tasks, those in several languages once."""
    inside = {task: name for name, family in result["families"].items() for task in family["tasks"]}
    names = list(dict.fromkeys(inside.get(task, task) for task in result["headlines"]))
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more tasks"
