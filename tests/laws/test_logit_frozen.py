"""Law 5 for logit compositions: no member tensor changes, and after detaching nothing stays behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose import combine, proxy_tune
from lmcompose.errors import ConfigurationError, MemberError
from tests.compositions import plain_logits
from tests.logit_compositions import (
    FEW_TRIOS,
    IDS,
    TRIOS,
    Trio,
    antiexpert_of,
    base_of,
    composition,
    decode,
    expert_of,
    lora_of,
    trio_params,
)
from tests.tiny import tiny_model

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _hooks(model: nn.Module) -> dict[str, int]:
    return {f"{name}{kind}": len(getattr(m, kind)) for name, m in model.named_modules() for kind in HOOKS}


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _assert_untouched(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = _tensors(model)
    assert after.keys() == before.keys()
    assert not [name for name in before if not torch.equal(before[name], after[name])]


def _live(trio: Trio) -> list[PreTrainedModel]:
    return [build(trio).requires_grad_(True) for build in (base_of, expert_of, antiexpert_of)]


@pytest.mark.parametrize("trio", trio_params(default=FEW_TRIOS))
def test_composing_and_decoding_changes_no_member(trio: Trio) -> None:
    members = _live(trio)
    tensors, hooks = [_tensors(member) for member in members], [_hooks(member) for member in members]
    logits = [plain_logits(member, IDS) for member in members]
    modes = [[module.training for module in member.train().modules()] for member in members]
    model = proxy_tune(*members)
    assert not list(model.composition_parameters())
    assert model.num_composition_parameters() == 0
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.train()
    assert not any(module.training for member in members for module in member.modules())
    decode(model, num_beams=2, max_new_tokens=4)
    assert model.detach() is members[0]
    assert not model.is_attached
    for member, before, hooked, plain, mode in zip(members, tensors, hooks, logits, modes, strict=True):
        _assert_untouched(member, before)
        assert _hooks(member) == hooked
        assert all(parameter.requires_grad for parameter in member.parameters())
        assert [module.training for module in member.modules()] == mode
        assert torch.equal(plain_logits(member.eval(), IDS), plain)


def test_a_detached_composition_says_so_and_can_be_attached_again() -> None:
    model = composition(TRIOS["llama+gpt2"])
    logits = plain_logits(model, IDS)
    model.detach()
    with pytest.raises(ConfigurationError, match=r"attach\(\)"):
        model(IDS)
    model.attach()
    assert torch.equal(plain_logits(model, IDS), logits)


def test_a_detached_composition_lets_its_members_go() -> None:
    base = tiny_model("llama")
    tuned = lora_of(tiny_model("qwen2", seed=1))
    model = proxy_tune(base, tuned, tuned.get_base_model())
    decode(model)
    reference = weakref.ref(model)
    model.detach()
    del model
    gc.collect()
    assert reference() is None


def test_peft_members_keep_their_trained_weights() -> None:
    """Trap: a LoRA's B matrix starts at zero, and re-initialising a member would put it back there."""
    tuned = lora_of(tiny_model("llama", seed=1))
    before, logits = _tensors(tuned), plain_logits(tuned, IDS)
    for model in (
        proxy_tune(tiny_model("gpt2"), tuned, tiny_model("llama", seed=1)),
        proxy_tune(tiny_model("gpt2"), tuned, tuned.get_base_model()),
        combine("base", {"base": tuned}),
    ):
        decode(model)
        _assert_untouched(tuned, before)
        assert torch.equal(plain_logits(tuned, IDS), logits)
        model.detach()


def test_a_failed_composition_gives_its_live_members_back() -> None:
    """Whatever goes wrong after the first member was frozen."""
    base, expert = tiny_model("llama"), tiny_model("gpt2", seed=1)
    merged = lora_of(tiny_model("llama", seed=2))
    merged.merge_adapter()
    cases: list[tuple[Any, ...]] = [
        (base, merged, merged.get_base_model()),
        (base, expert, "/nowhere/at/all"),
        (base, expert, tiny_model("gpt2", seed=3, vocab_size=90)),
    ]
    for members in cases:
        with pytest.raises((MemberError, ConfigurationError)):
            proxy_tune(*members)
        for member in (base, expert):
            assert all(parameter.requires_grad for parameter in member.parameters())


def test_a_prompt_tuned_member_is_refused() -> None:
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    prompted = peft.get_peft_model(tiny_model("llama", seed=1), config)
    with pytest.raises(MemberError, match="PROMPT_TUNING"):
        proxy_tune(tiny_model("gpt2"), prompted, tiny_model("llama", seed=1))
    with pytest.raises(MemberError, match="PROMPT_TUNING"):
        proxy_tune(tiny_model("gpt2"), prompted, prompted.get_base_model())


def test_no_graph_is_built() -> None:
    """Nothing here trains, so a forward pass in training mode keeps no activations."""
    model = composition(TRIOS["llama+gpt2"])
    model.train()
    model.gradient_checkpointing_enable()
    assert not model(IDS, labels=IDS).loss.requires_grad
    model.gradient_checkpointing_disable()


def test_moving_the_composition_moves_its_members() -> None:
    model = composition(TRIOS["llama+gpt2"])
    logits = plain_logits(model, IDS)
    model.to(torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    model.to(torch.float32)
    torch.testing.assert_close(plain_logits(model, IDS), logits, atol=1e-5, rtol=0)
    assert model.device == torch.device("cpu")
    assert model.get_input_embeddings() is model.leader.get_input_embeddings()
    assert model.get_output_embeddings() is None
