"""Two systems on the same items, and all that may be said of their difference: never a bare mean."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from lmcompose.errors import ConfigurationError, nearest
from lmcompose.evaluation.statistics.checks import Array, check_confidence, check_resamples, finite
from lmcompose.evaluation.statistics.corrections import CORRECTIONS
from lmcompose.evaluation.statistics.intervals import Interval
from lmcompose.evaluation.statistics.permutation import (
    Score,
    is_binary,
    mcnemar_test,
    sign_flip_test,
    swap_test,
)
from lmcompose.evaluation.statistics.power import POWER, detectable_mean, detectable_proportion
from lmcompose.evaluation.statistics.resampling import RESAMPLES, corpus_differences, percentiles, resampled_sums
from lmcompose.evaluation.statistics.seeds import figure, over_seeds

Name = TypeVar("Name")

BETTER = ("higher", "lower")
"""Which scores are better."""
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class Comparison:
    """The first system minus the second.

    Attributes:
        difference: the estimate, in the unit of the scores.
        items: low and high of its interval over the items, for these seeds.
        seeds: the same over seeds (see `over_seeds`); None with one seed, which says nothing about others.
        by_seed: estimate, low and high of every seed, over the items.
        count: of items.
        better: "higher" or "lower" scores.
        confidence: of the intervals; 1 minus it is what p has to stay below.
        test: the test that gave p.
        p: two-sided, over the items, for these seeds.
        mde: the minimum detectable effect: the smallest difference that would be found four times in five, over the
            items and over the seeds, the larger of the two. None where the spread tells none.
        adjusted_p: p after a correction over several comparisons; None where none was made.
        correction: its name, with the number of comparisons.
    """

    difference: float
    items: tuple[float, float]
    seeds: tuple[float, float] | None
    by_seed: tuple[Interval, ...]
    count: int
    better: str
    confidence: float
    test: str
    p: float
    mde: float | None
    adjusted_p: float | None = None
    correction: str | None = None

    @property
    def verdict(self) -> str:
        """ "better" or "worse", of the first system, where no interval holds 0 and p agrees; else `NO_DIFFERENCE`."""
        intervals = [self.items, *([self.seeds] if self.seeds else [])]
        p = self.p if self.adjusted_p is None else self.adjusted_p
        # 1 - 0.95 is a hair above 0.05.
        if p > round(1 - self.confidence, 12):
            return NO_DIFFERENCE
        if all(low > 0 for low, _ in intervals):
            return "better" if self.better == "higher" else "worse"
        if all(high < 0 for _, high in intervals):
            return "worse" if self.better == "higher" else "better"
        return NO_DIFFERENCE

    def to_json(self) -> dict[str, Any]:
        """Plain values: what `figure` gives (`mean`, `documents`, `seeds`, `by_seed`), the rest, and the `verdict`."""
        return {
            "mean": self.difference,
            "documents": list(self.items),
            "seeds": list(self.seeds) if self.seeds else None,
            "by_seed": [list(each) for each in self.by_seed],
            "count": self.count,
            "better": self.better,
            "confidence": self.confidence,
            "test": self.test,
            "p": self.p,
            "adjusted_p": self.adjusted_p,
            "correction": self.correction,
            "mde": self.mde,
            "verdict": self.verdict,
        }


def compare(
    first: Sequence[float] | Sequence[Sequence[float]] | Array,
    second: Sequence[float] | Sequence[Sequence[float]] | Array,
    *,
    weights: Sequence[float] | Array | None = None,
    better: str = "higher",
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two systems by their scores on the same items.

    Args:
        first, second: [items], or [seeds, items] with a row for each seed, both in the same order. Answers that are
            right or wrong are 1 and 0.
        weights: [items], such as their numbers of tokens, for scores that are sums over an item: the score of a system
            is then sum(scores) / sum(weights). Without them it is the mean.
        better: "higher" or "lower" scores.
        confidence, resamples, seed: of the intervals, and of the test where it is sampled.

    Returns:
        The difference with a paired bootstrap interval over the items and, with several seeds, one over them;
        p by McNemar's exact test for answers of one seed that are right or wrong, and by the sign-flip test otherwise.

    Raises:
        ConfigurationError: shapes that differ, fewer than two items, values that are not finite, another `better`.
    """
    _check(better, confidence, resamples)
    ours, theirs = (np.atleast_2d(finite(each, "scores")) for each in (first, second))
    if ours.shape != theirs.shape or ours.ndim != 2 or ours.shape[1] < 2:
        raise ConfigurationError(
            f"Scores of shapes {list(ours.shape)} and {list(theirs.shape)} cannot be paired: give both as [items], or "
            "as [seeds, items], for the same items in the same order, at least two."
        )
    seeds, items = ours.shape
    differences = ours - theirs
    over = over_seeds(differences, None if weights is None else np.asarray(weights), confidence, seed)
    weight = np.ones(items) if weights is None else finite(weights, "weights")
    sums = resampled_sums(np.column_stack([differences.T, weight]), resamples=resamples, seed=seed)
    found = figure((sums[:, :-1] / sums[:, -1:]).T, confidence)
    alpha = 1 - confidence
    pooled = differences.mean(axis=0)
    if seeds == 1 and weights is None and is_binary(ours) and is_binary(theirs):
        test, p = "McNemar, exact", mcnemar_test(ours[0], theirs[0])
        mde = detectable_proportion(float(np.abs(pooled).mean()), items, alpha=alpha)
    else:
        test, p = "sign flips", sign_flip_test(pooled, np.zeros(items), resamples=resamples, seed=seed)
        # The spread of a ratio by its linear part (Cochran 1977, chapter 6); of a mean, the plain one.
        spread = (pooled - found["mean"] * weight) / weight.mean()
        mde = detectable_mean(float(spread.std(ddof=1)), items, alpha=alpha)
    if seeds > 1:
        by_seed = differences.sum(axis=1) / weight.sum()
        mde = _larger(mde, detectable_mean(float(by_seed.std(ddof=1)), seeds, alpha=alpha))
    return Comparison(
        difference=found["mean"],
        items=(found["documents"][0], found["documents"][1]),
        seeds=None if over is None else (over.low, over.high),
        by_seed=tuple(Interval(*each) for each in found["by_seed"]),
        count=items,
        better=better,
        confidence=confidence,
        test=test,
        p=p,
        mde=mde,
    )


