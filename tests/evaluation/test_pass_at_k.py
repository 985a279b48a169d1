"""pass@k by hand, and against counting all sets."""

import itertools

import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.pass_at_k import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(
    ("programs", "passed", "k", "expected"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # of the 6 pairs among 4, 3 have the one that passed
        (5, 2, 3, 9 / 10),  # of the 10 triples, one has neither
        (5, 3, 3, 1.0),  # fewer failures than k: every set has one that passed
        (10, 0, 10, 0.0),
    ],
)
def test_by_hand(programs: int, passed: int, k: int, expected: float) -> None:
    assert pass_at_k(programs, passed, k) == pytest.approx(expected, abs=1e-15)


def test_it_is_the_share_of_sets_that_have_one_that_passed() -> None:
    for programs in range(1, 8):
        for passed, k in itertools.product(range(programs + 1), range(1, programs + 1)):
            sets = list(itertools.combinations(range(programs), k))
            share = sum(min(members) < passed for members in sets) / len(sets)
            assert pass_at_k(programs, passed, k) == pytest.approx(share, abs=1e-15)


def test_large_numbers_keep_their_digits() -> None:
    assert pass_at_k(10**6, 1, 1) == 1e-6
    assert pass_at_k(200, 1, 100) == 0.5


def test_the_mean_is_over_problems() -> None:
    assert mean_pass_at_k([(4, 1), (2, 2), (10, 0)], 1) == pytest.approx((1 / 4 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("counts", "k"), [([(2, 1)], 3), ([(2, 3)], 1), ([(2, -1)], 1), ([(2, 1)], 0), ([], 1), ([(5, 1), (2, 1)], 4)]
)
def test_what_is_not_defined_is_refused(counts: list[tuple[int, int]], k: int) -> None:
    with pytest.raises(ConfigurationError):
        mean_pass_at_k(counts, k)
