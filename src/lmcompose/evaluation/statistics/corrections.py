"""Corrections of p-values over many languages, tasks or arms; adjusted p-values come in the order of the input."""

from collections.abc import Callable, Sequence

import numpy as np

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics.checks import Array, Numbers, finite


def holm(p_values: Numbers) -> list[float]:
    """Holm's step-down adjustment, which holds the chance of even one false alarm among all (Holm 1979).

    It needs nothing of how the tests depend on each other.

    Raises ConfigurationError for no p-value or one outside [0, 1].
    """
    values, order = _ordered(p_values)
    # The smallest of m has to beat alpha / m, the next one alpha / (m - 1); none may pass one that was stopped.
    steps = np.arange(len(values), 0, -1)
    return _restored(np.maximum.accumulate(steps * values[order]), order)


def benjamini_hochberg(p_values: Numbers) -> list[float]:
    """The step-up adjustment that holds the expected share of false ones among all differences that are called.

    Benjamini and Hochberg 1995, for tests that are independent or positively dependent (Benjamini and Yekutieli 2001),
    as those of one pair of systems on many languages mostly are.

    Raises ConfigurationError for no p-value or one outside [0, 1].
    """
    values, order = _ordered(p_values)
    scaled = values[order] * len(values) / np.arange(1, len(values) + 1)
    return _restored(np.minimum.accumulate(scaled[::-1])[::-1], order)


CORRECTIONS: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "holm": holm,
    "benjamini-hochberg": benjamini_hochberg,
}


def _ordered(p_values: Numbers) -> tuple[Array, Array]:
    values = finite(p_values, "p-values")
    if values.ndim != 1 or len(values) == 0:
        raise ConfigurationError("There is nothing to correct: give a list of one p-value per test.")
    if values.min() < 0 or values.max() > 1:
        raise ConfigurationError(
            f"p-values lie between 0 and 1; these reach from {values.min():g} to {values.max():g}."
        )
    return values, np.argsort(values, kind="stable")


def _restored(adjusted: Array, order: Array) -> list[float]:
    result = np.empty(len(order))
    result[order] = np.minimum(adjusted, 1)
    return [float(value) for value in result]
