"""A recipe against the same with other augmenting models, and against other ways to spend as much.

As tables for the terminal and for Markdown. A result that was written before there were more arms than compositions has
fewer tables.
"""

from collections.abc import Sequence
from typing import Any

from lmcompose.reporting.comparison_tables import comparisons_grid, verdict
from lmcompose.reporting.tables import Grid, count, duration

Result = dict[str, Any]


def ablation_grids(result: Result) -> list[Grid]:
    """All tables of the comparison."""
    ladder = [ladder_grid(result)] if "gains" in result["per_byte"] else []
    lost = [differences_grid(result, name) for name in result.get("forgetting", {})]
    by_source = [by_source_grid(result)] if result.get("by_source") else []
    return [*ladder, losses_grid(result), *by_source, differences_grid(result), *lost, work_grid(result)]


def ablation_markdown(result: Result) -> str:
    """All tables and the command."""
    return "\n".join([*(grid.to_markdown() for grid in ablation_grids(result)), f"Made by `{result['command']}`.\n"])


def titles(result: Result) -> dict[str, str]:
    """The names of the rows."""
    alone = {
        name: f"{name.removeprefix('alone ')} by itself"
        for name in result["per_byte"]["arms"]
        if name.startswith("alone ")
    }
    families = result.get("families", {})
    return {
        "anchor": "the anchor by itself",
        **{
            name: f"composition, {title}" if families.get(name, "composition") == "composition" else title
            for name, title in result["arms"].items()
        },
        **alone,
    }


def ladder_grid(result: Result) -> Grid:
    """Everything in one table, in the manner of the CALM paper's Table 5: each arm, what it gains and what it loses.

    Gains are on what the recipe holds out, losses on what the anchor could do before; both are differences from the
    anchor by itself, and one that its intervals do not show is said not to be shown.
    """
    names, sets = titles(result), result.get("forgetting", {})
    rows = []
    for name in _in_order(result):
        figures = [_beside_the_anchor(each["per_byte"], name) for each in (result, *sets.values())]
        work = result["work"].get(name)
        rows.append(
            [
                names[name],
                f"{result['per_byte']['arms'][name]['mean']:.4f}",
                *figures,
                count(work["parameters"]) if work else "nothing",
                _shared(work["tokens"]) if work else "",
            ]
        )
    refused = result["refused"]
    rows += [[title, "not run", *[""] * (len(sets) + 3)] for title in refused]
    return Grid(
        f"Gains and losses, {result['recipe_name']}, bits per byte",
        ["", "held out", "minus the anchor", *(f"{name}, minus the anchor" for name in sets), "trained", "tokens seen"],
        rows,
        notes=[
            "Below 0: better than the anchor by itself. Numbers that two intervals and a corrected p-value do not bear "
            "out are called no difference shown.",
            *(f"{title} was not run: {why}" for title, why in refused.items()),
        ],
        strong=[_in_order(result).index(next(iter(result["arms"])))],
    )


def _in_order(result: Result) -> list[str]:
    """The anchor, the arms as they were asked for, and the models alone."""
    scored = list(result["per_byte"]["arms"])
    alone = [name for name in scored if name not in result["arms"] and name != "anchor"]
    return ["anchor", *result["arms"], *alone]


def _beside_the_anchor(per_byte: Result, name: str) -> str:
    if name not in per_byte["gains"]:
        return "" if name == "anchor" else "cannot be scored"
    gain = per_byte["gains"][name]
    return f"{gain['mean']:+.4f}, {verdict(gain)}"


def _shared(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in dict.fromkeys(values))


