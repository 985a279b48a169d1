"""The truncation rule against the truth: whatever a list leaves out, what is said of it holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcompose.logits.arithmetic import plausible
from lmcompose.logits.remote.bounds import MASS_SLACK, Knowledge, decide, known_from
from lmcompose.logits.remote.plausibility import possible_and_certain
from lmcompose.logits.remote.sampling import draw, unknown_share

VOCAB = 12


def distribution(seed: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(VOCAB, generator=generator)).log_softmax(-1).double()


def top(logprobs: torch.Tensor, k: int) -> Knowledge:
    """What a list of the k most probable tokens tells."""
    values, tokens = logprobs.topk(k)
    named = dict(zip(tokens.tolist(), values.tolist(), strict=True))
    return known_from(named, [], float(values.min()), VOCAB)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, VOCAB), st.floats(0.1, 20.0))
def test_no_bound_lies_below_the_truth(seed: int, k: int, scale: float) -> None:
    truth = distribution(seed, scale)
    knowledge = top(truth, k)
    assert int(knowledge.known.sum()) == k
    torch.testing.assert_close(knowledge.values[knowledge.known], truth[knowledge.known])
    assert bool((knowledge.upper >= truth - 1e-9).all())


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, VOCAB), st.floats(0.2, 5.0), st.floats(0.1, 3.0))
def test_what_is_proved_is_the_argmax_of_the_whole(seed: int, k: int, scale: float, weight: float) -> None:
    truth, rest = distribution(seed), scale * distribution(seed + 1)
    decision = decide(top(truth, k), rest, weight)
    scores = weight * truth + rest
    if decision.proved:
        assert decision.best == int(scores.argmax())
        assert decision.margin <= float(scores[decision.best] - scores.topk(2).values[1]) + 1e-9
    else:
        assert int(scores.argmax()) in [decision.best, *decision.challengers.tolist()]


def test_the_rule_proves_something_and_not_everything() -> None:
    proved = [decide(top(distribution(seed), 4), 2 * distribution(seed + 1), 1.0).proved for seed in range(0, 200, 2)]
    assert 20 < sum(proved) < 90


def test_a_bound_by_the_kth_alone_would_not_do_for_a_token_of_a_prompt() -> None:
    """A prompt's own token is listed whatever its rank: taken for one of the top, its number proves what is wrong."""
    truth = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    rest = torch.tensor([0.0, 2.0, 0.0, 0.0])
    listed = {0: float(truth[0]), 3: float(truth[3])}  # the top one, and the token of the prompt
    wrong = known_from(listed, [], float(truth[3]), 4)
    right = known_from(listed, [], float(truth[0]), 4)
    assert int((truth + rest).argmax()) == 1
    assert decide(wrong, rest, 1.0).proved
    assert not decide(right, rest, 1.0).proved


def test_the_probability_that_is_left_bounds_too() -> None:
    knowledge = known_from({0: math.log(0.9), 1: math.log(0.08)}, [], math.log(0.08), 4)
    assert float(knowledge.upper[2]) == pytest.approx(math.log(0.02 + MASS_SLACK))
    assert float(known_from({0: math.log(0.5)}, [], None, 4).upper[2]) == pytest.approx(math.log(0.5 + MASS_SLACK))


def test_numbers_that_are_rounded_too_much_leave_the_kth_alone() -> None:
    knowledge = known_from({0: 0.0, 1: -1.0}, [], -1.0, 4)
    assert knowledge.upper[2:].tolist() == [-1.0, -1.0]


def test_nothing_is_left_when_all_is_known() -> None:
    truth = distribution(3)
    knowledge = top(truth, VOCAB)
    assert decide(knowledge, distribution(4), 1.0).proved


def test_a_name_for_two_tokens_tells_neither_and_bounds_both_loosely() -> None:
    """A list keyed by text keeps one number for both: the other token's could be the larger one."""
    knowledge = known_from({0: math.log(0.4)}, [((1, 2), math.log(0.1))], math.log(0.1), 5)
    assert not knowledge.known[[1, 2]].any()
    assert knowledge.upper[[1, 2]].tolist() == pytest.approx([math.log(0.6 + MASS_SLACK)] * 2)
    assert knowledge.upper[[3, 4]].tolist() == pytest.approx([math.log(0.1)] * 2)


def test_a_name_for_no_token_could_be_any() -> None:
    knowledge = known_from({0: math.log(0.4)}, [((), math.log(0.1))], math.log(0.1), 3)
    assert knowledge.upper[1:].tolist() == pytest.approx([math.log(0.6 + MASS_SLACK)] * 2)


def test_padding_takes_its_share_and_is_never_chosen() -> None:
    knowledge = known_from({7: math.log(0.9), 0: math.log(0.06)}, [], math.log(0.06), 3)
    assert knowledge.upper[1:].tolist() == pytest.approx([math.log(0.04 + MASS_SLACK)] * 2)
    assert decide(knowledge, torch.zeros(3), 1.0).best == 0


def test_a_token_that_the_others_rule_out_is_no_challenger() -> None:
    truth = distribution(1)
    rest = torch.full((VOCAB,), -torch.inf)
    best = int(truth.argmax())
    rest[best] = 0.0
    assert decide(top(truth, 1), rest, 1.0).proved
    ruled_out = torch.full((VOCAB,), 0.0)
    ruled_out[best] = -torch.inf
    decision = decide(top(truth, 1), ruled_out, 1.0)
    assert not decision.proved
    assert decision.best != best
    assert len(decision.challengers) == VOCAB - 1


