"""Weighted sums with -inf in them, the cases that must be exact to the bit, missing tokens, and plausibility masks."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from lmcompose.errors import ConfigurationError
from lmcompose.logits.arithmetic import (
    MISSING_POLICIES,
    Plausibility,
    Step,
    as_scores,
    at_temperature,
    combine,
    lowest,
    plausible,
    restrict,
    summation,
)

INF = math.inf
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_scores(seed: int, *shape: int, dtype: torch.dtype = torch.float32, ruled_out: float = 0.0) -> Tensor:
    """Scores of very different sizes, some of them -0.0 (where a sum that adds 0.0 shows), and a share of them -inf."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator).mul(16).sub(8).exp2()
    scores = scores.to(dtype).masked_fill(torch.rand(shape, generator=generator) < 0.02, -0.0)
    return scores.masked_fill(torch.rand(shape, generator=generator) < ruled_out, -INF)


def assert_same_bits(left: Tensor, right: Tensor) -> None:
    assert left.dtype == right.dtype == torch.float32
    assert torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))


def by_definition(scores: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """The rules, spelt out token by token in Python."""
    rows = {name: score.reshape(-1, score.shape[-1]).tolist() for name, score in scores.items()}
    first = next(iter(rows.values()))
    result = []
    for row in range(len(first)):
        floors = {n: min((s for s in rows[n][row] if s > -INF), default=0.0) for n in rows}
        for token in range(len(first[0])):
            total = 0.0
            for name, weight in weights.items():
                score = rows[name][row][token]
                if weight < 0 and score == -INF:
                    score = floors[name]
                total += weight * score if weight != 0 else 0.0
            result.append(total)
    return torch.tensor(result).view(next(iter(scores.values())).shape)


# ---- law 7 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", list(itertools.permutations(["base", "expert", "antiexpert"])))
def test_alpha_zero_is_the_base(dtype: torch.dtype, order: tuple[str, ...]) -> None:
    weights = {"base": 1.0, "expert": 0.0, "antiexpert": -0.0}
    for seed in range(3):
        base = random_scores(seed, 2, 2, 300, dtype=dtype, ruled_out=0.1)
        others = torch.full_like(base, math.nan)
        scores = {"base": base, "expert": others, "antiexpert": others.fill_(-INF)}
        assert_same_bits(combine(scores, {name: weights[name] for name in order}, leader="base"), base.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.3, 2.0, 7.7, -0.4, -1.0])
@pytest.mark.parametrize("order", list(itertools.permutations(["base", "expert", "antiexpert"])))
def test_expert_equal_to_antiexpert_is_the_base(dtype: torch.dtype, alpha: float, order: tuple[str, ...]) -> None:
    weights = {"base": 1.0, "expert": alpha, "antiexpert": -alpha}
    for seed in range(3):
        base = random_scores(seed, 2, 2, 300, dtype=dtype, ruled_out=0.1)
        pair = random_scores(seed + 100, 2, 2, 300, dtype=dtype)
        scores = {"base": base, "expert": pair, "antiexpert": pair.clone()}
        assert_same_bits(combine(scores, {name: weights[name] for name in order}, leader="base"), base.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", list(itertools.permutations(["base", "expert", "antiexpert"])))
def test_antiexpert_equal_to_base_is_the_expert(dtype: torch.dtype, order: tuple[str, ...]) -> None:
    weights = {"base": 1.0, "expert": 1.0, "antiexpert": -1.0}
    for seed in range(3):
        base = random_scores(seed, 2, 2, 300, dtype=dtype)
        expert = random_scores(seed + 100, 2, 2, 300, dtype=dtype, ruled_out=0.1)
        scores = {"base": base, "expert": expert, "antiexpert": base.clone()}
        assert_same_bits(combine(scores, {name: weights[name] for name in order}, leader="base"), expert.float())


def test_the_plain_order_of_additions_would_not_be_exact() -> None:
    """So that the tests above can fail: with these numbers, neither order of additions gives both laws."""
    base, pair = random_scores(0, 500), random_scores(100, 500)
    assert not torch.equal((base + pair) - pair, base)
    assert not torch.equal((pair - base) + base, pair)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 0.1, 0.7, 1.3, 3.3])
