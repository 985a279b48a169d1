"""Permutation tests against scipy, by hand, and by the false alarms that they raise."""

import numpy as np
import pytest
from scipy.stats import binomtest, permutation_test

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import mcnemar_test, sign_flip_test, swap_test


def mean(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


def f_score(sums: np.ndarray) -> float:
    return float(2 * sums[2] / (sums[0] + sums[1]))


def test_all_flips_by_hand() -> None:
    # Differences 1, 2, 3: of the 8 sums only 6 and -6 are as far out; with 1, 2, -3 the sum is 0, and all are.
    assert sign_flip_test([1, 2, 3], [0, 0, 0]) == 2 / 8
    assert sign_flip_test([1, 2, 0], [0, 0, 3]) == 1
    # With differences 1, 1, 3 also the sums 5, 3, ...: 3 + 1 - 1 = 3 is not as far as 5.
    assert sign_flip_test([1, 1, 3], [0, 0, 0]) == 2 / 8
    assert sign_flip_test([1, 1, 0], [0, 0, 3]) == 1, "sums 1 and 5, and all others, are as far as -1"


def test_systems_that_are_equal_show_nothing() -> None:
    assert sign_flip_test([1, 2, 3], [1, 2, 3]) == 1
    assert mcnemar_test([1, 0, 1], [1, 0, 1]) == 1
    assert swap_test(np.ones((4, 2)), np.ones((4, 2)), mean) == 1


@pytest.mark.parametrize("seed", range(5))
def test_exact_flips_are_scipy_s(seed: int) -> None:
    first, second = np.random.default_rng(seed).normal([[0.4], [0.0]], 1, (2, 10))
    expected = permutation_test(
        (first, second), lambda a, b, axis: np.mean(a - b, axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_test(first, second) == pytest.approx(expected.pvalue, abs=1e-12)


def test_exact_flips_with_ties_are_scipy_s() -> None:
    """Decimals whose sums are equal on paper and not in their last digits."""
    first, second = [0.1, 0.2, 0.3, 0.1, 0.7, 0.2, 0.2, 0.4], [0.0, 0.0, 0.6, 0.0, 0.5, 0.1, 0.0, 0.0]
    expected = permutation_test(
        (first, second), lambda a, b, axis: np.mean(a - b, axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    tenths = sign_flip_test(np.round(10 * np.array(first)), np.round(10 * np.array(second)))
    assert sign_flip_test(first, second) == tenths == pytest.approx(expected.pvalue, abs=1e-12)


def test_sampled_flips_come_close_to_all_of_them_and_are_never_0() -> None:
    first, second = np.random.default_rng(8).normal([[0.5], [0.0]], 1, (2, 13))
    exact = sign_flip_test(first, second, resamples=4_096)
    assert sign_flip_test(first, second, resamples=4_000) == pytest.approx(exact, abs=0.03)
    assert sign_flip_test(np.arange(1, 100), np.zeros(99), resamples=999) == 1 / 1_000


def test_items_on_which_both_agree_change_nothing() -> None:
    first, second = [1.0, 2.0, 5.0, 1.0, 4.0], [0.0, 3.0, 1.0, 0.0, 1.0]
    alike = list(range(500))
    assert sign_flip_test([*first, *alike], [*second, *alike]) == sign_flip_test(first, second)


@pytest.mark.parametrize(("wins", "losses"), [(0, 5), (7, 2), (30, 18), (4, 4), (0, 1)])
def test_mcnemar_is_the_binomial_test(wins: int, losses: int) -> None:
    first = [1] * wins + [0] * losses + [1, 1, 0]
    second = [0] * wins + [1] * losses + [1, 1, 0]
    p = mcnemar_test(first, second)
    assert p == pytest.approx(binomtest(wins, wins + losses).pvalue)
    if wins + losses <= 14:
        assert p == pytest.approx(sign_flip_test(first, second)), "swaps of right and wrong answers are the same test"


def test_swaps_of_a_mean_are_sign_flips() -> None:
    first, second = np.random.default_rng(2).normal([[0.5], [0.0]], 1, (2, 9))
    statistics = [np.stack([values, np.ones(9)], axis=1) for values in (first, second)]
    assert swap_test(*statistics, mean) == pytest.approx(sign_flip_test(first, second))


def test_swaps_of_a_corpus_score_are_scipy_s() -> None:
    generator = np.random.default_rng(6)
    first, second = ([generator.integers(3, 9, 8), generator.integers(3, 9, 8)] for _ in range(2))
    for system, share in ((first, 0.9), (second, 0.5)):
        system.append(np.floor(share * np.minimum(*system)).astype(int))
    indices = np.arange(8)
    tables = np.stack([np.stack(first, axis=1), np.stack(second, axis=1)])

    def statistic(one: np.ndarray, other: np.ndarray) -> float:
        # scipy swaps the labels of an item: 0 to 7 are the first system's items, 8 to 15 the second's.
        rows = tables.reshape(16, 3)
        return f_score(rows[one.astype(int)].sum(axis=0)) - f_score(rows[other.astype(int)].sum(axis=0))

    expected = permutation_test(
        (indices, indices + 8), statistic, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert swap_test(tables[0], tables[1], f_score) == pytest.approx(expected.pvalue, abs=1e-12)


def test_false_alarms_are_as_rare_as_they_claim() -> None:
    """Of 600 pairs of systems that are alike, about 5 in 100 have p of at most 0.05; a real difference is found."""
    noise = np.random.default_rng(11).standard_t(4, (600, 25))
    alarms = [sign_flip_test(each, np.zeros(25), resamples=199, seed=at) <= 0.05 for at, each in enumerate(noise)]
    assert 0.03 < np.mean(alarms) < 0.075
    found = [sign_flip_test(each + 1, np.zeros(25), resamples=199, seed=at) <= 0.05 for at, each in enumerate(noise)]
    assert np.mean(found) > 0.85


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sign_flip_test([1.0, 2.0], [1.0]), "cannot be paired"),
        (lambda: sign_flip_test([1.0], [2.0]), "at least two"),
        (lambda: sign_flip_test([1.0, np.nan], [2.0, 1.0]), "infinite or missing"),
        (lambda: sign_flip_test([1.0, 2.0], [2.0, 1.0], resamples=0), "resamples"),
        (lambda: mcnemar_test([1, 0, 2], [1, 0, 1]), "use sign_flip_test"),
        (lambda: swap_test(np.ones((2, 3)), np.ones((2, 2)), mean), "cannot be paired"),
        (lambda: swap_test(np.ones(2), np.ones(2), mean), "items, k"),
    ],
)
def test_bad_input_says_what_to_do(call, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call()
