"""pass@k: the chance that one of k programs for a problem passes its tests (Chen et al. 2021, arXiv 2107.03374)."""

import math
from collections.abc import Iterable

from lmcompose.errors import ConfigurationError


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """The unbiased estimate 1 - C(n - c, k) / C(n, k) of equation 1, for n programs of which c passed.

    It is the share of the sets of k among the n programs that have one that passed. The binomials are exact integers,
    so nothing cancels.

    Raises:
        ConfigurationError: k is not between 1 and n, or c not between 0 and n.
    """
    if not 1 <= k <= programs:
        raise ConfigurationError(
            f"pass@{k} of {programs} programs for a problem is not defined. Draw at least {k}, or ask for a smaller k."
        )
    if not 0 <= passed <= programs:
        raise ConfigurationError(f"{passed} of {programs} programs cannot have passed.")
    sets = math.comb(programs, k)
    return (sets - math.comb(programs - passed, k)) / sets


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """The mean of `pass_at_k` over problems; each count is (programs, passed).

    Raises:
        ConfigurationError: no problem, or one that has fewer than k programs.
    """
    values = [pass_at_k(programs, passed, k) for programs, passed in counts]
    if not values:
        raise ConfigurationError("pass@k needs one problem at least.")
    return math.fsum(values) / len(values)
