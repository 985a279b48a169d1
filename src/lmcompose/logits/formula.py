"""Which members are added with which weights: `base + alpha * (expert - antiexpert)`, as text or as Python.

A formula is a weighted sum of members; the weights are arithmetic (+ - * /) in numbers and named parameters. Text is
read by the small parser in `parsing.py`, which builds nothing but such sums: nothing is ever evaluated as Python. This
file knows no models and no scores.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.logits.expression import Node, NotASumError, Weight, as_text, expanded, joined, literal
from lmcompose.logits.parsing import EXAMPLE, Parser


@dataclass(frozen=True)
class Formula:
    """A weighted sum of members, or (while one is being built) a weight. Made by `parse`, `term` and `parameter`.

    >>> str(term("base") + parameter("alpha") * (term("expert") - term("antiexpert")))
    'base + alpha * (expert - antiexpert)'
    """

    node: Node

    @property
    def members(self) -> tuple[str, ...]:
        """The members in the order in which they first appear."""
        return tuple(dict.fromkeys(leaf.name for leaf in self.node.leaves("member")))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters in the order in which they first appear."""
        return tuple(dict.fromkeys(leaf.name for leaf in self.node.leaves("parameter")))

    def coefficients(self, values: Mapping[str, Weight] | None = None) -> dict[str, Weight]:
        """The weight of each member, given a number or a tensor for each parameter: a number, or a float64 tensor on
        the CPU. alpha and -alpha come out as exact opposites, which lets `arithmetic.combine` cancel equal scores.

        Raises:
            ConfigurationError: a parameter without a value, a value without a parameter, a value that is no finite
                number, or a division by zero.
        """
        given = values or {}
        _check_values(self.parameters, given)
        weights = expanded(self.node, given)
        for member in self.members:
            weight = weights[member]
            if not isinstance(weight, torch.Tensor) and not math.isfinite(weight):
                raise ConfigurationError(
                    f"The formula '{self}' gives {member} the weight {weight}. Use smaller values."
                )
        return {member: weights[member] for member in self.members}

    def __str__(self) -> str:
        return as_text(self.node)

    def __repr__(self) -> str:
        return f"Formula({str(self)!r})"

    def __add__(self, other: "Formula | float") -> "Formula":
        return _operate("+", self, other)

    def __radd__(self, other: "Formula | float") -> "Formula":
        return self if isinstance(other, int) and other == 0 else _operate("+", other, self)  # sum() begins with 0

    def __sub__(self, other: "Formula | float") -> "Formula":
        return _operate("-", self, other)

    def __rsub__(self, other: "Formula | float") -> "Formula":
        return _operate("-", other, self)

    def __mul__(self, other: "Formula | float") -> "Formula":
        return _operate("*", self, other)

    def __rmul__(self, other: "Formula | float") -> "Formula":
        return _operate("*", other, self)

    def __truediv__(self, other: "Formula | float") -> "Formula":
        return _operate("/", self, other)

    def __rtruediv__(self, other: "Formula | float") -> "Formula":
        return _operate("/", other, self)

    def __neg__(self) -> "Formula":
        return Formula(Node("minus", parts=(self.node,)))


def term(member: str) -> Formula:
    """The scores of one member, to write a formula in Python.

    Raises:
        ConfigurationError: a name that a formula's text could not spell.
    """
    return Formula(Node("member", name=_checked_name(member, "member")))


def parameter(name: str) -> Formula:
    """A weight that gets its value later, such as alpha.

    Raises:
        ConfigurationError: a name that a formula's text could not spell.
    """
    return Formula(Node("parameter", name=_checked_name(name, "parameter")))


def parse(text: str, members: Iterable[str], parameters: Iterable[str] = ()) -> Formula:
    """Read a formula such as `base + alpha * (expert - antiexpert)`.

    Raises:
        ConfigurationError: the text is no weighted sum of the members; the message shows it with a caret under the
            character that is in the way. Also when a listed member or parameter is not used, or a name is both.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"A formula is text such as '{EXAMPLE}', not {type(text).__name__}.")
    kinds = {_checked_name(name, "member"): "member" for name in members}
    for name in parameters:
        if kinds.setdefault(_checked_name(name, "parameter"), "parameter") == "member":
            raise ConfigurationError(f"'{name}' is both a member and a parameter. Rename one of them.")
    formula = Formula(Parser(text, kinds).parse())
    for name, kind in kinds.items():
        if name not in (*formula.members, *formula.parameters):
            raise ConfigurationError(
                f"The {kind} '{name}' is given but the formula '{formula}' does not use it. Add it to the formula or "
                f"leave the {kind} out."
            )
    return formula


def check_not_cancelled(formula: Formula, values: Mapping[str, Weight] | None = None) -> None:
    """Refuse a formula whose weights leave nothing to choose a token by.

    Raises:
        ConfigurationError: with `values` every weight is 0 (base - base), or none is positive, so that the
            composition would choose what its members reject; for tensors, in any row.
    """
    coefficients = formula.coefficients(values)
    if _everywhere(weight > 0 for weight in coefficients.values()):
        return
    shown = ", ".join(f"{name} = {_shown(value)}" for name, value in (values or {}).items())
    weights = ", ".join(f"{member}: {_shown(weight)}" for member, weight in coefficients.items())
    problem = "no weight is positive, so it would choose the tokens that its members reject"
    if not _everywhere(weight != 0 for weight in coefficients.values()):
        problem = "the weights cancel, and no member is left to choose a token"
    raise ConfigurationError(
        f"In the formula '{formula}'{' with ' + shown if shown else ''} {problem} ({weights}). Give at least one "
        "member a positive weight."
    )


def _everywhere(conditions: Iterable[bool | torch.Tensor]) -> bool:
    """Whether in every row at least one member meets its condition."""
    met = torch.tensor(False)
    for condition in conditions:
        met = met | torch.as_tensor(condition).cpu()
    return bool(met.all())


def _shown(weight: Weight) -> str:
    return str(weight.flatten().tolist()) if isinstance(weight, torch.Tensor) else f"{weight:g}"


def _check_values(names: tuple[str, ...], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in names:
            raise ConfigurationError(
                f"The formula has no parameter '{name}'; it has {', '.join(names) or 'none'}.{nearest(name, names)}"
            )
        if isinstance(value, torch.Tensor):
            if value.dtype == torch.bool or value.is_complex():
                raise ConfigurationError(f"{name} is a tensor of {value.dtype}. Give real numbers.")
        elif isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ConfigurationError(f"{name} = {value!r} is no finite number. Give one, such as 1.0, or a tensor.")
    for name in names:
        if name not in values:
            raise ConfigurationError(f"The formula's parameter '{name}' has no value. Give one, such as {name} = 1.0.")


def _checked_name(name: str, kind: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {kind} in a formula. Use letters, digits and underscores, and begin "
            "with a letter."
        )
    return name


def _operate(operator: str, left: Any, right: Any) -> Formula:
    if not all(isinstance(side, (Formula, Real)) and not isinstance(side, bool) for side in (left, right)):
        return NotImplemented
    nodes = [side.node if isinstance(side, Formula) else literal(float(side)) for side in (left, right)]
    try:
        return Formula(joined(operator, *nodes))
    except NotASumError as problem:
        raise ConfigurationError(f"{as_text(nodes[0])} {operator} {as_text(nodes[1])}: {problem}") from None