def test_two_equal_contexts_are_the_model_itself(alpha: float) -> None:
    """(1 + alpha) a - alpha a and a + gamma (b - b): weights of sum 1 over equal scores."""
    scores = random_scores(1, 4, 500)
    same = {"a": scores, "b": scores.clone()}
    assert_same_bits(combine(same, {"a": 1 + alpha, "b": -alpha}), scores)
    assert_same_bits(combine(same, {"a": -alpha, "b": 1 + alpha}), scores)
    assert_same_bits(combine(same, {"b": 1 - (1 + alpha), "a": 1 + alpha}, leader="b"), scores)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_several_pairs_cancel_at_once(alpha: float) -> None:
    base, one, two = (random_scores(seed, 2, 300) for seed in range(3))
    scores = {"base": base, "e": one, "a": one.clone(), "f": two, "b": two.clone()}
    assert_same_bits(combine(scores, {"base": 1.0, "e": alpha, "a": -alpha, "f": alpha, "b": -alpha}), base)


# ---- -inf -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(30))
def test_no_ruled_out_token_comes_back(seed: int, dtype: torch.dtype) -> None:
    """Random weights of any sign over scores full of -inf: as the definition says, never NaN and never +inf."""
    generator = torch.Generator().manual_seed(seed)
    count = 1 + seed % 4
    drawn = torch.randint(-4, 5, (count,), generator=generator).div(2).tolist()
    weights = dict(zip("abcd", [drawn[0] or 1.0, *drawn[1:]], strict=False))
    scores = {
        name: random_scores(seed * 10 + i, 3, 4, 60, dtype=dtype, ruled_out=0.3) for i, name in enumerate(weights)
    }
    scores["a"][0, 0] = -INF  # nothing is left in that member at that position
    result = combine(scores, weights)
    assert not torch.isnan(result).any()
    assert not torch.isposinf(result).any()
    torch.testing.assert_close(result, by_definition(scores, weights), rtol=1e-4, atol=1e-3)


def test_rules_for_ruled_out_tokens_by_hand() -> None:
    scores = {
        "base": torch.tensor([1.0, -INF, 3.0, 4.0, 5.0]),
        "expert": torch.tensor([1.0, 1.0, -INF, 2.0, -INF]),
        "antiexpert": torch.tensor([0.5, 0.0, -3.0, -INF, -INF]),
    }
    result = combine(scores, {"base": 1.0, "expert": 2.0, "antiexpert": -2.0})
    # 1 + 2 (1 - 0.5); ruled out by the base; by the expert; 4 + 2 (2 - -3) with the lowest score; by the expert
    assert result.tolist() == [2.0, -INF, -INF, 14.0, -INF]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lowest_number_of_a_dtype_rules_out_as_well(dtype: torch.dtype) -> None:
    lowest_number = torch.finfo(dtype).min
    base = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    antiexpert = torch.tensor([0.0, -1.0, lowest_number], dtype=dtype)
    result = combine({"base": base, "anti": antiexpert}, {"base": 1.0, "anti": -4.0})
    assert result.tolist() == [1.0, 6.0, 7.0]  # 3 - 4 * -1


def test_a_subtracted_member_without_any_token_says_nothing() -> None:
    scores = {"base": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "anti": torch.tensor([[-INF, -INF], [1.0, -INF]])}
    assert combine(scores, {"base": 1.0, "anti": -0.5}).tolist() == [[1.0, 2.0], [2.5, 3.5]]


def test_lowest_finite_score() -> None:
    scores = torch.tensor([[1.0, -INF, -2.0], [-INF, -INF, -INF], [torch.finfo(torch.float32).min, 5.0, 6.0]])
    assert lowest(scores).tolist() == [[-2.0], [0.0], [5.0]]


