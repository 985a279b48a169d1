"""Reading a model's hidden states and writing into them, from outside and without a trace.

Hooks stay on a live model for as long as a composition is attached to it, and do nothing unless that composition's
own forward pass is under way: the state of a pass lives in a `CallSlot` (a `ContextVar`), never on the model. So a
model can be shared by several compositions, threads and direct callers. This file knows no cross-attention.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from transformers import PreTrainedModel

from lmcompose.architecture import decoder_layers, hidden_states_of, with_hidden_states
from lmcompose.calls import CallSlot

LayerFunction = Callable[[int, torch.Tensor], torch.Tensor]
"""`(layer, hidden_states) -> hidden_states`: what a pass does where it reads or writes."""


class EmbeddingsHook:
    """A forward pre-hook on the first decoder layer: layer 0."""

    def __init__(self, slot: CallSlot) -> None:
        self.slot = slot

    def __call__(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        function = self.slot.current
        if function is None:
            return None
        if args:
            return (function(0, args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": function(0, kwargs["hidden_states"])}


class LayerHook:
    """A forward hook on decoder layer k."""

    def __init__(self, slot: CallSlot, layer: int) -> None:
        self.slot = slot
        self.layer = layer

    def __call__(
        self, module: torch.nn.Module, args: tuple, output: torch.Tensor | tuple
    ) -> torch.Tensor | tuple | None:
        function = self.slot.current
        if function is None:
            return None
        return with_hidden_states(output, function(self.layer, hidden_states_of(output)))


def hook_layers(model: PreTrainedModel, layers: Iterable[int], slot: CallSlot) -> list[Any]:
    """Hook `layers` of `model` (0 = embeddings) to `slot`; returns the handles that undo it."""
    modules = decoder_layers(model)
    handles: list[Any] = []
    for layer in sorted(set(layers)):
        if layer == 0:
            handles.append(modules[0].register_forward_pre_hook(EmbeddingsHook(slot), with_kwargs=True))
        else:
            handles.append(modules[layer - 1].register_forward_hook(LayerHook(slot, layer)))
    return handles
