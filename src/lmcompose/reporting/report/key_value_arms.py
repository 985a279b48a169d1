"""Key-value arithmetic by several arms as sections: the roads that the paper left open, and the ablations."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmcompose.reporting.paper import KV_TASKS
from lmcompose.reporting.report.charts import (
    NO_DIFFERENCE,
    ONE_SEED,
    Block,
    Costs,
    Curves,
    Line,
    Mark,
    Point,
    Row,
    Rows,
    Section,
)
from lmcompose.reporting.report.estimates import from_count, from_figure, seeds_of
from lmcompose.reporting.road_tables import differences_grid, road_title, seeds_grid
from lmcompose.reporting.tables import Grid, count, duration

Result = dict[str, Any]

TASK = "kv_math"
"""What arms are put in order by: what neither member can do."""


def roads(result: Result) -> Section:
    """Every road beside the default: all tasks, the differences on KV-MATH, and what each costs."""
    titles = {road: road_title(result, road) for road in result["results"]}
    return Section(
        f"Roads beside the paper's, {result['profile']} profile",
        [*_charts(result, titles, list(titles), next(iter(titles))), differences_grid(result)],
        headline=_headline(result, titles, "roads"),
        caveat=_caveat(result),
        more=[seeds_grid(result)],
    )


def ablations(result: Result) -> Section:
    """The ladder of arms, and a curve for every setting that was tried at several values, such as the keys held in."""
    titles = result["titles"]
    default = next(name for name in titles if name in result["seconds"])
    blocks: list[Block] = _charts(result, titles, result["ladder"], default)
    more: list[Grid] = []
    for sweep in result["curves"].values():
        points = [(value, name) for value, name in sweep["points"] if isinstance(value, int | float)]
        lines = [
            Line(task, [(float(value), from_count(result["results"][name][key])) for value, name in points])
            for key, task in KV_TASKS.items()
        ]
        blocks.append(Curves(f"By {sweep['title']}", sweep["title"], "exact match, %", lines))
        words = [(str(value), name) for value, name in sweep["points"] if not isinstance(value, int | float)]
        if words:
            rows = [
                [value, *(from_count(result["results"][name][key]).text() for key in KV_TASKS)] for value, name in words
            ]
            more.append(Grid(f"{sweep['title']}, beyond the curve, %", [sweep["title"], *KV_TASKS.values()], rows))
    return Section(
        f"Key-value ablations, {result['profile']} profile",
        blocks,
        headline=_headline(result, titles, "arms"),
        caveat=_caveat(result),
        more=more,
    )


def _charts(result: Result, titles: Mapping[str, str], names: Sequence[str], default: str) -> list[Block]:
    """All tasks, the default first and then the best; the differences from it; and what was trained, and how long."""
    results, differences = result["results"], result["differences"]
    others = sorted((name for name in names if name != default), key=lambda name: -results[name][TASK]["accuracy"])
    ordered = [default, *others]
    tasks = Rows(
        "Exact match of every arm",
        "exact match, %",
        [
            Row(
                titles[name],
                [Mark(from_count(results[name][task]), title) for task, title in KV_TASKS.items()],
                strong=name == default,
            )
            for name in ordered
        ],
        first_column="arm",
        bars=False,
        notes=["Whiskers: 95 % Wilson intervals. The default is first, then the best on KV-MATH."],
    )
    minus = Rows(
        f"KV-MATH minus the default ({titles[default]})",
        "percentage points; above 0 the arm is better",
        [Row(titles[name], [_difference(differences[name][TASK])]) for name in others],
        first_column="arm",
        bars=False,
        differences=True,
        notes=["Whiskers: 95 % paired bootstrap intervals over the test expressions, for these seeds."],
    )
    trained = [name for name in ordered if name in result["seconds"]]
    seconds = {name: sum(result["seconds"][name]) / len(result["seconds"][name]) for name in trained}
    parameters = {name: result["parameters"][name] for name in trained}
    quality = {name: from_count(results[name][TASK]) for name in trained}
    return [
        tasks,
        minus,
        Costs(
            "Trained parameters against quality",
            "trained parameters, thousands",
            "KV-MATH, %",
            [Point(titles[n], parameters[n] / 1000, count(parameters[n]), quality[n]) for n in trained],
            log=True,
        ),
        Costs(
            "Time of training against quality",
            "minutes of training, mean over seeds",
            "KV-MATH, %",
            [Point(titles[n], seconds[n] / 60, duration(seconds[n]), quality[n]) for n in trained],
        ),
    ]


def _headline(result: Result, titles: Mapping[str, str], what: str) -> str:
    said = {titles[name]: _said(found[TASK]) for name, found in result["differences"].items()}
    better = [title for title, word in said.items() if word == "better"]
    worse = sum(word == "worse" for word in said.values())
    named = f" ({', '.join(better)})" if better else ""
    return (
        f"On KV-MATH {len(better)} of {len(said)} {what} are better than the default{named} and {worse} worse; for the "
        f"other {len(said) - len(better) - worse} there is {NO_DIFFERENCE}."
    )


def _difference(found: Result) -> Mark:
    return Mark(from_figure(found, 100), by_seed=seeds_of(found, 100), said=_said(found))


def _said(found: Result) -> str:
    """As it was concluded; or of a result without conclusions, by the interval: higher is better."""
    if found.get("verdict"):
        return str(found["verdict"])
    estimate = from_figure(found)
    return NO_DIFFERENCE if estimate.holds_zero else "better" if estimate.value > 0 else "worse"


def _caveat(result: Result) -> str:
    return ONE_SEED if len(result["seeds"]) == 1 else ""
