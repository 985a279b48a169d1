"""Intervals for the scores that this project reports: small pure functions, numbers in and numbers out.

Knows nothing about models, tasks or files.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from lmcompose.errors import ConfigurationError


class Interval(NamedTuple):
    """An estimate with the two ends of its confidence interval, all in the unit of the data."""

    estimate: float
    low: float
    high: float


def wilson_interval(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """The Wilson score interval of a proportion (Wilson 1927), in [0, 1].

    Unlike the normal approximation it stays inside [0, 1] and has a width at 0 and at `total` successes, which is
    where exact-match scores often stand.

    Raises ConfigurationError when `total` is not positive or `successes` lies outside [0, total].
    """
    _check_confidence(confidence)
    if total <= 0 or not 0 <= successes <= total:
        raise ConfigurationError(
            f"{successes} successes of {total} is no proportion: give a positive total and from 0 to total successes."
        )
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # At 0 and at `total` the exact ends are 0 and 1; rounding would put them a hair off the estimate's wrong side.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == total else centre + half
    return Interval(share, low, high)


def score(correct: int, total: int, confidence: float = 0.95) -> dict[str, int | float | list[float]]:
    """One cell of a results file: the counts, the accuracy and its Wilson interval, ready for JSON."""
    accuracy, low, high = wilson_interval(correct, total, confidence)
    return {"correct": correct, "total": total, "accuracy": accuracy, "interval": [low, high]}


def with_intervals(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Results by model and task, each cell with its "correct" and "total", completed to what `score` gives."""
    return {
        model: {task: {**cell, **score(cell["correct"], cell["total"])} for task, cell in tasks.items()}
        for model, tasks in results.items()
    }


def paired_bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of mean(first - second), resampling the pairs (Efron 1979; Koehn 2004).

    first, second: one value per item, in the same order (two systems scored on the same questions or documents).
    For a handful of pairs, such as three seeds, the bootstrap is far too narrow: use `paired_t_interval`.

    Raises ConfigurationError for lengths that differ or fewer than two pairs.
    """
    differences = _differences(first, second, confidence)
    if resamples < 1:
        raise ConfigurationError(f"resamples must be at least 1, not {resamples}.")
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    # One row of indices at a time keeps the memory at one sample, whatever the number of resamples.
    for row in range(resamples):
        means[row] = differences[generator.integers(0, len(differences), len(differences))].mean()
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(differences.mean()), float(low), float(high))


def ratio_bootstrap(
    numerators: Sequence[float] | np.ndarray,
    denominators: Sequence[float] | np.ndarray,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of sum(numerators) / sum(denominators), resampling the items (Efron 1979).

    numerators, denominators: one value per item, in the same order. With an item's sum over its tokens and its number
    of tokens, this is a mean over tokens whose interval minds that the tokens of one text go together; with two
    differences, it is the ratio of them (the gap closed). Resamples whose denominators add up to 0 say nothing.

    Raises ConfigurationError for lengths that differ, fewer than two items, or denominators that add up to 0.
    """
    _check_confidence(confidence)
    if len(numerators) != len(denominators) or len(numerators) < 2:
        raise ConfigurationError(
            f"{len(numerators)} numerators over {len(denominators)} denominators give no interval: give both for the "
            "same items, at least two."
        )
    if resamples < 1:
        raise ConfigurationError(f"resamples must be at least 1, not {resamples}.")
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if below.sum() == 0:
        raise ConfigurationError("The denominators add up to 0, so there is no ratio.")
    generator = np.random.default_rng(seed)
    ratios: list[np.ndarray] = []
    at_once = max(1, 1_000_000 // len(above))  # which keeps the memory at some megabytes
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        chosen = generator.integers(0, len(above), (rows, len(above)))
        sums, totals = above[chosen].sum(axis=1), below[chosen].sum(axis=1)
        ratios.append(sums[totals != 0] / totals[totals != 0])
    low, high = np.quantile(np.concatenate(ratios), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(above.sum() / below.sum()), float(low), float(high))


def paired_t_interval(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's interval of mean(first - second) over pairs, such as two systems trained with the same seeds.

    Raises ConfigurationError for lengths that differ or fewer than two pairs.
    """
    from scipy.stats import t  # scipy.stats takes a second to import, and only this function needs it

    differences = _differences(first, second, confidence)
    count = len(differences)
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    mean = float(differences.mean())
    return Interval(mean, mean - half, mean + half)


def _differences(first: Sequence[float], second: Sequence[float], confidence: float) -> np.ndarray:
    _check_confidence(confidence)
    if len(first) != len(second):
        raise ConfigurationError(f"{len(first)} values cannot be paired with {len(second)}: give one pair per item.")
    if len(first) < 2:
        raise ConfigurationError(f"{len(first)} pair(s) give no interval: give at least two.")
    return np.asarray(first, dtype=float) - np.asarray(second, dtype=float)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must lie between 0 and 1, such as 0.95; it is {confidence}.")
