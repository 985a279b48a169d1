"""Which tokens a base finds plausible whose log-probabilities are known in part: those that can be, and those that are.

The masks are those of `arithmetic.plausible`: a token is kept if fewer than k tokens, or tokens of less than the
probability p together, are better than it, or if it has at least a share a of the best one's probability.
"""

import math

import torch
from torch import Tensor

from lmcompose.logits.remote.bounds import MASS_SLACK, Knowledge


def possible_and_certain(knowledge: Knowledge, kind: str, value: float) -> tuple[Tensor, Tensor]:
    """Which tokens may be plausible, and which are plausible whatever the unknown log-probabilities are.

    Args:
        knowledge: of the base.
        kind, value: see `arithmetic.Plausibility`.

    Returns:
        Two bool [vocab]; the second is part of the first.
    """
    known, upper = knowledge.known, knowledge.upper
    values = knowledge.values[known]
    if len(values) == 0:
        return torch.ones_like(known), torch.zeros_like(known)
    if kind == "ratio":
        least = math.log(value)
        return upper >= values.max() + least, known & (upper >= upper.max() + least)
    counts = torch.ones_like(values) if kind == "top_k" else values.exp()
    possible = _sum_above(upper, values, counts) < value
    if kind == "top_k":
        hidden = _sum_above(upper, upper[~known], torch.ones_like(upper[~known]))
    else:
        left = max(0.0, 1.0 - float(values.exp().sum())) + MASS_SLACK
        lowest = upper[~known].max() if bool((~known).any()) else -math.inf
        hidden = torch.where(upper < lowest, left, 0.0)
    certain = known & (_sum_above(upper, values, counts) + hidden < value)
    return possible, certain & possible


def _sum_above(bounds: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """For each bound, the sum of the counts of the values above it."""
    order = values.argsort()
    sums = torch.cat([counts[order].flip(0).cumsum(0).flip(0), counts.new_zeros(1)])
    return sums[torch.searchsorted(values[order], bounds.contiguous(), right=True)]
