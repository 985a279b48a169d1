"""The models of a recipe: where they are, the composition that is planned of them, and that composition itself.

A recipe begins with an anchor, or extends a saved composition; only this file knows the difference.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from lmcompose.calm.compose import compose, plan_composition
from lmcompose.calm.config import ANCHOR, CalmConfig
from lmcompose.calm.extend import extend, plan_extension
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.errors import DataError, SavedFolderError
from lmcompose.loading import check_device_map
from lmcompose.places import located, read_tokenizer
from lmcompose.saved import WEIGHTS_NAME, saved_place
from lmcompose.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class RecipeModels:
    """What a recipe composes.

    Attributes:
        sources: role -> folder, GGUF file or hub id of every model that the recipe names, the anchor first where it
            names one.
        extends: the saved composition that it adds to.
    """

    recipe: TrainingRecipe
    sources: dict[str, str]
    extends: str | None = None

    @classmethod
    def located(cls, recipe: TrainingRecipe, base: Path) -> "RecipeModels":
        """Look for the models; a folder beside the recipe, in `base`, goes before a hub id of that name.

        Raises:
            RecipeError: what is written as a path is neither folder nor GGUF file.
        """
        named = {ANCHOR: recipe.anchor} if recipe.anchor is not None else {}
        sources = {role: located(place, base, role) for role, place in {**named, **recipe.augmenting_sources()}.items()}
        return cls(recipe, sources, located(recipe.extends, base, "extends") if recipe.extends is not None else None)

    def plan(self) -> CalmConfig:
        """The configuration of the composition; no weight is read. Raises what `plan_composition` raises."""
        if self.extends is not None:
            config = plan_extension(self.extends, **self._added())
        else:
            config = plan_composition(**self._composed())
        check_device_map(self.recipe.device_map, config.references())
        return config

    def compose(self) -> CalmForCausalLM:
        """The composition as it is before training."""
        recipe = self.recipe
        options: dict[str, Any] = {
            "dtype": None if recipe.dtype == "auto" else getattr(torch, recipe.dtype),
            "bridge_dtype": getattr(torch, recipe.bridge_dtype),
            "seed": recipe.seed,
            "alignment": recipe.alignment,
            "device_map": recipe.device_map,
        }
        if self.extends is not None:
            return extend(self.extends, **self._added(), **options, trainable=recipe.trainable or "new")
        return compose(**self._composed(), **options)

    def places(self, composition: CalmConfig) -> dict[str, str]:
        """Role -> folder or hub id of all members of the planned composition, the anchor first."""
        saved = {role: reference.name_or_path for role, reference in composition.references().items()}
        return {role: self.sources.get(role) or saved_place(name, self.extends or "") for role, name in saved.items()}

    def kept_bytes(self) -> int:
        """Bytes of the bridges that are not trained again, as they are saved.

        Raises:
            SavedFolderError: the file of the composition parameters is missing.
        """
        if self.extends is None or self.recipe.trains_all:
            return 0
        try:
            return Path(str(cached_file(self.extends, WEIGHTS_NAME))).stat().st_size
        except OSError as error:
            raise SavedFolderError(
                f"extends: '{self.extends}' has no {WEIGHTS_NAME}. Give the folder of a composition that was saved."
            ) from error

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The anchor's tokenizer, which a saved composition holds too.

        Raises:
            DataError: there is none.
        """
        recipe = self.recipe
        place = self.extends or self.sources[ANCHOR]
        tokenizer = read_tokenizer(place, recipe.revisions.get(ANCHOR), recipe.trust_remote_code)
        if tokenizer is None:
            what = f"anchor '{recipe.anchor}'" if recipe.extends is None else f"composition '{recipe.extends}'"
            raise DataError(f"The {what} has no tokenizer. Put its tokenizer's files beside its weights.")
        return tokenizer

    def _added(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "augmenting": self.sources,
            "connections": recipe.connections,
            "every": recipe.every,
            "revisions": recipe.revisions,
            "unfreeze": recipe.unfreeze,
            "reads": recipe.reads,
            "trust_remote_code": recipe.trust_remote_code,
            "quantization": recipe.quantizations(),
            "use_safetensors": recipe.use_safetensors,
        }

    def _composed(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            **self._added(),
            "anchor": self.sources[ANCHOR],
            "augmenting": {role: source for role, source in self.sources.items() if role != ANCHOR},
            "num_heads": recipe.num_heads,
            "projection": recipe.projection,
            "gate": recipe.gate,
            "norm": recipe.norm,
            "rank": recipe.rank,
            "bridge_initializer_range": recipe.bridge_initializer_range,
        }
