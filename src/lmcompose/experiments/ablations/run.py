"""The whole comparison: every arm on the same data in the same order, and scored on the same held-out documents.

Before training a composition is its anchor, so the anchor is where every arm begins. That a composition ends below it
proves little, since any trained parameters do; the difference from the arms whose augmenting model knows nothing, and
from those that spend as many parameters on the anchor alone, is what the augmenting model is worth. Every arm is scored
as well on what the anchor could do before. Runs and scores are kept on disk, and go on where they were stopped.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError, LmcomposeError
from lmcompose.experiments.ablations.arms import ALL, Arm, named
from lmcompose.experiments.ablations.comparisons import ANCHOR_ALONE, compared
from lmcompose.experiments.ablations.held_out import Documents, lengths
from lmcompose.experiments.ablations.recipes import TRAINING
from lmcompose.experiments.ablations.refusals import check_apart, refusal
from lmcompose.experiments.ablations.routing import oracle
from lmcompose.experiments.ablations.runs import Runs
from lmcompose.experiments.ablations.scores import Bits, Scores
from lmcompose.experiments.ablations.setting import HELD_OUT, Setting
from lmcompose.experiments.ablations.untrained import (
    UNTRAINED,
    Scorer,
    anchor_alone,
    augmenting_alone,
    by_text,
    of_model,
)
from lmcompose.experiments.stages import Stages
from lmcompose.kinds import load
from lmcompose.loading import load_member
from lmcompose.recipe import read_recipe
from lmcompose.training.recipe import Ablations, TrainingRecipe

ALONE = "alone "
"""Before its own name, each augmenting model by itself."""


def run(
    recipe: str | Path,
    *,
    arms: Sequence[str] = ("composition", "random"),
    seeds: Sequence[int] = (0, 1, 2),
    folder: str | Path = "runs/ablations",
    options: Ablations | None = None,
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and score every arm; returns a result that is ready for JSON and `reporting.ablation_tables`.

    An arm that cannot be run is left out, and the result says why; what configurations and data tell is known before
    anything is trained.

    Args:
        recipe: what `lmcompose train` takes, with a `validation` section.
        arms: names of `arms.ARMS`, or "all"; the first is compared with each of the others.
        seeds: of what is trained, the order of the data and the replaced models.
        folder: of the runs; what is there already and was made by the same recipe is taken from there.
        options: what the composition is compared with, in place of the recipe's own `ablations`.

    Raises:
        ConfigurationError: an unknown arm, or none; the first cannot be run; or there are runs of another recipe.
        RecipeError, MemberError, DataError: as in `training.run.train`, before anything is trained.
    """
    path, console = Path(recipe), console or Console(stderr=True, highlight=False)
    chosen = named(arms)
    if not seeds:
        raise ConfigurationError("Give at least one arm and one seed.")
    written = read_recipe(path, TrainingRecipe)
    setting = Setting.located(written, path.resolve().parent, options)
    _check_learning_rates(setting)
    sets = setting.documents()
    check_apart(setting, sets)
    setting.models.plan()
    folder = Path(folder)
    chosen = {name: replace(arm, title=arm.title.format(**setting.words())) for name, arm in chosen.items()}
    first = next(iter(chosen))
    refused = {name: why for name in chosen if (why := refusal(name, setting, sets, folder)) is not None}
    if first in refused:
        raise ConfigurationError(f"The first arm, '{first}', cannot be run: {refused[first]}")
    for name, why in refused.items():
        console.print(f"[yellow]{name} is left out:[/yellow] {why}", highlight=False)
    comparison = _Comparison(setting, sets, chosen, refused, Stages(folder, console), command)
    comparison.score_all(list(seeds))
    return {
        "what": "ablations",
        **run_record(_said(written), command=command),
        "recipe_name": path.name,
        "seeds": list(seeds),
        **setting.shown(
            {"options": setting.options.model_dump(mode="json", exclude_defaults=True), **comparison.result()}
        ),
    }


def _said(recipe: TrainingRecipe) -> dict[str, Any]:
    return recipe.model_dump(exclude_defaults=True)  # what later versions add is not in it


def _check_learning_rates(setting: Setting) -> None:
    for name in setting.options.learning_rates:
        if name == ALL or next(iter(named([name]).values())).family == "untrained":
            raise ConfigurationError(f"learning_rates: the arm '{name}' is not trained, so it has none.")


