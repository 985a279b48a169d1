"""A recipe against the same with other augmenting models, as tables for the terminal and for Markdown."""

from collections.abc import Sequence
from typing import Any

from lmcompose.reporting.comparison_tables import comparisons_grid
from lmcompose.reporting.tables import Grid, count, duration

Result = dict[str, Any]


def ablation_grids(result: Result) -> list[Grid]:
    """All tables of the comparison."""
    return [losses_grid(result), differences_grid(result), work_grid(result)]


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
    return {
        "anchor": "the anchor by itself",
        **{name: f"composition, {title}" for name, title in result["arms"].items()},
        **alone,
    }


def losses_grid(result: Result) -> Grid:
    """The held-out losses."""
    names, per_byte, per_token = titles(result), result["per_byte"]["arms"], result["per_token"]["arms"]
    rows = [
        [
            names[name],
            f"{each['mean']:.4f}",
            ", ".join(f"{estimate:.4f}" for estimate, *_ in each["by_seed"]) if name in result["arms"] else "",
            f"{per_token[name]['mean']:.4f}",
        ]
        for name, each in per_byte.items()
    ]
    held = result["held_out"]
    return Grid(
        f"Held-out loss, {result['recipe_name']}",
        ["model", "bits per byte", "by seed", "bits per token of the anchor"],
        rows,
        notes=[f"{held['documents']} held-out documents, {held['tokens']:,} tokens, {held['bytes']:,} bytes."],
        strong=[list(per_byte).index(next(iter(result["arms"])))],
    )


def differences_grid(result: Result) -> Grid:
    """How far the composition is below the others."""
    names = titles(result)
    return comparisons_grid(
        "The composition minus the others, bits per byte (below 0: the composition is better)",
        {names[name]: each for name, each in result["per_byte"]["minus"].items()},
        first_column="minus",
        items="documents",
    )


def work_grid(result: Result) -> Grid:
    """What was trained, on what, and for how long."""
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
    return Grid("The work", ["what", "how much"], rows, notes=[f"{result['machine']['threads']} thread(s)."])


def _durations(seconds: Sequence[float]) -> str:
    return ", ".join(map(duration, seconds))