# ---- the sum itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_any_weighted_sum(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = dict(
        zip("abcde", (torch.randint(-6, 7, (1 + seed % 5,), generator=generator) / 4).tolist(), strict=False)
    )
    weights["a"] = abs(weights["a"]) + 0.25
    scores = {name: torch.randn(2, 3, 40, generator=generator) for name in weights}
    expected = sum(weights[name] * scores[name].double() for name in weights)
    torch.testing.assert_close(combine(scores, weights).double(), expected, rtol=0, atol=2e-5)


def test_half_precision_is_added_in_single_precision() -> None:
    scores = {name: random_scores(i, 400, dtype=torch.bfloat16).clamp(-50, 50) for i, name in enumerate("abc")}
    weights = {"a": 0.9, "b": 0.7, "c": -0.3}
    expected = sum(weights[name] * scores[name].double() for name in weights)
    torch.testing.assert_close(combine(scores, weights).double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("policy", MISSING_POLICIES)
@pytest.mark.parametrize("weights", [{"b": 1.0, "e": 1.0, "a": -1.0}, {"b": 1.0, "e": 0.5, "a": -0.5}, {"b": 1.0}])
def test_double_precision_becomes_single(weights: dict[str, float], policy: str) -> None:
    """Also where they cancel: then a member's own scores are what is left."""
    scores = {
        name: random_scores(i, 2, 50, dtype=torch.float64, ruled_out=0.1) * math.pi for i, name in enumerate("be")
    }
    lacking = {"e": torch.rand(50, generator=torch.Generator().manual_seed(0)) < 0.2}
    for antiexpert in (scores["b"], scores["e"], scores["b"].roll(1, 0)):
        given = scores | {"a": antiexpert}
        single = {name: score.float() for name, score in given.items()}
        assert_same_bits(combine(given, weights), combine(single, weights))
        assert_same_bits(combine(given, weights, lacking, "b", policy), combine(single, weights, lacking, "b", policy))
        rows = {name: torch.tensor([[weight], [2 * weight]]) for name, weight in weights.items()}
        assert_same_bits(combine(given, rows), combine(single, rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.0, 0.5, -0.5, 0.0])
def test_the_members_scores_are_left_alone(alpha: float, dtype: torch.dtype) -> None:
    scores = {name: random_scores(i, 2, 50, dtype=dtype, ruled_out=0.2) for i, name in enumerate("bea")}
    before = {name: score.clone() for name, score in scores.items()}
    lacking = torch.rand(50) < 0.2
    for policy in MISSING_POLICIES:
        combine(scores, {"b": 1.0, "e": alpha, "a": -alpha})
        combine(scores, {"b": 1.0, "e": alpha, "a": -alpha}, {"e": lacking, "a": lacking}, "b", policy)
    for name in scores:
        assert torch.equal(scores[name], before[name])


def test_all_weights_zero_is_an_error() -> None:
    scores = {"a": torch.zeros(1, 1, 3)}
    with pytest.raises(ConfigurationError, match="All weights are 0"):
        combine(scores, {"a": 0.0})
    with pytest.raises(ConfigurationError, match="All weights are 0"):
        combine(scores, {"a": torch.tensor([0.0])})


@pytest.mark.parametrize("alpha", [1.0, 0.5, -2.0])
def test_gradients_are_the_weights(alpha: float) -> None:
    scores = {name: torch.randn(2, 5, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("bea")}
    for score in scores.values():
        score.requires_grad_()
    combine(scores, {"b": 1.0, "e": alpha, "a": -alpha}).sum().backward()
    for name, weight in {"b": 1.0, "e": alpha, "a": -alpha}.items():
        assert torch.equal(scores[name].grad, torch.full((2, 5), weight))


def test_it_compiles_as_one_graph() -> None:
    compiled = torch.compile(
        lambda scores, alpha: combine(scores, {"b": 1.0, "e": alpha, "a": -alpha}), backend="eager", fullgraph=True
    )
    scores = {name: random_scores(i, 2, 50, ruled_out=0.2) for i, name in enumerate("bea")}
    for alpha in (1.0, 0.5):
        assert torch.equal(compiled(scores, alpha), combine(scores, {"b": 1.0, "e": alpha, "a": -alpha}))


@pytest.mark.parametrize(
    ("weights", "steps"),
    [
        ({"b": 1.0}, [Step(1.0, "b")]),
        ({"b": 1.0, "e": 2.0, "a": -2.0}, [Step(2.0, "e", "a"), Step(1.0, "b")]),
        ({"b": 1.0, "e": 1.0, "a": -1.0}, [Step(1.0, "e", "a"), Step(1.0, "b")]),  # rather not from the leader
        ({"b": 1.5, "e": -0.5}, [Step(0.5, "b", "e"), Step(1.0, "b")]),
        ({"b": -0.5, "e": 1.5}, [Step(0.5, "e", "b"), Step(1.0, "e")]),
        ({"b": 1.0, "e": -1.0}, [Step(1.0, "b", "e")]),
        ({"b": 1.0, "e": 0.0, "a": -0.0}, [Step(1.0, "b")]),
        ({"b": 1.0, "e": 3.0, "a": -2.0}, [Step(2.0, "e", "a"), Step(1.0, "b"), Step(1.0, "e")]),
        ({"b": 1.0, "a": -2.0}, [Step(1.0, "b"), Step(-2.0, "a")]),  # nobody is heavy enough
        ({"b": 0.1 + 0.2, "a": -0.3}, [Step(0.3, "b", "a")]),  # no dust of rounding is left
    ],
)
def test_order_of_summation(weights: dict[str, float], steps: list[Step]) -> None:
    assert summation(weights, "b") == steps


# ---- weights per row and per position ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_per_row_gives_what_each_row_gives_alone(dtype: torch.dtype) -> None:
    alphas = [0.0, 1.0, 0.5, -0.5, 1.0, 2.0]
    alpha = torch.tensor(alphas, dtype=torch.float64)[:, None, None]
    scores = {name: random_scores(i, 6, 3, 40, dtype=dtype, ruled_out=0.2) for i, name in enumerate("bea")}
    scores["e"][0] = math.nan  # of weight 0 in that row
    result = combine(scores, {"b": 1.0, "e": alpha, "a": -alpha})
    assert result.shape == (6, 3, 40)
    for row, value in enumerate(alphas):
        alone = {name: score[row : row + 1] for name, score in scores.items()}
        assert_same_bits(result[row : row + 1], combine(alone, {"b": 1.0, "e": value, "a": -value}))


def test_a_weight_per_position_and_one_for_all() -> None:
    scores = {name: random_scores(i, 2, 3, 40) for i, name in enumerate("bea")}
    steps = torch.tensor([0.0, 1.0, 0.25])
    result = combine(scores, {"b": 1.0, "e": steps[None, :, None], "a": -steps[None, :, None]})
    for position, value in enumerate(steps.tolist()):
        at_position = {name: score[:, position] for name, score in scores.items()}
        assert_same_bits(result[:, position], combine(at_position, {"b": 1.0, "e": value, "a": -value}))
    one = torch.tensor(0.25)
    assert_same_bits(
        combine(scores, {"b": 1.0, "e": one, "a": -one}), combine(scores, {"b": 1.0, "e": 0.25, "a": -0.25})
    )


# ---- tokens that a member lacks ---------------------------------------------------------------------------------

LACKING = {
    "base": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "expert": torch.tensor([1.0, 3.0, 99.0, 5.0]),
    "antiexpert": torch.tensor([0.0, -2.0, -99.0, -99.0]),
}
WHERE = {"expert": torch.tensor([0, 0, 1, 0]).bool(), "antiexpert": torch.tensor([0, 0, 1, 1]).bool()}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("leader", [2.0, 7.0, 3.0, 4.0]),
        ("forbid", [2.0, 7.0, -INF, -INF]),
        ("lowest", [2.0, 7.0, 6.0, 11.0]),  # 3 + 1 - -2, 4 + 5 - -2: the numbers at missing tokens do not count
    ],
)
def test_missing_tokens_by_hand(policy: str, expected: list[float]) -> None:
    weights = {"base": 1.0, "expert": 1.0, "antiexpert": -1.0}
    assert combine(LACKING, weights, WHERE, "base", policy).tolist() == expected
    batch = {name: score.expand(2, 3, 4) for name, score in LACKING.items()}
    assert combine(batch, weights, WHERE, "base", policy)[1, 2].tolist() == expected


