"""Members that read different texts before the tokens that they all go on with.

The leader's text is `[context | tail]`: its first `length` columns are its own context (the prompt), and the tail is
what is decoded or scored. Another member's text is its own context, of its own length, followed by the very same tail.
Only positions from the last one of the contexts on can be composed, since before it members stand at different places.

Everything here is a function of the call's arguments, never of an earlier call: so a cached pass and an uncached one
cannot disagree. This file knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lmcompose.errors import ConfigurationError


@dataclass(frozen=True)
class Contexts:
    """The contexts of the members but the leader.

    Args:
        input_ids: [batch, members, width] in each member's own token ids, padded on the left.
        attention_mask: [batch, members, width], 0 at padding.
        length: columns of the leader's text that they stand in place of.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    length: int
    _stacked: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Refuse a length before which nothing would be left to read.

        Raises:
            ConfigurationError: no whole number, or not above 0.
        """
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise ConfigurationError(
                f"context_length = {self.length!r} is no number of columns. Give how many columns of the leader's text "
                "are its own context, 1 or more; generate() knows it."
            )

    def check(self, batch: int, roles: Sequence[str]) -> None:
        """Refuse contexts that do not fit the call.

        Raises:
            ConfigurationError: wrong shapes, an empty context, or padding elsewhere than on the left.
        """
        ids, mask = self.input_ids, self.attention_mask
        if ids.dim() != 3 or ids.shape[:2] != (batch, len(roles)) or ids.shape != mask.shape:
            raise ConfigurationError(
                f"member_input_ids and member_attention_mask must both be [batch, members, length] = [{batch}, "
                f"{len(roles)}, ...] for the members {list(roles)}, and they are {list(ids.shape)} and "
                f"{list(mask.shape)}. Make them with model.prepare(...)."
            )
        if ids.shape[2] == 0 or not bool(mask[..., -1].all()) or bool((mask[..., 1:] < mask[..., :-1]).any()):
            raise ConfigurationError(
                "A member's context is empty, or has padding that is not on its left. Contexts are padded on the left, "
                "as model.prepare(...) makes them, and hold one token at least."
            )

    def of(self, members: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask [batch * members, width] of some members, stacked member by member, without common padding."""
        if members not in self._stacked:  # finding the width waits for the device
            ids = torch.cat([self.input_ids[:, member] for member in members])
            mask = torch.cat([self.attention_mask[:, member] for member in members])
            width = int(mask.sum(dim=1).max())
            self._stacked[members] = ids[:, -width:], mask[:, -width:]
        return self._stacked[members]

    def extra_length(self, members: tuple[int, ...]) -> int:
        """How many positions more than the leader these members need in a cache (negative: fewer)."""
        return self.of(members)[0].shape[1] - self.length


def new_ids(context: torch.Tensor, tail: torch.Tensor, past: int, length: int) -> torch.Tensor:
    """What a member has not read yet: [rows, new] from its context and the tokens of this call.

    Args:
        context: [rows, width].
        tail: [rows, new] the leader's tokens of this call, in the member's ids.
        past: columns that the leader had read before this call.
        length: columns of the leader's context.
    """
    return tail if past >= length else torch.cat([context, tail[:, length - past :]], dim=1)


def full_mask(context: torch.Tensor, attention_mask: torch.Tensor | None, columns: int, length: int) -> torch.Tensor:
    """The mask [rows, all positions] of a member: its context's, then the tail's.

    Args:
        context: [rows, width] the mask of the context.
        attention_mask: [rows, columns or more] the leader's mask (wider where the cache is static), or None.
        columns: that the leader has read, with this call.
        length: columns of the leader's context.
    """
    if attention_mask is None:
        tail = context.new_ones((context.shape[0], columns - length))
    else:
        tail = attention_mask[:, length:].to(context.dtype)
    return torch.cat([context, tail], dim=1)
