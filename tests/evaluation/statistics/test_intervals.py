"""Intervals against numbers worked out by hand or printed in textbooks."""

import math

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import (
    paired_bootstrap,
    paired_t_interval,
    score,
    t_interval,
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


def test_student_covers_what_it_claims_even_with_three_values():
    draws = np.random.default_rng(5).normal(2, 1, (2_000, 3))
    covered = np.mean([interval.low <= 2 <= interval.high for interval in map(t_interval, draws)])
    assert 0.935 < covered < 0.965


def test_pairing_removes_what_the_pairs_share():
    shared = np.random.default_rng(0).normal(0, 100, 40)
    noise = np.random.default_rng(1).normal(0, 0.1, 40)
    for interval in (paired_t_interval(shared + 1 + noise, shared), paired_bootstrap(shared + 1 + noise, shared)):
        assert 0.9 < interval.low < interval.estimate < interval.high < 1.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(3, 0), "positive total"),
        (lambda: wilson_interval(11, 10), "11 successes of 10"),
        (lambda: wilson_interval(1, 2, confidence=95), "such as 0.95"),
        (lambda: paired_t_interval([1.0], [2.0]), "at least two"),
        (lambda: t_interval([1.0]), "at least two"),
        (lambda: t_interval([1.0, math.nan]), "1 of the values are infinite or missing"),
        (lambda: paired_t_interval([1.0, math.inf], [2.0, 1.0]), "infinite or missing"),
        (lambda: paired_t_interval([[1.0], [2.0]], [[2.0], [1.0]]), "not a table"),
        (lambda: paired_t_interval(["a", "b"], [2.0, 1.0]), "not numbers"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()
