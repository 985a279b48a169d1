"""The head of a member reads states without gaps: on CPUs, frozen bf16 weights are slow beside any others."""

import pytest
import torch

import lmcompose
from tests.tiny import random_ids, tiny_model


@pytest.mark.parametrize("kind", ["calm", "logits"])
@pytest.mark.parametrize("keep", [1, 4])
def test_heads_read_dense_states_whatever_is_kept(kind: str, keep: int) -> None:
    members = [tiny_model("llama", seed).to(torch.bfloat16) for seed in range(3)]
    model = lmcompose.compose(*members[:2]) if kind == "calm" else lmcompose.proxy_tune(*members)
    plain = [each(random_ids(3, 9), logits_to_keep=keep).logits for each in members]
    seen: list[torch.Tensor] = []
    handles = [
        each.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for each in members
    ]
    with torch.no_grad():
        for batch in (1, 3):
            model(random_ids(batch, 9), logits_to_keep=keep)
    for handle in handles:
        handle.remove()
    assert len(seen) == (2 if kind == "calm" else 6)
    for states in seen:
        assert states.stride() == torch.empty(states.shape).stride()
    again = [each(random_ids(3, 9), logits_to_keep=keep).logits for each in members]
    assert all(torch.equal(one, other) for one, other in zip(again, plain, strict=True))


def test_no_hook_stays_behind() -> None:
    anchor, augmenting = (tiny_model("llama", seed) for seed in (0, 1))
    model = lmcompose.compose(anchor, augmenting)
    assert len(anchor.get_output_embeddings()._forward_pre_hooks) == 1
    model.detach()
    assert not any(each.get_output_embeddings()._forward_pre_hooks for each in (anchor, augmenting))
    model.attach()
    assert len(anchor.get_output_embeddings()._forward_pre_hooks) == 1
