"""Intervals in closed form: of a proportion, and of a mean over a few values such as seeds."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics.checks import Numbers, check_confidence, finite, pairs


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
    check_confidence(confidence)
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


def t_interval(values: Numbers, confidence: float = 0.95) -> Interval:
    """Student's interval of the mean of `values`, such as one figure of each seed (Student 1908).

    Raises ConfigurationError for fewer than two values or values that are not finite.
    """
    from scipy.special import stdtrit  # scipy takes a moment to import, and not every user of this file needs it

    check_confidence(confidence)
    if len(values) < 2:
        raise ConfigurationError(f"{len(values)} value(s) give no interval: give at least two.")
    array = finite(values, "values")
    half = float(stdtrit(len(array) - 1, (1 + confidence) / 2)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half)


def paired_t_interval(first: Numbers, second: Numbers, confidence: float = 0.95) -> Interval:
    """Student's interval of mean(first - second) over pairs, such as two systems trained with the same seeds.

    Raises ConfigurationError for lengths that differ or fewer than two pairs.
    """
    one, other = pairs(first, second)
    return t_interval(one - other, confidence)
