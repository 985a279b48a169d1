"""The proxy-tuned translator as tables, for the terminal and for Markdown; see `tables.Grid`."""

from collections.abc import Sequence
from typing import Any

from lmcompose.reporting.proxy_tables import MODELS, alike_grid, alphas_grid, losses_grid, temperatures_grid
from lmcompose.reporting.tables import Grid, count, duration

Result = dict[str, Any]


def translation_grids(result: Result) -> list[Grid]:
    """All tables of the experiment."""
    tasks = {result["language"]: result}
    return [
        losses_grid(result, "bits per character"),
        chrf_grid(result),
        alike_grid(tasks),
        alphas_grid(tasks),
        temperatures_grid(result),
        members_grid(result),
        stages_grid(result),
    ]


def translation_markdown(result: Result) -> str:
    """All tables, some sentences as every model translates them, and the command."""
    parts = [grid.to_markdown() for grid in translation_grids(result)]
    parts += [sample(each) for each in result["samples"]]
    return "\n".join([*parts, f"Made by `{result['command']}`.\n"])


def chrf_grid(result: Result) -> Grid:
    """How good the translations are that every model writes."""
    measured, closed = result["chrf"]["models"], result["chrf"]["gap_closed"]
    rows = [
        [
            MODELS[name],
            interval(each["chrf1"]),
            interval(each["chrf2"]),
            interval([100 * share for share in closed[name]]) if closed.get(name) else "",
            f"{100 * each['empty']:.0f}",
        ]
        for name, each in measured.items()
    ]
    return Grid(
        f"chrF, {result['title']}",
        ["model", "chrF1", "chrF2", "gap closed, %", "empty, %"],
        rows,
        notes=[
            "Greedy decoding, first line. Brackets: 95 % bootstrap intervals over the sentences. gap closed: in chrF1; "
            "empty: answers without a word."
        ],
        strong=[list(measured).index("proxy")],
    )


def members_grid(result: Result) -> Grid:
    """The models, and what was tuned."""
    rows = [[role, result["members"][role], count(result["parameters"][role])] for role in ("base", "small")]
    rows += [
        [f"LoRA, {name}", f"{each['tokens']:,} tokens of answers", count(each["trained"])]
        for name, each in result["adapters"].items()
    ]
    return Grid("The models", ["model", "what", "parameters"], rows)


def stages_grid(result: Result) -> Grid:
    """The processor time of every stage."""
    rows = [[stage["name"], duration(stage["seconds"])] for stage in result["stages"]]
    return Grid("Processor time", ["stage", "time"], rows)


def sample(texts: Result) -> str:
    """One sentence as every model translates it: Markdown."""
    lines = [f"> {texts['english']}", "", "| model | translation |", "| --- | --- |"]
    named = {"reference": "(reference)", **MODELS}
    lines += [f"| {named[name]} | {text.replace('|', ' ')} |" for name, text in texts.items() if name in named]
    return "\n".join([*lines, ""])


def interval(values: Sequence[float]) -> str:
    """`31.2 [29.0, 33.4]`, an estimate and its interval."""
    estimate, low, high = values
    return f"{estimate:.1f} [{low:.1f}, {high:.1f}]"
