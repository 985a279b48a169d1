"""A composition's last hidden states where they predict an answer.

Only over a plain GPT-2 are they computed without the rest of the last layer (see `short_states`), and only where
nothing else reads, writes or trains that layer; everything else runs whole.
"""

from typing import Any, cast

import torch
from transformers import GPT2LMHeadModel

from lmcompose.calm.model import CalmForCausalLM
from lmcompose.experiments.kv_arithmetic.short_states import short_states


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
    return short_states(decoder, start, lambda: composition.base_model(ids))


def can_be_short(composition: CalmForCausalLM) -> bool:
    """Whether the anchor is a plain GPT-2 whose last layer nothing else reads, writes or trains."""
    anchor = composition.anchor
    if type(anchor) is not GPT2LMHeadModel or anchor.config.reorder_and_upcast_attn or composition.config.unfreeze:
        return False
    written = {pair[1] for name in composition.augmenting for pair in composition.config.pairs(name)}
    return anchor.config.num_hidden_layers > max(1, *written)  # what is written before the first layer is read there
