"""Weighted sums of members as trees: what may be joined to what, what a tree is worth, and how it is written.

This file reads no text and knows no models and no scores.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from lmcompose.errors import ConfigurationError

Weight = float | torch.Tensor
"""A number for all rows, or a tensor that broadcasts against scores [batch, new, vocab], such as [batch, 1, 1]."""


@dataclass(frozen=True)
class Node:
    """A number (never negative: -1 is the minus of 1, as in text), a name, or an operation on other nodes."""

    kind: str  # number, member, parameter, minus, +, -, * or /
    number: float = 0.0
    name: str = ""
    parts: tuple["Node", ...] = ()

    def leaves(self, kind: str) -> Iterator["Node"]:
        """The numbers, members or parameters in it, from left to right."""
        if self.kind == kind:
            yield self
        for part in self.parts:
            yield from part.leaves(kind)

    def has(self, kind: str) -> bool:
        return next(self.leaves(kind), None) is not None


class NotASumError(Exception):
    """An operation that leaves the weighted sums; the caller knows where it stands."""


def literal(number: float) -> Node:
    """A number as a tree.

    Raises:
        ConfigurationError: it is not finite.
    """
    if not math.isfinite(number):
        raise ConfigurationError(f"A formula cannot hold {number}. Give a finite number.")
    return Node("number", number) if number >= 0 else Node("minus", parts=(Node("number", -number),))


def joined(operator: str, left: Node, right: Node) -> Node:
    """The node `left operator right`, where the result is still a weighted sum or a weight."""
    left_sum, right_sum = left.has("member"), right.has("member")
    if operator in "+-" and left_sum != right_sum:
        raise NotASumError(
            "a number is added to a member. A formula is a weighted sum of members, and a number added to all tokens "
            "chooses none: multiply a member by the number, or remove it."
        )
    if operator == "*" and left_sum and right_sum:
        raise NotASumError("this is a product of members. A formula is a weighted sum: multiply by numbers only.")
    if operator == "/" and right_sum:
        raise NotASumError("this divides by a member. A formula is a weighted sum: divide by numbers only.")
    if operator == "/" and not right.has("parameter") and expanded(right, {})[""] == 0:
        raise NotASumError("this divides by zero. Divide by another number.")
    return Node(operator, parts=(left, right))


def expanded(node: Node, values: Mapping[str, Weight]) -> dict[str, Weight]:
    """The weight of each member in `node`; a node without members is its own value, under the empty name."""
    if node.kind == "number":
        return {"": node.number}
    if node.kind == "member":
        return {node.name: 1.0}
    if node.kind == "parameter":
        value = values[node.name]  # in double precision, so that (1 + alpha) - alpha is 1
        return {"": value.to("cpu", torch.float64) if isinstance(value, torch.Tensor) else float(value)}
    left, right = expanded(node.parts[0], values), expanded(node.parts[-1], values)
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
        raise ConfigurationError(f"The formula divides by '{as_text(node.parts[1])}', which is 0. Use another value.")
    return {name: weight / divisor for name, weight in left.items()}


_STRENGTHS = {"+": 1, "-": 1, "*": 2, "/": 2}


def as_text(node: Node) -> str:
    """A tree with no more brackets than it needs; reading it gives the tree back."""
    if node.kind == "number":
        return repr(node.number).removesuffix(".0")
    if node.kind == "minus":
        return "-" + _bracketed(node.parts[0], 3)
    if not node.parts:
        return node.name
    strength = _STRENGTHS[node.kind]  # a - (b - c) needs its brackets, (a - b) - c does not
    return f"{_bracketed(node.parts[0], strength)} {node.kind} {_bracketed(node.parts[1], strength + 1)}"


def _bracketed(node: Node, least: int) -> str:
    return f"({as_text(node)})" if _STRENGTHS.get(node.kind, 3) < least else as_text(node)
