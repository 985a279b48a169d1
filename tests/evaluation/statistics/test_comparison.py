"""All that is said of a difference, and that it is not said too often."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import (
    NO_DIFFERENCE,
    Comparison,
    Documents,
    adjusted,
    compare,
    compare_corpus,
    corpus_bootstrap,
    detectable_mean,
    detectable_proportion,
    figure,
    holm,
    mcnemar_test,
    paired_bootstrap,
    paired_t_interval,
    sign_flip_test,
    swap_test,
)

MADE = Comparison(0.5, (0.1, 0.9), None, (), 10, "higher", 0.95, "sign flips", 0.01, 0.3)


@pytest.mark.parametrize(
    ("items", "seeds", "said"),
    [
        ((-2, -1), (-3, -1), "better"),
        ((-2, -1), None, "better"),
        ((1, 2), (1, 3), "worse"),
        ((-2, 1), (-3, -1), NO_DIFFERENCE),
        ((-2, -1), (-3, 1), NO_DIFFERENCE),
        ((0, 0), None, NO_DIFFERENCE),
        ((-2, -1), (1, 3), NO_DIFFERENCE),
    ],
)
def test_a_difference_inside_an_interval_is_none(items: tuple, seeds: tuple | None, said: str) -> None:
    lower = replace(MADE, items=items, seeds=seeds, better="lower")
    assert lower.verdict == said
    opposite = {"better": "worse", "worse": "better"}.get(said, said)
    assert replace(lower, better="higher").verdict == opposite


def test_p_has_to_agree_and_the_adjusted_one_counts() -> None:
    assert MADE.verdict == "better"
    assert replace(MADE, p=0.05).verdict == "better", "as often as it claims, and no rounding error"
    assert replace(MADE, p=0.051).verdict == NO_DIFFERENCE
    assert replace(MADE, adjusted_p=0.2).verdict == NO_DIFFERENCE
    assert replace(MADE, p=0.04, confidence=0.99).verdict == NO_DIFFERENCE


def test_right_and_wrong_answers() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.binomial(1, [[0.8], [0.6]], (2, 300))
    found = compare(first, second, resamples=1_000, seed=3)
    assert (found.test, found.p) == ("McNemar, exact", mcnemar_test(first, second))
    assert found.mde == detectable_proportion(np.mean(first != second), 300)
    assert (found.difference, *found.items) == pytest.approx(paired_bootstrap(first, second, resamples=1_000, seed=3))
    assert (found.seeds, found.count, found.verdict) == (None, 300, "better")
    assert compare(second, first, resamples=500).verdict == "worse"
    assert compare(second, first, better="lower", resamples=500).verdict == "better"
    assert compare(first, first, resamples=500).verdict == NO_DIFFERENCE


def test_scores_of_one_seed() -> None:
    first, second = np.random.default_rng(1).normal([[1.0], [0.0]], 1, (2, 40))
    found = compare(first, second)
    assert (found.test, found.p) == ("sign flips", sign_flip_test(first, second))
    assert found.mde == pytest.approx(detectable_mean(np.std(first - second, ddof=1), 40))


def test_seeds_have_an_interval_and_a_detectable_difference_of_their_own() -> None:
    """The same gain on every item, and quite another one with every seed: many items do not make up for it."""
    first = np.array([[0.0], [1.0], [2.0]]) + np.random.default_rng(2).normal(0, 0.1, (3, 500))
    second = np.zeros((3, 500))
    found = compare(first, second, resamples=2_000)
    means = first.mean(axis=1)
    assert found.seeds == pytest.approx(paired_t_interval(means, np.zeros(3))[1:])
    assert [each.estimate for each in found.by_seed] == pytest.approx(means)
    assert found.items[0] > 0.9
    assert found.p < 0.001
    assert found.seeds[0] < 0
    assert found.verdict == NO_DIFFERENCE
    assert found.mde == pytest.approx(detectable_mean(np.std(means, ddof=1), 3))
    assert found.mde > 3


def test_the_figure_s_intervals_are_these() -> None:
    generator = np.random.default_rng(3)
    tokens = generator.integers(5, 50, 30)
    first, second = generator.normal(2, 1, (2, 3, 30)) * tokens
    documents = Documents(tokens, resamples=700, seed=5)
    expected = figure(documents.per_token(first) - documents.per_token(second))
    found = compare(first, second, weights=tokens, better="lower", resamples=700, seed=5).to_json()
    for key, value in expected.items():
        assert np.array(found[key]) == pytest.approx(np.array(value)), key


def test_the_detectable_difference_of_a_ratio_is_that_of_its_spread() -> None:
    """The spread of a ratio of sums, against the bootstrap's: 2.8 standard errors for many documents."""
    generator = np.random.default_rng(4)
    tokens = generator.integers(5, 50, 400)
    bits = generator.normal(0.2, 1, 400) * tokens
    found = compare(bits, np.zeros(400), weights=tokens, better="lower", resamples=2_000)
    error = (found.items[1] - found.items[0]) / (2 * 1.96)
    assert found.mde == pytest.approx(2.8 * error, rel=0.08)
    assert compare(3 * bits, np.zeros(400), weights=3 * tokens, resamples=10).mde == pytest.approx(found.mde)


def ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


def test_scores_of_a_corpus() -> None:
    generator = np.random.default_rng(5)
    sizes = generator.integers(5, 50, 60)
    first, second = (np.stack([generator.binomial(sizes, share), sizes], axis=1) for share in (0.7, 0.6))
    found = compare_corpus(first, second, ratio, resamples=1_000, seed=2)
    expected = corpus_bootstrap(first, second, ratio, resamples=1_000, seed=2)
    assert (found.difference, *found.items) == expected
    assert found.p == swap_test(first, second, ratio, resamples=1_000, seed=2)
    # A ratio with the same denominators is a mean over tokens, which `compare` can do as well.
    same = compare(first[:, 0], second[:, 0], weights=sizes, resamples=1_000, seed=2)
    assert found.items == pytest.approx(same.items)
    assert found.p == pytest.approx(same.p, abs=0.02)
    assert found.mde == pytest.approx(same.mde, rel=0.1)
    assert found.verdict == "better"


def test_json_keeps_it_all() -> None:
    found = compare([1, 0, 1, 1], [0, 0, 1, 0])
    kept = json.loads(json.dumps(found.to_json()))
    assert kept == found.to_json()
    assert kept["mean"] == 0.5
    assert kept["verdict"] == NO_DIFFERENCE
    assert set(kept) >= {"documents", "seeds", "by_seed", "p", "adjusted_p", "mde", "test", "count", "better"}


def test_correction_over_many_languages() -> None:
    made = {f"language {at}": replace(MADE, p=p) for at, p in enumerate([0.01, 0.04, 0.001])}
    found = adjusted(made)
    assert list(found) == list(made)
    assert [each.adjusted_p for each in found.values()] == holm([0.01, 0.04, 0.001])
    assert [each.verdict for each in found.values()] == ["better"] * 3
    assert found["language 1"].correction == "holm over 3"
    more = {**made, **{f"other {at}": replace(MADE, p=0.9) for at in range(20)}}
    assert adjusted(more)["language 0"].verdict == NO_DIFFERENCE
    assert adjusted(more, "benjamini-hochberg")["language 2"].verdict == "better"
    assert adjusted({}) == {}


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_difference_is_not_seen_where_there_is_none(seeds: int) -> None:
    """Both seeds and items vary; of 300 comparisons of systems that are alike about 5 in 100 are called different.

    With one seed there is no effect of the seed, since its verdict is about this seed.
    """
    generator = np.random.default_rng(6)
    wrong = 0
    for at in range(300):
        effect = generator.normal(0, 0.3, (3, 1)) if seeds == 3 else 0
        values = effect + generator.normal(0, 1, (1, 30)) + generator.normal(0, 1, (seeds, 30))
        wrong += compare(values, np.zeros((seeds, 30)), resamples=99, seed=at).verdict != NO_DIFFERENCE
    assert wrong / 300 < 0.08


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare([1, 0, 1], [1, 0]), "cannot be paired"),
        (lambda: compare([1], [0]), "at least two"),
        (lambda: compare([[1, 0], [1]], [[1, 0], [1, 1]]), "rows of one length"),
        (lambda: compare([1, np.inf], [1, 0]), "infinite or missing"),
        (lambda: compare([1, 0], [0, 0], better="highr"), "Did you mean 'higher'"),
        (lambda: compare([1, 0], [0, 0], confidence=95), "such as 0.95"),
        (lambda: compare([1, 0], [0, 0], confidence=0.1), "too low"),
        (lambda: compare([1, 0], [0, 0], resamples=0), "resamples"),
        (lambda: compare([1, 0], [0, 0], weights=[1, 2, 3]), "a weight above 0 for each"),
        (lambda: compare_corpus(np.ones((3, 2)), np.ones((2, 2)), ratio), "cannot be paired"),
        (lambda: adjusted({"a": MADE}, "hlm"), "Did you mean 'holm'"),
    ],
)
def test_bad_input_says_what_to_do(call, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call()
