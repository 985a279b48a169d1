"""Law 7: alpha = 0 is the base; expert = antiexpert is the base; antiexpert = base with alpha = 1 is the expert.

Bit for bit in logits, and token for token in generation, whatever the three architectures are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose import LogitForCausalLM, combine, compose, proxy_tune
from lmcompose.logits.presets import PRESETS
from tests.compositions import plain_logits, randomise
from tests.logit_compositions import (
    IDS,
    MASK,
    POSITIONS,
    PROXY,
    TRIOS,
    Trio,
    antiexpert_of,
    assert_same_decoding,
    base_of,
    composition,
    decode,
    expert_of,
    trio_params,
)
from tests.tiny import ARCHITECTURES, random_ids, tiny_model


@cache
def _proxy(trio: Trio) -> LogitForCausalLM:
    """A composition that several tests share; none of them may change it."""
    return composition(trio)


def _assert_same_logits(model: PreTrainedModel, plain: PreTrainedModel, arch: str | None, **call: Any) -> None:
    """`model` called with `call` gives the logits of `plain` for whole texts, padded and not, bit for bit."""
    ids = random_ids(2, 14)
    assert torch.equal(plain_logits(model, ids, **call).float(), plain_logits(plain, ids).float())
    padding: dict[str, Any] = {"attention_mask": MASK}
    if arch is None or ARCHITECTURES[arch].takes_position_ids:
        padding["position_ids"] = POSITIONS
    got, expected = plain_logits(model, IDS, **padding, **call), plain_logits(plain, IDS, **padding)
    assert torch.equal(got[MASK.bool()].float(), expected[MASK.bool()].float())


def _assert_is(model: PreTrainedModel, plain: PreTrainedModel, arch: str | None, **call: Any) -> None:
    """The same for every score and token of decoded texts too."""
    _assert_same_logits(model, plain, arch, **call)
    assert_same_decoding(decode(model, **call), decode(plain))


@pytest.mark.parametrize("trio", trio_params())
def test_alpha_of_zero_is_the_base(trio: Trio) -> None:
    model, base = _proxy(trio), base_of(trio)
    _assert_is(model, base, trio.base, alpha=0.0)
    _assert_same_logits(model, base, trio.base, alpha=torch.zeros(1))
    assert_same_decoding(decode(model, alpha=0.0, do_sample=True), decode(base, do_sample=True))
    with model.disable():
        _assert_same_logits(model, base, trio.base)


@pytest.mark.parametrize("trio", trio_params())
def test_an_expert_that_is_the_antiexpert_leaves_the_base(trio: Trio) -> None:
    model = proxy_tune(base_of(trio), expert_of(trio), expert_of(trio))
    _assert_is(model, base_of(trio), trio.base)
    for alpha in (0.3, -2.0):
        _assert_same_logits(model, base_of(trio), trio.base, alpha=alpha)


@pytest.mark.parametrize("trio", trio_params())
def test_an_antiexpert_that_is_the_base_gives_the_expert(trio: Trio) -> None:
    _assert_is(proxy_tune(base_of(trio), expert_of(trio), base_of(trio)), expert_of(trio), trio.expert)


@pytest.mark.parametrize("trio", trio_params(["llama+gpt2", "gemma3+llama-gemma3", "opt+falcon-llama"]))
def test_one_live_object_in_two_roles(trio: Trio) -> None:
    """The same model object twice: its weights are there once, and the law holds as with two models."""
    base, expert = base_of(trio), expert_of(trio)
    _assert_is(proxy_tune(base, expert, expert), base_of(trio), trio.base)
    model = proxy_tune(base, expert, base)
    _assert_is(model, expert_of(trio), trio.expert)
    assert sum(1 for _ in model.parameters()) == sum(1 for m in (base, expert) for _ in m.parameters())


@pytest.mark.parametrize("trio", trio_params(["llama+gpt2", "gemma2+mistral", "mistral+bloom"], ["llama+gpt2"]))
def test_in_bf16(trio: Trio) -> None:
    """Scores are added up in float32, and the law still holds bit for bit."""
    dtype = torch.bfloat16
    assert plain_logits(composition(trio, dtype), IDS).dtype == torch.float32
    _assert_is(composition(trio, dtype), base_of(trio, dtype), trio.base, alpha=0.0)
    equal = proxy_tune(base_of(trio, dtype), expert_of(trio, dtype), expert_of(trio, dtype), alpha=0.7)
    _assert_is(equal, base_of(trio, dtype), trio.base)
    _assert_is(
        proxy_tune(base_of(trio, dtype), expert_of(trio, dtype), base_of(trio, dtype)),
        expert_of(trio, dtype),
        trio.expert,
    )


def test_members_of_different_dtypes() -> None:
    trio = TRIOS["llama+gpt2"]
    model = proxy_tune(base_of(trio, torch.bfloat16), expert_of(trio), antiexpert_of(trio, torch.bfloat16))
    scores = [plain_logits(m, IDS).float() for m in (
        base_of(trio, torch.bfloat16), expert_of(trio), antiexpert_of(trio, torch.bfloat16)
    )]  # fmt: skip
    torch.testing.assert_close(plain_logits(model, IDS), scores[0] + scores[1] - scores[2], atol=1e-5, rtol=0)
    _assert_is(model, base_of(trio, torch.bfloat16), trio.base, alpha=0.0)


@pytest.mark.parametrize("trio", trio_params())
def test_the_logits_are_the_formula_computed_by_hand(trio: Trio) -> None:
    base, expert, antiexpert = (plain_logits(part(trio), IDS) for part in (base_of, expert_of, antiexpert_of))
    model = _proxy(trio)
    for alpha in (1.0, 0.4, -0.5):
        expected = base + alpha * (expert - antiexpert)
        torch.testing.assert_close(plain_logits(model, IDS, alpha=alpha), expected, atol=2e-5, rtol=0)


def test_per_row_alpha_is_exact_in_every_row() -> None:
    trio = TRIOS["llama+gpt2"]
    model = composition(trio)
    got = plain_logits(model, IDS, alpha=torch.tensor([0.0, 1.0, 0.5]))
    assert torch.equal(got[0], plain_logits(base_of(trio), IDS)[0])
    for row, alpha in ((1, 1.0), (2, 0.5)):
        assert torch.equal(got[row], plain_logits(model, IDS, alpha=alpha)[row])


def test_what_a_member_rules_out_makes_no_nan() -> None:
    """A member that gives -inf: with weight 0 it says nothing, added it rules out, subtracted it never rewards."""
    trio = TRIOS["llama+gpt2"]
    scores = {"base": base_of(trio), "expert": expert_of(trio), "antiexpert": antiexpert_of(trio)}
    for role, model in scores.items():

        def rule_out(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            return output.index_fill(-1, torch.tensor([5, 6]), -torch.inf)

        composed = combine(PROXY, scores, alpha=1.0)
        handle = model.get_output_embeddings().register_forward_hook(rule_out)
        logits, without = plain_logits(composed, IDS), plain_logits(composed, IDS, alpha=0.0)
        handle.remove()
        assert not logits.isnan().any()
        assert not logits.isposinf().any()
        assert bool(logits[..., 5].isneginf().all()) is (role != "antiexpert")
        assert bool(without[..., 5].isneginf().all()) is (role == "base")
        composed.detach()


def test_one_member_alone_is_weighted_and_masked_too() -> None:
    """A formula over one member is still a formula: it was taken for the member itself."""
    model, ids = tiny_model("llama"), random_ids(2, 9)
    logits = plain_logits(model, ids)
    torch.testing.assert_close(plain_logits(combine("2 * base", {"base": model}), ids), 2 * logits)
    masked = plain_logits(
        combine("base", {"base": model}, plausibility={"member": "base", "kind": "top_k", "value": 3}), ids
    )
    assert bool((masked.isfinite().sum(-1) == 3).all())
    assert torch.equal(plain_logits(combine("base", {"base": model}), ids), logits)


def test_a_disabled_composition_is_its_leader_whatever_it_is_made_of() -> None:
    """Temperatures and log-probabilities are the composition's, not the leader's."""
    trio = TRIOS["llama+gpt2"]
    members = {"base": base_of(trio), "expert": expert_of(trio)}
    model = combine("base + expert", members, scores="logprobs", temperatures={"base": 2.0})
    with model.disable():
        _assert_is(model, base_of(trio), trio.base)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_decodes(name: str) -> None:
    """Cached and uncached agree, and the presets are not the leader alone."""
    preset = PRESETS[name]
    members = {role: tiny_model("llama" if i else "qwen2", seed=i) for i, role in enumerate(preset.roles)}
    model = combine(name, members)
    assert model.config.scores == preset.scores
    got, expected = decode(model), decode(model, use_cache=False)
    assert torch.equal(got.sequences, expected.sequences)
    with model.disable():
        assert not torch.equal(decode(model).sequences, expected.sequences)


# ------------------------------------------------------------------------------- compositions as members


def _calm(seed: int = 0, **sizes: Any) -> Any:
    anchor, augmenting = tiny_model("llama", seed=seed, **sizes), tiny_model("gpt2", seed=seed + 1)
    return randomise(compose(anchor=anchor, augmenting=augmenting), seed)


def test_a_calm_composition_is_the_base() -> None:
    model = proxy_tune(_calm(), tiny_model("opt", seed=5), tiny_model("opt", seed=6))
    _assert_is(model, _calm(), None, alpha=0.0)
    assert not torch.equal(decode(model).sequences, decode(_calm()).sequences)
    _assert_is(proxy_tune(_calm(), tiny_model("opt", seed=5), tiny_model("opt", seed=5)), _calm(), None)


def test_a_calm_composition_is_the_expert() -> None:
    """And its anchor the antiexpert: base + what the composition has learned."""
    base = tiny_model("qwen2")
    _assert_is(proxy_tune(base, _calm(), tiny_model("qwen2")), _calm(), None)
    model = proxy_tune(base, _calm(), tiny_model("llama"))
    by_hand = (
        plain_logits(tiny_model("qwen2"), IDS) + plain_logits(_calm(), IDS) - plain_logits(tiny_model("llama"), IDS)
    )
    torch.testing.assert_close(plain_logits(model, IDS), by_hand, atol=2e-5, rtol=0)


def test_a_logit_composition_is_a_member_of_another() -> None:
    """In either kind: as the expert of proxy-tuning, and as the anchor or the augmenting model of CALM."""
    trio = TRIOS["llama+gpt2"]
    inner = composition(trio)
    outer = proxy_tune(tiny_model("qwen2"), inner, tiny_model("opt", seed=4))
    by_hand = (
        plain_logits(tiny_model("qwen2"), IDS) + plain_logits(inner, IDS) - plain_logits(tiny_model("opt", seed=4), IDS)
    )
    torch.testing.assert_close(plain_logits(outer, IDS), by_hand, atol=2e-5, rtol=0)
    _assert_is(proxy_tune(tiny_model("qwen2"), inner, tiny_model("qwen2")), composition(trio), None)
    calm = compose(anchor=composition(trio), augmenting=tiny_model("opt"))
    _assert_is(calm, composition(trio), None)  # untrained, so the anchor
    helped = randomise(compose(anchor=tiny_model("qwen2"), augmenting=composition(trio)))
    assert torch.equal(decode(helped).sequences, decode(helped, use_cache=False).sequences)
