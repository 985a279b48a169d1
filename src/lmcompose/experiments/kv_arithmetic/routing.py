"""What routing could do at most: every question to the one model that can answer it, and the answers joined by hand.

The product of m_A's substitution accuracy and m_B's arithmetic accuracy is what one gets by letting m_A write the
values down and m_B calculate with them: the skyline that the paper's authors name in their reply to its reviewers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmcompose.evaluation.statistics import figure, resampled_sums, score
from lmcompose.experiments.kv_arithmetic.differences import Answers
from lmcompose.experiments.kv_arithmetic.task import Kind


def skyline(augmenting: Sequence[Answers], anchor: Sequence[Answers], composition: Sequence[Answers]) -> dict[str, Any]:
    """The skyline and the composition's KV-MATH beside it, from the answers of each by seed.

    Returns:
        `product`, and `minus`, the composition's accuracy less it: `statistics.figure`s, whose bootstrap draws the
        expressions of the three tasks apart, since they are different ones; `either`: the counts of KV-MATH answers
        that m_A or m_B alone gets right, which is what choosing one model for each question could reach.
    """
    product = _accuracies(augmenting, Kind.KV_SUBS) * _accuracies(anchor, Kind.NUM_MATH)
    either = [
        max(both)
        for ours, theirs in zip(augmenting, anchor, strict=True)
        for both in zip(ours[Kind.KV_MATH], theirs[Kind.KV_MATH], strict=True)
    ]
    return {
        "product": figure(product),
        "minus": figure(_accuracies(composition, Kind.KV_MATH) - product),
        "either": score(sum(either), len(either)),
    }


def _accuracies(by_seed: Sequence[Answers], kind: Kind) -> np.ndarray:
    """[seeds, 1 + resamples] accuracies: the estimate first."""
    right = np.array([seed[kind] for seed in by_seed], dtype=float)
    return (resampled_sums(right.T, seed=list(Kind).index(kind)) / right.shape[1]).T
