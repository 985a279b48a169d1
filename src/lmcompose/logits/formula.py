"""Which members are added with which weights: `base + alpha * (expert - antiexpert)`, as text or as Python.

A formula is a weighted sum of members; the weights are arithmetic (+ - * /) in numbers and named parameters. Text is
read by the small parser below, which builds nothing but such sums: nothing is ever evaluated as Python. This file
knows no models and no scores.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn

import torch

from lmcompose.errors import ConfigurationError, nearest

Weight = float | torch.Tensor
"""A number for all rows, or a tensor that broadcasts against scores [batch, new, vocab], such as [batch, 1, 1]."""

EXAMPLE = "base + 1.0 * (expert - antiexpert)"
MAX_TOKENS, MAX_DEPTH = 400, 50


@dataclass(frozen=True)
class _Node:
    """A number (never negative: -1 is the minus of 1, as in text), a name, or an operation on other nodes."""

    kind: str  # number, member, parameter, minus, +, -, * or /
    number: float = 0.0
    name: str = ""
    parts: tuple["_Node", ...] = ()

    def leaves(self, kind: str) -> Iterator["_Node"]:
        """The numbers, members or parameters in it, from left to right."""
        if self.kind == kind:
            yield self
        for part in self.parts:
            yield from part.leaves(kind)

    def has(self, kind: str) -> bool:
        return next(self.leaves(kind), None) is not None


class _NotASumError(Exception):
    """An operation that leaves the weighted sums; the caller knows where it stands."""


@dataclass(frozen=True)
class Formula:
    """A weighted sum of members, or (while one is being built) a weight. Made by `parse`, `term` and `parameter`.

    >>> str(term("base") + parameter("alpha") * (term("expert") - term("antiexpert")))
    'base + alpha * (expert - antiexpert)'
    """

    _node: _Node

    @property
    def members(self) -> tuple[str, ...]:
        """The members in the order in which they first appear."""
        return tuple(dict.fromkeys(leaf.name for leaf in self._node.leaves("member")))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters in the order in which they first appear."""
        return tuple(dict.fromkeys(leaf.name for leaf in self._node.leaves("parameter")))

    def coefficients(self, values: Mapping[str, Weight] | None = None) -> dict[str, Weight]:
        """The weight of each member, given a number or a tensor for each parameter: a number, or a float64 tensor on
        the CPU. alpha and -alpha come out as exact opposites, which lets `arithmetic.combine` cancel equal scores.

        Raises:
            ConfigurationError: a parameter without a value, a value without a parameter, a value that is no finite
                number, or a division by zero.
        """
        given = values or {}
        _check_values(self.parameters, given)
        weights = _expanded(self._node, given)
        for member in self.members:
            weight = weights[member]
            if not isinstance(weight, torch.Tensor) and not math.isfinite(weight):
                raise ConfigurationError(
                    f"The formula '{self}' gives {member} the weight {weight}. Use smaller values."
                )
        return {member: weights[member] for member in self.members}

    def __str__(self) -> str:
        return _text(self._node)

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
        return Formula(_Node("minus", parts=(self._node,)))


def term(member: str) -> Formula:
    """The scores of one member, to write a formula in Python.

    Raises:
        ConfigurationError: a name that a formula's text could not spell.
    """
    return Formula(_Node("member", name=_checked_name(member, "member")))


def parameter(name: str) -> Formula:
    """A weight that gets its value later, such as alpha.

    Raises:
        ConfigurationError: a name that a formula's text could not spell.
    """
    return Formula(_Node("parameter", name=_checked_name(name, "parameter")))


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
    formula = Formula(_Parser(text, kinds).parse())
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
    nodes = [side._node if isinstance(side, Formula) else _number(float(side)) for side in (left, right)]
    try:
        return Formula(_joined(operator, *nodes))
    except _NotASumError as problem:
        raise ConfigurationError(f"{_text(nodes[0])} {operator} {_text(nodes[1])}: {problem}") from None