def compare_corpus(
    first: Array,
    second: Array,
    score: Score,
    *,
    better: str = "higher",
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two systems by a score of the whole corpus that is no mean of its items, such as chrF.

    Args:
        first, second: sufficient statistics [items, k] of one seed, such as n-gram counts by sentence.
        score: from their sums [k] to the score.
        better, confidence, resamples, seed: see `compare`.

    Returns:
        The difference with a paired bootstrap interval (Koehn 2004) and p by swapping items (`swap_test`).

    Raises:
        ConfigurationError: as in `compare`, and for a score that is not finite.
    """
    _check(better, confidence, resamples)
    values = corpus_differences(first, second, score, resamples=resamples, seed=seed)
    found = percentiles(values, confidence)
    # The bootstrap's standard error stands for spread / sqrt(items).
    error = float(values[1:].std())
    return Comparison(
        difference=found.estimate,
        items=(found.low, found.high),
        seeds=None,
        by_seed=(found,),
        count=len(first),
        better=better,
        confidence=confidence,
        test="swaps",
        p=swap_test(first, second, score, resamples=resamples, seed=seed),
        mde=detectable_mean(error * math.sqrt(len(first)), len(first), alpha=1 - confidence),
    )


def adjusted(comparisons: Mapping[Name, Comparison], correction: str = "holm") -> dict[Name, Comparison]:
    """The same comparisons, by language or task, with p-values corrected for how many there are.

    correction: "holm" (no false alarm in any of them) or "benjamini-hochberg" (few false ones among those called).

    Raises ConfigurationError for another correction.
    """
    if correction not in CORRECTIONS:
        known, hint = ", ".join(CORRECTIONS), nearest(correction, CORRECTIONS)
        raise ConfigurationError(f"There is no correction '{correction}'; there are {known}.{hint}")
    if not comparisons:
        return {}
    values = CORRECTIONS[correction]([each.p for each in comparisons.values()])
    label = f"{correction} over {len(comparisons)}"
    return {
        name: replace(each, adjusted_p=value, correction=label)
        for (name, each), value in zip(comparisons.items(), values, strict=True)
    }


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None


def _check(better: str, confidence: float, resamples: int) -> None:
    check_confidence(confidence)
    check_resamples(resamples)
    if confidence <= 1 - POWER:
        raise ConfigurationError(f"A confidence of {confidence} is too low for a comparison; give one such as 0.95.")
    if better not in BETTER:
        raise ConfigurationError(f"better = {better!r} is none of {', '.join(BETTER)}.{nearest(str(better), BETTER)}")
