"""The stages of one language and one seed: two adapters, the scores of held-out translations, and what is written."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmcompose.architecture import hook_head
from lmcompose.evaluation.scoring import tuned_model
from lmcompose.experiments.proxy_translation import measure, pairs, tuning
from lmcompose.experiments.proxy_translation.profiles import Profile
from lmcompose.experiments.stages import Report, Stages, stamp_of
from lmcompose.logits.model import LogitForCausalLM
from lmcompose.logits.shared import switched_to

WRITERS = ("base", "expert", "proxy", "tuned")


class Experiment:
    """The stages of one language and one seed."""

    def __init__(
        self,
        base: str,
        small: str,
        train: list[pairs.Pair],
        test: list[pairs.Pair],
        language: str,
        seed: int,
        profile: Profile,
        stages: Stages,
    ) -> None:
        self.base, self.small, self.train, self.test = base, small, train, test
        self.language, self.seed, self.profile, self.stages = language, seed, profile, stages

    def tuned(self, name: str, model: str) -> dict[str, Any]:
        """The adapter `name`: what is to be remembered of its tuning."""
        folder = self.stages.folder / name
        label = f"{name}: LoRA on {Path(model).name}"

        def make(report: Report) -> dict[str, Any]:
            return tuning.tune(model, self.train, self.language, self.profile, folder, self.seed, report)

        if not (folder / "adapter_config.json").exists():
            (self.stages.folder / f"{name}.json").unlink(missing_ok=True)  # it tells of an adapter that is gone
        stamp = stamp_of(name, Path(model).name, self.train, self.language, self.profile.of_tuning(), self.seed)
        return dict(self.stages.kept(name, label, stamp, make))

    def measured(self) -> dict[str, Any]:
        """The sums of `measure.measure`."""
        alphas, temperatures = self.profile.alphas, self.profile.temperatures

        def make(report: Report) -> dict[str, Any]:
            model = self.composition
            tuned = tuned_model(self.large_tuned, model)
            return measure.measure(model, tuned, self.test, self.language, alphas, temperatures, report)

        label = f"scores of {len(self.test)} translations"
        return dict(self.stages.kept("scores", label, self._stamp("scores"), make))

    def written(self) -> dict[str, list[str]]:
        """The translations by every model."""
        return {name: self._translations(name) for name in WRITERS}

    def _translations(self, name: str) -> list[str]:
        def make(report: Report) -> list[str]:
            with self.writer(name) as (model, options):
                return measure.translate(
                    model, self.composition.tokenizer, self.test, self.language, self.profile.new_tokens,
                    self.profile.rows_at_once, lambda done: report(done, len(self.test), float("nan")), **options,
                )  # fmt: skip

        label = f"{len(self.test)} translations by {name}"
        return list(self.stages.kept(f"written-{name}", label, self._stamp("written", name), make))

    @contextmanager
    def writer(self, name: str) -> Iterator[tuple[PreTrainedModel, dict[str, Any]]]:
        """A model to write with, and what `generate` is to be told."""
        model = self.composition
        if name in measure.ARMS:
            yield model, {"parameters": measure.ARMS[name]}
        elif name == "tuned":
            yield self.large_tuned, {}
        else:
            member, adapter = model.member(name), model.adapters.get(name)
            with nullcontext() if adapter is None else switched_to(member, adapter):
                yield member, {}

    @functools.cached_property
    def composition(self) -> LogitForCausalLM:
        """The three members as one model; they are loaded when they are first asked for."""
        return measure.composition(self.base, str(self.stages.folder / "expert"), self.small)

    @functools.cached_property
    def large_tuned(self) -> PreTrainedModel:
        """The directly tuned base, its adapter beside its weights as the expert's is."""
        plain = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.bfloat16)
        tuned = cast(PreTrainedModel, PeftModel.from_pretrained(plain, self.stages.folder / "tuned").get_base_model())
        hook_head(tuned)
        return tuned

    def _stamp(self, *names: str) -> str:
        models = (Path(self.base).name, Path(self.small).name)
        return stamp_of(*names, *models, self.train, self.test, self.language, self.profile, self.seed)
