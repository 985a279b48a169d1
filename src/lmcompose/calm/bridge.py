"""The maths of one connection: f_cross(f_proj(H_A), H_B) (CALM, section 3.1). It knows no model and no layer number.

Shapes: B batch, Q new anchor positions, T new augmenting positions, K all augmenting positions seen so far,
D_A and D_B the widths of the augmenting and anchor models, N_H heads of width d = D_B / N_H.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PROJECTIONS = ("linear", "mlp")


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


class Bridge(nn.Module):
    """f_proj and f_cross of one connection, without biases: D_A D_B + 4 D_B^2 parameters in the paper's form.

    W_O starts at zero, so that an untrained bridge adds exactly nothing. `projection="mlp"` replaces the linear
    f_proj by two linear maps with a GELU between; it is not in the paper.
    """

    def __init__(self, augmenting_size: int, anchor_size: int, num_heads: int, projection: str = "linear") -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (anchor_size // num_heads) ** -0.5
        self.is_causal = True  # read by HF's attention functions where they are given no mask
        self.num_key_value_groups = 1
        self.projection: nn.Module = nn.Linear(augmenting_size, anchor_size, bias=False)
        if projection == "mlp":
            self.projection = nn.Sequential(self.projection, nn.GELU(), nn.Linear(anchor_size, anchor_size, bias=False))
        self.q_proj = nn.Linear(anchor_size, anchor_size, bias=False)
        self.k_proj = nn.Linear(anchor_size, anchor_size, bias=False)
        self.v_proj = nn.Linear(anchor_size, anchor_size, bias=False)
        self.o_proj = nn.Linear(anchor_size, anchor_size, bias=False)

    @torch.no_grad()
    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Draw every matrix from N(0, std^2), but W_O, which is zero."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=std, generator=generator)
        nn.init.zeros_(self.o_proj.weight)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the bridge computes, whatever its members' own."""
        return self.o_proj.weight.dtype

    def key_value(self, augmenting_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of new augmenting positions: [B, T, D_A] -> two of [B, N_H, T, d]."""
        projected = self.projection(augmenting_states.to(self.q_proj.weight.device, self.dtype))
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
        query = split_heads(self.q_proj(anchor_states.to(self.dtype)), self.num_heads)
        attended, _ = attention_function(implementation)(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0
        )
        return self.o_proj(merge_heads(attended)).to(anchor_states.dtype)
