"""Hooks that read and write hidden states: where layer k is, and that nothing happens outside a pass."""

import copy
import pickle

import pytest
import torch

from lmcompose.calm.attach import CallSlot, hook_layers
from tests.tiny import ARCHITECTURES, architecture_params, random_ids, tiny_model


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma3", "opt", "bloom", "falcon"])
def test_layer_k_is_what_hf_calls_hidden_state_k_but_for_the_normed_last(arch: str) -> None:
    model, slot, ids = tiny_model(arch), CallSlot(), random_ids(2, 7)
    depth = model.config.num_hidden_layers
    hook_layers(model, range(depth + 1), slot)
    seen: dict[int, torch.Tensor] = {}

    def read(layer: int, hidden_states: torch.Tensor) -> torch.Tensor:
        seen[layer] = hidden_states
        return hidden_states

    with torch.no_grad(), slot.during(read):
        expected = model(ids, output_hidden_states=True).hidden_states
    assert sorted(seen) == list(range(depth + 1))
    for layer in range(depth):
        torch.testing.assert_close(seen[layer], expected[layer])
    assert (seen[depth] - expected[depth]).abs().max() > 1e-3  # HF's last one is normed, ours is not


@pytest.mark.parametrize("arch", architecture_params(name for name in ARCHITECTURES if ARCHITECTURES[name].connects))
def test_writing_at_a_layer_changes_what_follows_and_only_during_the_pass(arch: str) -> None:
    model, slot, ids = tiny_model(arch), CallSlot(), random_ids(2, 7)
    with torch.no_grad():
        before = model(ids).logits
        handles = hook_layers(model, [0, model.config.num_hidden_layers], slot)
        assert torch.equal(model(ids).logits, before)
        for target in (0, model.config.num_hidden_layers):

            def write(layer: int, hidden_states: torch.Tensor, target: int = target) -> torch.Tensor:
                shift = torch.linspace(-1, 1, hidden_states.shape[-1])
                return hidden_states + shift if layer == target else hidden_states

            with slot.during(write):
                assert (model(ids).logits - before).abs().max() > 1e-3
        assert torch.equal(model(ids).logits, before)
        for handle in handles:
            handle.remove()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_slots_are_separate_nest_and_reset_after_an_error() -> None:
    one, two = CallSlot(), CallSlot()
    keep = lambda layer, hidden_states: hidden_states  # noqa: E731
    drop = lambda layer, hidden_states: hidden_states * 0  # noqa: E731
    with one.during(keep):
        assert two.current is None
        with one.during(drop):
            assert one.current is drop
        assert one.current is keep
        with pytest.raises(RuntimeError), one.during(drop):
            raise RuntimeError
        assert one.current is keep
    assert one.current is None


def test_copies_of_a_hooked_model_share_a_new_slot() -> None:
    model, slot = tiny_model("llama"), CallSlot()
    hook_layers(model, [1], slot)
    for copied_model, copied_slot in (copy.deepcopy((model, slot)), pickle.loads(pickle.dumps((model, slot)))):
        calls = []
        with torch.no_grad(), copied_slot.during(lambda layer, states, calls=calls: calls.append(layer) or states):
            copied_model(random_ids(1, 3))
            model(random_ids(1, 3))  # the original's slot is another one
        assert calls == [1]
