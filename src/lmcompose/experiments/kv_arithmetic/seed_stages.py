"""One seed of the ablations: its members, and every arm trained and tested in stages that are kept on disk."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console
from transformers import GPT2LMHeadModel, PreTrainedModel

from lmcompose.calm.bridge import bridge_shapes
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.experiments.kv_arithmetic import members
from lmcompose.experiments.kv_arithmetic.arms import DEFAULT, MOST_HELD_IN, Arm
from lmcompose.experiments.kv_arithmetic.composition import CompositionProfile, compose_members, train_composition
from lmcompose.experiments.kv_arithmetic.evaluate import answers_of
from lmcompose.experiments.kv_arithmetic.profiles import Profile
from lmcompose.experiments.kv_arithmetic.run import load_member, made_members, member_stamp, origin, trained_arm
from lmcompose.experiments.kv_arithmetic.task import Task
from lmcompose.experiments.kv_arithmetic.tuned import tune
from lmcompose.experiments.stages import Report, Stages, stamp_of, stamped

Answers = dict[str, list[int]]
WRONG_TABLE = 1
"""The table that the vanilla m_A learns."""


def place_of(folder: Path, settings: Profile, task: Task, seed: int, ready: Path | None) -> Path:
    """Where a run with one seed or with several has left the members of this one, or where they are to be made."""
    apart = folder / f"seed-{seed}"
    stamp = member_stamp("anchor", settings, task, seed, ready)
    return next((place for place in (apart, folder) if stamped(place / "anchor", stamp)), apart)


@dataclass(frozen=True)
class SeedStages:
    """One seed: its task, its members, and the places of its stages."""

    settings: Profile
    task: Task
    seed: int
    anchor: GPT2LMHeadModel
    augmenting: GPT2LMHeadModel
    main: Stages
    own: Stages
    ready: Path | None
    tested: np.ndarray

    @classmethod
    def begun(
        cls, settings: Profile, seed: int, folder: Path, ready: Path | None, a_try: bool, console: Console
    ) -> "SeedStages":
        """Take the members, or make them.

        Args:
            a_try: the steps are not the profile's: nothing of the run in `folder` but its members is touched.
        """
        task = settings.task(seed)
        place = place_of(folder, settings, task, seed, ready)
        main = Stages(place, console)
        anchor, augmenting = made_members(settings, task, seed, main, ready)
        own = Stages(place / (f"steps-{settings.composition.steps}" if a_try else "ablations"), console)
        tested = dataclasses.replace(task, held_in=MOST_HELD_IN).split[1]
        return cls(settings, task, seed, anchor, augmenting, own if a_try else main, own, ready, tested)

    def arm(self, name: str, arm: Arm) -> tuple[Answers, dict[str, Any]]:
        """Its answers; and `arm`, all that is different, `parameters` that were trained, and `seconds`."""
        depths = self.augmenting.config.num_hidden_layers, self.anchor.config.num_hidden_layers
        said = arm.settings(depths)
        # What `lmcompose demo` trains too has the stages of that run.
        theirs = {DEFAULT: DEFAULT, "random": "random_augmenting"}.get(name)
        stamp = stamp_of(*origin(self.ready), theirs or said, self.settings, self.task.seed, self.seed)
        label = f"seed {self.seed}, {arm.title}"
        model: PreTrainedModel
        if theirs is not None:
            self._call_members(self.main)
            model, notes = trained_arm(
                theirs, self.settings, self.task, self.seed, self.anchor, self.augmenting, self.main, self.ready
            )
        elif arm.tuned is not None:
            model, notes = self._tuned(name, label, arm, stamp)
        else:
            model, notes = self._composed(name, label, arm, said["options"], stamp)
        answers = self.answers(name, label, model, stamp)
        if isinstance(model, CalmForCausalLM):
            notes = {**notes, "parameters": model.num_composition_parameters()}
            model.detach()
        return answers, {"arm": said, "parameters": notes["parameters"], "seconds": notes["seconds"]}

    def answers(self, name: str, label: str, model: PreTrainedModel, stamp: str) -> Answers:
        """What it gets right of the expressions that all arms answer."""
        made = [
            member_stamp(role, self.settings, self.task, self.seed, self.ready) for role in ("anchor", "augmenting")
        ]
        asked = stamp_of(stamp, *made, self.settings.tested, MOST_HELD_IN)
        return cast(
            Answers,
            self.own.kept(
                f"{name}-answers",
                f"{label}: test",
                asked,
                lambda report: answers_of(model, self.task, self.settings.tested, self.tested, report),
            ),
        )

    def _data(self, arm: Arm) -> tuple[Task, CompositionProfile]:
        held_in = self.task.held_in if arm.held_in is None else arm.held_in
        return (
            dataclasses.replace(self.task, held_in=held_in),
            dataclasses.replace(self.settings.composition, **arm.data),
        )

    def _call_members(self, stages: Stages) -> None:
        """Tell compositions that are saved by `stages` where their members are, from a folder of theirs."""
        up = "../.." if stages is self.own else ".."
        self.anchor.name_or_path, self.augmenting.name_or_path = f"{up}/anchor", f"{up}/augmenting"

    def _composed(
        self, name: str, label: str, arm: Arm, options: dict[str, Any], stamp: str
    ) -> tuple[CalmForCausalLM, dict[str, Any]]:
        task, profile = self._data(arm)
        self._call_members(self.own)
        augmenting = self._augmenting(arm)

        def make(report: Report) -> tuple[CalmForCausalLM, dict[str, Any]]:
            model = compose_members(task, self.anchor, augmenting, profile, self.seed, **options)
            seconds, curve = train_composition(model, task, profile, self.seed, report)
            return model, {"seconds": seconds, "curve": curve}

        def load(folder: Path) -> CalmForCausalLM:
            return CalmForCausalLM.from_pretrained(folder, anchor=self.anchor, augmenting=augmenting)

        return cast(tuple[CalmForCausalLM, dict[str, Any]], self.own.made(name, f"{label}: train", stamp, make, load))

    def _augmenting(self, arm: Arm) -> GPT2LMHeadModel:
        if arm.augmenting != "vanilla":
            return self.augmenting
        wrong = dataclasses.replace(self.task, table=WRONG_TABLE)
        profile = self.settings.augmenting

        def make(report: Report) -> tuple[GPT2LMHeadModel, dict[str, Any]]:
            model, seconds = members.train_augmenting(wrong, profile, self.seed, report)
            return model, {"seconds": seconds}

        stages = Stages(self.own.folder.parent, self.own.console)  # a member as the others, whatever the arms' steps
        stamp = stamp_of("vanilla", wrong.table, member_stamp("augmenting", self.settings, self.task, self.seed, None))
        label = f"seed {self.seed}, vanilla m_A: learn a wrong table"
        model = cast(GPT2LMHeadModel, stages.made("vanilla", label, stamp, make, load_member)[0])
        self.task.tokenizer().save_pretrained(stages.folder / "vanilla")
        model.name_or_path = "../../vanilla"
        return model

    def _tuned(self, name: str, label: str, arm: Arm, stamp: str) -> tuple[GPT2LMHeadModel, dict[str, Any]]:
        task, profile = self._data(arm)
        pool = np.arange(task.keys) if arm.every_key else None
        sizes = self.augmenting.config.hidden_size, self.anchor.config.hidden_size
        budget = len(profile.connections) * sum(rows * columns for rows, columns in bridge_shapes(*sizes))

        def make(report: Report) -> tuple[PreTrainedModel, dict[str, Any]]:
            assert arm.tuned is not None
            keys_as = self.settings.augmenting
            return tune(self.anchor, task, profile, arm.tuned, keys_as, budget, self.seed, pool, report)

        return cast(
            tuple[GPT2LMHeadModel, dict[str, Any]], self.own.made(name, f"{label}: train", stamp, make, load_member)
        )
