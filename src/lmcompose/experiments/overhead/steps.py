"""A training step as a function, and the models that take one: CALM, LoRA and full tuning of the anchor."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lmcompose.calm.compose import compose
from lmcompose.loading import load_member
from lmcompose.training.lora import with_lora

Step = Callable[[], float]
"""Takes a step, and returns the loss before it."""


def training_step(model: nn.Module, parameters: Sequence[nn.Parameter], input_ids: torch.Tensor) -> Step:
    """Forward, loss, backward and AdamW over `input_ids` [batch, length], the same in every step.

    Each ends with reading the loss, which waits for the device.
    """
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def step() -> float:
        model.train()
        loss = model(input_ids=input_ids, labels=input_ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def composed(anchor: str, augmenting: str, pairs: Sequence[Sequence[int]], dtype: str | None, device: str) -> Any:
    """The composition of two models by name."""
    model: Any = compose(anchor=anchor, augmenting=augmenting, connections=pairs, dtype=dtype)
    return model.to(device)


def tuned(anchor: str, rank: int | None, dtype: str | None, device: str) -> Any:
    """The anchor with LoRA of a rank; or, without one, such that all of it learns."""
    model: Any = load_member(anchor, dtype=dtype).model
    model = model.to(device)
    return model.requires_grad_(True) if rank is None else with_lora(model, rank, seed=0)
