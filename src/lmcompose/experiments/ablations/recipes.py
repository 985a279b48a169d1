"""The recipe of one arm and one seed, which is the comparison's recipe but for what the arm changes."""

import json
from pathlib import Path
from typing import Any

import yaml

from lmcompose.errors import ConfigurationError
from lmcompose.experiments.ablations.arms import Arm, arm_named
from lmcompose.experiments.ablations.setting import Setting
from lmcompose.folders import atomic_folder, write_json_atomic, write_text_atomic
from lmcompose.loading import load_member
from lmcompose.places import located
from lmcompose.training.recipe import DataSource, TrainingRecipe

TRAINING = "training"
"""The folder of a run's results, beside its recipe."""


def arm_recipe(setting: Setting, name: str, seed: int, place: Path) -> TrainingRecipe:
    """The recipe of one arm and seed, with its paths made whole; nothing is written.

    Args:
        name: of an arm that is trained.
        place: the folder of the run, where models that replace others are.
    """
    recipe, base, arm = setting.recipe, setting.base, arm_named(name)
    values: dict[str, Any] = recipe.model_dump(exclude_unset=True, mode="json")
    values.pop("ablations", None)
    values |= {"seed": seed, "output": TRAINING, "augmenting": dict(setting.augmenting)}
    if setting.anchor is not None:
        values["anchor"] = setting.anchor
    if recipe.extends is not None:
        values["extends"] = located(recipe.extends, base, "extends")
    if arm.replace is not None:
        values["augmenting"] = {role: str((place / role).resolve()) for role in setting.augmenting}
    if name == "vanilla":
        values["augmenting"] |= setting.vanilla
    if arm.replace is not None or name == "vanilla":
        values["revisions"] = {
            role: value for role, value in recipe.revisions.items() if role not in setting.augmenting
        }
    if name == "encoder":
        values["reads"] = "prompt"
    if name in setting.options.learning_rates:
        values["training"]["learning_rate"] = setting.options.learning_rates[name]
    if name == "finetuned_domain":
        _on_domain_data(values, setting)
    for sources in (values["data"], (values.get("validation") or {}).get("data") or []):
        for source in sources:
            if source.get("path"):
                source["path"] = str((base / Path(source["path"]).expanduser()).resolve())
    return TrainingRecipe.model_validate(values)


def _on_domain_data(values: dict[str, Any], setting: Setting) -> None:
    sources: list[DataSource] = setting.options.domain_data or []
    values["data"] = [source.model_dump(exclude_unset=True, mode="json") for source in sources]
    training = values["training"]
    training.pop("steps", None)
    training["epochs"] = setting.options.domain_epochs
    if (values.get("validation") or {}).get("fraction"):  # what it holds out is of other data
        del values["validation"]
        for key in ("early_stopping", "eval_every"):
            training.pop(key, None)


def write_recipe(recipe: TrainingRecipe, place: Path) -> Path:
    """Write a recipe to its run's folder; returns its path."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "recipe.yaml"
    values = recipe.model_dump(exclude_unset=True, mode="json")
    write_text_atomic(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return path


def check_replaced(setting: Setting, name: str, seed: int, place: Path) -> None:
    """Refuse a model that was put in another's place earlier, where it was made from something else.

    Raises:
        ConfigurationError: naming the folder.
    """
    for role in setting.augmenting if arm_named(name).replace is not None else ():
        if (place / role).exists() and _read(_note(place, role)) != _made_from(setting, name, seed, role):
            raise ConfigurationError(
                f"{place / role} holds a model that another recipe put there. Give the comparison another folder of "
                f"runs (--runs), or delete {place}."
            )


def make_replaced(setting: Setting, name: str, seed: int, place: Path) -> None:
    """Make the models that an arm puts in place of the recipe's augmenting models, once, and keep them in `place`."""
    arm: Arm = arm_named(name)
    for role, source in setting.augmenting.items() if arm.replace is not None else ():
        if (place / role).exists():
            continue
        member = load_member(
            source,
            role="augmenting model",
            revision=setting.recipe.revisions.get(role),
            trust_remote_code=setting.recipe.trust_remote_code,
            use_safetensors=setting.recipe.use_safetensors,
        )
        assert arm.replace is not None
        model = arm.replace(member.model, seed)
        write_json_atomic(_note(place, role), _made_from(setting, name, seed, role))
        with atomic_folder(place / role) as new:
            model.save_pretrained(new)
            if member.tokenizer is not None:
                member.tokenizer.save_pretrained(new)


def _note(place: Path, role: str) -> Path:
    return place / f"{role}.json"


def _made_from(setting: Setting, name: str, seed: int, role: str) -> dict[str, Any]:
    revision = setting.recipe.revisions.get(role)
    return {"arm": name, "seed": seed, "source": setting.augmenting[role], "revision": revision}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