def test_equal_scores_go_to_the_first_token_as_in_argmax() -> None:
    knowledge = known_from({2: -1.0, 1: -1.0, 0: -2.0}, [], -2.0, 3)
    assert decide(knowledge, torch.zeros(3), 1.0).best == 1


def test_merging_keeps_what_is_known_and_the_tighter_bounds() -> None:
    truth = distribution(8)
    knowledge, deeper = top(truth, 2), top(truth, 5)
    knowledge.merge(deeper)
    assert torch.equal(knowledge.known, deeper.known)
    assert torch.equal(knowledge.upper, deeper.upper)
    deeper.merge(top(truth, 2))
    assert int(deeper.known.sum()) == 5


# ---- plausibility -------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, VOCAB),
    st.sampled_from([("ratio", 0.1), ("ratio", 0.9), ("top_k", 1), ("top_k", 3), ("top_p", 0.5), ("top_p", 0.95)]),
)
def test_a_mask_in_part_encloses_the_mask_of_the_whole(seed: int, k: int, mask: tuple[str, float]) -> None:
    truth = distribution(seed)
    whole = plausible(truth, *mask)
    possible, certain = possible_and_certain(top(truth, k), *mask)
    assert bool((whole <= possible).all())
    assert bool((certain <= whole).all())


def test_a_mask_of_known_tokens_is_the_mask() -> None:
    truth = distribution(5)
    for mask in [("ratio", 0.1), ("top_k", 3.0), ("top_p", 0.9)]:
        possible, certain = possible_and_certain(top(truth, VOCAB), *mask)
        assert torch.equal(possible, plausible(truth, *mask))
        assert torch.equal(certain, possible)


def test_a_mask_is_settled_by_a_list_that_is_long_enough() -> None:
    truth = torch.tensor([0.6, 0.3, 0.06, 0.03, 0.01], dtype=torch.float64).log()
    values, tokens = truth.topk(3)
    knowledge = known_from(dict(zip(tokens.tolist(), values.tolist(), strict=True)), [], float(values.min()), 5)
    for mask in [("ratio", 0.2), ("top_k", 2.0), ("top_p", 0.85)]:
        possible, certain = possible_and_certain(knowledge, *mask)
        assert possible.tolist() == certain.tolist() == [True, True, False, False, False]


# ---- sampling -----------------------------------------------------------------------------------------------------


def samples(count: int, obtainable: bool, wrong: bool = False) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Counts of sampled tokens, the probabilities that they should have, and how many were exact.

    `wrong` keeps every token that is drawn from the bounds.
    """
    truth, rest = distribution(21), 1.5 * distribution(22)
    generator = torch.Generator().manual_seed(0)
    counts, exact = torch.zeros(VOCAB), 0
    for _ in range(count):
        knowledge = top(truth, 3)

        def learn(token: int, knowledge: Knowledge = knowledge) -> bool:
            if obtainable:
                knowledge.learn(token, float(knowledge.upper[token] if wrong else truth[token]))
            return obtainable

        drawn = draw(knowledge, rest, 1.2, 0.9, generator, learn)
        counts[drawn.token] += 1
        exact += drawn.exact
    return counts, ((1.2 * truth + rest) / 0.9).softmax(-1), exact


def chi_squared(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Chi-squared statistic over the tokens that are expected five times at least, the others taken together."""
    expected = probabilities * counts.sum()
    often = expected >= 5
    pairs = [*zip(counts[often], expected[often], strict=True), (counts[~often].sum(), expected[~often].sum())]
    return float(sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs if wanted > 0))


def test_samples_follow_the_distribution_of_the_whole() -> None:
    counts, probabilities, exact = samples(4000, obtainable=True)
    assert exact == 4000
    assert chi_squared(counts, probabilities) < 32.9  # 0.1 % of a chi-squared with 12 degrees of freedom


def test_the_test_sees_a_wrong_rule() -> None:
    counts, probabilities, _ = samples(4000, obtainable=True, wrong=True)
    assert chi_squared(counts, probabilities) > 100


def test_without_the_numbers_it_is_said_and_the_share_bounded() -> None:
    truth, rest = distribution(21), 1.5 * distribution(22)
    counts, probabilities, exact = samples(500, obtainable=False)
    assert exact < 500
    known = top(truth, 3).known
    assert counts[~known].sum() == 0
    share = unknown_share(top(truth, 3), rest, 1.2, 0.9)
    assert float(probabilities[~known].sum()) <= share < 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, VOCAB - 1), st.floats(0.1, 3.0))
def test_the_share_of_the_unknown_is_a_bound(seed: int, k: int, scale: float) -> None:
    truth, rest = distribution(seed), scale * distribution(seed + 1)
    for weight, temperature in [(1.0, 1.0), (1.3, 0.7)]:
        knowledge = top(truth, k)
        share = unknown_share(knowledge, rest, weight, temperature)
        true = ((weight * truth + rest) / temperature).softmax(-1)[~knowledge.known].sum()
        assert float(true) <= share + 1e-9


def test_the_share_counts_what_is_left_once() -> None:
    """Eight tokens cannot all be at their bound of one tenth when one tenth is left for all of them."""
    knowledge = known_from({0: math.log(0.8), 1: math.log(0.1)}, [], math.log(0.1), 10)
    assert unknown_share(knowledge, torch.zeros(10), 1.0, 1.0) == pytest.approx(0.1, abs=1e-3)
    assert unknown_share(knowledge, torch.zeros(10), 1.0, 0.999) > 0.4
