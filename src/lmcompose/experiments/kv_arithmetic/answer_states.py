"""The anchor's last hidden states where they predict an answer, and no more work than these take.

Of the last layer of m_B, a loss on answers needs every key and value, and of the rest only what stands at the answer:
a quarter to a half of an expression. Only a plain GPT-2 is taken short in this way, and only where nothing else reads
or writes its last layer; everything else runs whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from transformers import GPT2LMHeadModel

from lmcompose.calm.model import CalmForCausalLM


def answer_states(composition: CalmForCausalLM, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """The states [rows, answer, D_B], after the final norm, that predict the tokens after the prompt.

    Args:
        ids: [rows, length] prompts and answers, the last token left out.
        prompt: columns of the prompt.
    """
    start = prompt - 1
    if composition.config.prompt_readers():
        # the body alone cannot be told what the prompt is; of the head, one position is as little as it computes
        output: Any = composition(
            ids, prompt_length=prompt, logits_to_keep=1, use_cache=False, output_hidden_states=True
        )
        return cast(torch.Tensor, output.hidden_states[-1])[:, start:]
    if not can_be_short(composition):
        states: torch.Tensor = composition.base_model(ids).last_hidden_state
        return states[:, start:]
    decoder = cast(GPT2LMHeadModel, composition.anchor).transformer
    with without_last_layer(decoder) as (last, entering):
        composition.base_model(ids)
    return cast(torch.Tensor, decoder.ln_f(last_layer(last, entering[0], start)))


def can_be_short(composition: CalmForCausalLM) -> bool:
    """Whether the anchor is a plain GPT-2 whose last layer nothing else reads, writes or trains."""
    anchor = composition.anchor
    if type(anchor) is not GPT2LMHeadModel or anchor.config.reorder_and_upcast_attn or composition.config.unfreeze:
        return False
    written = {pair[1] for name in composition.augmenting for pair in composition.config.pairs(name)}
    return anchor.config.num_hidden_layers > max(1, *written)  # what is written before the first layer is read there


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
