"""The last hidden states of a GPT-2 from some position on, and no more work than these take.

Of the last layer, a loss on answers needs every key and value, and of the rest only what stands at the answer: a
quarter to a half of an expression. This file knows no composition.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn


def short_states(decoder: Any, start: int, run: Callable[[], Any]) -> torch.Tensor:
    """The last states [rows, length - start, D] of a GPT-2 `decoder` without dropout, which `run` calls once."""
    with without_last_layer(decoder) as (last, entering):
        run()
    return cast(torch.Tensor, decoder.ln_f(last_layer(last, entering[0], start)))


@contextmanager
def without_last_layer(decoder: Any) -> Iterator[tuple[nn.Module, list[torch.Tensor]]]:
    """Within the block, `decoder` runs without its last layer; yields this layer, and a list of what entered it."""
    entering: list[torch.Tensor] = []

    class Passed(nn.Module):
        def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            entering.append(hidden_states)
            return hidden_states

    last = decoder.h[-1]
    decoder.h[-1] = Passed()
    try:
        yield last, entering
    finally:
        decoder.h[-1] = last


def last_layer(block: Any, hidden_states: torch.Tensor, start: int) -> torch.Tensor:
    """A GPT-2 layer at the positions from `start` on: [rows, length, D] -> [rows, length - start, D]."""
    attention, width = block.attn, hidden_states.shape[-1]
    weight, bias = attention.c_attn.weight, attention.c_attn.bias
    read = block.ln_1(hidden_states)
    asked = torch.addmm(bias[:width], read[:, start:].reshape(-1, width), weight[:, :width])
    given = torch.addmm(bias[width:], read.reshape(-1, width), weight[:, width:])
    heads = (attention.num_heads, attention.head_dim)
    query = asked.view(len(read), -1, *heads).transpose(1, 2)
    key, value = given.view(len(read), -1, 2, *heads).permute(2, 0, 3, 1, 4)
    causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(start)
    attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=causal, scale=attention.scaling)
    states = hidden_states[:, start:] + attention.c_proj(attended.transpose(1, 2).flatten(start_dim=2))
    return cast(torch.Tensor, states + block.mlp(block.ln_2(states)))
