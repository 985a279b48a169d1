"""What choosing between whole models could reach at best. Pure functions of scores."""

import math
from collections.abc import Sequence

import numpy as np

from lmcompose.errors import ConfigurationError


def oracle(bits: Sequence[Sequence[float]]) -> list[float]:
    """For each document the fewest bits that any single model takes: a router that is never wrong.

    Args:
        bits: [models, documents].

    Raises:
        ConfigurationError: no model, or models that were scored on different documents.
    """
    if not bits or len({len(each) for each in bits}) != 1:
        raise ConfigurationError(
            "Routing chooses among models that were scored on the same documents: give one, or more."
        )
    return np.min(np.asarray(bits, dtype=float), axis=0).tolist()


def product_bound(accuracies: Sequence[float]) -> float:
    """How often a chain of single models can be right where a task takes several sub-skills, one model for each.

    Each step is handed to the model that is best at it, and all must be right: the product, as long as their mistakes
    are independent. (The CALM authors' reply to reviewers compares with it: m_A's substitution of keys times m_B's
    arithmetic.)

    Args:
        accuracies: of the best model for each sub-skill, from 0 to 1.

    Raises:
        ConfigurationError: none, or one that is no share.
    """
    if not accuracies or any(not 0 <= each <= 1 for each in accuracies):
        raise ConfigurationError(f"Accuracies are from 0 to 1, one at least: {list(accuracies)}.")
    return math.prod(accuracies)
