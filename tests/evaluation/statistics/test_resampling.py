"""Bootstraps against every resample of a tiny sample, against closed forms and by simulated coverage."""

import itertools

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.statistics import (
    Documents,
    corpus_bootstrap,
    corpus_scores,
    paired_bootstrap,
    paired_t_interval,
    percentiles,
    ratio_bootstrap,
    resampled_sums,
)
from lmcompose.evaluation.statistics.resampling import draws

TOKENS = [10, 30]


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


def test_bootstrap_covers_what_it_claims():
    """40 skewed differences with a mean of 1: the percentile bootstrap misses it about 6 times in 100."""
    samples = np.random.default_rng(7).exponential(1, (300, 40))
    intervals = [paired_bootstrap(sample, np.zeros(40), resamples=300) for sample in samples]
    covered = np.mean([interval.low <= 1 <= interval.high for interval in intervals])
    assert 0.91 < covered < 0.97
    narrow = [paired_bootstrap(sample, np.zeros(40), resamples=300, confidence=0.8) for sample in samples]
    assert np.mean([interval.low <= 1 <= interval.high for interval in narrow]) < 0.85, "the check can fail"


def test_blocks_do_not_change_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(draws(7, 50, seed=3)))
    monkeypatch.setattr("lmcompose.evaluation.statistics.resampling.BLOCK", 40)
    parts = list(draws(7, 50, seed=3))
    assert len(parts) == 10
    assert np.array_equal(np.concatenate(parts), whole)
    assert (whole.sum(axis=1) == 7).all()
    assert len(np.unique(whole, axis=0)) > 40


def test_the_first_sums_are_of_the_items_as_they_are() -> None:
    sums = resampled_sums(np.array([[1.0, 10.0], [2.0, 20.0]]), resamples=100)
    assert sums.shape == (101, 2)
    assert sums[0].tolist() == [3, 30]
    assert {tuple(row) for row in sums[1:].tolist()} == {(2, 20), (3, 30), (4, 40)}


# ------------------------------------------------------------------------------------------------- scores of a corpus


def f_score(sums: np.ndarray) -> float:
    """F1 of a corpus from [written, wanted, matched]: the harmonic mean of two ratios of sums."""
    written, wanted, matched = sums
    return float(2 * matched / (written + wanted))


def counts(seed: int, share: float, items: int = 80) -> np.ndarray:
    generator = np.random.default_rng(seed)
    written, wanted = generator.integers(5, 40, (2, items))
    return np.stack([written, wanted, generator.binomial(np.minimum(written, wanted), share)], axis=1)


def test_a_corpus_score_against_every_resample() -> None:
    statistics = np.array([[4, 4, 4], [2, 2, 0], [6, 2, 1]])
    every = {f_score(statistics[list(drawn)].sum(axis=0)) for drawn in itertools.product(range(3), repeat=3)}
    scores = corpus_scores(statistics, f_score, resamples=500)
    assert scores[0] == pytest.approx(f_score([12, 8, 5]))
    assert set(np.round(scores[1:], 9)) == {round(score, 9) for score in every}


def test_a_mean_is_a_corpus_score() -> None:
    first, second = np.random.default_rng(1).normal(0, 1, (2, 50))
    ones = np.ones(50)
    as_corpus = corpus_bootstrap(
        np.stack([first, ones], 1), np.stack([second, ones], 1), lambda sums: sums[0] / sums[1], resamples=2_000, seed=4
    )
    assert as_corpus == pytest.approx(paired_bootstrap(first, second, resamples=2_000, seed=4))


def test_a_corpus_score_is_no_mean_of_the_items() -> None:
    """A long item that is all right beside a short one that is all wrong: 10 of 11, not one half."""
    assert corpus_scores(np.array([[10, 10, 10], [1, 1, 0]]), f_score)[0] == pytest.approx(10 / 11)