def test_what_stands_at_a_missing_token_does_not_matter() -> None:
    weights = {"base": 1.0, "expert": 0.5, "antiexpert": -0.5}
    for policy in MISSING_POLICIES:
        expected = combine(LACKING, weights, WHERE, "base", policy)
        for anything in (0.0, -INF, 1e30, -1e30):
            filled = {n: s.masked_fill(WHERE[n], anything) if n in WHERE else s for n, s in LACKING.items()}
            assert torch.equal(combine(filled, weights, WHERE, "base", policy), expected)


def test_a_missing_token_takes_the_leaders_weighted_score() -> None:
    weights = {"base": 2.0, "expert": 1.0, "antiexpert": -1.0}
    assert combine(LACKING, weights, WHERE, "base")[2:].tolist() == [6.0, 8.0]
    negative = {"base": -1.0, "expert": 2.0, "antiexpert": 0.0}  # the antiexpert's missing tokens play no part
    assert combine(LACKING, negative, WHERE, "base").tolist() == [1.0, 4.0, -INF, 6.0]


def test_members_of_weight_zero_lack_nothing() -> None:
    for policy in MISSING_POLICIES:
        assert_same_bits(
            combine(LACKING, {"base": 1.0, "expert": 0.0, "antiexpert": 0.0}, WHERE, "base", policy), LACKING["base"]
        )


