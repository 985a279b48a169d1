"""The truncation rule: what a list of top log-probabilities says of the tokens that are not in it, and what it proves.

A token that is not among the k listed ones is at most as probable as the k-th, and at most as probable as all that the
listed ones leave over together. The other members are here and their scores are exact, so each token's combined score
is known or has an upper bound. The best known token is proved to be the greedy choice when no bound lies above it.

All of this is as exact as the numbers that the server states. Tensors in, tensors out: this file knows no server.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MASS_SLACK = 1e-5
"""Added to the probability that is left over: stated in 32 bits, the listed ones are off by less."""

ROUGH = 1e-3
"""Stated probabilities that sum to more than 1 by this are rounded so much that what they leave over means nothing."""


@dataclass
class Knowledge:
    """What is known of the base's log-probabilities at one position.

    Attributes:
        values: [vocab] float64, NaN where not known.
        upper: [vocab] float64, the value where it is known and a bound elsewhere; at most 0.
        ended: the server ended the text here without a number.
    """

    values: Tensor
    upper: Tensor
    ended: bool = False

    @classmethod
    def nothing(cls, size: int, ended: bool = False) -> "Knowledge":
        """Of `size` tokens nothing but that their probabilities are at most 1."""
        unknown = torch.full((size,), torch.nan, dtype=torch.float64)
        return cls(unknown, torch.zeros(size, dtype=torch.float64), ended)

    @property
    def known(self) -> Tensor:
        """Which tokens' values are known: bool [vocab]."""
        return ~self.values.isnan()

    def learn(self, token: int, value: float) -> None:
        """Note the log-probability of one token."""
        self.values[token] = self.upper[token] = value

    def limit(self, tokens: Tensor, bounds: Tensor) -> None:
        """Note upper bounds [n] of tokens [n]; those that are known stay as they are."""
        unknown = ~self.known[tokens]
        self.upper[tokens[unknown]] = torch.minimum(self.upper[tokens[unknown]], bounds[unknown])

    def merge(self, other: "Knowledge") -> None:
        """Take over what `other` knows of the same position."""
        fresh = other.known & ~self.known
        self.values[fresh] = self.upper[fresh] = other.values[fresh]
        self.limit(torch.arange(len(self.upper)), other.upper)


def known_from(
    named: Mapping[int, float], unnamed: Iterable[tuple[Iterable[int], float]], floor: float | None, size: int
) -> Knowledge:
    """What a list of log-probabilities tells of all `size` tokens.

    Args:
        named: log-probabilities by token id; ids from `size` on are padding of the server's and only take their share.
        unnamed: log-probabilities of which the list does not say which of several tokens they belong to (none: any).
            A list keyed by text holds one number for all tokens of one text, so each of them could hold more.
        floor: the lowest log-probability among the most probable tokens that were listed; None where the list is of
            other tokens.
    """
    knowledge = Knowledge.nothing(size)
    unnamed = [(tuple(tokens), value) for tokens, value in unnamed]
    stated = sum(math.exp(value) for value in named.values())
    others = sum(math.exp(value) for _, value in unnamed)
    rough = stated + others > 1 + ROUGH
    left = 0.0 if rough else _log_left(stated)
    bound = min(0.0 if rough else _log_left(stated + others), 0.0 if floor is None else floor)
    knowledge.upper.fill_(bound)
    for tokens, _ in unnamed:
        if not tokens:
            knowledge.upper.fill_(left)
            break
        knowledge.upper[[token for token in tokens if token < size]] = left
    for token, value in named.items():
        if token < size:
            knowledge.learn(token, value)
    return knowledge


def _log_left(stated: float) -> float:
    return min(0.0, math.log(max(0.0, 1.0 - stated) + MASS_SLACK))


@dataclass(frozen=True)
class Decision:
    """The greedy choice as far as it is known.

    Attributes:
        best: the token with the highest combined score of those that are known; with no such token, the one with the
            highest bound.
        margin: how far its score lies above what any other token can reach; below 0 where it is not proved.
        challengers: [n] the tokens that could be better, the likeliest first.
    """

    best: int
    margin: float
    challengers: Tensor

    @property
    def proved(self) -> bool:
        """Whether no token can be better."""
        return len(self.challengers) == 0 and self.margin >= 0


def combined_bounds(knowledge: Knowledge, rest: Tensor, weight: float) -> Tensor:
    """Upper bounds [vocab] of the combined scores; the scores themselves where the base is known.

    Args:
        rest: [vocab] the weighted sum of the other members' scores; -inf where they rule a token out.
        weight: the base's own, above 0.
    """
    return weight * knowledge.upper + rest.to(torch.float64)


def decide(knowledge: Knowledge, rest: Tensor, weight: float, certain: Tensor | None = None) -> Decision:
    """The greedy choice and whether it is proved; of equal known scores the first token's counts, as in `argmax`.

    Args:
        rest, weight: see `combined_bounds`.
        certain: bool [vocab], False for tokens that may turn out not to be allowed; all are by default.
    """
    scores = combined_bounds(knowledge, rest, weight)
    known = knowledge.known & scores.isfinite()
    if certain is not None:
        known &= certain
    if not bool(known.any()):
        order = scores.argsort(descending=True, stable=True)
        return Decision(int(order[0]), -math.inf, order[scores[order].isfinite()])
    best = int(torch.where(known, scores, -torch.inf).argmax())
    better = (~known & (scores > scores[best])).nonzero().squeeze(-1)
    challengers = better[scores[better].argsort(descending=True, stable=True)]
    runner_up = scores.clone()
    runner_up[best] = -torch.inf
    return Decision(best, float(scores[best] - runner_up.max()), challengers)
