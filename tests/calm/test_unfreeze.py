"""Which layers can be unfrozen, and what is said of those that cannot; unfrozen layers in `extend`."""

from typing import Any

import pytest
import torch
from torch import nn

import lmcompose
from lmcompose import compose
from lmcompose.architecture import decoder_layers
from lmcompose.errors import ConfigurationError
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model

IDS = random_ids(2, 10)


def unfrozen(layers: Any, **members: Any) -> Any:
    members = {"anchor": tiny_model("llama"), "augmenting": tiny_model("gpt2", seed=1), **members}
    return compose(**members, connections=[(1, 1), (2, 3)], unfreeze=layers)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"anchor": [4]}, "'anchor' has no layer 4. Choose from its decoder layers, 1 to 3"),
        ({"anchor": [0]}, "layer 0 of 'anchor' is its embeddings, which stay frozen"),
        ({"anchor": [-1]}, "'anchor' has no layer -1"),
        ({"augmenting": [3]}, "nothing reads layer 3 of 'augmenting', whose last connected layer is 2"),
        ({"anchor": [2, 2]}, "layer 2 of 'anchor' is given twice"),
        ({"anchor": 2}, r"give 'anchor' a list of layers such as \[3\], and not 2"),
        ({"anchor": []}, "give 'anchor' a list of layers"),
        ({"anchor": [True]}, "give 'anchor' a list of layers"),
        ({"ancor": [1]}, "there is no member 'ancor'.*Did you mean 'anchor'"),
    ],
)
def test_layers_that_are_not_there_are_refused_before_a_weight_is_read(
    layers: Any, message: str, tmp_path: Any
) -> None:
    folders = {"anchor": save_tiny(tmp_path / "a", "llama"), "augmenting": save_tiny(tmp_path / "b", "gpt2", seed=1)}
    for folder in folders.values():
        (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=message):
        unfrozen(layers, **folders)


def _adapted() -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], layers_to_transform=[1], task_type="CAUSAL_LM")
    return peft.get_peft_model(tiny_model("llama"), config)


def _shared() -> Any:
    model = tiny_model("llama")
    layers = decoder_layers(model)
    layers[2].mlp.up_proj = layers[1].mlp.up_proj
    return model


def _quantised(packed: bool) -> Any:
    model = tiny_model("llama")
    linear = decoder_layers(model)[1].mlp.up_proj
    if packed:
        linear.register_buffer("qweight", torch.zeros(4, 4, dtype=torch.int32))
    else:
        linear.weight = nn.Parameter(torch.zeros(48, 32, dtype=torch.int8), requires_grad=False)
    return model


def _spread() -> Any:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = tiny_model("llama")
    add_hook_to_module(decoder_layers(model)[1].mlp.up_proj, AlignDevicesHook("cpu"))
    return model


@pytest.mark.parametrize(
    ("anchor", "message"),
    [
        (_adapted, "it has an adapter"),
        (_shared, "other parts of the model use its mlp.up_proj.weight too"),
        (lambda: _quantised(False), "the model is quantised"),
        (lambda: _quantised(True), "the model is quantised"),
        (_spread, "another library runs its forward"),
        (lambda: compose(tiny_model("llama"), tiny_model("gpt2", seed=2)), "the member is itself a composition"),
    ],
    ids=["adapter", "shared", "quantised", "packed", "spread", "composition"],
)
def test_layers_that_cannot_be_copied_are_refused_and_the_model_goes_unharmed(anchor: Any, message: str) -> None:
    model = anchor()
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    with pytest.raises(ConfigurationError, match=rf"layer 2 of 'anchor' cannot be trained: .*{message}"):
        unfrozen({"anchor": [2]}, anchor=model)
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert not any("forward" in vars(layer) for layer in decoder_layers(model))


def test_other_layers_of_an_adapted_model_can_be_trained_and_a_later_adapter_is_refused() -> None:
    model = unfrozen({"anchor": [1]}, anchor=_adapted())
    assert torch.equal(plain_logits(model, IDS), plain_logits(model.anchor, IDS))
    peft = pytest.importorskip("peft")
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["up_proj"]), model.anchor)
    with pytest.raises(ConfigurationError, match=r"has other parameters in its Linear .* Change the model first"):
        plain_logits(model, IDS)


def test_a_forward_that_is_its_classs_own_is_no_obstacle() -> None:
    """Some versions of transformers leave it on every layer of which they recorded the hidden states."""
    anchor = tiny_model("llama")
    for module in decoder_layers(anchor)[1].modules():
        module.forward = module.forward
    model = unfrozen({"anchor": [2]}, anchor=anchor)
    bare = plain_logits(tiny_model("llama"), IDS)
    assert torch.equal(plain_logits(model, IDS), bare)
    assert (plain_logits(randomise(model), IDS) - bare).abs().max() > 1e-3
    with torch.no_grad():
        for bridge in model.bridges.values():
            bridge.o_proj.weight.zero_()
    assert (plain_logits(model, IDS) - bare).abs().max() > 1e-3
    assert torch.equal(plain_logits(model.detach(), IDS), bare)


def test_the_copies_follow_the_live_models_attention() -> None:
    """Settings of the live model hold for the copies too: only the weights are theirs."""
    model = randomise(unfrozen({"anchor": [2]}))
    sdpa = plain_logits(model, IDS)
    model.anchor.set_attn_implementation("eager")
    used: list[str] = []
    decoder_layers(model.anchor)[1].self_attn.register_forward_pre_hook(
        lambda module, _: used.append(module.config._attn_implementation)
    )
    torch.testing.assert_close(plain_logits(model, IDS), sdpa, atol=5e-5, rtol=0)
    assert used == ["eager"]


# ------------------------------------------------------------------------------------------------ extend


def test_extending_keeps_what_was_unfrozen_and_unfreezes_more() -> None:
    old = randomise(unfrozen({"anchor": [2], "augmenting": [1]}))
    before = plain_logits(old, IDS)
    model = lmcompose.extend(
        old, {"more": tiny_model("opt", seed=3)}, connections=[(2, 2)], unfreeze={"anchor": [3], "more": [1]}
    )
    assert model.config.unfreeze == {"anchor": [2, 3], "augmenting": [1], "more": [1]}
    assert torch.equal(plain_logits(model, IDS), before)
    wanted = {name.split(".")[1] for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert wanted == {"more_2_2", "anchor_3", "more_1"}
    with torch.no_grad():
        for parameter in model.unfrozen["anchor_2"].parameters():
            parameter.zero_()
    assert torch.equal(plain_logits(old, IDS), before), "the two share no parameter"
    everything = lmcompose.extend(old, {"more": tiny_model("opt", seed=3)}, trainable="all")
    assert all(parameter.requires_grad for _, parameter in everything.composition_parameters())
    assert any(name.startswith("unfrozen.anchor_2.") for name, _ in everything.composition_parameters())


def test_a_layer_that_is_unfrozen_already_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"layers \[2\] of 'anchor' are unfrozen in the composition already"):
        lmcompose.extend(unfrozen({"anchor": [2]}), {"more": tiny_model("opt")}, unfreeze={"anchor": [2, 3]})
