"""Seeds as a level of their own: what one, three and many of them may say, by simulated coverage."""

import numpy as np
import pytest

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.statistics import (
    ENOUGH_SEEDS,
    figure,
    hierarchical_bootstrap,
    over_seeds,
    percentiles,
    t_interval,
)
from lmcompose.evaluation.statistics.resampling import draws


def answers(generator: np.random.Generator, seeds: int, items: int, spread: float = 1.0) -> np.ndarray:
    """Differences [seeds, items] with a mean of 0: an effect of the seed, one of the item, and noise."""
    return (
        generator.normal(0, spread, (seeds, 1))
        + generator.normal(0, 1, (1, items))
        + generator.normal(0, 1, (seeds, items))
    )


def covers(interval) -> bool:
    return interval.low <= 0 <= interval.high


def naive(values: np.ndarray) -> tuple:
    """What must not be done: the means of a few seeds, drawn again and again."""
    means = values.mean(axis=1)
    drawn = np.concatenate(list(draws(len(means), 400, 0)))
    return percentiles(np.concatenate([[means.mean()], drawn @ means / len(means)]))


def test_one_seed_says_nothing_about_others() -> None:
    assert figure(np.ones((1, 5)))["seeds"] is None
    assert over_seeds(np.ones((1, 5))) is None


def test_a_few_seeds_have_student_s_interval() -> None:
    values = np.array([[1.0, 3.0], [2.0, 4.0], [3.0, 5.0]])
    assert over_seeds(values) == t_interval([2, 3, 4])
    assert over_seeds(values, np.array([1.0, 3.0])) == t_interval([1, 1.5, 2]), "sums over the sum of the weights"
    by_seed = np.array([[2.0, 1.0, 3.0], [3.0, 2.0, 4.0], [4.0, 3.0, 5.0]])
    assert figure(by_seed)["seeds"] == pytest.approx(list(t_interval([2, 3, 4]))[1:])


def test_three_seeds_cover_what_they_claim_and_a_bootstrap_of_them_does_not() -> None:
    generator = np.random.default_rng(0)
    samples = [answers(generator, 3, 200) for _ in range(500)]
    assert 0.92 < np.mean([covers(over_seeds(sample)) for sample in samples]) < 0.975
    assert 0.65 < np.mean([covers(naive(sample)) for sample in samples]) < 0.82


def test_many_items_of_one_seed_say_nothing_about_seeds() -> None:
    """The interval over the items is about these seeds: as one about others, it misses most of the time."""
    generator = np.random.default_rng(1)
    missed = 0
    for _ in range(100):
        means = answers(generator, 1, 400)[0]
        missed += not covers(t_interval(means))
    assert missed > 70


@pytest.mark.parametrize("spread", [0.0, 0.2, 2.0])
def test_many_seeds_are_drawn_with_their_items(spread: float) -> None:
    """Whether the seeds matter, matter as much as the items, or matter most: for other seeds and other items."""
    generator = np.random.default_rng(2)
    samples = [answers(generator, ENOUGH_SEEDS, 40, spread) for _ in range(150)]
    covered = np.mean([covers(hierarchical_bootstrap(sample, resamples=200)) for sample in samples])
    assert 0.88 < covered < 0.99


def test_drawing_seeds_alone_or_items_alone_is_too_narrow() -> None:
    values = answers(np.random.default_rng(3), 25, 30)
    both = hierarchical_bootstrap(values, resamples=2_000)
    assert both.estimate == pytest.approx(values.mean())
    widths = [interval.high - interval.low for interval in (both, naive(values), naive(values.T))]
    assert widths[0] > 1.02 * max(widths[1:])
    assert over_seeds(values, seed=0) == hierarchical_bootstrap(values, seed=0)


def test_weights_are_tokens() -> None:
    """A value of 2 per token in every document, however long: no spread."""
    tokens = np.arange(1.0, 11.0)
    assert hierarchical_bootstrap(np.tile(2 * tokens, (20, 1)), tokens, resamples=50) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hierarchical_bootstrap(np.ones((3, 5))), "3 seed.s. are too few to be drawn.*over_seeds"),
        (lambda: over_seeds(np.ones(5)), "seeds, items"),
        (lambda: over_seeds(np.ones((3, 1))), "two items at least"),
        (lambda: over_seeds(np.full((3, 4), np.nan)), "infinite or missing"),
        (lambda: over_seeds(np.ones((3, 4)), np.ones(3)), "a weight above 0 for each of the 4 items"),
        (lambda: over_seeds(np.ones((3, 4)), np.zeros(4)), "a weight above 0"),
    ],
)
def test_bad_input_says_what_to_do(call, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call()
