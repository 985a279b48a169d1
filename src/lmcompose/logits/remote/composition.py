"""The formula of a composition with a remote base, and the part of it that is computed here.

The base's weight and the weighted sum of all other members ("the rest") are exact for every token of the vocabulary.
The base's log-probabilities stand in place of its logits: they differ by one number per position, which changes neither
the greedy choice nor the probabilities. This file knows no server.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lmcompose.errors import ConfigurationError
from lmcompose.logits.arithmetic import Plausibility, at_temperature, check_temperature, combine, plausible, restrict
from lmcompose.logits.formula import Formula, parse
from lmcompose.logits.remote.local import Reader
from lmcompose.logits.steps import at_steps, check_values

PROXY_TUNING = "base + alpha * (expert - antiexpert)"
"""Proxy-tuning, arXiv 2401.08565, equation 1."""


class RemoteComposition:
    """A formula over one remote base and local members.

    Args:
        formula: text, or a formula written in Python. The one member of it that is not local is the remote one.
        role: what text calls that one.
        members: the local models by role.
        values: the formula's parameters: numbers, or schedules or one number per prompt (see `logits/steps.py`).
        temperatures: role -> temperature of that member's scores, the base's too; 1 where nothing is said.
        plausibility: the mask of tokens that one member finds plausible, or None.
        size: how many token ids the shared tokenizer has.

    Raises:
        ConfigurationError: the formula does not parse, has no or several members that are not local, or a value cannot
            be.
    """

    def __init__(
        self,
        formula: Formula | str,
        role: str,
        members: Mapping[str, PreTrainedModel],
        values: Mapping[str, Any],
        temperatures: Mapping[str, float],
        plausibility: Plausibility | None,
        size: int,
    ) -> None:
        if not isinstance(formula, Formula):
            formula = parse(formula, [role, *members], list(values))
        elsewhere = [role for role in formula.members if role not in members]
        if len(elsewhere) != 1:
            raise ConfigurationError(
                f"The formula '{formula}' has the members {list(formula.members)}, and of these {list(members)} are "
                "given. Exactly one must be left over: it is the remote base."
            )
        unused = [role for role in members if role not in formula.members]
        if unused:
            raise ConfigurationError(f"The formula '{formula}' does not use the member '{unused[0]}'. Leave it out.")
        check_values(values, formula.parameters)
        for role, temperature in temperatures.items():
            if role not in formula.members:
                raise ConfigurationError(
                    f"There is a temperature for '{role}', and the formula '{formula}' has no such member."
                )
            check_temperature(temperature)
        if plausibility is not None:
            plausibility.check(formula.members)
            if plausibility.member == elsewhere[0] and temperatures.get(elsewhere[0], 1.0) != 1.0:
                raise ConfigurationError(
                    "A mask by the remote base goes by its own probabilities: leave out the base's temperature."
                )
        self.formula = formula
        self.plausibility = plausibility
        self.base = elsewhere[0]
        self.members = dict(members)
        self.values = dict(values)
        self.temperatures = dict(temperatures)
        self.size = size
        self.weights(0, 0)  # what can be seen to be wrong is said before anything is asked

    def weights(self, row: int, step: int) -> dict[str, float]:
        """The weight of every member for one token: that of prompt `row`, `step` tokens after it.

        Raises:
            ConfigurationError: the base's weight is not above 0, so that a bound of its score bounds nothing.
        """
        values = {name: _of_row(name, value, row) for name, value in self.values.items()}
        numbers = at_steps(values, 1, range(step, step + 1))
        weights = {role: float(weight) for role, weight in self.formula.coefficients(numbers).items()}
        if weights[self.base] <= 0:
            raise ConfigurationError(
                f"In the formula '{self.formula}' the base '{self.base}' has the weight {weights[self.base]:g}. A "
                "remote base needs one above 0: of the tokens that its server does not list, only bounds are known."
            )
        return weights

    @property
    def base_mask(self) -> Plausibility | None:
        """The mask, where it is the base that decides."""
        mask = self.plausibility
        return mask if mask is not None and mask.member == self.base else None

    def readers(self) -> dict[str, Reader]:
        """Each local member, about to read a text."""
        return {role: Reader(model, self.size) for role, model in self.members.items()}

    def rest(
        self, readers: Mapping[str, Reader], ids: Sequence[int], last: int, row: int, step: int
    ) -> tuple[Tensor, list[float]]:
        """The weighted sum of all members but the base after each of the last `last` tokens, and the base's weights.

        Args:
            step: of the first of these positions.

        Returns:
            [last, size] float32, and `last` weights for the base's log-probabilities.
        """
        weights = [self.weights(row, step + i) for i in range(last)]
        masking = self.plausibility.member if self.plausibility is not None else None
        used = [role for role in readers if role == masking or any(weight[role] != 0 for weight in weights)]
        scores = {
            role: at_temperature(readers[role].logits(ids, last), self.temperatures.get(role, 1.0)) for role in used
        }
        nothing = torch.zeros(self.size)  # in the base's place, whose scores are not all known
        rows = []
        for i, weight in enumerate(weights):
            part = {role: scores[role][i] for role in used if weight[role] != 0}
            needed = {role: weight[role] for role in (self.base, *part)}
            total = combine({self.base: nothing, **part}, needed, leader=self.base)
            if self.plausibility is not None and masking in scores:
                kept = plausible(scores[masking][i], self.plausibility.kind, self.plausibility.value)
                total = restrict(total, kept)
            rows.append(total)
        scale = self.temperatures.get(self.base, 1.0)
        return torch.stack(rows), [weight[self.base] / scale for weight in weights]


def _of_row(name: str, value: Any, row: int) -> Any:
    """The value for one prompt, of a tensor that has one for each."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if row >= len(value):
        raise ConfigurationError(f"{name} has {len(value)} values and there are more prompts; give one per prompt.")
    return float(value[row])
