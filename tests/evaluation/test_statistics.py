"""Intervals against numbers worked out by hand or printed in textbooks."""

import math

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import (
    paired_bootstrap,
    paired_t_interval,
    ratio_bootstrap,
    score,
    wilson_interval,
    with_intervals,
)


def test_wilson_by_hand():
    # 8 of 10 with z = 1.959964: centre (0.8 + 0.192073) / 1.384146 = 0.716740,
    # half 1.416010 * sqrt(0.016 + 0.00960365) = 0.226577.
    estimate, low, high = wilson_interval(8, 10)
    assert estimate == 0.8
    assert low == pytest.approx(0.490163, abs=1e-5)
    assert high == pytest.approx(0.943318, abs=1e-5)


def test_wilson_at_the_ends():
    # With no success the upper end is z^2 / (n + z^2) exactly.
    z2 = 1.959964**2
    assert wilson_interval(0, 20) == pytest.approx((0, 0, z2 / (20 + z2)), abs=1e-6)
    assert wilson_interval(20, 20) == pytest.approx((1, 20 / (20 + z2), 1), abs=1e-6)


def test_wilson_covers_what_it_claims():
    # Exact coverage by summing the binomial: 50 trials at 0.9 must be covered about 95 times in 100.
    total, chance = 50, 0.9
    covered = sum(
        math.comb(total, k) * chance**k * (1 - chance) ** (total - k)
        for k in range(total + 1)
        if wilson_interval(k, total).low <= chance <= wilson_interval(k, total).high
    )
    assert 0.93 < covered < 0.98


def test_score_is_a_cell_of_a_results_file():
    cell = score(8, 10)
    assert (cell["correct"], cell["total"], cell["accuracy"]) == (8, 10, 0.8)
    assert cell["interval"] == pytest.approx([0.490163, 0.943318], abs=1e-5)


def test_intervals_are_added_to_every_cell():
    results = with_intervals({"composition": {"kv_math": {"correct": 8, "total": 10, "note": "kept"}}})
    assert results == {"composition": {"kv_math": {"note": "kept", **score(8, 10)}}}


def test_paired_t_by_hand():
    # Differences 1, 2, 3: mean 2, standard deviation 1, t(0.975, 2) = 4.302653; half 4.302653 / sqrt(3) = 2.484138.
    assert paired_t_interval([2, 4, 6], [1, 2, 3]) == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-5)


def test_pairing_removes_what_the_pairs_share():
    shared = np.random.default_rng(0).normal(0, 100, 40)
    noise = np.random.default_rng(1).normal(0, 0.1, 40)
    for interval in (paired_t_interval(shared + 1 + noise, shared), paired_bootstrap(shared + 1 + noise, shared)):
        assert 0.9 < interval.low < interval.estimate < interval.high < 1.1


def test_bootstrap_against_every_resample():
    # Two pairs with differences 0 and 1: the mean of a resample is 0, 1/2, 1 with chance 1/4, 1/2, 1/4.
    assert paired_bootstrap([0, 1], [0, 0], confidence=0.4) == pytest.approx((0.5, 0.5, 0.5))
    assert paired_bootstrap([0, 1], [0, 0], confidence=0.9) == pytest.approx((0.5, 0, 1))


def test_bootstrap_agrees_with_student_on_many_pairs():
    generator = np.random.default_rng(2)
    first, second = generator.normal(0.3, 1, 400), generator.normal(0, 1, 400)
    assert paired_bootstrap(first, second) == pytest.approx(paired_t_interval(first, second), abs=0.02)


def test_ratio_bootstrap_against_every_resample():
    # Items (1 over 1) and (0 over 3): a resample gives 1/1, 1/4 or 0/6 with chance 1/4, 1/2, 1/4.
    assert ratio_bootstrap([1, 0], [1, 3], confidence=0.4) == pytest.approx((0.25, 0.25, 0.25))
    assert ratio_bootstrap([1, 0], [1, 3], confidence=0.9) == pytest.approx((0.25, 0, 1))


def test_ratio_bootstrap_of_equal_weights_is_that_of_the_mean():
    values = np.random.default_rng(3).normal(1, 1, 200)
    ratio, mean = ratio_bootstrap(values, np.ones(200)), paired_t_interval(values, np.zeros(200))
    assert ratio == pytest.approx(mean, abs=0.02)


def test_ratio_bootstrap_minds_that_tokens_of_one_text_go_together():
    # 20 texts of 50 tokens, each all right or all wrong: as uncertain as 20 tokens, not as 1,000.
    right = [50.0 * (index % 2) for index in range(20)]
    _, low, high = ratio_bootstrap(right, [50.0] * 20)
    assert 0.35 < high - low < 0.5


def test_ratio_bootstrap_passes_over_resamples_that_say_nothing():
    estimate, low, high = ratio_bootstrap([2, 0], [1, 0], confidence=0.9)
    assert (estimate, low, high) == (2, 2, 2)


def test_bootstrap_repeats_with_its_seed():
    first, second = [1.0, 5.0, 2.0, 8.0], [0.5, 4.0, 3.0, 1.0]
    assert paired_bootstrap(first, second, seed=3) == paired_bootstrap(first, second, seed=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(3, 0), "positive total"),
        (lambda: wilson_interval(11, 10), "11 successes of 10"),
        (lambda: wilson_interval(1, 2, confidence=95), "such as 0.95"),
        (lambda: paired_t_interval([1.0], [2.0]), "at least two"),
        (lambda: paired_bootstrap([1.0, 2.0], [2.0]), "cannot be paired"),
        (lambda: paired_bootstrap([1.0, 2.0], [2.0, 1.0], resamples=0), "resamples"),
        (lambda: ratio_bootstrap([1.0], [2.0]), "at least two"),
        (lambda: ratio_bootstrap([1.0, 2.0], [2.0]), "2 numerators over 1"),
        (lambda: ratio_bootstrap([1.0, 2.0], [2.0, -2.0]), "no ratio"),
        (lambda: ratio_bootstrap([1.0, 2.0], [2.0, 1.0], resamples=0), "resamples"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()
