"""The configuration of a logit composition: which members, which formula, which mask."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from lmcompose.alignment.vocab_maps import MIN_COVERAGE
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.logits.arithmetic import MISSING_POLICIES, SCORES, Plausibility, check_choice, check_temperature
from lmcompose.logits.formula import Formula, check_not_cancelled, parse
from lmcompose.logits.steps import at_steps, check_value
from lmcompose.saved import ComposedConfig


class LogitConfig(ComposedConfig):
    """What a logit composition saves; it has no weights of its own.

    Args:
        members: references by role, the leader first: its vocabulary, special tokens and chat template are the
            composition's.
        formula: a weighted sum of members (see `formula.py`), such as `base + alpha * (expert - antiexpert)`.
        parameters: the default values of the names in the formula that are no members: numbers, or lists with one
            number per step.
        temperatures: role -> temperature of that member's scores; 1 where nothing is said.
        scores: "logits" or "logprobs", what of each member enters the formula.
        plausibility: {"member", "kind", "value"} of the mask (see `arithmetic.Plausibility`), or None.
        missing_tokens: what becomes of tokens that a member does not have (see `arithmetic.MISSING_POLICIES`).
        min_coverage: the least share of the leader's tokens that every member must have.
        drafter: the role that drafts in speculative decoding; it may be none of the formula's.
        share_passes: run members that share one model's weights as one batch.
    """

    model_type = "logit_composition"

    formula: str = ""
    parameters: dict[str, Any] | None = None
    temperatures: dict[str, float] | None = None
    scores: str = "logits"
    plausibility: dict[str, Any] | None = None
    missing_tokens: str = "leader"
    min_coverage: float = MIN_COVERAGE
    drafter: str | None = None
    share_passes: bool = True

    @property
    def leader(self) -> str:
        """The role whose tokens are the composition's."""
        return next(iter(self.members or {}))

    def parsed(self) -> Formula:
        """The formula over the members; a drafter need not be in it."""
        drafts_only = self.drafter is not None and not re.search(rf"\b{re.escape(self.drafter)}\b", self.formula)
        members = [role for role in self.members or {} if not (drafts_only and role == self.drafter)]
        return parse(self.formula, members, list(self.parameters or {}))

    def mask(self) -> Plausibility | None:
        """The plausibility mask, if there is one."""
        return Plausibility(**self.plausibility) if self.plausibility else None

    def check(self) -> None:
        """Refuse what cannot be computed, before a weight is read.

        Raises:
            ConfigurationError: the formula does not parse, has unknown names or weights that cancel, or an option has a
                value that it cannot have.
        """
        roles = list(self.members or {})
        for role in roles:
            if hasattr(nn.ModuleDict, role):  # members are submodules under their role
                raise ConfigurationError(f"A member cannot be called '{role}'. Choose another name for it.")
        formula = self.parsed()
        values = self.parameters or {}
        for name, value in values.items():
            if isinstance(value, torch.Tensor) or callable(value):
                raise ConfigurationError(
                    f"{name} = {value!r} cannot be the default of a parameter, which is saved with the composition: "
                    f"give a number, or a list with one number per step, and tensors and functions to "
                    f"generate(..., {name}=...)."
                )
            check_value(name, value)
        check_weights(formula, values)
        check_choice("scores", self.scores, SCORES)
        check_choice("missing_tokens", self.missing_tokens, MISSING_POLICIES)
        for role, temperature in (self.temperatures or {}).items():
            check_choice("the member in temperatures", role, roles)
            check_temperature(temperature)
        if (mask := self.mask()) is not None:
            mask.check(roles)
        if self.drafter is not None:
            check_choice("drafter", self.drafter, roles)
        if self.leader not in formula.members:
            raise ConfigurationError(
                f"The first member, '{self.leader}', gives the composition its tokens, and it is not in the formula "
                f"'{formula}'. Put another one first, such as '{formula.members[0]}'."
            )


def check_weights(formula: Formula, values: Mapping[str, Any], rows: int = 1) -> None:
    """Refuse values that leave nothing to choose a token by, at any step; a function is asked for the first one alone.

    Raises:
        ConfigurationError: see `formula.check_not_cancelled`; or values that are not one per text.
    """
    lengths = [len(value) for value in values.values() if isinstance(value, (list, tuple))]
    for step in range(max(lengths, default=1)):
        if step == 0 or not any(callable(value) for value in values.values()):
            check_not_cancelled(formula, at_steps(values, rows, range(step, step + 1)))


def plausibility_fields(given: Any) -> dict[str, Any]:
    """A mask as the configuration keeps it.

    Raises:
        ConfigurationError: something else than a `Plausibility` or a mapping with its fields.
    """
    fields = [field.name for field in dataclasses.fields(Plausibility)]
    if isinstance(given, Plausibility):
        return dataclasses.asdict(given)
    if not isinstance(given, Mapping) or set(given) != set(fields):
        unknown = [name for name in given if name not in fields] if isinstance(given, Mapping) else []
        raise ConfigurationError(
            f"plausibility = {given!r} is no mask. Give a dict with {fields}, such as "
            "{'member': 'base', 'kind': 'ratio', 'value': 0.1}."
            f"{nearest(str(unknown[0]), fields) if unknown else ''}"
        )
    return dict(given)


AutoConfig.register(LogitConfig.model_type, LogitConfig, exist_ok=True)
