"""One seed of the experiment: its models, each kept on disk when it is trained, and what they say and write."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from lmcompose.evaluation.compare import compare
from lmcompose.evaluation.statistics import score
from lmcompose.evaluation.trace import trace
from lmcompose.experiments.proxy_tuning import members
from lmcompose.experiments.proxy_tuning.diary import OPENING, is_diary
from lmcompose.experiments.proxy_tuning.measure import compositions, measure, sums_on, write
from lmcompose.experiments.proxy_tuning.profiles import Profile
from lmcompose.experiments.proxy_tuning.texts import TASKS, Rows
from lmcompose.experiments.stages import Report, Stages, stamp_of

ARMS = {"same": "stories", "other": "other", "code": "code"}
"""The pairs, by what their antiexpert has read; the first is the one that is swept."""

COMPARED = 64
"""Rows of held-out text that the models are compared on token by token."""
SHOWN = 4
"""Texts of each model that the result holds."""
SAMPLING = 0.7
"""The temperature of the texts that are shown."""

_READ = {"stories": "the stories", "other": "other stories", "code": "Python code"}
_RECORD = ("command", "recipe", "seed", "versions", "machine")


class Seed:
    """One seed: its models, each a stage that is kept, and what they say."""

    def __init__(
        self,
        seed: int,
        profile: Profile,
        rows: dict[str, Rows],
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        console: Console,
        teller: LlamaForCausalLM,
    ) -> None:
        self.seed, self.profile, self.rows, self.tokenizer, self.teller = seed, profile, rows, tokenizer, teller
        self.stages = Stages(folder / f"seed-{seed}", console)
        self.texts = stamp_of({name: int(each.ids.sum()) for name, each in rows.items()})
        self.base = self._schooled("base", "stories")
        self.antiexperts = {arm: self._schooled(f"antiexpert-{arm}", read) for arm, read in ARMS.items()}
        self.tuned = {task: self._tuned(f"{task}-tuned", self.base, task) for task in TASKS}
        self.experts = {
            task: {arm: self._tuned(f"{task}-expert-{arm}", self.antiexperts[arm], task) for arm in ARMS}
            for task in TASKS
        }

    def _schooled(self, name: str, read: str) -> LlamaForCausalLM:
        profile = self.profile
        large = name == "base"
        shape = profile.base if large else profile.small
        schooling = profile.base_schooling if large else profile.small_schooling
        number = ["base", *(f"antiexpert-{arm}" for arm in ARMS)].index(name)

        def make(report: Report) -> tuple[LlamaForCausalLM, dict[str, Any]]:
            model = members.build(shape, self.tokenizer, profile.length, seed=100 * self.seed + number)
            seconds = members.train(model, self.rows[read], schooling, self.seed, report)
            return model, {"seconds": seconds}

        settings = (shape, schooling, profile.length)
        return self._made(name, f"{name}, on {_READ[read]}", settings, make)

    def _tuned(self, name: str, model: LlamaForCausalLM, task: str) -> LlamaForCausalLM:
        def make(report: Report) -> tuple[LlamaForCausalLM, dict[str, Any]]:
            new, seconds = members.tuned(model, self.rows[task], self.profile.tuning, self.seed, report)
            return new, {"seconds": seconds}

        profile = self.profile
        schoolings = (profile.base_schooling, profile.small_schooling, profile.tuning)
        settings = (profile.base, profile.small, *schoolings, profile.length)
        return self._made(name, f"{name}, on {TASKS[task]}", settings, make)

    def _made(self, name: str, label: str, settings: tuple[Any, ...], make: Any) -> LlamaForCausalLM:
        stamp = stamp_of(name, *settings, self.texts, self.seed)
        model, _ = self.stages.made(name, f"seed {self.seed}: {label}", stamp, make, _load)
        self.tokenizer.save_pretrained(self.stages.folder / name)  # so that each can be named as a member
        model.name_or_path = name
        return cast(LlamaForCausalLM, model)

    def _pairs(self, task: str) -> dict[str, tuple[LlamaForCausalLM, LlamaForCausalLM]]:
        return {arm: (self.experts[task][arm], self.antiexperts[arm]) for arm in ARMS}

    def sizes(self) -> dict[str, int]:
        """How many parameters the models have."""
        return {
            "base": self.base.num_parameters(),
            "antiexpert": self.antiexperts["same"].num_parameters(),
            "storyteller": self.teller.num_parameters(),
        }

    def measured(self) -> dict[str, Any]:
        """The sums of each task, and of the stories that the base and its antiexpert learned to tell."""
        plain = {"storyteller": self.teller, "base": self.base, "antiexpert": self.antiexperts["same"]}
        temperature = {"storyteller": self.profile.temperature}
        stories = sums_on(plain, self.rows["held_out"], temperature)
        return {"stories": stories, **{task: self._kept(task, "scores", partial(self._scores, task)) for task in TASKS}}

    def shown(self) -> dict[str, Any]:
        """What the models of this seed write, and how they compare token by token, by task; and one trace."""
        return {task: self._kept(f"{task}-shown", "texts", partial(self._texts, task)) for task in TASKS}

    def _kept(self, name: str, what: str, make: Callable[[Report], Any]) -> Any:
        label = f"seed {self.seed}: {what}, {TASKS[name.partition('-')[0]]}"
        return self.stages.kept(name, label, stamp_of(name, self.profile, self.texts, self.seed), make)

    def _scores(self, task: str, report: Report) -> dict[str, Any]:
        models = compositions(self.base, self._pairs(task), self.tokenizer)
        held_out, profile = self.rows[f"{task}_held_out"], self.profile
        return measure(models, self.tuned[task], held_out, profile.alphas, profile.temperatures, report)

    def _texts(self, task: str, report: Report) -> dict[str, Any]:
        profile, tuned, expert = self.profile, self.tuned[task], self.experts[task]["same"]
        proxy = compositions(self.base, self._pairs(task), self.tokenizer)["same"]
        models = {"base": self.base, "expert": expert, "proxy": proxy, "tuned": tuned}
        written = write(models, self.tokenizer, profile.samples, profile.sample_tokens, SAMPLING, seed=self.seed)
        report(1, 2, float("nan"))
        rows = self.rows[f"{task}_held_out"]
        ids = [row[keep.bool()].tolist() for row, keep in zip(rows.ids, rows.mask, strict=True)][:COMPARED]
        compared = compare(proxy, tuned, ids, examples=5)
        found = {
            "samples": {name: texts[:SHOWN] for name, texts in written.items()},
            "comparison": {name: part for name, part in compared.items() if name not in _RECORD},
        }
        report(2, 2, float("nan"))
        if task != "diary":
            return found
        style = {name: score(sum(map(is_diary, texts)), len(texts)) for name, texts in written.items()}
        path = trace(proxy, OPENING, tuned=tuned, max_new_tokens=profile.sample_tokens, command="make proxy-stories")
        return {**found, "style": style, "trace": path}


def _load(folder: Path) -> LlamaForCausalLM:
    return cast(LlamaForCausalLM, LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
