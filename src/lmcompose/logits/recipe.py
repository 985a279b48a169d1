"""What a recipe of a logit composition may say, checked before anything is loaded.

A mistake is named with its line, the nearest valid word and, in a formula, the character. Every field's description is
the documentation of that field. This file reads no model: whether there is one at a name is asked by `logits/plan.py`.
"""

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from lmcompose.adapters import adapter_source
from lmcompose.alignment.vocab_maps import MIN_COVERAGE
from lmcompose.errors import ConfigurationError, RecipeError, nearest
from lmcompose.loading import Source, check_device_map, check_roles, for_role
from lmcompose.logits.arithmetic import Plausibility, check_choice
from lmcompose.logits.config import LogitConfig
from lmcompose.logits.formula import check_not_cancelled, parse
from lmcompose.logits.presets import PRESETS, Preset, preset_named
from lmcompose.logits.steps import check_value
from lmcompose.places import located
from lmcompose.quantization import NONE
from lmcompose.recipe import Strict, problem_at

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DeviceMap = str | dict[str, Any]
Bits = Literal["4bit", "8bit", "none"]


def _as_value(value: Any) -> Any:
    """A number or a schedule as YAML has it: 1e-3 comes as text, and a yes or no must not count as 1 or 0."""
    entries = value if isinstance(value, list) else [value]
    try:
        numbers = [float(entry) for entry in entries if not isinstance(entry, bool)]
    except (TypeError, ValueError):
        numbers = []
    if not entries or len(numbers) < len(entries):
        raise ValueError("Input should be a number or a list of numbers (one for each step)")
    return numbers if isinstance(value, list) else numbers[0]


Value = Annotated[float | list[float], BeforeValidator(_as_value)]


