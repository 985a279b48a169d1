"""Seeds as a level of their own: two things could have come out otherwise, and each has its interval.

Which items were tested is one (a bootstrap, in which one item is drawn with what all models and all seeds say about
it); how the models were initialised and their data ordered is the other. Many items say nothing about seeds: a hundred
thousand answers of one model are still those of one model.
"""

from typing import Any

import numpy as np

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics.checks import Array, check_confidence, check_resamples, finite
from lmcompose.evaluation.statistics.intervals import Interval, t_interval
from lmcompose.evaluation.statistics.resampling import RESAMPLES, draws, percentiles

ENOUGH_SEEDS = 20
"""From here on seeds are drawn. A percentile bootstrap of few values is too narrow: where it claims 95 %, three cover
about 75 %, ten 90 % and twenty 93 %."""


def figure(by_seed: Array, confidence: float = 0.95) -> dict[str, Any]:
    """One figure of `by_seed` [seeds, 1 + resamples]: the mean over the seeds with both intervals, and each seed's own.

    Returns:
        `mean`; `documents` and `seeds`, low and high of its two intervals; and `by_seed`, lists [estimate, low, high]
        over the documents. One seed alone has no interval over seeds.
    """
    estimate, low, high = percentiles(by_seed.mean(axis=0), confidence)
    seeds = t_interval(by_seed[:, 0], confidence) if len(by_seed) > 1 else None
    return {
        "mean": estimate,
        "documents": [low, high],
        "seeds": None if seeds is None else [seeds.low, seeds.high],
        "by_seed": [list(percentiles(values, confidence)) for values in by_seed],
    }


def over_seeds(values: Array, weights: Array | None = None, confidence: float = 0.95, seed: int = 0) -> Interval | None:
    """What may be said of the mean of `values` [seeds, items] with other seeds.

    With one seed, nothing: None. With two or more, Student's interval over the seeds' means, for these items; with
    three it is 2.5 standard deviations to either side. From `ENOUGH_SEEDS` on, `hierarchical_bootstrap`.

    weights: [items], such as their numbers of tokens; the mean is then sum(values) / sum(weights).

    Raises ConfigurationError for values that are not [seeds, items] or not finite.
    """
    table, weight = _table(values, weights)
    if len(table) >= ENOUGH_SEEDS:
        return hierarchical_bootstrap(table, weight, confidence=confidence, seed=seed)
    return t_interval(table.sum(axis=1) / weight.sum(), confidence) if len(table) > 1 else None


def hierarchical_bootstrap(
    values: Array,
    weights: Array | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The percentile interval of the mean of `values` [seeds, items] with other seeds and other items: both are drawn.

    All seeds answer the same items, so that one draw of the items serves for all seeds of a resample: the pigeonhole
    bootstrap (Owen 2007, Annals of Applied Statistics 1:386), which is, if anything, a little wide.

    weights: see `over_seeds`.

    Raises ConfigurationError for fewer than `ENOUGH_SEEDS` seeds, fewer than two items or values that are not finite.
    """
    check_confidence(confidence)
    check_resamples(resamples)
    table, weight = _table(values, weights)
    seeds, items = table.shape
    if seeds < ENOUGH_SEEDS:
        raise ConfigurationError(
            f"{seeds} seed(s) are too few to be drawn: a bootstrap of fewer than {ENOUGH_SEEDS} is too narrow. Use "
            "over_seeds, which gives Student's interval for two or more."
        )
    means: list[Array] = [np.array([table.mean(axis=0).sum() / weight.sum()])]
    # One stream for the seeds and one for the items, so that neither follows from the other.
    drawn_seeds = np.concatenate(list(draws(seeds, resamples, [seed, 1]))) / seeds
    start = 0
    for drawn in draws(items, resamples, [seed, 2]):
        chosen = drawn_seeds[start : start + len(drawn)]
        means.append(((chosen @ table) * drawn).sum(axis=1) / (drawn @ weight))
        start += len(drawn)
    return percentiles(np.concatenate(means), confidence)


def _table(values: Array, weights: Array | None) -> tuple[Array, Array]:
    table = finite(values, "values")
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise ConfigurationError(
            f"Values of shape {list(table.shape)}: give [seeds, items], with one seed and two items at least."
        )
    weight = np.ones(table.shape[1]) if weights is None else finite(weights, "weights")
    if weight.shape != table.shape[1:] or (weight <= 0).any():
        raise ConfigurationError(f"Give a weight above 0 for each of the {table.shape[1]} items, such as its tokens.")
    return table, weight