def test_unknown_policy() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'forbid'"):
        combine(LACKING, {"base": 1.0}, policy="forbidden")


# ---- scores -----------------------------------------------------------------------------------------------------


def test_temperature() -> None:
    logits = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert at_temperature(logits, 1.0) is logits
    assert at_temperature(logits, 0.5).tolist() == [2.0, 4.0]
    assert at_temperature(logits, 3).dtype == torch.float32
    for wrong in (0.0, -1.0, INF, math.nan, True, "1"):
        with pytest.raises(ConfigurationError, match="temperature is a number above 0"):
            at_temperature(logits, wrong)  # type: ignore[arg-type]


def test_logits_or_log_probabilities() -> None:
    logits = torch.tensor([0.0, math.log(3.0), -INF], dtype=torch.float64)
    assert as_scores(logits, "logits") is logits
    torch.testing.assert_close(as_scores(logits, "logprobs").exp(), torch.tensor([0.25, 0.75, 0.0]))
    with pytest.raises(ConfigurationError, match="Did you mean 'logprobs'"):
        as_scores(logits, "logprob")


# ---- plausibility -----------------------------------------------------------------------------------------------

PROBABILITIES = torch.tensor([[0.05, 0.5, 0.25, 0.15, 0.05], [0.92, 0.02, 0.02, 0.02, 0.02]])


