"""Gradient checkpointing of a frozen model whose layers are hooked: recompute them in the backward pass.

Two things differ from HF's default. The reentrant form loses the gradients of what hooks add, without a word, since
nothing below it needs any; so it is always non-reentrant. And through transformers 5.22 hooks run inside the
recomputation, which may come in another thread and after the forward pass has reset what its hooks read; so the
recomputation sees the context variables of its forward pass.
"""

import functools
from contextvars import Context, copy_context
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def set_checkpointing(model: PreTrainedModel, enable: bool, every_n_layers: int = 1) -> None:
    """Turn the recomputation of `model`'s decoder layers on or off.

    Args:
        every_n_layers: recompute one of so many layers, and let the others keep their activations.

    Raises:
        ValueError: the architecture does not support it (HF's own message).
    """
    # by name, since a model that is itself a composition looks for it by name
    model._set_gradient_checkpointing(enable, checkpoint_in_context, every_n_layers=every_n_layers)
    for layer in checkpointed_layers(model):
        for name, value in vars(layer).items():
            if isinstance(value, float) and "dropout" in name:  # a layer is recomputed in training mode only, and some
                setattr(layer, name, 0.0)  # layers apply dropout themselves: a frozen member has none


def checkpointed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of `model` that recompute when they are in training mode."""
    return [
        module
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing
    ]


def checkpoint_in_context(function: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint`, non-reentrant, with the context variables of the forward pass in the recomputation."""
    kwargs.pop("use_reentrant", None)
    return checkpoint(functools.partial(_run, copy_context(), function), *args, use_reentrant=False, **kwargs)


def _run(context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
    return context.copy().run(function, *args, **kwargs)
