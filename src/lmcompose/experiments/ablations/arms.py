"""The arms of a comparison: by what the augmenting models of a recipe are replaced, and the recipe of each arm."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.folders import atomic_folder, write_text_atomic
from lmcompose.loading import load_member
from lmcompose.places import located
from lmcompose.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        title: what its augmenting model is, in words.
        replace: (model, seed) -> the model that stands in its place; None leaves it as it is.
    """

    title: str
    replace: Callable[[PreTrainedModel, int], PreTrainedModel] | None = None


def fresh(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A model of the shape and dtype of `model`, as its architecture initialises it."""
    with torch.random.fork_rng(devices=[]):
        return _fresh(model, seed)


def shuffled(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A copy of `model` with the entries of each tensor in another order: their sizes stay, what they know goes."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        new = _fresh(model, seed)
        for parameter, original in zip(new.parameters(), model.parameters(), strict=True):
            order = torch.randperm(original.numel())
            parameter.copy_(original.flatten()[order].view_as(original))
    return new


def _fresh(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    new: torch.nn.Module = AutoModelForCausalLM.from_config(model.config)
    return cast(PreTrainedModel, new.to(model.dtype))


ARMS: dict[str, Arm] = {
    "composition": Arm("m_A as it is"),
    "random": Arm("m_A with fresh random weights", fresh),
    "shuffled": Arm("m_A with each tensor shuffled", shuffled),
}


def arm_named(name: str) -> Arm:
    """The arm `name`.

    Raises:
        ConfigurationError: there is none; the message names the nearest.
    """
    if name not in ARMS:
        raise ConfigurationError(f"There is no arm '{name}'; there are {', '.join(ARMS)}.{nearest(name, ARMS)}")
    return ARMS[name]


def write_recipe(recipe: TrainingRecipe, base: Path, arm: str, seed: int, folder: Path) -> Path:
    """Write the recipe of one arm and seed to `folder`, with its paths made whole; returns its path.

    The augmenting models that the arm puts in place of the recipe's are made here, once, and kept beside it.

    Args:
        base: the folder that the paths of `recipe` start from.
    """
    values: dict[str, Any] = recipe.model_dump(exclude_unset=True, mode="json")
    values |= {"seed": seed, "output": "training", "augmenting": {}}
    if recipe.anchor is not None:
        values["anchor"] = located(recipe.anchor, base, "anchor")
    if recipe.extends is not None:
        values["extends"] = located(recipe.extends, base, "extends")
    for name, source in recipe.augmenting_sources().items():
        place = located(source, base, name)
        values["augmenting"][name] = str(_replaced(place, arm_named(arm), seed, folder / name))
    for sources in (values["data"], (values.get("validation") or {}).get("data") or []):
        for source in sources:
            if source.get("path"):
                source["path"] = str((base / Path(source["path"]).expanduser()).resolve())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    write_text_atomic(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return path


def _replaced(source: str, arm: Arm, seed: int, folder: Path) -> str | Path:
    if arm.replace is None:
        return source
    if not folder.exists():
        member = load_member(source, role="augmenting model")
        model = arm.replace(member.model, seed)
        with atomic_folder(folder) as new:
            model.save_pretrained(new)
            if member.tokenizer is not None:
                member.tokenizer.save_pretrained(new)
    return folder.resolve()
