"""What an augmenting model has to say in a pass: its hidden states, and what its bridges make of them.

This file knows no anchor and no bridge's maths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lmcompose.alignment.spans import Aligner
from lmcompose.architecture import CACHE_ARGUMENT, run_without_head
from lmcompose.cache import ComposedCache
from lmcompose.calls import CallSlot
from lmcompose.calm.attach import hook_layers
from lmcompose.calm.bridge import Bridge
from lmcompose.calm.connections import Connection


@dataclass(frozen=True)
class Read:
    """What one augmenting model has to say in a pass.

    Attributes:
        states: H_A [batch, new, D_A] of every connected layer; empty where it had nothing new to read.
        mask: of its bridges, in the form that `implementation` takes; None is plainly causal.
        implementation: of the attention of its bridges.
        seen: bool [batch, new, 1], False where an anchor position sees nothing of it; None where all see something.
    """

    states: dict[int, torch.Tensor]
    mask: torch.Tensor | None
    implementation: str
    seen: torch.Tensor | None = None


class Reader:
    """Reads one augmenting model.

    Args:
        name: of the augmenting model.
        pairs: its connections.
        aligner: where it reads the text in tokens of its own.
    """

    def __init__(self, name: str, pairs: list[Connection], aligner: Aligner | None = None) -> None:
        self.name = name
        self.pairs = pairs
        self.aligner = aligner
        self.slot = CallSlot()

    def hook(self, model: PreTrainedModel) -> list[Any]:
        """Hook the connected layers of the live model; returns the handles that undo it."""
        return hook_layers(model, [augmenting_layer for augmenting_layer, _ in self.pairs], self.slot)

    def states(
        self, model: PreTrainedModel, inputs: dict[str, Any], cache: ComposedCache | None, learns: bool = False
    ) -> dict[int, torch.Tensor]:
        """H_A [batch, new, D_A] of every connected layer, from one run over `inputs`.

        Args:
            learns: whether a layer of the model is trained; without one, no graph is built.
        """
        states: dict[int, torch.Tensor] = {}

        def read(layer: int, hidden_states: torch.Tensor) -> torch.Tensor:
            states[layer] = hidden_states
            return hidden_states

        moved = {
            key: value.to(model.device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()
        }
        view = {CACHE_ARGUMENT: cache.members[self.name]} if cache is not None else {}
        with torch.set_grad_enabled(learns and torch.is_grad_enabled()), self.slot.during(read):
            run_without_head(model, **moved, **view)
        return states

    def added(
        self,
        read: Read,
        layer: int,
        hidden_states: torch.Tensor,
        bridge_of: Callable[[str, int, int], Bridge],
        cache: ComposedCache | None,
    ) -> list[torch.Tensor]:
        """What each bridge of the model adds to H_B [batch, new, D_B] at an anchor layer."""
        contributions = []
        for index, (augmenting_layer, anchor_layer) in enumerate(self.pairs):
            if anchor_layer != layer:
                continue
            bridge = bridge_of(self.name, augmenting_layer, anchor_layer)
            key, value = self._keys_and_values(bridge, read.states.get(augmenting_layer), cache, index)
            if key is None or value is None:
                continue  # nothing was read yet
            mask = read.mask
            if mask is not None and mask.device != hidden_states.device:  # an anchor spread over devices
                mask = mask.to(hidden_states.device)
            added = bridge.attend(hidden_states, key, value, mask, read.implementation)
            if read.seen is not None:
                added = added.masked_fill(~read.seen.to(added.device), 0)
            contributions.append(added)
        return contributions

    def _keys_and_values(
        self, bridge: Bridge, states: torch.Tensor | None, cache: ComposedCache | None, index: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """All keys and values so far of the bridge `index`, with those of new states where there are any."""
        if states is None:
            layer: Any = None if cache is None else cache.bridges[self.name].layers[index]
            empty = layer is None or not layer.is_initialized or layer.keys.shape[-2] == 0
            return (None, None) if empty else (layer.keys, layer.values)
        key, value = bridge.key_value(states)
        return (key, value) if cache is None else cache.bridges[self.name].update(key, value, index)