def _number(number: float) -> _Node:
    if not math.isfinite(number):
        raise ConfigurationError(f"A formula cannot hold {number}. Give a finite number.")
    return _Node("number", number) if number >= 0 else _Node("minus", parts=(_Node("number", -number),))


def _joined(operator: str, left: _Node, right: _Node) -> _Node:
    """The node `left operator right`, where the result is still a weighted sum or a weight."""
    left_sum, right_sum = left.has("member"), right.has("member")
    if operator in "+-" and left_sum != right_sum:
        raise _NotASumError(
            "a number is added to a member. A formula is a weighted sum of members, and a number added to all tokens "
            "chooses none: multiply a member by the number, or remove it."
        )
    if operator == "*" and left_sum and right_sum:
        raise _NotASumError("this is a product of members. A formula is a weighted sum: multiply by numbers only.")
    if operator == "/" and right_sum:
        raise _NotASumError("this divides by a member. A formula is a weighted sum: divide by numbers only.")
    if operator == "/" and not right.has("parameter") and _expanded(right, {})[""] == 0:
        raise _NotASumError("this divides by zero. Divide by another number.")
    return _Node(operator, parts=(left, right))


def _expanded(node: _Node, values: Mapping[str, Weight]) -> dict[str, Weight]:
    """The weight of each member in `node`; a node without members is its own value, under the empty name."""
    if node.kind == "number":
        return {"": node.number}
    if node.kind == "member":
        return {node.name: 1.0}
    if node.kind == "parameter":
        value = values[node.name]  # in double precision, so that (1 + alpha) - alpha is 1
        return {"": value.to("cpu", torch.float64) if isinstance(value, torch.Tensor) else float(value)}
    left, right = _expanded(node.parts[0], values), _expanded(node.parts[-1], values)
    if node.kind == "minus":
        return {name: -weight for name, weight in left.items()}
    if node.kind in "+-":
        signed = right if node.kind == "+" else {name: -weight for name, weight in right.items()}
        return left | {name: left[name] + weight if name in left else weight for name, weight in signed.items()}
    if node.kind == "*":
        scale, scaled = (left, right) if "" in left else (right, left)
        return {name: scale[""] * weight for name, weight in scaled.items()}
    divisor = right[""]
    if not isinstance(divisor, torch.Tensor) and divisor == 0:
        raise ConfigurationError(f"The formula divides by '{_text(node.parts[1])}', which is 0. Use another value.")
    return {name: weight / divisor for name, weight in left.items()}


_STRENGTHS = {"+": 1, "-": 1, "*": 2, "/": 2}


def _text(node: _Node) -> str:
    if node.kind == "number":
        return repr(node.number).removesuffix(".0")
    if node.kind == "minus":
        return "-" + _bracketed(node.parts[0], 3)
    if not node.parts:
        return node.name
    strength = _STRENGTHS[node.kind]  # a - (b - c) needs its brackets, (a - b) - c does not
    return f"{_bracketed(node.parts[0], strength)} {node.kind} {_bracketed(node.parts[1], strength + 1)}"


def _bracketed(node: _Node, least: int) -> str:
    return f"({_text(node)})" if _STRENGTHS.get(node.kind, 3) < least else _text(node)


_TOKEN = re.compile(r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|\S)")


