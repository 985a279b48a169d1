"""The text of a formula, read into a tree: nothing but weighted sums can be written, and nothing is run as Python."""

import math
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.logits.expression import Node, NotASumError, joined, literal

EXAMPLE = "base + 1.0 * (expert - antiexpert)"
MAX_TOKENS, MAX_DEPTH = 400, 50
"""Of one formula: names, numbers and signs, and brackets within brackets."""

_TOKEN = re.compile(r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|\S)")


class Parser:
    """Recursive descent: a sum is products between + and -, a product is factors between * and /, and a factor is a
    number, a name, a minus and a factor, or a sum in parentheses."""

    def __init__(self, text: str, kinds: Mapping[str, str]) -> None:
        self.text = text
        self.kinds = kinds
        self.tokens = [(str(match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(text)]
        self.tokens.append(("end", "", len(text.rstrip())))
        self.next = 0
        self.depth = 0

    def parse(self) -> Node:
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

    def sum(self) -> Node:
        return self.chain(("+", "-"), self.product)

    def product(self) -> Node:
        return self.chain(("*", "/"), self.factor)

    def chain(self, operators: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        node = operand()
        while (token := self.tokens[self.next])[1] in operators:
            self.next += 1
            right = operand()
            # what cannot stand here is said first: the sum up to it may be none only because of it
            if self.tokens[self.next][1] not in ("+", "-", "*", "/", ")", ""):
                self.unexpected()
            try:
                node = joined(token[1], node, right)
            except NotASumError as problem:
                self.fail(f"In the formula {problem}", token[2])
        return node

    def factor(self) -> Node:
        kind, value, position = self.tokens[self.next]
        if kind not in ("number", "name") and value not in ("-", "("):
            self.unexpected(" where a member or a number must stand")
        self.next += 1
        if kind == "number":
            if not math.isfinite(float(value)):
                self.fail(f"The number {value} is too large. Use a smaller one.", position)
            return literal(float(value))
        if kind == "name":
            return self.name(value, position)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"The formula is nested more than {MAX_DEPTH} deep. Write a flatter one.", position)
        if value == "-":
            node = Node("minus", parts=(self.factor(),))
        else:
            node = self.sum()
            if self.tokens[self.next][0] == "end":
                self.fail("This parenthesis is never closed. Add the missing ')'.", position)
            if self.tokens[self.next][1] != ")":
                self.unexpected()
            self.next += 1
        self.depth -= 1
        return node

    def name(self, name: str, position: int) -> Node:
        if self.tokens[self.next][1] == "(":
            self.fail(f"Nothing can be called in a formula. To multiply, write '{name} * ('.", position)
        if name not in self.kinds:
            known = f"The members are {self.known('member')}"
            if "parameter" in self.kinds.values():
                known += f", the parameters are {self.known('parameter')}"
            self.fail(f"Unknown name '{name}'. {known}.{nearest(name, self.kinds)}", position)
        return Node(self.kinds[name], name=name)

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
