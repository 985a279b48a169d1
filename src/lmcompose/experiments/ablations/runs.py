"""The arms that are trained: one run on disk for each arm and seed, in the form of `lmcompose train`.

A run that is finished is taken as it is, and one that was stopped goes on; both only where the recipe and the data are
still those that it was started with.
"""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from lmcompose.errors import ConfigurationError, LmcomposeError
from lmcompose.experiments.ablations.arms import arm_named
from lmcompose.experiments.ablations.recipes import (
    TRAINING,
    arm_recipe,
    check_replaced,
    make_replaced,
    write_recipe,
)
from lmcompose.experiments.ablations.refusals import matched
from lmcompose.experiments.ablations.setting import Setting
from lmcompose.training.checkpoints import goes_on
from lmcompose.training.data import CompositionData, prepare_data
from lmcompose.training.recipe import TrainingRecipe
from lmcompose.training.resume import COMPOSED, match_run
from lmcompose.training.run import train
from lmcompose.training.tuning import method_of, tune


class Runs:
    """The runs of a comparison.

    Args:
        folder: of all runs.
        command: what goes on after an interruption.
    """

    def __init__(self, setting: Setting, folder: Path, command: str | None, console: Console) -> None:
        self.setting, self.folder, self.command, self.console = setting, folder, command, console
        self._matched = cache(lambda: matched(setting, folder))
        self._data = cache(self._prepared)

    def place(self, name: str, seed: int) -> Path:
        """The folder of one run."""
        return self.folder / name / f"seed-{seed}"

    def check(self, names: Iterable[str], seeds: Iterable[int]) -> None:
        """Look at all runs that are there already, before any is trained.

        Raises:
            ConfigurationError: one was made from another recipe, other data or other models.
        """
        for seed in seeds:
            order = {}
            for name in names:
                place = self.place(name, seed)
                recipe = arm_recipe(self.setting, name, seed, place)
                if name != "finetuned_domain":
                    order[name] = self._data(_data_of(recipe)).fingerprint
                check_replaced(self.setting, name, seed, place)
                if self._begun(place):
                    self._match(name, recipe, place)
            if len(set(order.values())) > 1:  # no arm changes what decides it
                raise LmcomposeError(f"The arms would see different data in different orders with seed {seed}: {order}")

    def trained(self, name: str, seed: int) -> dict[str, Any]:
        """What the run says of itself (`result.json`); it is trained, or goes on, where it was not finished before.

        Raises:
            LmcomposeError: as `train` and `tune` raise.
        """
        place = self.place(name, seed)
        recipe = arm_recipe(self.setting, name, seed, place)
        output = place / TRAINING
        if self._begun(place):
            self._match(name, recipe, place)
        if (output / "result.json").exists():
            self.console.print(f"[dim]{output}: taken as it is[/dim]")
            return self._result(recipe, output)
        make_replaced(self.setting, name, seed, place)
        path = write_recipe(recipe, place)
        resume = goes_on(output / "checkpoints")
        if arm_named(name).family == "composition":
            train(path, resume=resume, say=self.console.print, command=f"lmcompose train {path.name}")
        else:
            tune(path, lora=self._lora(name), resume=resume, say=self.console.print, command=self.command)
        return self._result(recipe, output)

    def _result(self, recipe: TrainingRecipe, output: Path) -> dict[str, Any]:
        result = dict(json.loads((output / "result.json").read_text(encoding="utf-8")))
        results, data = result["results"], self._data(_data_of(recipe))
        results.setdefault("data_fingerprint", data.fingerprint)  # of a run that was made before these were recorded
        results.setdefault("tokens_seen", data.train.tokens(results["steps"] * recipe.training.batch_size))
        return result

    def _lora(self, name: str) -> int | None:
        return self._matched() if name == "lora" else None

    @staticmethod
    def _begun(place: Path) -> bool:
        return (place / TRAINING / "result.json").exists() or any((place / TRAINING).glob("checkpoints/checkpoint-*"))

    def _match(self, name: str, recipe: TrainingRecipe, place: Path) -> None:
        method = COMPOSED if arm_named(name).family == "composition" else method_of(self._lora(name))
        try:
            match_run(recipe, self._data(_data_of(recipe)), place / TRAINING, method)
        except LmcomposeError as error:
            raise ConfigurationError(
                f"There is a run of the arm '{name}' in {place} that this comparison cannot use. {error} Or give the "
                f"comparison another folder of runs (--runs), or delete {place}."
            ) from error

    def _prepared(self, recipe: str) -> CompositionData:
        return prepare_data(TrainingRecipe.model_validate_json(recipe), self.setting.tokenizer, self.setting.base)


def _data_of(recipe: TrainingRecipe) -> str:
    """What of a recipe decides which rows are seen and in which order, as JSON: arms that share it share their data."""
    training = recipe.training.model_copy(update={"learning_rate": 1.0, "unfrozen_learning_rate": None})
    kept = recipe.model_copy(update={"anchor": "", "augmenting": "", "training": training})
    return kept.model_dump_json(include={"anchor", "augmenting", "data", "validation", "training", "seed", "output"})
