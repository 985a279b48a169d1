"""LoRA (arXiv 2106.09685) on a model with as many trained parameters as something else has.

Every linear layer but the head is adapted, and the rank is solved for. peft does the adapting. This file knows neither
recipes nor trainers.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from peft import PeftModel


def adapted_shapes(model: PreTrainedModel) -> Iterator[tuple[int, int]]:
    """Inputs and outputs of every linear layer that LoRA adapts, which are all but the head; of a meta model too."""
    head = model.get_output_embeddings()
    for module in model.modules():
        if module is head:
            continue
        if isinstance(module, nn.Linear):
            yield module.in_features, module.out_features
        elif isinstance(module, Conv1D):  # a linear layer whose weight lies the other way round
            yield int(module.weight.shape[0]), int(module.weight.shape[1])


def lora_shapes(model: PreTrainedModel, rank: int) -> list[tuple[int, int]]:
    """Rows and columns of the matrices A [rank, inputs] and B [outputs, rank] of every adapted layer."""
    return [shape for inputs, outputs in adapted_shapes(model) for shape in ((rank, inputs), (outputs, rank))]


def matching_rank(model: PreTrainedModel, wanted: int) -> int:
    """The rank whose parameters come nearest to `wanted`, and 1 at least: off by half a rank at most."""
    return nearest_rank(sum(inputs + outputs for inputs, outputs in adapted_shapes(model)), wanted)


def nearest_rank(per_rank: int, wanted: int) -> int:
    """The same, where a rank of 1 is known to have `per_rank` parameters."""
    return max(1, round(wanted / per_rank))


def with_lora(model: PreTrainedModel, rank: int, seed: int) -> "PeftModel":
    """`model` with fresh adapters in it, which alone want gradients; they add nothing before they are trained.

    Adapters are float32 beside weights of a smaller dtype, and are scaled by 1 whatever their rank.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)
