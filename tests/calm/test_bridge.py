"""The maths of one connection, against the paper's formula written out and numbers worked out by hand."""

import math

import pytest
import torch

from lmcompose.calm.bridge import Bridge, attention_function, merge_heads, split_heads


def random_bridge(augmenting: int = 6, anchor: int = 8, heads: int = 2, projection: str = "linear") -> Bridge:
    bridge = Bridge(augmenting, anchor, heads, projection)
    bridge.reset_parameters(0.5, torch.Generator().manual_seed(1))
    torch.nn.init.normal_(bridge.o_proj.weight, std=0.5, generator=torch.Generator().manual_seed(2))
    return bridge


def written_out(bridge: Bridge, h_a: torch.Tensor, h_b: torch.Tensor) -> torch.Tensor:
    """f_cross(f_proj(H_A), H_B) with causal softmax, token by token and head by head."""
    width = h_b.shape[-1] // bridge.num_heads
    projected = h_a @ bridge.projection.weight.T
    out = torch.zeros_like(h_b)
    for row in range(h_b.shape[0]):
        for position in range(h_b.shape[1]):
            heads = []
            for head in range(bridge.num_heads):
                part = slice(head * width, (head + 1) * width)
                query = bridge.q_proj.weight[part] @ h_b[row, position]
                keys = projected[row, : position + 1] @ bridge.k_proj.weight[part].T
                values = projected[row, : position + 1] @ bridge.v_proj.weight[part].T
                heads.append(torch.softmax(keys @ query / math.sqrt(width), dim=0) @ values)
            out[row, position] = bridge.o_proj.weight @ torch.cat(heads)
    return out


def test_equals_the_formula_written_out() -> None:
    bridge = random_bridge()
    h_a, h_b = torch.randn(2, 5, 6), torch.randn(2, 5, 8)
    got = bridge.attend(h_b, *bridge.key_value(h_a), attention_mask=None)
    torch.testing.assert_close(got, written_out(bridge, h_a, h_b), atol=1e-5, rtol=1e-5)


def test_one_head_two_positions_by_hand() -> None:
    """D_A = D_B = 1: the second position weighs values 1 and 3 by softmax(0, ln 3) = (1/4, 3/4), so it adds 2.5."""
    bridge = Bridge(1, 1, 1)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.fill_(1.0)
        bridge.k_proj.weight.fill_(math.log(3) / 2)
    h_a = torch.tensor([[[1.0], [3.0]]])
    got = bridge.attend(torch.ones(1, 2, 1), *bridge.key_value(h_a), attention_mask=None)
    torch.testing.assert_close(got, torch.tensor([[[1.0], [2.5]]]))


def test_parameters_are_the_papers_formula_with_w_o() -> None:
    """n (D_A D_B + 3 D_B^2) for n = 1, and D_B^2 more for W_O."""
    assert sum(p.numel() for p in Bridge(6, 8, 2).parameters()) == 6 * 8 + 4 * 8 * 8


def test_fresh_bridge_adds_exactly_nothing() -> None:
    bridge = Bridge(6, 8, 2)
    bridge.reset_parameters(0.02)
    added = bridge.attend(torch.randn(2, 5, 8), *bridge.key_value(torch.randn(2, 5, 6)), attention_mask=None)
    assert torch.equal(added, torch.zeros_like(added))
    assert all(p.abs().sum() > 0 for n, p in bridge.named_parameters() if n != "o_proj.weight")


def test_reset_is_repeatable_and_has_the_asked_spread() -> None:
    one, two = (Bridge(64, 64, 2) for _ in range(2))
    one.reset_parameters(0.3, torch.Generator().manual_seed(5))
    two.reset_parameters(0.3, torch.Generator().manual_seed(5))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.q_proj.weight.std().item() == pytest.approx(0.3, rel=0.05)


def test_eager_equals_sdpa_with_and_without_mask() -> None:
    bridge = random_bridge()
    h_a, h_b = torch.randn(2, 5, 6), torch.randn(2, 5, 8)
    key, value = bridge.key_value(h_a)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None].expand(2, 1, 5, 5).clone()
    causal[0, 0, :, 0] = False  # the first position of the first row is padding
    causal[0, 0, 0, 0] = True  # but attends to itself, so that its softmax has something
    additive = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    eager = bridge.attend(h_b, key, value, additive, "eager")
    sdpa = bridge.attend(h_b, key, value, causal, "sdpa")
    torch.testing.assert_close(eager, sdpa, atol=1e-5, rtol=1e-5)
    assert (bridge.attend(h_b, key, value, None, "sdpa") - sdpa).abs().max() > 1e-3  # the mask does something


def test_computes_in_its_own_dtype_and_answers_in_the_anchors() -> None:
    bridge = random_bridge()
    h_a, h_b = torch.randn(1, 3, 6).bfloat16(), torch.randn(1, 3, 8).bfloat16()
    key, value = bridge.key_value(h_a)
    assert key.dtype == value.dtype == torch.float32
    assert bridge.attend(h_b, key, value, None).dtype == torch.bfloat16


def test_mlp_projection_is_not_linear_and_linear_is() -> None:
    h_a = torch.randn(1, 1, 6)
    for projection, linear in (("linear", True), ("mlp", False)):
        bridge = random_bridge(projection=projection)
        key, doubled = bridge.key_value(h_a)[0], bridge.key_value(2 * h_a)[0]
        assert torch.allclose(doubled, 2 * key, atol=1e-5) is linear


def test_heads_split_and_merge() -> None:
    states = torch.arange(24.0).view(1, 3, 8)
    heads = split_heads(states, 2)
    assert heads.shape == (1, 2, 3, 4)
    assert heads[0, 1, 0].tolist() == [4, 5, 6, 7]
    assert torch.equal(merge_heads(heads.transpose(1, 2)), states)


def test_unknown_attention_is_refused() -> None:
    with pytest.raises(KeyError):
        attention_function("no_such_attention")
