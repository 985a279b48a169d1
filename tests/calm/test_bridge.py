"""The maths of one connection, against the paper's formula written out and numbers worked out by hand."""

import math
from typing import Any

import pytest
import torch

from lmcompose.calm.bridge import (
    Bridge,
    LowRank,
    attention_function,
    bridge_shapes,
    merge_heads,
    rms_norm,
    split_heads,
    thin_std,
)

OPTIONS = [
    {},
    {"gate": True},
    {"norm": True},
    {"rank": 3},
    {"projection": "mlp", "rank": 3},
    {"gate": True, "norm": True, "rank": 3},
]


def random_bridge(augmenting: int = 6, anchor: int = 8, heads: int = 2, **options: Any) -> Bridge:
    """All of it random, with the spread that `reset_parameters(0.5)` gives; the gate is tanh(0.5)."""
    bridge = Bridge(augmenting, anchor, heads, **options)
    bridge.reset_parameters(0.5, torch.Generator().manual_seed(1))
    last = bridge.o_proj if bridge.rank is None else bridge.o_proj.up
    torch.nn.init.normal_(last.weight, std=0.5, generator=torch.Generator().manual_seed(2))
    if bridge.gate is not None:
        torch.nn.init.constant_(bridge.gate, 0.5)
    return bridge


def whole(matrix: torch.nn.Module) -> torch.Tensor:
    """The matrix that a linear map, or a product of two, stands for: [D_out, D_in]."""
    return matrix.up.weight @ matrix.down.weight if isinstance(matrix, LowRank) else matrix.weight


