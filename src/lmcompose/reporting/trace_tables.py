"""Traces, comparisons and sweeps as tables, for the terminal and for Markdown; see `tables.Grid`."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from lmcompose.errors import DataError, nearest
from lmcompose.reporting.tables import Grid

Result = dict[str, Any]


def trace_grids(result: Result) -> list[Grid]:
    """All tables of a trace, a comparison or a sweep, by its "what".

    Raises:
        DataError: the result is of another kind.
    """
    what = str(result.get("what"))
    if what not in _GRIDS:
        raise DataError(f"There is no table for a result of kind '{what}'.{nearest(what, _GRIDS)}")
    return [grid for build in _GRIDS[what] if (grid := build(result)).rows]


def tokens_grid(trace: Result) -> Grid:
    """Every token of a trace: everybody's probability, the shift, and what base and composition would have chosen."""
    base = trace["base"]
    roles = list(trace["members"])
    tuned = ["tuned"] if trace["tuned"] else []
    rows, strong = [], []
    for index, token in enumerate(trace["tokens"]):
        if token["base_choice"]["id"] != token["composition_choice"]["id"]:
            strong.append(index)
        rows.append(
            [
                quoted(token["text"]),
                *(f"{100 * token['members'][role]['probability']:.1f}" for role in roles),
                f"{100 * token['composition']['probability']:.1f}",
                *(f"{100 * token[name]['probability']:.1f}" for name in tuned),
                "ruled out" if token["shift"] is None else f"{token['shift']:+.2f}",
                quoted(token["base_choice"]["text"]),
                quoted(token["composition_choice"]["text"]),
            ]
        )
    summary = trace["summary"]
    return Grid(
        f"{summary['tokens']} tokens, {'generated' if trace['source'] == 'generated' else 'as given'}: probability, %",
        ["token", *roles, "composition", *tuned, "shift", f"{base} says", "composition says"],
        rows,
        notes=[
            f"shift: log-probability of the composition minus the {base}'s, in nats; the mean is "
            f"{_number(summary['shift'], '+.3f')}, and KL(composition || {base}) is {_number(summary['kl'], '.3f')}.",
            f"At {summary['changed']} of {summary['tokens']} tokens the composition's likeliest is not the {base}'s "
            "(bold).",
        ],
        strong=strong,
    )


def losses_grid(result: Result) -> Grid:
    """The loss and the accuracy of each model of a comparison on its texts."""
    rows = []
    for name, figure in _flat(result["losses"]):
        right = dict(_flat(result["accuracy"]))[name]
        low, high = right["interval"]
        accuracy = f"{100 * right['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        rows.append([name, with_interval(figure, ".3f"), accuracy])
    notes = [f"Brackets: 95 % intervals; {result['tokens']:,} tokens of {result['texts']:,} texts."]
    if result["gap_closed"]:
        closed = with_interval(result["gap_closed"], ".1f", 100)
        notes.append(f"Of the gap in loss between base and directly tuned, the composition closes {closed} %.")
    return Grid("Loss and accuracy", ["model", "nats per token", "likeliest is right, %"], rows, notes=notes)


def pairs_grid(result: Result) -> Grid:
    """How far every two models of a comparison are from each other."""
    rows = [
        [
            f"{named(pair['first'])} | {named(pair['second'])}",
            *(with_interval(pair[key], ".3f") for key in ("kl", "reverse_kl")),
            with_interval(pair["agreement"], ".1f", 100),
        ]
        for pair in result["pairs"]
    ]
    return Grid(
        "Do their predictions look alike?",
        ["first | second", "KL(first || second)", "KL(second || first)", "same likeliest token, %"],
        rows,
        notes=["KL in nats, averaged over the tokens."],
    )


def classes_grid(result: Result) -> Grid:
    """The first pair of a comparison by the class of the true token."""
    first = result["pairs"][0]
    rows = [
        [
            kind,
            f"{figures['kl']['tokens']:,}",
            *(with_interval(figures[key], ".3f") for key in ("kl", "reverse_kl")),
            with_interval(figures["agreement"], ".1f", 100),
        ]
        for kind, figures in first["classes"].items()
    ]
    return Grid(
        f"By class of token: {named(first['first'])} | {named(first['second'])}",
        ["class", "tokens", "KL(first || second)", "KL(second || first)", "same likeliest token, %"],
        rows,
        notes=[f"{kind}: {result['classes'][kind]}." for kind in first["classes"]],
    )


def sweep_grid(result: Result) -> Grid:
    """Every setting of a sweep; the best is bold."""
    best = result["best"]
    rows, strong = [], []
    for index, row in enumerate(result["results"]):
        if (row["value"], row["temperature"]) == (best["value"], best["temperature"]):
            strong.append(index)
        rows.append(
            [
                f"{row['value']:g}",
                f"{row['temperature']:g}",
                with_interval(row, ".3f"),
                "" if index in strong else with_interval(row["minus_best"], "+.3f"),
            ]
        )
    task = f", {result['task']}" if result.get("task") else ""
    return Grid(
        f"Sweep of {result['parameter']}{task}",
        [result["parameter"], "temperature", result["score"], "minus the best"],
        rows,
        notes=["Brackets: 95 % intervals; those of the differences are over the same items."],
        strong=strong,
    )


def quoted(text: str) -> str:
    """A token with its spaces and line ends for all to see."""
    return json.dumps(text, ensure_ascii=False)


def with_interval(figure: Result, form: str, factor: float = 1) -> str:
    """`0.512 [0.480, 0.544]`, from a figure with "mean" and "interval", multiplied by `factor`."""
    if figure["mean"] is None:
        return "infinite"
    text = format(factor * figure["mean"], form)
    if figure["interval"]:
        low, high = figure["interval"]
        text += f" [{format(factor * low, form)}, {format(factor * high, form)}]"
    return text


def _number(number: float | None, form: str) -> str:
    return "infinite" if number is None else f"{format(number, form)} nats"


def _flat(figures: Result) -> Sequence[tuple[str, Result]]:
    others = [(named(name), figure) for name, figure in figures.items() if name != "members"]
    return [*figures["members"].items(), *others]


def named(name: str) -> str:
    """The name of a model for a reader: members by their roles, the others by what they are."""
    return {"tuned": "directly tuned"}.get(name, name.removeprefix("members."))


_GRIDS: dict[str, list[Callable[[Result], Grid]]] = {
    "trace": [tokens_grid],
    "comparison": [losses_grid, pairs_grid, classes_grid],
    "sweep": [sweep_grid],
}
