"""Members are frozen while they are held, and come back as they were: gradients, modes, dropout, checkpointing."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import lmcompose
from lmcompose import CalmForCausalLM, compose
from lmcompose.checkpointing import checkpointed_layers
from lmcompose.errors import MemberError, WrongBaseError
from tests.tiny import random_ids, save_tiny, tiny_model

IDS = random_ids(2, 8)


def state(model: PreTrainedModel) -> dict[str, Any]:
    """All that a composition must give back but the weights, by the name of its place."""
    found: dict[str, Any] = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, (bool, float)) or key == "_gradient_checkpointing_func":
                found[f"{name}.{key}"] = value
    return found


def half_trained(arch: str, **options: Any) -> PreTrainedModel:
    """A model whose owner trains a part of it: every second parameter, in training mode but for one module."""
    model = tiny_model(arch, **options).train()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
    model.get_input_embeddings().eval()
    return model


def train_a_step(model: CalmForCausalLM) -> None:
    model.gradient_checkpointing_enable()
    model.train()
    model(IDS, labels=IDS).loss.backward()


@pytest.mark.parametrize(
    ("arch", "options"),
    [("llama", {}), ("gpt2", {"attn_pdrop": 0.3}), ("opt", {"dropout": 0.5, "attention_dropout": 0.25})],
)
def test_detaching_gives_members_back_as_they_were(arch: str, options: dict[str, Any]) -> None:
    anchor, augmenting = half_trained(arch, **options), half_trained("opt", seed=1, dropout=0.1)
    before = state(anchor), state(augmenting)
    model = compose(anchor, augmenting)
    assert not any(
        parameter.requires_grad or module.training
        for member in (anchor, augmenting)
        for parameter in member.parameters()
        for module in member.modules()
    )
    train_a_step(model)
    assert checkpointed_layers(anchor)
    assert state(anchor) != before[0]
    assert model.detach() is anchor
    assert (state(anchor), state(augmenting)) == before


def test_a_model_that_its_owner_checkpoints_goes_on_so() -> None:
    anchor = tiny_model("llama")
    anchor.gradient_checkpointing_enable()
    before = state(anchor)
    model = compose(anchor, tiny_model("gpt2", seed=1))
    train_a_step(model)
    model.gradient_checkpointing_disable()
    assert not checkpointed_layers(anchor)
    model.detach()
    assert state(anchor) == before
    assert len(checkpointed_layers(anchor)) == 3


def test_attaching_freezes_again() -> None:
    anchor = half_trained("llama")
    model = compose(anchor, tiny_model("gpt2", seed=1))
    model.detach()
    anchor.requires_grad_(True)
    before = state(anchor)
    model.attach()
    assert not any(parameter.requires_grad for parameter in model.members.parameters())
    assert not any(module.training for module in anchor.modules())
    model.detach()
    assert state(anchor) == before


def test_a_shared_anchor_stays_frozen_until_the_last_composition_lets_go() -> None:
    anchor = half_trained("llama")
    before = state(anchor)
    first, second = (compose(anchor, tiny_model("gpt2", seed=seed)) for seed in (1, 2))
    first.detach()
    assert not any(parameter.requires_grad for parameter in anchor.parameters())
    assert not any(module.training for module in anchor.modules())
    second.detach()
    assert state(anchor) == before


def test_a_composition_that_was_thrown_away_holds_nothing() -> None:
    anchor = half_trained("llama")
    before = state(anchor)
    compose(anchor, tiny_model("gpt2", seed=1))
    gc.collect()
    compose(anchor, tiny_model("gpt2", seed=2)).detach()
    assert state(anchor) == before


def test_one_model_in_both_roles() -> None:
    shared = half_trained("llama")
    before = state(shared)
    model = compose(shared, shared)
    model.detach()
    model.detach()
    assert state(shared) == before
    assert torch.is_grad_enabled()


def test_a_load_that_fails_leaves_a_live_model_as_it_was(tmp_path: Path) -> None:
    for name, arch in (("anchor", "llama"), ("augmenting", "gpt2")):
        save_tiny(tmp_path / name, arch)
    compose(tmp_path / "anchor", tmp_path / "augmenting").save_pretrained(tmp_path / "composition")
    wrong = tiny_model("llama", seed=9).train()
    with pytest.raises(WrongBaseError):
        lmcompose.load(tmp_path / "composition", anchor=wrong)
    weights = tmp_path / "augmenting" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MemberError):
        lmcompose.load(tmp_path / "composition", anchor=tiny_model("llama").train())
    with pytest.raises(MemberError):
        compose(wrong, tmp_path / "augmenting")
    assert wrong.training
    assert all(parameter.requires_grad for parameter in wrong.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in wrong.modules())