def _as_entry(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class MemberEntry(Strict):
    """One member, where more is to be said of it than its name."""

    model: str | None = Field(None, description="A hub id, a folder or a GGUF file; or the base of the adapter.")
    adapter: str | None = Field(None, description="A PEFT adapter, by folder or hub id; it names its base itself.")
    revision: str | None = Field(None, description="The revision on the hub, of the adapter where there is one.")
    dtype: Dtype | None = Field(None, description="Of this member's weights.")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Its scores are divided by this.")
    quantization: Bits | None = Field(None, description="Of this member's weights.")
    device_map: DeviceMap | None = Field(None, description="Where this member goes: cpu, cuda:1, auto, ...")

    @model_validator(mode="after")
    def _something(self) -> "MemberEntry":
        if self.model is None and self.adapter is None:
            raise ValueError("give a member 'model' (a hub id, a folder or a GGUF file), 'adapter', or both")
        return self


Entry = Annotated[MemberEntry, BeforeValidator(_as_entry)]


class MaskEntry(Strict):
    """Which tokens may be chosen: those that one member finds plausible."""

    member: str = Field(description="The member that decides.")
    kind: Literal["ratio", "top_p", "top_k"] = Field(
        description="ratio: p >= value * max p; top_p: the likeliest that reach value; top_k: the value likeliest."
    )
    value: float = Field(description="Above 0 and at most 1; of top_k a whole number.")


def _mask_or_none(value: Any) -> str:
    return "none" if value is False else MaskEntry.__name__


Mask = Annotated[
    Annotated[Literal[False], Tag("none")] | Annotated[MaskEntry, Tag(MaskEntry.__name__)],
    Discriminator(_mask_or_none),
]


class LogitRecipe(Strict):
    """A whole recipe: the members, how their scores are combined, and where the composition is saved."""

    members: dict[str, Entry] = Field(
        min_length=1,
        description="role: a hub id, a folder, a GGUF file or an adapter; or the keys below. The first one gives the "
        "tokens.",
    )
    formula: str | None = Field(None, description="A weighted sum of the members, such as base + alpha * expert.")
    preset: str | None = Field(None, description=f"In place of a formula: {', '.join(PRESETS)}.")
    alpha: Value | None = Field(None, description="The formula's parameter of that name.")
    parameters: dict[str, Value] = Field(default_factory=dict, description="The formula's parameters: name: value.")
    scores: Literal["logits", "logprobs"] | None = Field(
        None, description="What is added up; a preset's own by default, and logits of a formula."
    )
    plausibility: Mask | None = Field(None, description="A mask; a preset's own by default, and false for none.")
    missing_tokens: Literal["leader", "forbid", "lowest"] = Field(
        "leader",
        description="A token that a member lacks: scored by the leader alone, forbidden, or least likely for it.",
    )
    min_coverage: Annotated[float, Field(ge=0, le=1)] = Field(
        MIN_COVERAGE, description="The least share of the leader's tokens that each member must have."
    )
    drafter: str | None = Field(None, description="The member that drafts in speculative decoding.")
    share_passes: bool = Field(True, description="Run members that share one model's weights as one batch.")
    dtype: Dtype = Field("auto", description="Of the members' weights.")
    device_map: DeviceMap | None = Field(
        None, description="Of the members that have none of their own; or role: device."
    )
    quantization: Bits | dict[str, Bits] = Field(
        "none",
        description="Of the members' weights as they are read, 4bit or 8bit (takes bitsandbytes); or role: one of the "
        "two.",
    )
    trust_remote_code: bool = Field(False, description="Run code that comes with a model. Read that code first.")
    use_safetensors: bool = Field(True, description="false reads weights that are pickles too, which can run code.")
    output: str = Field(description="The folder that the composition is saved in.")

    # ---- what can be seen in the recipe alone -----------------------------------------------------------------

    @model_validator(mode="after")
    def _can_be_composed(self) -> "LogitRecipe":
        if (self.formula is None) == (self.preset is None):
            raise ValueError("give either 'formula' or 'preset'")
        with _told_at("preset"):
            preset = preset_named(self.preset) if self.preset is not None else None
        if preset is None and self.formula in PRESETS and self.formula not in self.members:
            raise problem_at(f"this is the name of a preset. Write `preset: {self.formula}`.", "formula")
        text = preset.formula if preset is not None else str(self.formula)
        values = {**(preset.parameters if preset is not None else {}), **self._given()}
        self._check_roles(preset)
        with _told_at("quantization"):
            check_roles("quantization", self.quantization, self.members)
        with _told_at("device_map"):
            check_device_map(self.device_map, self.members)
        self._check_values()
        self._check_formula(text, values, "formula" if preset is None else "preset")
        roles = list(self.members)
        with _told_at("drafter"):
            if self.drafter is not None:
                check_choice("drafter", self.drafter, roles)
        if isinstance(self.plausibility, MaskEntry):
            with _told_at("plausibility", "value" if self.plausibility.member in roles else "member"):
                Plausibility(**self.plausibility.model_dump()).check(roles)
        config = LogitConfig(
            members={
                role: {"order": order} for order, role in enumerate(preset.roles if preset is not None else roles)
            },
            formula=text,
            parameters=values,
            drafter=self.drafter,
        )
        schedule = next((name for name, value in values.items() if isinstance(value, list)), None)
        with _told_at(*(("members",) if schedule is None else self._place(schedule))):
            config.check()  # for what the checks above leave out
        return self

    def _check_roles(self, preset: Preset | None) -> None:
        for role in self.members:
            with _told_at("members", role):
                LogitConfig(members={role: {"order": 0}}, formula=role).check()
            if preset is not None and role not in preset.roles:
                valid = nearest(role, preset.roles) or f" Its members are {', '.join(preset.roles)}."
                raise problem_at(f"the preset '{self.preset}' has no such member.{valid}", "members", role)
        for role, meaning in preset.roles.items() if preset is not None else ():
            if role not in self.members:
                raise problem_at(f"the preset '{self.preset}' needs '{role}' too: {meaning}.", "members")

    def _check_values(self) -> None:
        if self.alpha is not None and "alpha" in self.parameters:
            raise problem_at("alpha is given here and as a key of its own. Keep one of the two.", "parameters", "alpha")
        for name, value in self._given().items():
            with _told_at(*self._place(name)):
                check_value(name, value)

    def _check_formula(self, text: str, values: dict[str, Any], key: str) -> None:
        """Parse it, and refuse what is given and not used where it is given."""
        names = re.findall(r"(?<![\w.])[^\W\d]\w*", text)
        summed = [role for role in self.members if role in names or role != self.drafter]
        if set(names) <= {*self.members, *values}:  # else the formula itself is wrong: its character is pointed at
            others = [name for name in names if name not in self.members]
            for name in self._given():
                if name not in names:
                    hint = nearest(name, others) or f" It has: {', '.join(others) or 'none'}."
                    raise problem_at(f"the formula '{text}' has no such parameter.{hint}", *self._place(name))
            for role in summed:
                if role not in names:
                    advice = "Add it to the formula, or leave it out."
                    raise problem_at(f"the formula '{text}' does not use this member. {advice}", "members", role)
        with _told_at(key):
            try:
                formula = parse(text, summed, values)
            except ConfigurationError as error:
                problem, below, pointer = str(error).partition("\n")
                if problem.startswith("Unknown name") and "Did you mean" not in problem:
                    problem += " If it is to be a parameter, give it a value under 'parameters'."
                raise ConfigurationError(problem + below + pointer) from error
            for step in range(max((len(value) for value in values.values() if isinstance(value, list)), default=1)):
                check_not_cancelled(formula, {name: _at_step(value, step) for name, value in values.items()})

    def _given(self) -> dict[str, Any]:
        return {**self.parameters, **({} if self.alpha is None else {"alpha": self.alpha})}

    def _place(self, name: str) -> tuple[str, ...]:
        return ("parameters", name) if name in self.parameters else (name,)

    # ---- what it asks for -------------------------------------------------------------------------------------

    def sources(self, base: Path) -> dict[str, Source]:
        """The members' sources by role; what is not on the hub is looked for from `base`, the recipe's folder.

        Raises:
            RecipeError: what is written as a path is no folder and no GGUF file, or an adapter is none.
        """
        return {role: _source(entry, base, role) for role, entry in self.members.items()}

    def options(self) -> dict[str, Any]:
        """The arguments of `plan_logits`, but the members."""
        return {
            "formula": self.formula if self.preset is None else self.preset,
            "parameters": self._given(),
            "temperatures": {role: entry.temperature for role, entry in self.members.items() if entry.temperature != 1},
            "scores": self.scores,
            "plausibility": self.plausibility.model_dump()
            if isinstance(self.plausibility, MaskEntry)
            else self.plausibility,
            "missing_tokens": self.missing_tokens,
            "min_coverage": self.min_coverage,
            "drafter": self.drafter,
            "share_passes": self.share_passes,
            "revisions": {role: entry.revision for role, entry in self.members.items() if entry.revision is not None},
            "trust_remote_code": self.trust_remote_code,
            "quantization": self.quantizations(),
            "use_safetensors": self.use_safetensors,
        }

    def quantizations(self) -> dict[str, str] | None:
        """role -> quantization, of those that have one; None where there is none."""
        wanted = {
            role: entry.quantization or for_role(self.quantization, role, self.members)
            for role, entry in self.members.items()
        }
        return {role: word for role, word in wanted.items() if word not in (None, NONE)} or None

    def dtypes(self) -> dict[str, str | None]:
        """role -> dtype of its weights; None where they stay as they are."""
        wanted = {role: entry.dtype or self.dtype for role, entry in self.members.items()}
        return {role: None if dtype == "auto" else dtype for role, dtype in wanted.items()}

    def device_maps(self) -> dict[str, DeviceMap] | None:
        """role -> device map; None where nothing is said of any."""
        maps = {
            role: entry.device_map or for_role(self.device_map, role, self.members)
            for role, entry in self.members.items()
        }
        return {role: place for role, place in maps.items() if place is not None} or None


@contextmanager
def _told_at(*location: str) -> Iterator[None]:
    """Say what is refused within the block at one part of the recipe."""
    try:
        yield
    except ConfigurationError as error:
        raise problem_at(str(error), *location) from error


def _at_step(value: Any, step: int) -> float:
    return value[min(step, len(value) - 1)] if isinstance(value, list) else value


def _source(entry: MemberEntry, base: Path, role: str) -> Source:
    model = None if entry.model is None else located(entry.model, base, role)
    if entry.adapter is None:
        assert model is not None
        return model
    place = located(entry.adapter, base, role)
    adapter = adapter_source(place, entry.revision)
    if adapter is None:
        raise RecipeError(
            f"{role}: there is no PEFT adapter at '{place}', a folder with an adapter_config.json. If it is a whole "
            "model, give it as 'model'."
        )
    # whoever names the base means the newest of that name, and not the revision that the adapter remembers
    return adapter if model is None else dataclasses.replace(adapter, base=model, base_revision=None)
