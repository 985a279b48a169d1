"""What a comparison can show: the smallest difference that it would probably find, and the items that one takes.

Two-sided tests at `alpha`, with the chance `power` to find the difference. By default 0.05 and 0.8.
"""

import math
from statistics import NormalDist

from lmcompose.errors import ConfigurationError

ALPHA, POWER = 0.05, 0.8


def detectable_mean(spread: float, items: int, *, alpha: float = ALPHA, power: float = POWER) -> float | None:
    """The mean difference that a paired comparison of `items` would find, in the unit of `spread`.

    From the noncentral t (Cohen 1988, chapter 2; for many items about 2.8 spread / sqrt(items)), which is right for
    three seeds as well.

    spread: the standard deviation of the paired differences. Where it is 0 nothing is known of it: None.

    Raises ConfigurationError for fewer than two items or a spread below 0.
    """
    from scipy.optimize import brentq

    _check(alpha, power)
    if items < 2 or not (math.isfinite(spread) and spread >= 0):
        raise ConfigurationError(
            f"A spread of {spread} over {items} items: give at least two, and a spread of 0 or more."
        )
    if spread == 0:
        return None
    high = 1.0
    while _power_of_t(high, items, alpha) < power:
        high *= 2
    return spread / math.sqrt(items) * float(brentq(lambda shift: _power_of_t(shift, items, alpha) - power, 0, high))


def items_for_mean(spread: float, difference: float, *, alpha: float = ALPHA, power: float = POWER) -> int:
    """The fewest items with which a paired comparison finds a mean `difference`; the inverse of `detectable_mean`.

    Raises ConfigurationError for a spread or a difference of 0.
    """
    _check(alpha, power)
    if not (math.isfinite(spread) and spread > 0) or difference == 0 or not math.isfinite(difference):
        raise ConfigurationError(f"Spread {spread} and difference {difference}: neither may be 0 or infinite.")
    ratio = abs(difference) / spread

    def enough(items: int) -> bool:
        return _power_of_t(ratio * math.sqrt(items), items, alpha) >= power

    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def detectable_proportion(discordant: float, items: int, *, alpha: float = ALPHA, power: float = POWER) -> float | None:
    """The difference of two paired shares of right answers that `items` would show, in [0, 1].

    Connor 1987 (after Miettinen 1968): with a share `discordant` of items on which just one of the two is right,
    sqrt(items) difference = z sqrt(discordant) + z' sqrt(discordant - difference^2).

    Returns:
        None where no difference can be found that way: the systems agree on all items, or on so many that even if one
        were right on all others there would be too few.

    Raises ConfigurationError for fewer than two items or a share outside [0, 1].
    """
    from scipy.optimize import brentq

    _check(alpha, power)
    if items < 2 or not 0 <= discordant <= 1:
        raise ConfigurationError(f"A share of {discordant} of {items} items: give a share in [0, 1] and at least two.")
    if discordant == 0 or _connor(discordant, discordant, alpha, power) > items:
        return None
    # As the difference goes to 0 the items needed go beyond all bounds, so the two ends enclose one crossing.
    excess = lambda difference: items * difference**2 - _connor_times(discordant, difference, alpha, power)  # noqa: E731
    return float(brentq(excess, 0, discordant))


def items_for_proportion(discordant: float, difference: float, *, alpha: float = ALPHA, power: float = POWER) -> int:
    """The fewest items that show a `difference` of two paired shares; the inverse of `detectable_proportion`.

    Raises ConfigurationError for a difference of 0 or one larger than `discordant`, which bounds it.
    """
    _check(alpha, power)
    if not 0 < abs(difference) <= discordant <= 1:
        raise ConfigurationError(
            f"A difference of {difference} where one alone is right on a share of {discordant}: the difference lies "
            "between 0 and that share."
        )
    return max(2, math.ceil(_connor(discordant, abs(difference), alpha, power) - 1e-9))


def _power_of_t(shift: float, items: int, alpha: float) -> float:
    """The chance that Student's test finds a difference of `shift` standard errors."""
    from scipy.special import nctdtr, stdtrit

    edge = float(stdtrit(items - 1, 1 - alpha / 2))
    # What is found in the wrong direction is below 1e-8 from here on, where scipy's function breaks down.
    other_way = float(nctdtr(items - 1, shift, -edge)) if shift < 5 else 0.0
    return 1 - float(nctdtr(items - 1, shift, edge)) + other_way


def _connor_times(discordant: float, difference: float, alpha: float, power: float) -> float:
    normal = NormalDist()
    sure, found = normal.inv_cdf(1 - alpha / 2), normal.inv_cdf(power)
    return (sure * math.sqrt(discordant) + found * math.sqrt(max(0.0, discordant - difference**2))) ** 2


def _connor(discordant: float, difference: float, alpha: float, power: float) -> float:
    return _connor_times(discordant, difference, alpha, power) / difference**2


def _check(alpha: float, power: float) -> None:
    if not 0 < alpha < 1 or not alpha < power < 1:
        raise ConfigurationError(f"alpha {alpha} and power {power} must lie between 0 and 1, alpha below power.")
