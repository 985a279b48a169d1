"""Gradient checkpointing: layers are computed twice, gradients stay, and frozen dropout stays off."""

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose import CalmForCausalLM, compose
from tests.compositions import randomise
from tests.tiny import random_ids, tiny_model

IDS = random_ids(2, 9)


def checkpointed(model: CalmForCausalLM) -> CalmForCausalLM:
    """Turn checkpointing on under the name of this version of transformers, asking for the form that would fail."""
    name = "activation_checkpointing" if hasattr(model, "activation_checkpointing_enable") else "gradient_checkpointing"
    getattr(model, f"{name}_enable")(**{f"{name}_kwargs": {"use_reentrant": True}})
    return model


def gradients(model: CalmForCausalLM) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.train()
    model(IDS, labels=IDS).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.composition_parameters()}


def composition(anchor: PreTrainedModel) -> CalmForCausalLM:
    return randomise(compose(anchor, tiny_model("llama", seed=1), connections=[(0, 0), (2, 1), (3, 3)]))


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma3", "opt", "gpt_neox"])
def test_gradients_are_those_without_checkpointing(arch: str) -> None:
    model = composition(tiny_model(arch))
    expected = gradients(model)
    got = gradients(checkpointed(model))
    assert all(expected[name].norm() > 0 for name in expected)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=1e-5)


def test_layers_are_computed_again_in_the_backward_pass() -> None:
    model = composition(tiny_model("llama"))
    calls: list[int] = []
    model.anchor.model.layers[1].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients(model)
    assert len(calls) == 1
    gradients(checkpointed(model))
    assert len(calls) == 3


def test_some_layers_only_also_where_the_anchor_is_a_composition() -> None:
    inner = composition(tiny_model("llama", num_hidden_layers=4))
    outer = randomise(compose(inner, tiny_model("llama", seed=2), connections=[(1, 2)]))
    expected = gradients(outer)
    name = "activation_checkpointing" if hasattr(outer, "activation_checkpointing_enable") else "gradient_checkpointing"
    getattr(outer, f"{name}_enable")(every_n_layers=2)
    layers = inner.anchor.model.layers
    assert [layer.gradient_checkpointing for layer in layers] == [True, False, True, False]
    got = gradients(outer)
    for key, gradient in expected.items():
        torch.testing.assert_close(got[key], gradient, atol=1e-6, rtol=1e-5)


def test_members_have_no_dropout_in_training() -> None:
    model = composition(tiny_model("opt", dropout=0.5, attention_dropout=0.5))
    for _ in range(2):
        one, two = gradients(model), gradients(model)
        assert all(torch.equal(one[name], two[name]) for name in one)
        checkpointed(model)
