"""Key-value arithmetic (CALM, section 4.1): keys with secret values, and three tasks on expressions over them.

    KV-SUBS    <k1> + <k2> - <k3>  ->  10 + 22 - 24
    NUM-MATH   10 + 22 - 24        =   8
    KV-MATH    <k1> + <k2> - <k3>  =   8

Every key is one token, as the paper samples its keys from the vocabulary. Numbers are digits of a fixed width, the
least significant first, and a key is followed by fillers up to that width, so that the operands of all three tasks
stand in the same places. Expressions have no negative result. The tasks are told apart by the sign that asks for the
answer: `->` to substitute, `=` to evaluate. This file knows no model.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from lmcompose.errors import ConfigurationError

SPECIALS = ("<pad>", "<s>", "</s>")
OPERATORS = ("+", "-", "*")
SIGNS = (*OPERATORS, "=", "->", "_")
PAD, BOS, EOS = range(3)
PLUS, MINUS, TIMES, EQUALS, BECOMES, FILLER = range(3, 9)
FIRST_DIGIT = 9
FIRST_KEY = 19
"""Token ids below this are the words of arithmetic: all that an answer is made of."""


class Kind(StrEnum):
    """The three tasks."""

    KV_SUBS = "kv_subs"
    NUM_MATH = "num_math"
    KV_MATH = "kv_math"


@dataclass(frozen=True)
class Expressions:
    """A batch of expressions of one length.

    Args:
        keys: [rows, operands] key numbers, -1 where the operand is a plain number.
        values: [rows, operands] the operands' values.
        operators: [rows, operands] token ids of the operator before each operand (the first one counts as `+`).
    """

    keys: np.ndarray
    values: np.ndarray
    operators: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, chosen: np.ndarray) -> "Expressions":
        """Some of the rows, by index."""
        return Expressions(self.keys[chosen], self.values[chosen], self.operators[chosen])

    def results(self) -> np.ndarray:
        """[rows] the value of each expression; `*` binds before `+` and `-`."""
        total = np.zeros(len(self.values), dtype=self.values.dtype)
        product = self.values[:, 0] * 1
        for operand in range(1, self.values.shape[1]):
            operator, value = self.operators[:, operand], self.values[:, operand]
            times = operator == TIMES
            total = np.where(times, total, total + product)
            product = np.where(times, product * value, np.where(operator == MINUS, -value, value))
        return total + product


@dataclass(frozen=True)
class Task:
    """A table of `keys` keys with unique values in [1, keys], and the expressions over them.

    Args:
        keys: N.
        operands: the longest expression.
        seed: of the table and of which keys are held in.
        held_in: the fraction of keys that composition data may show.
        multiplication: let `*` occur too.
        table: which of the seed's tables of values the keys have; 0 is the true one, any other a wrong one.

    Raises:
        ConfigurationError: no key would be held in or none held out, or a result could be too long for an integer.
    """

    keys: int
    operands: int = 3
    seed: int = 0
    held_in: float = 0.2
    multiplication: bool = False
    table: int = 0
    words: ClassVar[tuple[str, ...]] = ()
    """What prompts have beside operands and signs; their tokens come after the keys."""

    def __post_init__(self) -> None:
        if self.operands < 1 or not 1 <= round(self.keys * self.held_in) < self.keys:
            raise ConfigurationError(
                f"{self.keys} keys with a fraction of {self.held_in} held in, {self.operands} operands: there must be "
                "at least one operand, one key held in and one key held out."
            )
        if self.multiplication and self.keys**self.operands >= 2**62:
            raise ConfigurationError(
                f"Products of {self.operands} values up to {self.keys} do not fit 64 bits. Take fewer keys or operands."
            )

    @cached_property
    def values(self) -> np.ndarray:
        """[N] the value of each key."""
        stream = [self.seed, 0, self.table] if self.table else [self.seed, 0]
        return np.random.default_rng(stream).permutation(self.keys) + 1

    @cached_property
    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys held in and the keys held out."""
        shuffled = np.random.default_rng([self.seed, 1]).permutation(self.keys)
        count = round(self.keys * self.held_in)
        return np.sort(shuffled[:count]), np.sort(shuffled[count:])

    @property
    def width(self) -> int:
        """Digits of an operand."""
        return len(str(self.keys))

    @property
    def answer_width(self) -> int:
        """Digits of a result."""
        largest = self.keys**self.operands if self.multiplication else self.keys * self.operands
        return len(str(largest))

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return FIRST_KEY + self.keys + len(self.words)

    @property
    def form(self) -> str:
        """What prompts look like."""
        return "signs"

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer that all members share: one word, one token."""
        words = [*SPECIALS, *SIGNS, *"0123456789", *(f"<k{key}>" for key in range(self.keys)), *self.words]
        tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
        )

    def sample(
        self,
        generator: np.random.Generator,
        rows: int,
        operands: int,
        pool: np.ndarray | None = None,
        all_keys: float = 1.0,
        no_key: float = 0.0,
        sparse: float = 0.0,
    ) -> Expressions:
        """Draw `rows` expressions without a negative result: over the keys in `pool`, or over plain numbers.

        Operators and operands are uniform before negative results are thrown away. With a pool, a share `all_keys` of
        the rows has keys only, a share `no_key` numbers only, and the others one key, in any place, among numbers. In
        a share `sparse` of the rows, every digit of the plain numbers is zeroed with probability 1/2.
        """
        choices = np.array([PLUS, MINUS, TIMES] if self.multiplication else [PLUS, MINUS])
        kept: list[Expressions] = []
        missing = rows
        while missing > 0:
            operators = choices[generator.integers(0, len(choices), (2 * missing, operands))]
            operators[:, 0] = PLUS
            keys = np.full(operators.shape, -1)
            if pool is not None:
                which = generator.random((missing * 2, 1))
                alone = np.arange(operands) == generator.integers(0, operands, which.shape)
                keyed = np.where(which < all_keys, True, np.where(which < all_keys + no_key, False, alone))
                keys = np.where(keyed, pool[generator.integers(0, len(pool), operators.shape)], -1)
            values = np.where(keys < 0, self._numbers(generator, operators.shape, sparse), self.values[keys])
            drawn = Expressions(keys, values, operators)
            good = np.flatnonzero(drawn.results() >= 0)[:missing]
            kept.append(drawn.rows(good))
            missing -= len(good)
        return Expressions(
            np.concatenate([part.keys for part in kept]),
            np.concatenate([part.values for part in kept]),
            np.concatenate([part.operators for part in kept]),
        )

    def _numbers(self, generator: np.random.Generator, shape: tuple[int, ...], sparse: float) -> np.ndarray:
        numbers = generator.integers(1, self.keys + 1, shape)
        if not sparse:
            return numbers
        places = 10 ** np.arange(self.width)
        digits = numbers[..., None] // places % 10
        kept = (generator.random(digits.shape) < 0.5) | (generator.random((shape[0], 1, 1)) >= sparse)
        return (digits * kept * places).sum(axis=-1)

    def encode(self, expressions: Expressions, kind: Kind) -> tuple[np.ndarray, int]:
        """Token ids [rows, length] of prompt and answer, and the length of the prompt, which all rows share."""
        operators = expressions.operators
        numbers = self.digits(expressions.values, self.width)
        padded_keys = np.full_like(numbers, FILLER)
        padded_keys[:, :, 0] = FIRST_KEY + expressions.keys
        plain = (expressions.keys < 0) | (kind is Kind.NUM_MATH)
        operands = np.where(plain[:, :, None], numbers, padded_keys)
        ask = EQUALS if kind is not Kind.KV_SUBS else BECOMES
        prompt = np.concatenate(
            [_column(expressions, BOS), self.joined_prompt(operands, expressions), _column(expressions, ask)], axis=1
        )
        if kind is Kind.KV_SUBS:
            answer = _joined(numbers, operators)
        else:
            answer = self.digits(expressions.results(), self.answer_width)
        return np.concatenate([prompt, answer, _column(expressions, EOS)], axis=1), prompt.shape[1]

    def joined_prompt(self, operands: np.ndarray, expressions: Expressions) -> np.ndarray:
        """[rows, operands, width] and what stands between them -> [rows, length]."""
        return _joined(operands, expressions.operators)

    @staticmethod
    def digits(numbers: np.ndarray, width: int) -> np.ndarray:
        """Token ids [..., width] of non-negative numbers, the least significant digit first."""
        return np.stack([numbers // 10**place % 10 for place in range(width)], axis=-1) + FIRST_DIGIT

    @staticmethod
    def number(digits: np.ndarray) -> int:
        """The number that one row of digit tokens stands for."""
        return sum(int(digit - FIRST_DIGIT) * 10**place for place, digit in enumerate(digits))


def _column(expressions: Expressions, token: int) -> np.ndarray:
    return np.full((len(expressions), 1), token)


def _joined(operands: np.ndarray, operators: np.ndarray) -> np.ndarray:
    """[rows, operands, width] and the operators between them -> [rows, length]."""
    parts = [operands[:, 0]]
    for place in range(1, operands.shape[1]):
        parts += [operators[:, place : place + 1], operands[:, place]]
    return np.concatenate(parts, axis=1)
