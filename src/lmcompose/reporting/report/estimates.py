"""An estimate with its interval, out of each of the forms in which results hold one. Nothing is computed but scale."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its interval; `low` and `high` are None for one run that says nothing of others."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval; the value twice where there is none."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    @property
    def holds_zero(self) -> bool:
        """Whether 0 is in the interval; without one nothing is shown, so it may be."""
        return not self.has_interval or self.ends[0] <= 0 <= self.ends[1]

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value) and all(map(math.isfinite, self.ends))

    def text(self, digits: int = 1, signed: bool = False) -> str:
        """`86.1 [83.8, 88.1]`."""
        form = f"{'+' if signed else ''}.{digits}f"
        shown = format(self.value, form) if math.isfinite(self.value) else "infinite"
        if not self.has_interval:
            return shown
        low, high = self.ends
        return f"{shown} [{format(low, form)}, {format(high, form)}]"


def from_triple(values: Sequence[float], factor: float = 1.0) -> Estimate:
    """Estimate, low and high in a list, as `statistics` gives them."""
    value, low, high = values
    return Estimate(factor * value, factor * low, factor * high)


def from_figure(figure: Mapping[str, Any], factor: float = 1.0) -> Estimate:
    """A `statistics.figure` or a comparison, by its interval over the documents."""
    return _scaled(figure["mean"], figure["documents"], factor)


def from_mean(figure: Mapping[str, Any], factor: float = 1.0) -> Estimate:
    """A mean with "interval", of a sweep or a comparison of models; a mean of None is infinite."""
    return _scaled(figure["mean"], figure["interval"], factor)


def from_score(score: Mapping[str, Any], factor: float = 1.0) -> Estimate:
    """A score of `lmcompose evaluate`."""
    return _scaled(score["estimate"], score["interval"], factor)


def from_count(cell: Mapping[str, Any]) -> Estimate:
    """How many of "total" were "correct", in percent."""
    return _scaled(cell["correct"] / cell["total"], cell.get("interval"), 100)


def seeds_of(figure: Mapping[str, Any], factor: float = 1.0) -> list[float]:
    """The estimate of each seed, where there are several."""
    by_seed = figure.get("by_seed") or []
    return [factor * estimate for estimate, *_ in by_seed] if len(by_seed) > 1 else []


def _scaled(value: float | None, interval: Sequence[float] | None, factor: float) -> Estimate:
    if value is None:
        return Estimate(math.inf)
    if interval is None:
        return Estimate(factor * value)
    low, high = interval
    return Estimate(factor * value, factor * low, factor * high)
