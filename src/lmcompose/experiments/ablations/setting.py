"""What all arms of a comparison are made of: the recipe, what it is compared with, its models and its held-out data.

Configurations, tokenizers and data are read here, and no weight.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lmcompose.calm.config import ANCHOR
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.loading import Member, load_member
from lmcompose.places import located
from lmcompose.training.data import encode_source, held_out_by_source
from lmcompose.training.encoding import Example
from lmcompose.training.models import RecipeModels
from lmcompose.training.recipe import Ablations, DataSource, TrainingRecipe

HELD_OUT = "held out"
"""The name of what the recipe validates on, among the sets that arms are scored on."""


@dataclass(frozen=True)
class Setting:
    """One comparison.

    Attributes:
        recipe: whose held-out documents are the same for every seed.
        base: the folder that its paths start from.
        options: what it is compared with.
        models: of the recipe.
        vanilla: augmenting name -> what that model was before its domain training; empty where it was not said.
    """

    recipe: TrainingRecipe
    base: Path
    options: Ablations
    models: RecipeModels
    vanilla: dict[str, str]

    @classmethod
    def located(cls, recipe: TrainingRecipe, base: Path, options: Ablations | None = None) -> "Setting":
        """Look for all models.

        Args:
            options: in place of the recipe's own.

        Raises:
            RecipeError: what is written as a path is no model.
            ConfigurationError: a vanilla model for something that is no augmenting model, or early stopping, which
                would choose what is trained by the documents that it is scored on.
        """
        if recipe.training.early_stopping is not None:
            raise ConfigurationError(
                "training: early_stopping chooses a checkpoint by the held-out documents, and the arms are scored on "
                "them: what is trained would be ahead of what is not. Leave it out of the recipe, and say how many "
                "steps there are."
            )
        recipe = _same_held_out(recipe)
        options = options or recipe.ablations or Ablations.model_validate({})
        models = RecipeModels.located(recipe, base)
        names = list(recipe.augmenting_sources())
        return cls(recipe, base, options, models, _vanilla(options.vanilla, names, base))

    @property
    def anchor(self) -> str | None:
        """Where the anchor is; None where the recipe extends a saved composition."""
        return self.models.sources.get(ANCHOR)

    @property
    def augmenting(self) -> dict[str, str]:
        """Name -> place of the augmenting models that the recipe trains bridges to."""
        return {role: source for role, source in self.models.sources.items() if role != ANCHOR}

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The anchor's. Raises DataError where there is none."""
        return self.models.tokenizer()

    @property
    def weight(self) -> float:
        """The share of all augmenting models together in an ensemble or an average."""
        count = len(self.augmenting)
        return self.options.weight if self.options.weight is not None else count / (count + 1)

    def words(self) -> dict[str, float]:
        """The settings that titles of arms name."""
        return {"weight": self.weight, "scale": self.options.scale, "alpha": self.options.alpha}

    def held_out_sources(self) -> list[DataSource]:
        """Where the held-out documents come from."""
        validation = self.recipe.validation
        return list(validation.data) if validation is not None and validation.data else list(self.recipe.data)

    @cached_property
    def held_out(self) -> dict[str, list[list[Example]]]:
        """The held-out documents by the name of the source that they are of, such as one for each language."""
        found: dict[str, list[list[Example]]] = {}
        for source, documents in held_out_by_source(self.recipe, self.tokenizer, self.base):
            found[_named(source, found)] = documents
        return found

    @cached_property
    def forgetting(self) -> dict[str, DataSource]:
        """Name -> source of what the anchor could do before."""
        found: dict[str, DataSource] = {}
        for source in self.options.forgetting or []:
            found[_named(source, found)] = source
        return found

    def documents(self) -> dict[str, list[list[Example]]]:
        """The documents of every set, in tokens of the anchor: `HELD_OUT` first, then those of `forgetting`.

        Raises:
            DataError: as in `held_out_by_source`.
        """
        length = self.recipe.training.max_length
        sets = {HELD_OUT: [each for documents in self.held_out.values() for each in documents]}
        for name, source in self.forgetting.items():
            sets[name] = [each for each in encode_source(source, self.tokenizer, self.base, length) if each]
        return sets

    def shown(self, value: Any) -> Any:
        """`value` with models and files by their names alone, for a result: folders are those of one machine."""
        if isinstance(value, dict):
            return {key: self.shown(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.shown(each) for each in value]
        if not isinstance(value, str):
            return value
        sources = [*(self.options.domain_data or []), *(self.options.forgetting or [])]
        places = [*self.models.sources.values(), *self.vanilla.values(), *(source.path or "" for source in sources)]
        for place in sorted(filter(os.path.isabs, places), key=len, reverse=True):
            value = value.replace(place, Path(place).name)
        return value

    def loading(self, roles: Mapping[str, str]) -> dict[str, Any]:
        """The recipe's options of loading the models at `roles`, by role, as `combine` takes them."""
        recipe = self.recipe
        return {
            "dtype": None if recipe.dtype == "auto" else getattr(torch, recipe.dtype),
            "revisions": {role: value for role, value in recipe.revisions.items() if role in roles},
            "trust_remote_code": recipe.trust_remote_code,
            "quantization": {k: v for k, v in (recipe.quantizations() or {}).items() if k in roles} or None,
            "use_safetensors": recipe.use_safetensors,
        }

    def member(self, role: str, source: str | None = None) -> Member:
        """Load a model by itself as the composition has it.

        source: in place of the one that the recipe names.
        """
        options = self.loading({role: ""})
        revisions, quantization = options.pop("revisions"), options.pop("quantization") or {}
        named = source is None
        return load_member(
            self.models.sources[role] if source is None else source,
            role=role,
            revision=revisions.get(role) if named else None,
            quantization=quantization.get(role) if named else None,
            **options,
        )


def _named(source: DataSource, others: Collection[str]) -> str:
    """A name for a source that none of `others` has."""
    name = Path(source.path).stem if source.path is not None else source.label
    return name if name not in others else f"{name} ({len(others) + 1})"


def _same_held_out(recipe: TrainingRecipe) -> TrainingRecipe:
    """Let the recipe's own seed choose what is held out, whatever seed an arm has: none may train on it."""
    validation = recipe.validation
    if validation is None or validation.fraction is None or validation.seed is not None:
        return recipe
    return recipe.model_copy(update={"validation": validation.model_copy(update={"seed": recipe.seed})})


def _vanilla(given: str | dict[str, str] | None, names: list[str], base: Path) -> dict[str, str]:
    if isinstance(given, str):
        if len(names) > 1:
            raise ConfigurationError(f"There are several augmenting models: name the vanilla one of each of {names}.")
        given = {names[0]: given}
    for name in given or {}:
        if name not in names:
            raise ConfigurationError(f"vanilla: there is no augmenting model '{name}'.{nearest(name, names)}")
    return {name: located(source, base, f"vanilla {name}") for name, source in (given or {}).items()}