def test_the_bootstrap_of_a_corpus_is_paired() -> None:
    """A system against itself with one match less in every item: the difference hardly varies, the scores do."""
    first = counts(0, 0.7)
    second = first - np.array([0, 0, 1])
    difference = corpus_bootstrap(first, second, f_score, resamples=1_000)
    alone = percentiles(corpus_scores(first, f_score, resamples=1_000))
    assert difference.low > 0
    assert difference.high - difference.low < 0.35 * (alone.high - alone.low)


def test_chrf_is_sacrebleu_s() -> None:
    metrics = pytest.importorskip("sacrebleu.metrics")
    written, references = ["a small boat", "the sea is red", "boats"], ["a small boat .", "the sea was red", "a boat"]
    scorer = metrics.CHRF()
    statistics = np.array(scorer._extract_corpus_statistics(written, [references]))
    scores = corpus_scores(statistics, scorer._compute_f_score, resamples=200)
    assert scores[0] == pytest.approx(scorer.corpus_score(written, [references]).score)
    every = [
        scorer.corpus_score([written[at] for at in drawn], [[references[at] for at in drawn]]).score
        for drawn in itertools.combinations_with_replacement(range(3), 3)
    ]
    assert set(np.round(scores[1:], 6)) == set(np.round(every, 6))


# ----------------------------------------------------------------------------------------------------------- documents


def test_a_long_document_counts_for_more() -> None:
    loss = Documents(TOKENS, resamples=10).per_token([20.0, 30.0])
    assert loss.shape == (11,)
    assert loss[0] == 50 / 40
    assert set(np.round(loss[1:], 9)) <= {1.25, 2.0, 1.0}, "both documents, the first twice, or the second twice"


def test_documents_are_drawn_together_for_all_models() -> None:
    """Two models that differ by the same amount on every token have a difference without any spread."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 50, 40)
    base = generator.normal(3, 1, 40) * tokens
    documents = Documents(tokens, resamples=200)
    difference = percentiles(documents.per_token(base - 0.5 * tokens) - documents.per_token(base))
    assert difference == pytest.approx([-0.5, -0.5, -0.5])
    loss = percentiles(documents.per_token(base))
    assert loss[1] < loss[0] < loss[2]
    assert loss[2] - loss[1] == pytest.approx(2 * 1.96 / np.sqrt(40), rel=0.5)


def test_documents_and_the_ratio_bootstrap_are_one() -> None:
    sums, tokens = np.random.default_rng(3).normal(1, 1, 30), np.arange(1, 31)
    documents = percentiles(Documents(tokens, resamples=500, seed=9).per_token(sums))
    assert ratio_bootstrap(sums, tokens, resamples=500, seed=9) == pytest.approx(documents)


def test_one_document_is_refused() -> None:
    with pytest.raises(DataError, match="hold out more"):
        Documents([12])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_bootstrap([1.0, 2.0], [2.0]), "cannot be paired"),
        (lambda: paired_bootstrap([1.0, 2.0], [2.0, 1.0], resamples=0), "resamples"),
        (lambda: ratio_bootstrap([1.0], [2.0]), "at least two"),
        (lambda: ratio_bootstrap([1.0, 2.0], [2.0]), "2 numerators over 1"),
        (lambda: ratio_bootstrap([1.0, 2.0], [2.0, -2.0]), "no ratio"),
        (lambda: ratio_bootstrap([1.0, 2.0], [2.0, 1.0], resamples=0), "resamples"),
        (lambda: ratio_bootstrap([1.0, np.inf], [2.0, 1.0]), "infinite or missing"),
        (lambda: resampled_sums(np.ones((1, 3))), "at least two"),
        (lambda: resampled_sums(np.ones(3)), "items, k"),
        (lambda: corpus_bootstrap(np.ones((2, 3)), np.ones((3, 3)), f_score), "cannot be paired"),
        (lambda: corpus_bootstrap(np.ones((2, 3)), np.ones((2, 3)), lambda _: np.nan), "scores of resamples"),
        (lambda: percentiles(np.ones(3), confidence=95), "such as 0.95"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()
