"""What numbers must be before anything is said of them; every refusal is a ConfigurationError."""

from collections.abc import Sequence

import numpy as np

from lmcompose.errors import ConfigurationError

Array = np.ndarray
Numbers = Sequence[float] | Array


def check_confidence(confidence: float) -> None:
    """`confidence` is a share, not a percentage."""
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must lie between 0 and 1, such as 0.95; it is {confidence}.")


def check_resamples(resamples: int) -> None:
    """There is something to draw."""
    if resamples < 1:
        raise ConfigurationError(f"resamples must be at least 1, not {resamples}.")


def finite(values: Sequence[float] | Sequence[Sequence[float]] | Array, what: str) -> Array:
    """`values` as an array of floats, none of them infinite or missing."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The {what} are not numbers in rows of one length: {error}") from error
    if not np.isfinite(array).all():
        raise ConfigurationError(
            f"{int((~np.isfinite(array)).sum())} of the {what} are infinite or missing; statistics need a number for "
            "every item. Leave these items out of both systems, and say so."
        )
    return array


def pairs(first: Numbers, second: Numbers) -> tuple[Array, Array]:
    """Both as arrays [pairs]: one value per item in the same order, at least two of them."""
    if len(first) != len(second):
        raise ConfigurationError(f"{len(first)} values cannot be paired with {len(second)}: give one pair per item.")
    if len(first) < 2:
        raise ConfigurationError(f"{len(first)} pair(s) give no interval: give at least two.")
    one, other = finite(first, "values"), finite(second, "values")
    if one.ndim != 1 or other.ndim != 1:
        raise ConfigurationError("Give one number per item: a list for each system, not a table.")
    return one, other
