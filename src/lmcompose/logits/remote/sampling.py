"""Sampling a token whose distribution is known in part, exactly.

Draw from the upper bounds, which are the scores themselves where these are known. A token that is known is kept. One
that is not is kept with the ratio of its weight to its bound, which is found out first, so that what is kept follows
the true distribution: rejection sampling with bounds that tighten as more is learned. This file knows no server.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lmcompose.logits.remote.bounds import MASS_SLACK, ROUGH, Knowledge, combined_bounds


@dataclass(frozen=True)
class Drawn:
    """A sampled token.

    Attributes:
        token: its id.
        exact: whether it follows the distribution of the composition.
        doubt: where not exact, how probable a token outside the known ones can be at most.
    """

    token: int
    exact: bool
    doubt: float = 0.0


def draw(
    knowledge: Knowledge,
    rest: Tensor,
    weight: float,
    temperature: float,
    generator: torch.Generator,
    learn_more: Callable[[int], bool],
) -> Drawn:
    """Sample from softmax((weight * base + rest) / temperature).

    Args:
        knowledge: of the base; what `learn_more` finds out goes into it.
        rest: [vocab] the weighted sum of the other members' scores.
        learn_more: learns something about one token, its value or a tighter bound, and says whether it could.

    Returns:
        The token. Where nothing more could be learned of one that was drawn, a token of the known ones by their own
        probabilities, which is not exact.
    """
    while True:
        scores = combined_bounds(knowledge, rest, weight) / temperature
        if not bool(scores.isfinite().any()):
            return Drawn(int(scores.argmax()), False, 1.0)
        token = int(torch.multinomial(scores.softmax(dim=-1), 1, generator=generator))
        if bool(knowledge.known[token]):
            return Drawn(token, True)
        proposed = scores[token]
        threshold = torch.rand((), dtype=torch.float64, generator=generator)
        while True:
            score = (weight * knowledge.upper[token] + rest[token]) / temperature
            if threshold >= (score - proposed).exp():
                break  # rejected, by its value or already by its bound
            if bool(knowledge.known[token]):
                return Drawn(token, True)
            if not learn_more(token):
                return _among_known(knowledge, rest, weight, temperature, generator)


def _among_known(
    knowledge: Knowledge, rest: Tensor, weight: float, temperature: float, generator: torch.Generator
) -> Drawn:
    scores = combined_bounds(knowledge, rest, weight) / temperature
    known = knowledge.known & scores.isfinite()
    if not bool(known.any()):
        return Drawn(int(scores.argmax()), False, 1.0)
    among = torch.where(known, scores, -torch.inf).softmax(dim=-1)
    token = int(torch.multinomial(among, 1, generator=generator))
    return Drawn(token, False, unknown_share(knowledge, rest, weight, temperature))


def unknown_share(knowledge: Knowledge, rest: Tensor, weight: float, temperature: float) -> float:
    """How probable the tokens whose values are not known can be together, at most: from 0 to 1.

    They are not at their bounds all at once, since their probabilities in the base sum to what the known ones leave.
    The most that they can weigh under that is found by giving it to those that the other members raise most.
    """
    scores = combined_bounds(knowledge, rest, weight) / temperature
    weights = (scores - scores.max()).exp()
    unknown = ~knowledge.known
    most = float(weights[unknown].sum())
    stated = float(knowledge.values[knowledge.known].exp().sum())
    if weight == temperature and stated <= 1 + ROUGH:  # then a token's weight is its probability times a factor
        order = unknown.nonzero().squeeze(-1)
        order = order[rest[order].argsort(descending=True)]
        bounds = knowledge.upper[order].exp()
        left = max(0.0, 1.0 - stated) + MASS_SLACK
        given = torch.minimum(bounds, (left - (bounds.cumsum(0) - bounds)).clamp(min=0))
        most = min(most, float((weights[order] * given / bounds).sum()))
    total = float(weights[~unknown].sum()) + most
    return most / total if total > 0 else 1.0
