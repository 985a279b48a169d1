"""Sweeps, comparisons of models, and traces as sections."""

import math
from typing import Any

from lmcompose.reporting.report.charts import Block, Curves, Line, Mark, Row, Rows, Section
from lmcompose.reporting.report.estimates import from_mean
from lmcompose.reporting.trace_tables import classes_grid, named, pairs_grid, sweep_grid, tokens_grid, with_interval

Result = dict[str, Any]


def sweep(result: Result) -> Section:
    """One parameter of a formula over its values, a curve for each temperature; or the other way round."""
    rows, parameter = result["results"], result["parameter"]
    by_value = len({row["value"] for row in rows}) > 1
    axis, other, fixed_name = (
        ("value", "temperature", "temperature") if by_value else ("temperature", "value", parameter)
    )
    lines = [
        Line(
            f"{fixed_name} {fixed:g}",
            sorted(
                ((float(row[axis]), from_mean(row)) for row in rows if row[other] == fixed), key=lambda each: each[0]
            ),
        )
        for fixed in dict.fromkeys(row[other] for row in rows)
    ]
    x_label = parameter if by_value else "temperature"
    best = result["best"]
    task = f", {result['task']}" if result.get("task") else ""
    better = "Higher" if result["better"] == "higher" else "Lower"
    found = next(row for row in rows if (row["value"], row["temperature"]) == (best["value"], best["temperature"]))
    return Section(
        f"Sweep of {x_label}{task}",
        [
            Curves(f"{result['score']} by {x_label}", x_label, str(result["score"]), lines, digits=3,
                   notes=[f"{better} is better."]),
            sweep_grid(result),
        ],
        headline=f"Best at {parameter} {best['value']:g}, temperature {best['temperature']:g}: {result['score']} "
        f"{with_interval(found, '.3f')}. It was chosen on these same items.",
    )  # fmt: skip


def comparison(result: Result) -> Section:
    """Loss and accuracy of several models on the same texts, and how alike they are."""
    losses = {**result["losses"]["members"], **{k: v for k, v in result["losses"].items() if k != "members"}}
    right = {**result["accuracy"]["members"], **{k: v for k, v in result["accuracy"].items() if k != "members"}}
    size = f"{result['tokens']:,} tokens of {result['texts']:,} texts."
    loss = Rows(
        "Loss, the best first",
        "nats per token",
        [Row(named(name), [Mark(from_mean(losses[name]))], name == "composition") for name in _ordered(losses)],
        first_column="model",
        digits=3,
        bars=False,
        notes=[f"Whiskers: 95 % intervals. {size}"],
    )
    accuracy = Rows(
        "The likeliest token is the right one",
        "tokens, %",
        [
            Row(
                named(name),
                [Mark(from_mean({"mean": right[name]["accuracy"], "interval": right[name]["interval"]}, 100))],
                name == "composition",
            )
            for name in _ordered(losses)
        ],
        first_column="model",
        notes=[f"Whiskers: 95 % intervals. {size}"],
    )
    closed = result.get("gap_closed")
    blocks: list[Block] = [loss, accuracy, pairs_grid(result)]
    return Section(
        f"Comparison with {result['base']}",
        [*blocks, *([classes_grid(result)] if result["pairs"] else [])],
        headline=f"Of the gap in loss between base and directly tuned, the composition closes "
        f"{with_interval(closed, '.1f', 100)} %."
        if closed
        else "",
    )


def trace(result: Result) -> Section:
    """What a composition did with one prompt, token by token."""
    summary = result["summary"]
    return Section(
        f"Trace of {result['prompt'][:40]!r}",
        [tokens_grid(result)],
        headline=f"At {summary['changed']} of {summary['tokens']} tokens the composition would choose another token "
        f"than the {result['base']}.",
        caveat="One text, without intervals. `lmcompose trace --page` draws it with every token's numbers.",
    )


def _ordered(figures: Result) -> list[str]:
    return sorted(figures, key=lambda name: math.inf if figures[name]["mean"] is None else figures[name]["mean"])
