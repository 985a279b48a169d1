"""The maths of one connection: f_cross(f_proj(H_A), H_B) (CALM, section 3.1). It knows no model and no layer number.

Shapes: B batch, Q new anchor positions, T new augmenting positions, K all augmenting positions seen so far,
D_A and D_B the widths of the augmenting and anchor models, N_H heads of width d = D_B / N_H, r the rank.

All options are off by default and go beyond the paper: an MLP as f_proj, a gate, norms, matrices of low rank.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PROJECTIONS = ("linear", "mlp")

NORM_EPSILON = 1e-6


def split_heads(states: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, L, N_H * d] -> [B, N_H, L, d]."""
    batch, length, width = states.shape
    return states.view(batch, length, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(states: torch.Tensor) -> torch.Tensor:
    """[B, L, N_H, d] -> [B, L, N_H * d]."""
    return states.flatten(start_dim=2)


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention written out, in the signature of HF's attention interface: the reference for the fast ones.

    `query` is [B, N_H, Q, d], `key` and `value` [B, N_H, K, d], `attention_mask` an additive [B, 1, Q, K].
    Returns the output [B, Q, N_H, d] and the weights [B, N_H, Q, K].
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def attention_function(implementation: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    """The function behind the name of an attention implementation: HF's own, or the written-out one for 'eager'."""
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)


def rms_norm(states: torch.Tensor) -> torch.Tensor:
    """[..., D] with a root mean square of 1 (Zhang and Sennrich 2019, arXiv 1910.07467); a zero vector stays zero.

    It has no weights: a linear map follows, and would be the same map with them.
    """
    return nn.functional.rms_norm(states, states.shape[-1:], eps=NORM_EPSILON)


class LowRank(nn.Module):
    """A matrix [D_out, D_in] as the product of two thin ones, [D_out, r] and [r, D_in]."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., D_in] -> [..., D_out]."""
        return cast(torch.Tensor, self.up(self.down(states)))


def thin_std(std: float, rank: int) -> float:
    """The standard deviation of both thin matrices with which the entries of their product have that of `std`.

    An entry of the product is a sum of r products of two entries, so its variance is r s^4.
    """
    return math.sqrt(std / math.sqrt(rank))


def bridge_shapes(
    augmenting_size: int,
    anchor_size: int,
    projection: str = "linear",
    gate: bool = False,
    norm: bool = False,
    rank: int | None = None,
) -> list[tuple[int, int]]:
    """(rows, columns) of every matrix that a bridge with these options trains, without building it.

    `norm` adds none. A `rank` makes r (D_A + 9 D_B) numbers of the paper's D_A D_B + 4 D_B^2.
    """
    square = (anchor_size, anchor_size)
    shapes = [(anchor_size, augmenting_size), *[square] * (4 + (projection == "mlp"))]
    if rank is not None:
        shapes = [thin for rows, columns in shapes for thin in ((rank, columns), (rows, rank))]
    return [*shapes, *[(1, 1)] * gate]


class Bridge(nn.Module):
    """f_proj and f_cross of one connection, without biases: D_A D_B + 4 D_B^2 parameters in the paper's form.

    An untrained bridge adds exactly nothing, since W_O starts at zero; with a gate, since the gate does.

    Args:
        augmenting_size, anchor_size, num_heads: D_A, D_B and N_H, which divides D_B.
        projection: f_proj: "linear", or "mlp" for two linear maps with a GELU between.
        gate: multiply what is added by tanh(g), one learned number for the connection, as Flamingo does around its
            cross-attention (arXiv 2204.14198, section 2.2). g starts at zero and W_O does not: with both at zero,
            neither would ever have a gradient. g is a 1 x 1 matrix, as optimizers for matrices take nothing else.
        norm: RMS-norm H_B before W_Q, and f_proj(H_A) before W_K and W_V, as the layers of both models norm what they
            read. The scale of a residual stream grows with depth, by two or three orders of magnitude in some models;
            without a norm, the attention scores grow with the product of both.
        rank: make every matrix, f_proj's too, a product of two thin ones of this rank (as LoRA does with updates,
            arXiv 2106.09685).
    """

    gate: nn.Parameter | None

    def __init__(
        self,
        augmenting_size: int,
        anchor_size: int,
        num_heads: int,
        projection: str = "linear",
        gate: bool = False,
        norm: bool = False,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (anchor_size // num_heads) ** -0.5
        self.is_causal = True  # read by HF's attention functions where they are given no mask
        self.num_key_value_groups = 1
        self.norm, self.rank = norm, rank
        self.projection = _matrix(augmenting_size, anchor_size, rank)
        if projection == "mlp":
            self.projection = nn.Sequential(self.projection, nn.GELU(), _matrix(anchor_size, anchor_size, rank))
        self.q_proj = _matrix(anchor_size, anchor_size, rank)
        self.k_proj = _matrix(anchor_size, anchor_size, rank)
        self.v_proj = _matrix(anchor_size, anchor_size, rank)
        self.o_proj = _matrix(anchor_size, anchor_size, rank)
        self.register_parameter("gate", nn.Parameter(torch.zeros(1, 1)) if gate else None)

    @torch.no_grad()
    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Draw every matrix from N(0, std^2), but W_O, which is zero; or, where there is one, the gate.

        The entries of a matrix of low rank have about the same spread (see `thin_std`); of its W_O, the matrix that
        comes last is zero.
        """
        for parameter in self.parameters():
            if parameter is not self.gate:
                nn.init.normal_(
                    parameter, std=std if self.rank is None else thin_std(std, self.rank), generator=generator
                )
        nn.init.zeros_(self._written if self.gate is None else self.gate)

    @property
    def _written(self) -> torch.Tensor:
        """W_O, or of a product its last matrix."""
        last: Any = self.o_proj if self.rank is None else self.o_proj.up
        return cast(torch.Tensor, last.weight)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the bridge computes, whatever its members' own."""
        return self._written.dtype

    def key_value(self, augmenting_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of new augmenting positions: [B, T, D_A] -> two of [B, N_H, T, d]."""
        projected = self.projection(augmenting_states.to(self._written.device, self.dtype))
        if self.norm:
            projected = rms_norm(projected)
        return split_heads(self.k_proj(projected), self.num_heads), split_heads(self.v_proj(projected), self.num_heads)

    def attend(
        self,
        anchor_states: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        implementation: str = "sdpa",
    ) -> torch.Tensor:
        """What the connection adds to the anchor: [B, Q, D_B] from H_B [B, Q, D_B] and all keys and values so far.

        `attention_mask` is of the form that `implementation` takes; None means plainly causal. The result has the
        dtype of `anchor_states`.
        """
        asking = anchor_states.to(self.dtype)
        if self.norm:
            asking = rms_norm(asking)
        query = split_heads(self.q_proj(asking), self.num_heads)
        attended, _ = attention_function(implementation)(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0
        )
        added = self.o_proj(merge_heads(attended))
        if self.gate is not None:
            added = torch.tanh(self.gate) * added
        return cast(torch.Tensor, added.to(anchor_states.dtype))


def _matrix(inputs: int, outputs: int, rank: int | None) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False) if rank is None else LowRank(inputs, outputs, rank)
