"""Differences between systems as a table: each with its intervals, its p-value and what may be said of it.

A row is what `evaluation.statistics.Comparison.to_json` wrote.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmcompose.reporting.tables import Grid

Result = dict[str, Any]

COLUMNS = ("difference", "over {items}", "over seeds", "p", "detectable", "")


def comparisons_grid(
    title: str,
    comparisons: Mapping[str, Result],
    *,
    first_column: str = "",
    items: str = "items",
    scale: float = 1.0,
    digits: int = 4,
) -> Grid:
    """One row for each of `comparisons`, by the name in its first column.

    Args:
        items: what the items are, for the head of the column: documents, questions, sentences.
        scale: what numbers are multiplied by before they are printed, such as 100 for percentage points.
        digits: after the point.
    """
    rows = [[name, *comparison_cells(each, scale=scale, digits=digits)] for name, each in comparisons.items()]
    columns = [first_column, *(column.format(items=items) for column in COLUMNS)]
    return Grid(title, columns, rows, notes=_notes(list(comparisons.values()), items))


def comparison_cells(comparison: Result, *, scale: float = 1.0, digits: int = 4) -> list[str]:
    """The cells under `COLUMNS`."""

    def ends(interval: Sequence[float] | None) -> str:
        return "[{:+.{d}f}, {:+.{d}f}]".format(*(scale * end for end in interval), d=digits) if interval else ""

    p = comparison["p"] if comparison["adjusted_p"] is None else comparison["adjusted_p"]
    mde = comparison["mde"]
    return [
        f"{scale * comparison['mean']:+.{digits}f}",
        ends(comparison["documents"]),
        ends(comparison["seeds"]),
        "< 0.001" if p < 0.001 else f"{p:.3f}",
        "" if mde is None else f"{scale * mde:.{digits}f}",
        verdict(comparison),
    ]


def verdict(comparison: Result) -> str:
    """What may be said of the difference: "better", "worse" or "no difference shown", as it was concluded."""
    return str(comparison["verdict"])


def _notes(comparisons: Sequence[Result], items: str) -> list[str]:
    if not comparisons:
        return []
    one = comparisons[0]
    percent, alpha = f"{100 * one['confidence']:g} %", f"{1 - one['confidence']:.2g}"
    tests = ", ".join(sorted({str(each["test"]) for each in comparisons}))
    corrected = f", adjusted: {one['correction']}" if one["correction"] else ""
    seeds = max(len(each["by_seed"]) for each in comparisons)
    return [
        f"Brackets: {percent} intervals, a paired bootstrap over {items}"
        + (f" and an interval over {seeds} seeds" if seeds > 1 else "; one seed says nothing about others")
        + f". p: over {items} ({tests}){corrected}.",
        f"A difference is called one where no bracket holds 0 and p is at most {alpha}. detectable: the smallest one "
        "that would be found four times in five.",
    ]