class _Comparison:
    """One comparison under way: what was scored, what was trained, and what could not be."""

    def __init__(
        self,
        setting: Setting,
        sets: dict[str, Any],
        arms: dict[str, Arm],
        refused: dict[str, str],
        stages: Stages,
        command: str | None,
    ) -> None:
        self.setting, self.sets, self.arms, self.refused, self.stages = setting, sets, arms, refused, stages
        self.runs = Runs(setting, stages.folder, command, stages.console)
        self.scores = Scores(stages, sets)
        self.recipe_said = _said(setting.recipe.model_copy(update={"ablations": None}))
        self.by_seed: dict[str, list[Bits]] = {}
        self.work: dict[str, list[dict[str, Any]]] = {}

    def score_all(self, seeds: list[int]) -> None:
        trained = [name for name, arm in self.arms.items() if arm.family != "untrained" and name not in self.refused]
        self.runs.check(trained, seeds)
        alone = self._alone(ANCHOR_ALONE, partial(anchor_alone, self.setting))
        self.by_seed[ANCHOR_ALONE] = [alone] * len(seeds)
        for seed in seeds:
            for name in trained:
                if name not in self.refused:
                    self._guarded(name, partial(self._train_and_score, name, seed))
        for role in self.setting.augmenting:
            alone = self._alone(f"{ALONE}{role}", partial(augmenting_alone, self.setting, role))
            self.by_seed[f"{ALONE}{role}"] = [alone] * len(seeds)
        for name, arm in self.arms.items():
            if arm.family == "untrained" and name not in self.refused:
                self._guarded(name, partial(self._score_untrained, name, len(seeds)))

    def _guarded(self, name: str, step: Any) -> None:
        """Let an arm that fails on the way, such as by a loss that is no number, not take the others with it."""
        try:
            step()
        except LmcomposeError as error:
            if name == next(iter(self.arms)):
                raise
            self.stages.console.print(f"[yellow]{name} is left out:[/yellow] {error}", highlight=False)
            self.refused[name] = str(error)

    def _train_and_score(self, name: str, seed: int) -> None:
        result = self.runs.trained(name, seed)
        place = self.runs.place(name, seed)
        saved = place / TRAINING / "model"

        def scorer() -> Scorer:
            if self.arms[name].family == "composition":
                return of_model(load(saved))
            return of_model(load_member(str(saved), role=name).model)

        scores = self.scores.of(
            str(place.relative_to(self.stages.folder)),
            f"{self.arms[name].title}, seed {seed}",
            scorer,
            self.recipe_said,
            name,
            seed,
            result["results"]["data_fingerprint"],
            self._settings_of(name),
        )
        self.work.setdefault(name, []).append(result["results"])
        self.by_seed.setdefault(name, []).append(scores)

    def _score_untrained(self, name: str, seeds: int) -> None:
        if name == "routing":
            singles = [self.by_seed[each][0] for each in self.by_seed if each == ANCHOR_ALONE or each.startswith(ALONE)]
            found = {each: oracle([scores[each] for scores in singles]) for each in self.sets}
            self.by_seed[name] = [found] * seeds
            return
        without = [each for each, source in self.setting.forgetting.items() if source.kind != "prompt_completion"]
        settings = (self.recipe_said, name, self._settings_of(name))
        make = (
            partial(by_text, self.setting, self.scores.keep(name, *settings))
            if name == "pipeline"
            else partial(UNTRAINED[name], name, self.setting)
        )
        but = without if name == "pipeline" else []
        self.by_seed[name] = [self.scores.of(name, self.arms[name].title, make, *settings, but=but)] * seeds

    def _alone(self, name: str, make: Any) -> Bits:
        return self.scores.of(name.replace(" ", "-"), f"{name.removeprefix(ALONE)} by itself", make, self.recipe_said)

    def _settings_of(self, name: str) -> dict[str, Any]:
        """What of the options decides an arm."""
        setting, options = self.setting, self.setting.options
        found: dict[str, Any] = {}
        if name in ("vanilla", "proxy", "task_arithmetic"):
            found["vanilla"] = setting.vanilla
        if name in ("ensemble", "average"):
            found["weight"] = setting.weight
        if name == "proxy":
            found["alpha"] = options.alpha
        if name == "task_arithmetic":
            found["scale"] = options.scale
        if name == "pipeline":
            found["pipeline"] = options.pipeline.model_dump()
        if name == "finetuned_domain":
            found["epochs"] = options.domain_epochs
        if name in options.learning_rates:
            found["learning_rate"] = options.learning_rates[name]
        return found

    def result(self) -> dict[str, Any]:
        """Everything but the record of the command."""
        finished = {name: each for name, each in self.by_seed.items() if name not in self.refused}
        sets: dict[str, dict[str, Any]] = {}
        for name, documents in self.sets.items():
            scored = {arm: [bits[name] for bits in each] for arm, each in finished.items() if name in each[0]}
            sets[name] = self._figures(documents, scored)
        held_out = sets.pop(HELD_OUT) | self._by_source(finished)
        names = [name for name in self.arms if name not in self.refused]
        return {
            "arms": {name: self.arms[name].title for name in names},
            "families": {name: self.arms[name].family for name in names},
            "settings": {name: settings for name in names if (settings := self._settings_of(name))},
            "refused": {self.arms[name].title: why for name, why in self.refused.items()},
            "work": {name: _work(results) for name, results in self.work.items() if name in names},
            **held_out,
            "forgetting": sets,
            "stages": self.stages.seconds,
        }

    def _by_source(self, finished: dict[str, list[Bits]]) -> dict[str, Any]:
        """The same for each source of held-out documents by itself, where there are several."""
        parts, found, start = self.setting.held_out, {}, 0
        for name, documents in parts.items():
            part = slice(start, start + len(documents))
            start += len(documents)
            if len(parts) > 1 and len(documents) > 1:
                scored = {arm: [bits[HELD_OUT][part] for bits in each] for arm, each in finished.items()}
                found[name] = self._figures(documents, scored)
        return {"by_source": found} if found else {}

    def _figures(self, documents: Documents, scored: dict[str, list[list[float]]]) -> dict[str, Any]:
        sizes = lengths(documents, self.setting.tokenizer)
        return {
            "held_out": {"documents": len(documents), **{unit: sum(each) for unit, each in sizes.items()}},
            **compared(scored, sizes, next(iter(self.arms))),
        }


def _work(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the training of one arm was, by seed where seeds differ."""
    return {
        "parameters": results[0]["trained_parameters"],
        "steps": [each["steps"] for each in results],
        "tokens": [each["tokens_seen"] for each in results],
        "seconds": [each["seconds"] for each in results],
        "resumed": [each["resumed_from_step"] for each in results],
        "data": [{**each, "source": Path(str(each["source"])).name} for each in results[0]["data"]],
        "data_fingerprints": [each["data_fingerprint"] for each in results],
    }