def written_out(bridge: Bridge, h_a: torch.Tensor, h_b: torch.Tensor) -> torch.Tensor:
    """f_cross(f_proj(H_A), H_B) with causal softmax, token by token and head by head, with gate, norms and rank."""
    width = h_b.shape[-1] // bridge.num_heads
    projected = h_a @ whole(bridge.projection).T
    asking = h_b
    if bridge.norm:
        projected, asking = (s / (s.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt() for s in (projected, h_b))
    gate = 1.0 if bridge.gate is None else math.tanh(bridge.gate.item())
    out = torch.zeros_like(h_b)
    for row in range(h_b.shape[0]):
        for position in range(h_b.shape[1]):
            heads = []
            for head in range(bridge.num_heads):
                part = slice(head * width, (head + 1) * width)
                query = whole(bridge.q_proj)[part] @ asking[row, position]
                keys = projected[row, : position + 1] @ whole(bridge.k_proj)[part].T
                values = projected[row, : position + 1] @ whole(bridge.v_proj)[part].T
                heads.append(torch.softmax(keys @ query / math.sqrt(width), dim=0) @ values)
            out[row, position] = gate * (whole(bridge.o_proj) @ torch.cat(heads))
    return out


@pytest.mark.parametrize("options", [each for each in OPTIONS if "projection" not in each], ids=str)
def test_equals_the_formula_written_out(options: dict[str, Any]) -> None:
    bridge = random_bridge(**options)
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


def test_the_gate_by_hand() -> None:
    """What the bridge of the test above adds, 1 and 2.5, with the gate at artanh(1/2) is half of it."""
    bridge = Bridge(1, 1, 1, gate=True)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.fill_(1.0)
        bridge.k_proj.weight.fill_(math.log(3) / 2)
        bridge.gate.fill_(math.atanh(0.5))
    got = bridge.attend(torch.ones(1, 2, 1), *bridge.key_value(torch.tensor([[[1.0], [3.0]]])), attention_mask=None)
    torch.testing.assert_close(got, torch.tensor([[[0.5], [1.25]]]))


def test_the_norm_by_hand() -> None:
    """(3, 4) has a root mean square of sqrt(12.5); one of zeros stays so."""
    got = rms_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    torch.testing.assert_close(got, torch.tensor([[3.0, 4.0], [0.0, 0.0]]) / math.sqrt(12.5))


def test_with_norms_the_scale_of_both_streams_does_not_matter() -> None:
    h_a, h_b = torch.randn(2, 5, 6), torch.randn(2, 5, 8)
    for norm in (True, False):
        bridge = random_bridge(norm=norm)
        one, other = (bridge.attend(b, *bridge.key_value(a), None) for a, b in ((h_a, h_b), (1000 * h_a, 50 * h_b)))
        assert torch.allclose(one, other, atol=1e-4) is norm


def test_a_low_rank_by_hand() -> None:
    """(1, 2) to 1 * 3 + 2 * 4 = 11, and on to (5, 6, 7) times that."""
    matrix = LowRank(2, 3, 1)
    with torch.no_grad():
        matrix.down.weight.copy_(torch.tensor([[3.0, 4.0]]))
        matrix.up.weight.copy_(torch.tensor([[5.0], [6.0], [7.0]]))
    assert matrix(torch.tensor([1.0, 2.0])).tolist() == [55.0, 66.0, 77.0]
    assert torch.linalg.matrix_rank(whole(LowRank(16, 16, 5))) == 5


@pytest.mark.parametrize("projection", ["linear", "mlp"])
@pytest.mark.parametrize("options", [*OPTIONS, {"rank": 6, "gate": True}], ids=str)
def test_shapes_are_those_of_the_bridge_that_is_built(options: dict[str, Any], projection: str) -> None:
    options = {**options, "projection": projection}
    built = [tuple(parameter.shape) for parameter in Bridge(6, 8, 2, **options).parameters()]
    assert sorted(bridge_shapes(6, 8, **options)) == sorted(built)
    assert all(len(shape) == 2 for shape in built), "Muon takes matrices only"


def test_parameters_of_a_low_rank() -> None:
    """r (D_A + 9 D_B): f_proj takes D_A to r to D_B, each of the four others D_B to r to D_B."""
    assert sum(p.numel() for p in Bridge(6, 8, 2, rank=3).parameters()) == 3 * (6 + 9 * 8)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fresh_bridge_adds_exactly_nothing_and_can_begin_to_learn(options: dict[str, Any]) -> None:
    """One matrix is zero, and it is the one with a gradient: were there two in a row, nothing would ever move."""
    bridge = Bridge(6, 8, 2, **options)
    bridge.reset_parameters(0.02)
    added = bridge.attend(torch.randn(2, 5, 8), *bridge.key_value(torch.randn(2, 5, 6)), attention_mask=None)
    assert torch.equal(added, torch.zeros_like(added))
    silent = "gate" if "gate" in options else "o_proj.up.weight" if "rank" in options else "o_proj.weight"
    added.sum().backward()
    for name, parameter in bridge.named_parameters():
        assert (parameter.abs().sum() > 0) == (name != silent), name
        assert (parameter.grad.abs().sum() > 0) == (name == silent), name


def test_reset_is_repeatable_and_has_the_asked_spread() -> None:
    one, two = (Bridge(64, 64, 2) for _ in range(2))
    one.reset_parameters(0.3, torch.Generator().manual_seed(5))
    two.reset_parameters(0.3, torch.Generator().manual_seed(5))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.q_proj.weight.std().item() == pytest.approx(0.3, rel=0.05)


def test_the_default_draws_what_it_always_drew() -> None:
    """The results of earlier versions can be had again: f_proj, W_Q, W_K, W_V, in this order, then W_O."""
    bridge, generator = Bridge(6, 8, 2), torch.Generator().manual_seed(5)
    bridge.reset_parameters(0.3, torch.Generator().manual_seed(5))
    for name in ("projection", "q_proj", "k_proj", "v_proj"):
        drawn = torch.empty_like(getattr(bridge, name).weight).normal_(std=0.3, generator=generator)
        assert torch.equal(getattr(bridge, name).weight, drawn), name


@pytest.mark.parametrize("rank", [2, 16])
def test_products_start_with_the_spread_of_the_matrices_for_which_they_stand(rank: int) -> None:
    bridge = Bridge(128, 128, 2, rank=rank, gate=True)
    bridge.reset_parameters(0.3, torch.Generator().manual_seed(5))
    assert whole(bridge.o_proj).std().item() == pytest.approx(0.3, rel=0.25 / math.sqrt(rank))
    assert thin_std(0.3, rank) ** 2 * math.sqrt(rank) == pytest.approx(0.3)


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
