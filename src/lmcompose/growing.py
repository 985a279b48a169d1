"""Layers of a cache that grow, and are moved, in place: nothing is copied that stays where it is."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

SPARE = 64
"""Positions that a growing layer has room for beyond those that it was made for."""


class GrowingLayer(DynamicLayer):
    """A layer that grows into memory with room to spare, where its base class copies everything at every token.

    What it holds is a view of that memory. Whatever else writes `keys` and `values` (another order of the rows, other
    rows, a crop) leaves tensors that are no such view, or a shorter one, and the next update goes on from those.
    """

    _key_room: torch.Tensor | None = None
    _value_room: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values [batch, heads, new, width]; returns all of them."""
        held = [part for part in (self.keys, self.values, key_states, value_states) if part is not None]
        if any(part.requires_grad for part in held) or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self._key_room = _grown(self.keys, key_states, self._key_room)
        self.values, self._value_room = _grown(self.values, value_states, self._value_room)
        return self.keys, self.values

    def reset(self) -> None:
        """Empty the layer."""
        super().reset()
        self._key_room = self._value_room = None


def _grown(
    states: torch.Tensor | None, new: torch.Tensor, room: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """All states as a view of the memory that is given back beside them: of `room`, where they lie in it and fit."""
    length = 0 if states is None or not states.numel() else states.shape[-2]
    total = length + new.shape[-2]
    lies_there = (
        room is not None
        and states is not None
        and states.data_ptr() == room.data_ptr()
        and states.stride() == room.stride()
        and states.shape[0] == room.shape[0]
        and room.is_inference()
        == torch.is_inference_mode_enabled()  # what was made in that mode is not written outside
    )
    if room is None or not (lies_there and total <= room.shape[-2]):
        shape = (*new.shape[:-2], total + SPARE + total // 8, new.shape[-1])
        room = new.new_empty(shape)
        if length and states is not None:
            room[..., :length, :] = states
    room[..., length:total, :] = new
    return room[..., :total, :], room


def moved_up(states: torch.Tensor, dropped: Sequence[int], kept: int) -> torch.Tensor:
    """[batch, heads, length, width] -> [batch, heads, kept, width], in the memory of `states` where that may be.

    Row by row, since an index for every number of them would take longer than to copy them, and most rows stay.
    """
    length = states.shape[-2]
    moved = states if _may_be_written(states) else states.clone()
    for row, count in enumerate(dropped):
        up = kept - (length - count)  # below 0: the first columns go
        if up > 0:
            moved[row, :, up:kept] = states[row, :, : kept - up].clone()  # where it comes from and goes to overlap
        elif up < 0:
            moved[row, :, :kept] = states[row, :, -up : kept - up].clone()
    return moved[..., :kept, :]


def _may_be_written(states: torch.Tensor) -> bool:
    """Not where a gradient may be wanted, nor outside inference mode what was made in it."""
    return not states.requires_grad and (torch.is_inference_mode_enabled() or not states.is_inference())
