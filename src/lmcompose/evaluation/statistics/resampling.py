"""The bootstrap (Efron 1979): items are drawn again and again, each with all that is known of it.

Everything here is made of one thing: how often each item is drawn, which gives the sums that a score is made of. The
same count and seed draw the same items, so that two systems whose scores are subtracted are compared on the same ones.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.statistics.checks import Array, Numbers, check_confidence, check_resamples, finite, pairs
from lmcompose.evaluation.statistics.intervals import Interval
from lmcompose.evaluation.statistics.permutation import BLOCK, Score, paired_statistics

RESAMPLES = 10_000


def draws(count: int, resamples: int, seed: int | Sequence[int]) -> Iterator[Array]:
    """How often each of `count` items is drawn: [rows, count], block by block, `resamples` rows in all.

    In what order the items of a resample are drawn changes no sum, and the blocks do not change what is drawn.
    """
    generator = np.random.default_rng(seed)
    at_once = max(1, BLOCK // count)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        yield generator.multinomial(count, np.full(count, 1 / count), size=rows).astype(float)


def resampled_sums(statistics: Array, *, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """Sums over the items of `statistics` [items, k]: [1 + resamples, k], the first row of the items as they are.

    Raises ConfigurationError for fewer than two items or values that are not finite.
    """
    check_resamples(resamples)
    values = finite(statistics, "statistics")
    if values.ndim != 2 or len(values) < 2:
        raise ConfigurationError(f"Statistics of shape {list(values.shape)}: give [items, k] with at least two items.")
    parts = [weights @ values for weights in draws(len(values), resamples, seed)]
    return np.concatenate([values.sum(axis=0, keepdims=True), *parts])


def percentiles(values: Array, confidence: float = 0.95) -> Interval:
    """The percentile interval of `values` [1 + resamples]: the first is the estimate, the others the resamples'."""
    check_confidence(confidence)
    low, high = np.quantile(values[1:], [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(values[0]), float(low), float(high))


def ratio_bootstrap(
    numerators: Numbers,
    denominators: Numbers,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of sum(numerators) / sum(denominators), resampling the items (Efron 1979).

    numerators, denominators: one value per item, in the same order. With an item's sum over its tokens and its number
    of tokens, this is a mean over tokens whose interval minds that the tokens of one text go together; with two
    differences, it is the ratio of them (the gap closed). Resamples whose denominators add up to 0 say nothing.

    Raises ConfigurationError for lengths that differ, fewer than two items, or denominators that add up to 0.
    """
    check_confidence(confidence)
    if len(numerators) != len(denominators) or len(numerators) < 2:
        raise ConfigurationError(
            f"{len(numerators)} numerators over {len(denominators)} denominators give no interval: give both for the "
            "same items, at least two."
        )
    above, below = finite(numerators, "numerators"), finite(denominators, "denominators")
    if below.sum() == 0:
        raise ConfigurationError("The denominators add up to 0, so there is no ratio.")
    sums = resampled_sums(np.stack([above, below], axis=1), resamples=resamples, seed=seed)
    kept = sums[sums[:, 1] != 0]
    return percentiles(kept[:, 0] / kept[:, 1], confidence)


def paired_bootstrap(
    first: Numbers,
    second: Numbers,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of mean(first - second), resampling the pairs (Efron 1979; Koehn 2004).

    first, second: one value per item, in the same order (two systems scored on the same questions or documents).
    For a handful of pairs, such as three seeds, the bootstrap is far too narrow: use `paired_t_interval`.

    Raises ConfigurationError for lengths that differ or fewer than two pairs.
    """
    one, other = pairs(first, second)
    ones = np.ones(len(one))
    return ratio_bootstrap(one - other, ones, confidence=confidence, resamples=resamples, seed=seed)


def corpus_scores(statistics: Array, score: Score, *, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """A score of a corpus that is no mean of its items, such as chrF or BLEU: [1 + resamples], the first the real one.

    Koehn 2004, with the counts of every sentence kept so that no sentence is scored twice. Two systems on the same
    sentences with one seed may be subtracted: the bootstrap is then paired.

    Args:
        statistics: [items, k], sufficient statistics of every item, such as n-gram counts.
        score: from their sums [k] to the score.

    Raises:
        ConfigurationError: fewer than two items, or values that are not finite.
    """
    return np.array([score(sums) for sums in resampled_sums(statistics, resamples=resamples, seed=seed)], dtype=float)


def corpus_bootstrap(
    first: Array,
    second: Array,
    score: Score,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The paired percentile bootstrap interval of score(sum of first) - score(sum of second) (Koehn 2004).

    first, second: sufficient statistics [items, k] of two systems on the same items; score: see `corpus_scores`.

    Raises ConfigurationError for shapes that differ, fewer than two items, or a score that is not finite.
    """
    return percentiles(corpus_differences(first, second, score, resamples=resamples, seed=seed), confidence)


def corpus_differences(
    first: Array, second: Array, score: Score, *, resamples: int = RESAMPLES, seed: int = 0
) -> Array:
    """The differences [1 + resamples] that `corpus_bootstrap` makes an interval of."""
    one, other = (
        corpus_scores(each, score, resamples=resamples, seed=seed) for each in paired_statistics(first, second)
    )
    return finite(one - other, "scores of resamples")


class Documents:
    """Held-out documents, or other items, drawn once for all figures that are made of them.

    Args:
        tokens: [documents], how long each is; ones where all count the same.
        resamples, seed: of the bootstrap.

    Raises:
        DataError: fewer than two documents.
    """

    def __init__(self, tokens: Numbers, resamples: int = 5_000, seed: int = 0) -> None:
        self.tokens = np.asarray(tokens, dtype=float)
        count = len(self.tokens)
        if count < 2:
            raise DataError(f"{count} held-out document(s) give no interval: hold out more stories.")
        # The first row is the documents as they are; the others are how often each is drawn.
        self._weights = np.concatenate([np.ones((1, count)), *draws(count, resamples, seed)])

    def per_token(self, sums: Numbers) -> Array:
        """Sums by document [..., documents] as means per token [..., 1 + resamples]; the first is the real one.

        All tokens of the documents weigh the same, so that a long document counts for more than a short one.
        """
        return np.asarray(sums, dtype=float) @ self._weights.T / (self._weights @ self.tokens)