def losses_grid(result: Result) -> Grid:
    """The held-out losses."""
    names, per_byte, per_token = titles(result), result["per_byte"]["arms"], result["per_token"]["arms"]
    untrained = {name for name, family in result.get("families", {}).items() if family == "untrained"}
    order = _in_order(result)
    rows = [
        [
            names[name],
            f"{per_byte[name]['mean']:.4f}",
            ", ".join(f"{estimate:.4f}" for estimate, *_ in per_byte[name]["by_seed"])
            if name in result["arms"] and name not in untrained
            else "",
            f"{per_token[name]['mean']:.4f}",
        ]
        for name in order
    ]
    held = result["held_out"]
    return Grid(
        f"Held-out loss, {result['recipe_name']}",
        ["model", "bits per byte", "by seed", "bits per token of the anchor"],
        rows,
        notes=[f"{held['documents']} held-out documents, {held['tokens']:,} tokens, {held['bytes']:,} bytes."],
        strong=[order.index(next(iter(result["arms"])))],
    )


def by_source_grid(result: Result) -> Grid:
    """The held-out losses of each source by itself, such as each language, and how far they are from the anchor's."""
    names, parts = titles(result), result["by_source"]
    rows = []
    for name in _in_order(result):
        row = [names[name]]
        for part in parts.values():
            row += [f"{part['per_byte']['arms'][name]['mean']:.4f}", _beside_the_anchor(part["per_byte"], name)]
        rows.append(row)
    return Grid(
        f"Held-out loss by source, {result['recipe_name']}, bits per byte",
        ["model", *(column for part in parts for column in (part, "minus the anchor"))],
        rows,
        notes=[f"{name}: {part['held_out']['documents']:,} documents." for name, part in parts.items()],
        strong=[_in_order(result).index(next(iter(result["arms"])))],
    )


def differences_grid(result: Result, forgotten: str | None = None) -> Grid:
    """How far the first arm is below the others, on what the recipe holds out or on what the anchor could do before."""
    names = titles(result)
    first = next(iter(result["arms"]))
    who = "The composition" if first == "composition" else names[first]
    where = "" if forgotten is None else f", on {forgotten}"
    figures = result if forgotten is None else result["forgetting"][forgotten]
    minus = figures["per_byte"]["minus"]
    return comparisons_grid(
        f"{who} minus the others{where}, bits per byte (below 0: {who[0].lower()}{who[1:]} is better)",
        {names[name]: minus[name] for name in _in_order(result) if name in minus},
        first_column="minus",
        items="documents",
    )


def work_grid(result: Result) -> Grid:
    """What was trained, on what, and for how long."""
    notes = [f"{result['machine']['threads']} thread(s)."]
    if "work" in result:
        return _work_by_arm(result, notes)
    trained = result["trained"]
    tokens = sum(source["tokens"] for source in trained["data"])
    training = result["recipe"]["training"]
    seen = trained["steps"] * training.get("batch_size", 8) * training.get("max_length", 512)
    rows = [
        ["trained parameters", count(trained["parameters"])],
        ["optimizer steps", f"{trained['steps']:,}"],
        ["tokens of data, held-out ones too", f"{tokens:,}"],
        ["tokens in training, at most", f"{seen:,}"],
        *([f"training, {title}", _durations(trained["seconds"][name])] for name, title in result["arms"].items()),
    ]
    return Grid("The work", ["what", "how much"], rows, notes=notes)


def _work_by_arm(result: Result, notes: list[str]) -> Grid:
    names = titles(result)
    rows = [
        [
            names[name],
            count(work["parameters"]),
            _shared(work["steps"]),
            _shared(work["tokens"]),
            _durations(work["seconds"]),
        ]
        for name, work in result["work"].items()
    ]
    resumed = [names[name] for name, work in result["work"].items() if any(step for step in work["resumed"])]
    if resumed:
        notes = [*notes, f"Went on from a checkpoint, and is timed from there: {', '.join(resumed)}."]
    columns = ["", "trained parameters", "optimizer steps", "tokens seen", "training, by seed"]
    return Grid("The work", columns, rows, notes=notes)


def _durations(seconds: Sequence[float]) -> str:
    return ", ".join(map(duration, seconds))
