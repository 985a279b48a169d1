"""Axes: from figures to places in percent of a drawing's width or height, and the ticks beside it. Pure maths."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FAR = 5.0
"""An axis leaves out the values beyond which the others would be squeezed into less than a part in so many of it."""


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: where it is, in percent, and what stands there."""

    at: float
    label: str


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    log: bool = False
    wanted: int = 4

    def at(self, value: float) -> float:
        """Where `value` is, in percent; values beyond an end are put there."""
        return self.beyond(min(max(value, self.low), self.high))

    def beyond(self, value: float) -> float:
        """The same for what is cut off where the axis ends: below 0 and above 100 for values beyond them."""
        if self.log:
            return round(100 * math.log(value / self.low) / math.log(self.high / self.low), 3)
        return round(100 * (value - self.low) / (self.high - self.low), 3)

    def holds(self, value: float) -> bool:
        """Whether `value` is on the axis and not beyond one of its ends."""
        return self.low <= value <= self.high

    @property
    def ticks(self) -> list[Tick]:
        """Round numbers within the axis."""
        values = _decades(self.low, self.high) if self.log else _steps(self.low, self.high, self.wanted)
        digits = 0 if self.log else _digits(_step(self.low, self.high, self.wanted))
        return [Tick(self.at(value), f"{value:g}" if self.log else f"{value:,.{digits}f}") for value in values]


def linear(values: Iterable[float], *, include: Sequence[float] = (), wanted: int = 4, pad: bool = True) -> Scale:
    """An axis that holds all of `values` and `include`, with a little room at the ends that `include` does not set."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min([*finite, *include], default=0.0), max([*finite, *include], default=1.0)
    if low == high:
        room = abs(low) / 10 or 0.5
        return Scale(low - room, high + room, wanted=wanted)
    room = 0.04 * (high - low) if pad else 0.0
    return Scale(low if low in include else low - room, high if high in include else high + room, wanted=wanted)


def logarithmic(values: Iterable[float]) -> Scale:
    """An axis in powers, for values above 0."""
    positive = [value for value in values if value > 0]
    low, high = min(positive, default=1.0), max(positive, default=10.0)
    return Scale(low / 1.3, high * 1.3, log=True)


def without_far(groups: Sequence[Sequence[float]], include: Sequence[float] = ()) -> list[float]:
    """The values of all groups but those that are so far away that the rest could not be told apart beside them.

    At least two groups are kept. `include` is on the axis in any case, and is no group.
    """
    kept = [list(filter(math.isfinite, group)) for group in groups]
    kept = [group for group in kept if group]
    while len(kept) > 2:
        width = _width([*kept, include])
        narrower = [(_width([*kept[:index], *kept[index + 1 :], include]), index) for index in range(len(kept))]
        smallest, index = min(narrower)
        if smallest <= 0 or width / smallest < FAR:
            break
        del kept[index]
    return [value for group in kept for value in group]


def _width(groups: Sequence[Sequence[float]]) -> float:
    values = [value for group in groups for value in group]
    return max(values) - min(values)


def _step(low: float, high: float, wanted: int) -> float:
    """1, 2 or 5 times a power of ten, so that about `wanted` steps fit."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)


def _digits(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _steps(low: float, high: float, wanted: int) -> list[float]:
    step = _step(low, high, wanted)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    many = high / low > 200
    values = [factor * 10.0**power for power in powers for factor in ((1,) if many else (1, 2, 5))]
    return [value for value in values if low <= value <= high]
