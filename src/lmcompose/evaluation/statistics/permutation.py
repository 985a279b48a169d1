"""Paired permutation tests: were the two systems alike, how often would they come out as far apart as they did?

If they are alike, it is chance which of the two made which of an item's two outputs, so that they may be swapped item
by item. All ways are tried where there are few; otherwise some are drawn, and the outcome itself is counted with them,
so that no p-value is 0 (Phipson and Smyth 2010).
"""

from collections.abc import Callable

import numpy as np

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics.checks import Array, Numbers, check_resamples, finite, pairs

RESAMPLES = 10_000
BLOCK = 1_000_000
"""Numbers that are drawn at once, which keeps the memory at some megabytes."""

Score = Callable[[Array], float]
"""From sufficient statistics [k], summed over the items, to the score of the corpus."""


def sign_flip_test(first: Numbers, second: Numbers, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """The two-sided p-value of mean(first - second) under swaps, which flip the sign of an item's difference.

    Fisher 1935; sampled ways with the +1 of Phipson and Smyth 2010. Exact where 2^(differing items - 1) is at most
    `resamples`. It holds for any distribution of the differences that is symmetric about 0.

    first, second: one value per item, in the same order.

    Raises ConfigurationError for lengths that differ, fewer than two pairs or values that are not finite.
    """
    one, other = pairs(first, second)
    check_resamples(resamples)
    # Items without a difference look the same however they are swapped.
    differences = (one - other)[one != other]
    return _p_value(
        lambda swapped: (1 - 2 * swapped) @ differences,
        len(differences),
        float(np.abs(differences).sum()),
        resamples,
        seed,
    )


def swap_test(first: Array, second: Array, score: Score, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """The two-sided p-value of score(sum of first) - score(sum of second) under swaps of the items.

    For metrics of a corpus that are no means, such as chrF and BLEU: approximate randomisation (Noreen 1989; Riezler
    and Maxwell 2005), exact where the ways are few.

    first, second: sufficient statistics [items, k]; score: see `Score`.

    Raises ConfigurationError for shapes that differ, fewer than two items or values that are not finite.
    """
    one, other = paired_statistics(first, second)
    check_resamples(resamples)
    differences = (one - other)[(one != other).any(axis=1)]
    ours, theirs = one.sum(axis=0), other.sum(axis=0)

    def statistic(swapped: Array) -> Array:
        moved = swapped @ differences
        return np.array([score(ours - each) - score(theirs + each) for each in moved])

    scale = max(abs(score(ours)), abs(score(theirs)))
    return _p_value(statistic, len(differences), scale, resamples, seed)


def mcnemar_test(first: Numbers, second: Numbers) -> float:
    """McNemar's exact two-sided p-value for paired answers, right (1) or wrong (0) (McNemar 1947; binomial form).

    Only the items on which one of the two is right count: were they alike, each would be right on about half of them.

    Raises ConfigurationError for lengths that differ, fewer than two pairs, or values other than 0 and 1.
    """
    from scipy.special import bdtr  # scipy takes a while to import, and not every user of this file needs it

    one, other = pairs(first, second)
    if not is_binary(one) or not is_binary(other):
        raise ConfigurationError("McNemar's test is for answers that are right (1) or wrong (0): use sign_flip_test.")
    wins, losses = int((one > other).sum()), int((one < other).sum())
    return min(1.0, 2 * float(bdtr(min(wins, losses), wins + losses, 0.5))) if wins + losses else 1.0


def is_binary(values: Array) -> bool:
    """Whether all `values` are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())


def paired_statistics(first: Array, second: Array) -> tuple[Array, Array]:
    """Sufficient statistics of two systems as arrays [items, k], checked."""
    one, other = finite(first, "statistics"), finite(second, "statistics")
    if one.shape != other.shape or one.ndim != 2 or len(one) < 2:
        raise ConfigurationError(
            f"Statistics of shapes {list(one.shape)} and {list(other.shape)} cannot be paired: give both as [items, k] "
            "for the same items, at least two."
        )
    return one, other


def _p_value(statistic: Callable[[Array], Array], items: int, scale: float, resamples: int, seed: int) -> float:
    """`statistic`: from rows of swaps [rows, items], 1 where an item is swapped, to differences [rows]."""
    if items == 0:
        return 1.0
    # Ways that are equal on paper differ in their last digits; they count as equal.
    observed = abs(float(statistic(np.zeros((1, items)))[0])) - 1e-12 * scale
    at_once = max(1, BLOCK // items)
    # To swap all items but some turns the sign of what swapping just these gives, so the last item stays in place.
    ways = 2 ** (items - 1)
    exact = ways <= resamples
    total, far = ways if exact else resamples, 0
    generator = np.random.default_rng(seed)
    for start in range(0, total, at_once):
        rows = min(at_once, total - start)
        if exact:
            swapped = (np.arange(start, start + rows)[:, None] >> np.arange(items)) & 1
        else:
            swapped = generator.integers(0, 2, (rows, items), dtype=np.int8)
        far += int((np.abs(statistic(swapped.astype(float))) >= observed).sum())
    return far / total if exact else (far + 1) / (total + 1)
