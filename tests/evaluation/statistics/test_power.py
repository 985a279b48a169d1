"""Detectable differences against tables, against their inverses and by trying them out."""

import re
from pathlib import Path

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import (
    detectable_mean,
    detectable_proportion,
    items_for_mean,
    items_for_proportion,
    mcnemar_test,
    t_interval,
)


def test_items_for_a_mean_are_those_of_the_textbooks() -> None:
    # Cohen 1988 and G*Power, paired t-test, two-sided 0.05, power 0.8: d = 0.2, 0.5, 0.8 take 199, 34, 15 pairs.
    assert [items_for_mean(1, d) for d in (0.2, 0.5, 0.8)] == [199, 34, 15]
    assert items_for_mean(10, 5) == 34, "in the unit of the data"
    assert items_for_mean(1, -0.5) == 34


def test_many_items_are_the_normal_approximation() -> None:
    assert detectable_mean(3.0, 10_000) == pytest.approx((1.959964 + 0.841621) * 3 / 100, rel=1e-3)


def test_three_seeds_find_only_what_is_far_larger_than_their_spread() -> None:
    assert detectable_mean(1.0, 3) == pytest.approx(3.26, abs=0.01)
    assert detectable_mean(1.0, 2) > 10
    assert detectable_mean(0.0, 3) is None, "no spread tells nothing"


def test_the_page_says_what_few_seeds_can_show() -> None:
    page = (Path(__file__).parents[3] / "docs" / "statistics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| .*?([\d.]+) (?:of them|standard deviations).*below ([\d.]+)", page, re.MULTILINE)
    assert [seeds for seeds, *_ in rows] == ["2", "3", "5"]
    for seeds, half, detectable in rows:
        values = np.random.default_rng(0).normal(0, 1, int(seeds))
        interval = t_interval(values / values.std(ddof=1))
        assert float(half) == pytest.approx((interval.high - interval.low) / 2, abs=0.05)
        assert float(detectable) == pytest.approx(detectable_mean(1, int(seeds)), abs=0.05)


@pytest.mark.parametrize("items", [2, 3, 5, 30])
def test_the_detectable_mean_is_found_four_times_in_five(items: int) -> None:
    shift = detectable_mean(2.0, items)
    samples = np.random.default_rng(items).normal(shift, 2, (1_500, items))
    assert np.mean([t_interval(sample).low > 0 for sample in samples]) == pytest.approx(0.8, abs=0.03)


def test_items_and_detectable_mean_are_inverse() -> None:
    for items in (3, 10, 57):
        difference = detectable_mean(1.5, items)
        assert items_for_mean(1.5, difference * 1.0001) == items
        assert items_for_mean(1.5, difference * 0.9999) == items + 1


def test_items_for_a_proportion_by_hand() -> None:
    # (1.959964 sqrt(0.2) + 0.841621 sqrt(0.2 - 0.0025))^2 / 0.0025 = (0.876523 + 0.374023)^2 / 0.0025 = 625.5
    assert items_for_proportion(0.2, 0.05) == 626
    assert items_for_proportion(0.2, -0.05) == 626
    assert detectable_proportion(0.2, 626) == pytest.approx(0.05, abs=1e-4)


def test_a_detectable_proportion_is_found_four_times_in_five() -> None:
    discordant, items = 0.3, 400
    difference = detectable_proportion(discordant, items)
    generator, found = np.random.default_rng(4), 0
    for _ in range(600):
        kind = generator.choice(
            3, items, p=[(discordant + difference) / 2, (discordant - difference) / 2, 1 - discordant]
        )
        found += mcnemar_test(kind == 0, kind == 1) <= 0.05
    # The exact test is a little less powerful than the formula, which is a normal approximation.
    assert 0.72 < found / 600 < 0.84


def test_no_proportion_can_be_found_where_the_systems_hardly_differ() -> None:
    assert detectable_proportion(0.0, 500) is None
    assert detectable_proportion(0.01, 100) is None, "one item decides nothing, whichever of the two was right"
    assert detectable_proportion(0.2, 100) is not None


def test_more_items_or_less_certainty_find_less() -> None:
    assert detectable_proportion(0.2, 2_000) < detectable_proportion(0.2, 500)
    assert detectable_mean(1, 100, power=0.5) < detectable_mean(1, 100) < detectable_mean(1, 100, alpha=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detectable_mean(1.0, 1), "at least two"),
        (lambda: detectable_mean(-1.0, 5), "0 or more"),
        (lambda: detectable_mean(1.0, 5, power=80), "between 0 and 1"),
        (lambda: items_for_mean(0.0, 1.0), "neither may be 0"),
        (lambda: items_for_mean(1.0, 0.0), "neither may be 0"),
        (lambda: detectable_proportion(1.2, 50), r"share in \[0, 1\]"),
        (lambda: items_for_proportion(0.1, 0.2), "between 0 and that share"),
        (lambda: items_for_proportion(0.1, 0.0), "between 0 and that share"),
    ],
)
def test_bad_input_says_what_to_do(call, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call()
