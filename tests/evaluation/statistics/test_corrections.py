"""Corrections by hand, against scipy and against what they promise."""

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import benjamini_hochberg, holm


def test_holm_by_hand() -> None:
    # In order: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which may not pass the 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1, 1]
    assert holm([0.2]) == [0.2]


def test_benjamini_hochberg_by_hand() -> None:
    # 4/1 x 0.005 = 0.02, 4/2 x 0.01 = 0.02, 4/3 x 0.03 = 0.04, 4/4 x 0.04 = 0.04.
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


@pytest.mark.parametrize("seed", range(4))
def test_benjamini_hochberg_is_scipy_s(seed: int) -> None:
    values = np.random.default_rng(seed).uniform(0, 1, 22) ** 3
    assert benjamini_hochberg(values) == pytest.approx(false_discovery_control(values).tolist())


def test_adjusted_values_keep_the_order_and_equal_ones_stay_equal() -> None:
    values = np.random.default_rng(1).integers(0, 20, 40) / 20
    for correct in (holm, benjamini_hochberg):
        found = np.array(correct(values))
        assert (found >= values).all()
        assert (np.diff(found[np.argsort(values, kind="stable")]) >= 0).all()
        assert all(len(set(found[values == value])) == 1 for value in values)


def test_holm_holds_the_chance_of_any_false_alarm_and_the_plain_values_do_not() -> None:
    tables = np.random.default_rng(2).uniform(0, 1, (1_000, 22))
    assert np.mean([min(holm(table)) <= 0.05 for table in tables]) < 0.065
    assert np.mean([table.min() <= 0.05 for table in tables]) > 0.6


def test_benjamini_hochberg_holds_the_share_of_false_ones_and_finds_more_than_holm() -> None:
    generator = np.random.default_rng(3)
    shares, found, by_holm = [], 0, 0
    for _ in range(500):
        values = np.concatenate([generator.uniform(0, 1, 10), generator.beta(0.05, 5, 10)])
        called = np.array(benjamini_hochberg(values)) <= 0.05
        shares.append(called[:10].sum() / max(1, called.sum()))
        found, by_holm = found + called[10:].sum(), by_holm + (np.array(holm(values))[10:] <= 0.05).sum()
    assert 0.01 < np.mean(shares) < 0.05
    assert found > by_holm


@pytest.mark.parametrize("correct", [holm, benjamini_hochberg])
@pytest.mark.parametrize(
    ("values", "message"),
    [([], "nothing to correct"), ([0.1, 1.2], "between 0 and 1"), ([np.nan], "infinite or missing")],
)
def test_bad_input_says_what_to_do(correct, values, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        correct(values)
