"""The task in words: "What is the value when <k1> is added to the difference of <k2> and <k3> ?"

The form of the prompts is the only difference from `Task`: three kinds of sentence, one drawn for each expression, in
place of signs between the operands. A sentence is cut by its operands into segments, and each segment is padded to one
length, so that operands stand in the same places in all sentences, as they do with signs. Answers are as they were: a
number after `=`, and the expression in numbers and signs after `->`, which takes reading a sentence and no arithmetic.

    KV-SUBS    What is the value when <k1> is added to the difference of <k2> and <k3> ? ->  10 + 22 - 24
    NUM-MATH   What is the value when 10 is added to the difference of 22 and 24 ?        =   8
    KV-MATH    What is the value when <k1> is added to the difference of <k2> and <k3> ? =   8
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np

from lmcompose.errors import ConfigurationError
from lmcompose.experiments.kv_arithmetic.task import FILLER, FIRST_KEY, MINUS, PLUS, Expressions, Task

SENTENCES = 3
"""How many kinds of sentence there are for each number of operands."""
LONGEST = 3
"""Operands that a sentence can have."""


def segments(sentence: int, operators: Sequence[int]) -> list[str]:
    """The words before, between and after the operands of one kind of sentence.

    Args:
        sentence: 0 to 2.
        operators: `PLUS` or `MINUS` between the operands: none, one or two of them.
    """
    plus = [operator == PLUS for operator in operators]
    if sentence == 0:
        asked = "What is the value when" if plus else "What is the value of"
        changed = ["is added to" if first else "is reduced by" for first in plus[:1]]
        if len(plus) == 2:  # a - (b + c) is a - b - c
            changed = [f"{changed[0]} the {'sum' if plus[0] == plus[1] else 'difference'} of", "and"]
        return [asked, *changed, "?"]
    if sentence == 1:
        asked = f"What is the {'sum' if plus[0] else 'difference'} of" if plus else "What is"
        changed = ["and", *("increased by" if second else "decreased by" for second in plus[1:])]
        return [asked, *changed[: len(plus)], "?" if plus else "worth ?"]
    return ["Take", *(f", {'add' if each else 'subtract'}" for each in plus), ". What is it ?"]


_ALL = [
    segments(sentence, operators)
    for count in range(LONGEST)
    for sentence in range(SENTENCES)
    for operators in product((PLUS, MINUS), repeat=count)
]
WORDS = sorted({word for each in _ALL for segment in each for word in segment.split()})
"""The words of all sentences. Their tokens come after the keys."""
LENGTHS = [max(len(each[place].split()) for each in _ALL if len(each) > place) for place in range(LONGEST + 1)]
"""Tokens of each segment, by its place in the sentence."""


@dataclass(frozen=True)
class Sentences(Expressions):
    """Expressions that are put into words: `kinds` [rows] says into which kind of sentence each."""

    kinds: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Sentences":
        """Some of the rows, by index."""
        return dataclasses.replace(self, **{name: value[chosen] for name, value in vars(self).items()})


@dataclass(frozen=True)
class NaturalTask(Task):
    """The task of `Task` in words; takes the same arguments.

    Raises:
        ConfigurationError: more operands than a sentence has, or multiplication.
    """

    words: ClassVar[tuple[str, ...]] = tuple(WORDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.operands > LONGEST or self.multiplication:
            raise ConfigurationError(
                f"There are sentences for sums and differences of up to {LONGEST} operands. Take fewer operands, and "
                "no multiplication, or the task with signs."
            )

    @property
    def form(self) -> str:
        """What prompts look like."""
        return "natural"

    def sample(self, generator: np.random.Generator, rows: int, operands: int, *args: Any, **kwargs: Any) -> Sentences:
        """As `Task.sample`, and a kind of sentence for each expression."""
        drawn = super().sample(generator, rows, operands, *args, **kwargs)
        return Sentences(drawn.keys, drawn.values, drawn.operators, generator.integers(0, SENTENCES, rows))

    def joined_prompt(self, operands: np.ndarray, expressions: Expressions) -> np.ndarray:
        """[rows, operands, width] and the words between them -> [rows, length]."""
        assert isinstance(expressions, Sentences)
        count = operands.shape[1]
        signs = (expressions.operators[:, 1:] == MINUS) @ (2 ** np.arange(count - 1)[::-1])
        tables = self._segments[count]
        parts = [tables[0][expressions.kinds, signs]]
        for place in range(count):
            parts += [operands[:, place], tables[place + 1][expressions.kinds, signs]]
        return np.concatenate(parts, axis=1)

    @cached_property
    def _segments(self) -> dict[int, list[np.ndarray]]:
        """Number of operands -> by place, the token ids [kinds, signs, length] of a segment."""
        ids = {word: FIRST_KEY + self.keys + index for index, word in enumerate(WORDS)}
        tables = {}
        for count in range(1, LONGEST + 1):
            tables[count] = [
                np.full((SENTENCES, 2 ** (count - 1), LENGTHS[place]), FILLER) for place in range(count + 1)
            ]
            for sentence in range(SENTENCES):
                for index, operators in enumerate(product((PLUS, MINUS), repeat=count - 1)):
                    for place, segment in enumerate(segments(sentence, operators)):
                        words = [ids[word] for word in segment.split()]
                        tables[count][place][sentence, index, : len(words)] = words
        return tables