@pytest.mark.parametrize("shift", [0.0, -7.0])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("ratio", 0.4, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
        ("ratio", 0.2, [[0, 1, 1, 1, 0], [1, 0, 0, 0, 0]]),
        ("ratio", 1.0, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
        ("ratio", 0.001, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
        ("top_p", 0.4, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
        ("top_p", 0.7, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
        ("top_p", 0.91, [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]),  # both of the tied 0.05
        ("top_p", 1.0, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
        ("top_k", 1, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
        ("top_k", 3, [[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        ("top_k", 99, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
    ],
)
def test_plausible_by_hand(kind: str, value: float, expected: list[list[int]], shift: float) -> None:
    assert plausible(PROBABILITIES.log() + shift, kind, value).int().tolist() == expected


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_plausible_is_what_the_probabilities_say(seed: int, dtype: torch.dtype) -> None:
    scores = torch.randn(4, 3, 200, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)
    scores[0, 0, :150] = -INF
    probabilities = scores.double().softmax(-1)
    assert torch.equal(plausible(scores, "ratio", 0.1), probabilities >= 0.1 * probabilities.amax(-1, keepdim=True))
    kept = plausible(scores, "top_p", 0.8)
    least = probabilities.masked_fill(~kept, INF).amin(-1, keepdim=True)
    assert (probabilities.masked_fill(~kept, 0).sum(-1) >= 0.8).all()  # it reaches p,
    assert (probabilities.masked_fill(probabilities <= least, 0).sum(-1) < 0.8).all()  # not without its least tokens,
    assert torch.equal(kept, probabilities >= least)  # and is a set of the best
    assert (plausible(scores, "top_k", 7).sum(-1) >= 7).all()
    assert ((scores > scores.sort(-1, descending=True).values[..., 6:7]).sum(-1) < 7).all()


@pytest.mark.parametrize(
    ("kind", "value"), [("ratio", 0.1), ("ratio", 1.0), ("top_p", 0.9), ("top_p", 0.01), ("top_k", 2)]
)
def test_the_best_token_is_always_plausible_and_a_missing_one_never(kind: str, value: float) -> None:
    for seed, dtype in itertools.product(range(10), (torch.float32, torch.float64)):
        scores = random_scores(seed, 3, 50, ruled_out=0.9).to(dtype) * math.pi
        mask = plausible(scores, kind, value)
        assert mask.gather(-1, scores.argmax(-1, keepdim=True)).all()
        missing = torch.zeros(50, dtype=torch.bool)
        missing[scores[0].argmax()] = True
        without = plausible(scores, kind, value, missing)
        assert torch.equal(without, plausible(scores.masked_fill(missing, -INF), kind, value))


def test_restrict_keeps_the_combination_where_nothing_plausible_is_left() -> None:
    combined = torch.tensor([[1.0, 2.0, 3.0], [-INF, 2.0, 3.0], [-INF, -INF, 3.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 1]]).bool()
    assert restrict(combined, mask).tolist() == [[1.0, 2.0, -INF], [-INF, 2.0, 3.0], [-INF, -INF, 3.0]]


@pytest.mark.parametrize(
    ("kind", "value"), [("ratio", 0.1), ("ratio", 1), ("top_p", 0.9), ("top_p", 1.0), ("top_k", 1), ("top_k", 40.0)]
)
def test_possible_plausibility(kind: str, value: float) -> None:
    Plausibility("expert", kind, value).check(["base", "expert"])


@pytest.mark.parametrize(
    ("member", "kind", "value", "message"),
    [
        ("expret", "ratio", 0.1, "'expret', which is no member.*Did you mean 'expert'"),
        ("expert", "topp", 0.1, "kind of plausibility.*Did you mean 'top_p'"),
        ("expert", "ratio", 0.0, "ratio = 0.0"),
        ("expert", "ratio", 1.5, "ratio = 1.5"),
        ("expert", "ratio", math.nan, "ratio = nan"),
        ("expert", "top_p", -0.1, "top_p = -0.1"),
        ("expert", "top_p", "0.9", "top_p = '0.9'"),
        ("expert", "top_k", 0, "top_k = 0"),
        ("expert", "top_k", 2.5, "top_k = 2.5"),
        ("expert", "top_k", True, "top_k = True"),
        ("expert", "top_k", INF, "top_k = inf"),
    ],
)
def test_impossible_plausibility(member: str, kind: str, value: float, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Plausibility(member, kind, value).check(["base", "expert"])
