"""The training loss from the logits of learned tokens alone.

A prompt has no loss, and the logits of its tokens are the dearest ones: a vocabulary of 150,000 takes 0.6 MB in float32
at each, several times over in a loss and its gradient. So the head is told which columns it is needed in, and the loss
reads of those what is learned. This file knows neither compositions nor trainers.
"""

import inspect
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers.loss.loss_utils import ForCausalLMLoss

from lmcompose.training.packing import IGNORED


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """Labels [B, L] moved to where they are predicted; the last position predicts nothing."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def learned_columns(labels: torch.Tensor) -> tuple[int | torch.Tensor, torch.Tensor]:
    """Where a batch needs logits, and what is to be predicted there.

    Args:
        labels: [B, L], not shifted, IGNORED where nothing is learned.

    Returns:
        What `logits_to_keep` takes: the K columns before one that some row learns, or 0 for all L of them; and the
        shifted targets [B, K].
    """
    targets = shifted(labels)
    columns = (targets != IGNORED).any(dim=0).nonzero()[:, 0]
    if len(columns) in (0, labels.shape[1] - 1, labels.shape[1]):  # the last column alone is not worth a copy
        return 0, targets
    return columns, targets[:, columns]


def learned_loss(
    output: Any, targets: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Cross-entropy of the learned tokens, as transformers' `ForCausalLMLoss` divides it.

    Args:
        output: of a model, with logits [B, K, V].
        targets: [B, K], of `learned_columns`.
        num_items_in_batch: learned tokens of the whole accumulated batch; the mean over this one's by default.
    """
    targets = targets.to(output.logits.device)
    learned = targets != IGNORED
    losses = F.cross_entropy(output.logits[learned].float(), targets[learned], reduction="sum")
    if num_items_in_batch is None:
        return losses / learned.sum()
    count = num_items_in_batch
    return losses / (count.to(losses.device) if isinstance(count, torch.Tensor) else count)


def takes_columns(model: nn.Module) -> bool:
    """Whether `learned_loss` is all of a model's own loss, and its forward pass can leave logits out."""
    target = cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model  # a PEFT wrapper
    names = inspect.signature(type(target).forward).parameters
    balances_experts = getattr(getattr(target, "config", None), "output_router_logits", False)
    return (
        "logits_to_keep" in names and getattr(target, "loss_function", None) is ForCausalLMLoss and not balances_experts
    )
