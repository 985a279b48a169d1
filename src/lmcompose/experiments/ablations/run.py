"""The whole comparison: every arm trained with every seed on the same data, and scored on the same held-out documents.

Before training a composition is its anchor, so the anchor is where every arm begins. That a composition ends below it
proves little, since any trained parameters do; the difference from the arms whose augmenting model knows nothing is
what the real one is worth. Runs are kept on disk, in the form of `lmcompose train`, and go on where they were stopped.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from lmcompose.calm.config import ANCHOR
from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import Documents, adjusted, compare, figure
from lmcompose.experiments.ablations.arms import arm_named, write_recipe
from lmcompose.experiments.ablations.held_out import bits, in_tokens_of, lengths
from lmcompose.experiments.stages import Report, Stages, stamp_of
from lmcompose.kinds import load
from lmcompose.loading import load_member
from lmcompose.recipe import read_recipe
from lmcompose.training.data import held_out_documents
from lmcompose.training.models import RecipeModels
from lmcompose.training.recipe import TrainingRecipe
from lmcompose.training.run import train

ANCHOR_ALONE, ALONE = "anchor", "alone "
"""The names of what is not trained: the anchor, and before its own name, each augmenting model by itself."""


def run(
    recipe: str | Path,
    *,
    arms: Sequence[str] = ("composition", "random"),
    seeds: Sequence[int] = (0, 1, 2),
    folder: str | Path = "runs/ablations",
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and score every arm; returns a result that is ready for JSON and `reporting.ablation_tables`.

    Args:
        recipe: what `lmcompose train` takes, with a `validation` section.
        arms: names of `arms.ARMS`; the first is compared with each of the others.
        seeds: of the composition parameters, the order of the data and the replaced models.
        folder: of the runs; what is there already and was made by the same recipe is taken from there.

    Raises:
        ConfigurationError: an unknown arm, or none.
        RecipeError, MemberError, DataError: as in `training.run.train`, before anything is trained.
    """
    path, console = Path(recipe), console or Console(stderr=True, highlight=False)
    if not arms or not seeds:
        raise ConfigurationError("Give at least one arm and one seed.")
    titles = {name: arm_named(name).title for name in arms}
    written = read_recipe(path, TrainingRecipe)
    recipe_said = written.model_dump(exclude_defaults=True)  # what later versions add is not in it
    base = path.resolve().parent
    models = RecipeModels.located(written, base)
    tokenizer = models.tokenizer()
    documents = held_out_documents(written, tokenizer, base)
    stages = Stages(Path(folder), console)
    scored: dict[str, list[list[float]]] = {name: [] for name in (ANCHOR_ALONE, *arms)}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for seed in seeds:
        for name in arms:
            place = stages.folder / name / f"seed-{seed}"
            runs[name].append(_trained(write_recipe(written, base, name, seed, place), console))
            stamp = stamp_of(recipe_said, name, seed, runs[name][-1]["results"]["data"])
            if name == arms[0] and seed == seeds[0]:
                before = _scored(stages, place, documents, "the anchor alone", stamp, alone=True)
            scored[name].append(_scored(stages, place, documents, f"{titles[name]}, seed {seed}", stamp))
        scored[ANCHOR_ALONE].append(before)
    for name, source in models.sources.items():
        if name != ANCHOR:
            alone = _alone(stages, name, source, documents, tokenizer, stamp_of(recipe_said, name))
            scored[f"{ALONE}{name}"] = [alone] * len(seeds)
    sizes = lengths(documents, tokenizer)
    first = runs[arms[0]][0]["results"]
    return {
        "what": "ablations",
        **run_record(recipe_said, command=command),
        "recipe_name": path.name,
        "seeds": list(seeds),
        "arms": titles,
        "held_out": {"documents": len(documents), **{unit: sum(each) for unit, each in sizes.items()}},
        "trained": {
            "steps": first["steps"],
            "parameters": first["trained_parameters"],
            "data": [{**each, "source": Path(each["source"]).name} for each in first["data"]],
            "seconds": {name: [each["results"]["seconds"] for each in runs[name]] for name in arms},
        },
        **compared(scored, sizes, arms),
        "stages": stages.seconds,
    }


def _trained(recipe: Path, console: Console) -> dict[str, Any]:
    """What `train` says of the recipe; it is run, or goes on, where it was not finished before."""
    output = recipe.parent / "training"
    if (output / "result.json").exists():
        console.print(f"[dim]{output}: taken as it is[/dim]")
        return dict(json.loads((output / "result.json").read_text(encoding="utf-8")))
    begun = any((output / "checkpoints").glob("checkpoint-*"))
    return train(recipe, resume=begun, say=console.print, command=f"lmcompose train {recipe.name}")


def _scored(stages: Stages, place: Path, documents: Any, label: str, stamp: str, alone: bool = False) -> list[float]:
    def make(report: Report) -> list[float]:
        model = load(place / "training" / "model")
        with model.disable() if alone else nullcontext():
            return bits(model, documents, report=report)

    name = "anchor" if alone else "scores"
    relative = place.relative_to(stages.folder) / name
    return list(stages.kept(str(relative), f"held-out documents: {label}", stamp, make))


def _alone(
    stages: Stages, name: str, source: str, documents: Any, tokenizer: PreTrainedTokenizerBase, stamp: str
) -> list[float]:
    """Bits by document of an augmenting model by itself, in tokens of its own."""

    def make(report: Report) -> list[float]:
        member = load_member(source, role=name)
        own = member.tokenizer or tokenizer
        return bits(member.model, in_tokens_of(own, documents, tokenizer), report=report)

    return list(stages.kept(f"alone-{name}", f"held-out documents: {name} by itself", stamp, make))


def compared(
    scored: Mapping[str, Sequence[Sequence[float]]], sizes: Mapping[str, Sequence[int]], arms: Sequence[str]
) -> dict[str, Any]:
    """The figures of every arm and the differences of the first from all others, in bits per byte and per token.

    Args:
        scored: arm -> for each seed, bits by document; the models alone are among them. Bits per token are all per
            token of the anchor.
        sizes: "bytes" and "tokens" by document.

    Returns:
        `per_byte` and `per_token`: `arms`, name -> `statistics.figure`; and `minus`, name -> the first arm minus that
        one, a `statistics.Comparison`, its p-value corrected for the number of arms (Holm).
    """
    result: dict[str, Any] = {}
    for unit in ("bytes", "tokens"):
        weights = Documents(sizes[unit])
        losses = {name: np.stack([weights.per_token(seed) for seed in by_seed]) for name, by_seed in scored.items()}
        minus = {
            name: compare(scored[arms[0]], by_seed, weights=sizes[unit], better="lower")
            for name, by_seed in scored.items()
            if name != arms[0]
        }
        result[f"per_{unit.removesuffix('s')}"] = {
            "arms": {name: figure(values) for name, values in losses.items()},
            "minus": {name: each.to_json() for name, each in adjusted(minus).items()},
        }
    return result
