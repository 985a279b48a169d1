"""Each preset against its paper's formula, on probabilities that were worked out by hand."""

import math

import pytest
import torch

from lmcompose.errors import ConfigurationError
from lmcompose.logits.arithmetic import SCORES, as_scores, at_temperature, combine, plausible, restrict
from lmcompose.logits.formula import check_not_cancelled, parse
from lmcompose.logits.presets import PRESETS, preset_named


def composed(
    name: str, probabilities: dict[str, list[float]], temperatures: dict[str, float] | None = None, **parameters: float
) -> torch.Tensor:
    """What a preset makes of members with these probabilities: scores [vocab], as a model computes them.

    Each member's logits are its log-probabilities plus a number of its own, which no method may notice.
    """
    preset = preset_named(name)
    formula = parse(preset.formula, preset.roles, preset.parameters)
    logits = {role: torch.tensor(probabilities[role]).log() + 3.0 * i - 2.0 for i, role in enumerate(preset.roles)}
    scores = {
        role: as_scores(at_temperature(logits[role], (temperatures or {}).get(role, 1.0)), preset.scores)
        for role in preset.roles
    }
    result = combine(scores, formula.coefficients({**preset.parameters, **parameters}), leader=next(iter(preset.roles)))
    if preset.plausibility is not None:
        mask = preset.plausibility
        result = restrict(result, plausible(scores[mask.member], mask.kind, mask.value))
    return result


def assert_chooses(scores: torch.Tensor, in_proportion: list[float]) -> None:
    expected = torch.tensor(in_proportion) / sum(in_proportion)
    torch.testing.assert_close(scores.softmax(-1), expected, rtol=1e-5, atol=1e-7)


PAIR = {"expert": [0.2, 0.4, 0.4], "antiexpert": [0.4, 0.4, 0.2]}
CONTEXT = [0.5, 0.25, 0.25]
NO_CONTEXT = [0.25, 0.5, 0.25]


def test_proxy_tuning() -> None:
    """p ~ p_base (p_expert / p_antiexpert)^alpha: ratios 1/2, 1, 2."""
    members = {"base": [0.5, 0.25, 0.25], **PAIR}
    assert_chooses(composed("proxy_tuning", members), [0.25, 0.25, 0.5])
    assert_chooses(composed("proxy_tuning", members, alpha=2.0), [0.125, 0.25, 1.0])
    assert_chooses(composed("proxy_tuning", members, alpha=0.0), [0.5, 0.25, 0.25])


def test_expert_only() -> None:
    """p ~ p_base p_expert^alpha: 0.1, 0.1, 0.1."""
    assert_chooses(composed("expert_only", {"base": [0.5, 0.25, 0.25], **PAIR}), [1, 1, 1])


def test_dexperts() -> None:
    """The base's top 0.9 is its first three tokens (0.95); ratios 1/2, 2, 1 to the power 2."""
    members = {
        "base": [0.6, 0.2, 0.15, 0.05],
        "expert": [0.2, 0.4, 0.1, 0.3],
        "antiexpert": [0.4, 0.2, 0.1, 0.3],
    }
    assert_chooses(composed("dexperts", members), [0.15, 0.8, 0.15, 0.0])
    assert composed("dexperts", members)[3] == -math.inf


def test_contrastive() -> None:
    """log p_expert - log p_amateur where p_expert >= 0.1 * 0.5; the fourth token has the best ratio, but only 0.04."""
    members = {"expert": [0.5, 0.3, 0.16, 0.04], "amateur": [0.25, 0.25, 0.4995, 0.0005]}
    scores = composed("contrastive", members)
    expected = [math.log(2.0), math.log(1.2), math.log(0.16 / 0.4995), -math.inf]  # the score itself, not only p
    torch.testing.assert_close(scores, torch.tensor(expected))


def test_contrastive_with_the_amateurs_temperature() -> None:
    """At temperature 0.5 the amateur's probabilities are squared: 0.16, 0.04, 0.04 in proportion, of sum 0.24."""
    members = {"expert": [0.5, 0.3, 0.2], "amateur": [0.5, 0.25, 0.25]}
    scores = composed("contrastive", members, {"amateur": 0.5})
    torch.testing.assert_close(scores, torch.tensor([0.5 / (4 / 6), 0.3 / (1 / 6), 0.2 / (1 / 6)]).log())


def test_context_aware() -> None:
    """p ~ p_with^1.5 / p_without^0.5: 0.5^1.5 / 0.5, 0.125 / 0.5^0.5, 0.25."""
    members = {"with_context": CONTEXT, "without_context": NO_CONTEXT}
    assert_chooses(composed("context_aware", members), [0.70710678, 0.17677670, 0.25])
    assert_chooses(composed("context_aware", members, alpha=1.0), [1.0, 0.125, 0.25])


def test_guidance() -> None:
    """log p = log p_u + gamma (log p_c - log p_u): with gamma = 1.5 as above, and the score itself for gamma = 2."""
    members = {"conditional": CONTEXT, "unconditional": NO_CONTEXT}
    assert_chooses(composed("guidance", members), [0.70710678, 0.17677670, 0.25])
    torch.testing.assert_close(composed("guidance", members, gamma=2.0), torch.tensor([1.0, 0.125, 0.25]).log())
    assert_chooses(composed("guidance", members, gamma=1.0), CONTEXT)
    assert_chooses(composed("guidance", members, gamma=0.0), NO_CONTEXT)


def test_debias() -> None:
    """p ~ p_base^2 / p_biased where p_base >= 0.1 * 0.5; the fourth token has only 0.04."""
    members = {"base": [0.5, 0.3, 0.16, 0.04], "biased": [0.25, 0.3, 0.4, 0.05]}
    assert_chooses(composed("debias", members), [1.0, 0.3, 0.064, 0.0])
    assert_chooses(composed("debias", members, alpha=0.0), [0.5, 0.3, 0.16, 0.0])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_computed(name: str) -> None:
    preset = preset_named(name)
    formula = parse(preset.formula, preset.roles, preset.parameters)
    assert set(formula.members) == set(preset.roles)
    check_not_cancelled(formula, preset.parameters)
    assert preset.scores in SCORES
    if preset.plausibility is not None:
        preset.plausibility.check(list(preset.roles))


def test_default_values_are_the_papers() -> None:
    assert {name: dict(preset.parameters) for name, preset in PRESETS.items()} == {
        "proxy_tuning": {"alpha": 1.0},
        "expert_only": {"alpha": 1.0},
        "dexperts": {"alpha": 2.0},
        "contrastive": {},
        "context_aware": {"alpha": 0.5},
        "guidance": {"gamma": 1.5},
        "debias": {"alpha": 1.0},
    }


def test_unknown_preset() -> None:
    with pytest.raises(ConfigurationError, match=r"no preset 'proxy-tuning'.*Did you mean 'proxy_tuning'"):
        preset_named("proxy-tuning")