class _Parser:
    """Recursive descent: a sum is products between + and -, a product is factors between * and /, and a factor is a
    number, a name, a minus and a factor, or a sum in parentheses."""

    def __init__(self, text: str, kinds: Mapping[str, str]) -> None:
        self.text = text
        self.kinds = kinds
        self.tokens = [(str(match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(text)]
        self.tokens.append(("end", "", len(text.rstrip())))
        self.next = 0
        self.depth = 0

    def parse(self) -> _Node:
        if len(self.tokens) == 1:
            self.fail(f"The formula is empty. Write one such as '{EXAMPLE}'.", 0)
        if len(self.tokens) > MAX_TOKENS:
            self.fail(f"The formula has more than {MAX_TOKENS} names, numbers and signs. Write a shorter one.", 0)
        node = self.sum()
        if self.tokens[self.next][0] != "end":
            self.unexpected()
        if not node.has("member"):
            self.fail(f"The formula has no member in it. The members are {self.known('member')}.", 0)
        return node

    def sum(self) -> _Node:
        return self.chain(("+", "-"), self.product)

    def product(self) -> _Node:
        return self.chain(("*", "/"), self.factor)

    def chain(self, operators: tuple[str, ...], operand: Callable[[], _Node]) -> _Node:
        node = operand()
        while (token := self.tokens[self.next])[1] in operators:
            self.next += 1
            right = operand()
            # what cannot stand here is said first: the sum up to it may be none only because of it
            if self.tokens[self.next][1] not in ("+", "-", "*", "/", ")", ""):
                self.unexpected()
            try:
                node = _joined(token[1], node, right)
            except _NotASumError as problem:
                self.fail(f"In the formula {problem}", token[2])
        return node

    def factor(self) -> _Node:
        kind, value, position = self.tokens[self.next]
        if kind not in ("number", "name") and value not in ("-", "("):
            self.unexpected(" where a member or a number must stand")
        self.next += 1
        if kind == "number":
            if not math.isfinite(float(value)):
                self.fail(f"The number {value} is too large. Use a smaller one.", position)
            return _number(float(value))
        if kind == "name":
            return self.name(value, position)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"The formula is nested more than {MAX_DEPTH} deep. Write a flatter one.", position)
        if value == "-":
            node = _Node("minus", parts=(self.factor(),))
        else:
            node = self.sum()
            if self.tokens[self.next][0] == "end":
                self.fail("This parenthesis is never closed. Add the missing ')'.", position)
            if self.tokens[self.next][1] != ")":
                self.unexpected()
            self.next += 1
        self.depth -= 1
        return node

    def name(self, name: str, position: int) -> _Node:
        if self.tokens[self.next][1] == "(":
            self.fail(f"Nothing can be called in a formula. To multiply, write '{name} * ('.", position)
        if name not in self.kinds:
            known = f"The members are {self.known('member')}"
            if "parameter" in self.kinds.values():
                known += f", the parameters are {self.known('parameter')}"
            self.fail(f"Unknown name '{name}'. {known}.{nearest(name, self.kinds)}", position)
        return _Node(self.kinds[name], name=name)

    def known(self, kind: str) -> str:
        return ", ".join(name for name, its_kind in self.kinds.items() if its_kind == kind)

    def unexpected(self, where: str = "") -> NoReturn:
        """Fail at the next token, which cannot stand where it does."""
        kind, value, position = self.tokens[self.next]
        if kind == "end":
            self.fail(f"The formula ends{where}. Add what is missing, or remove the last sign.", position)
        if value == ")" and self.depth == 0:
            self.fail("This parenthesis was never opened. Remove it, or add the missing '('.", position)
        if value == ".":
            self.fail("Names in a formula have no attributes. Write the bare name of a member.", position)
        if where and value in ("+", "*", "/", ")"):
            self.fail(f"There is a '{value}'{where}. Add what is missing, or remove the '{value}'.", position)
        if value in ("**", "^"):
            self.fail(
                f"A formula has no powers, so no '{value}'. Write the power of a weight as a product, such as "
                "alpha * alpha; a member has none.",
                position,
            )
        if value == "//":
            self.fail("A formula has no '//'. Write / to divide.", position)
        if kind in ("name", "number") or value == "(":
            self.fail(f"An operator is missing before '{value}'. Write + - * or / between the two.", position)
        self.fail(f"A formula has no '{value}'. Use names, numbers, + - * / and parentheses.", position)

    def fail(self, problem: str, position: int) -> NoReturn:
        line = re.sub(r"\s", " ", self.text)
        raise ConfigurationError(f"{problem}\n  {line}\n  {' ' * position}^")
