"""Prompt lookup: tokens that followed the last few tokens where these stood before in the same text.

Drafts that cost no pass of any model (prompt lookup decoding, as in transformers). Whoever judges them may refuse them,
so nothing here has to be right: padding is read as text, and a text that repeats itself is supposed to go on doing so.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lmcompose.decoding.lengths import best_length
from lmcompose.errors import ConfigurationError


class Guess(NamedTuple):
    """What each row may go on with.

    Attributes:
        tokens: [B, k]; k = 0 where an unfinished row never had its last token before.
        sizes: how many last tokens of each unfinished row were found again; empty where k = 0.
    """

    tokens: torch.Tensor
    sizes: list[int]


def look_up(ids: torch.Tensor, count: int, max_size: int, finished: torch.Tensor | None = None) -> Guess:
    """The tokens after the latest earlier place of the longest ending of each row, `max_size` tokens or fewer.

    Where fewer than `count` tokens follow, they are taken again from there: the text may be going round in a circle.

    Args:
        ids: [B, n].
        count: tokens wanted in each row.
        finished: [B] bool, rows that write no more: whatever is guessed for them will do.
    """
    rows, length = ids.shape
    sizes = ids.new_zeros(rows)
    starts = ids.new_zeros(rows)  # where the guess begins
    for size in range(min(max_size, length - 1), 0, -1):
        windows = ids[:, : length - 1].unfold(1, size, 1)  # all but the ending itself
        places = torch.arange(1, windows.shape[1] + 1, device=ids.device)
        last = ((windows == ids[:, None, length - size :]).all(dim=-1) * places).amax(dim=1)  # 0: nowhere
        fresh = (last > 0) & (sizes == 0)
        starts = torch.where(fresh, last - 1 + size, starts)
        sizes = torch.where(fresh, size, sizes)
    found: list[int] = (sizes if finished is None else sizes[~finished]).tolist()
    if count < 1 or not found or not all(found):
        return Guess(ids[:, :0], [])
    period = (length - starts)[:, None]
    at = starts[:, None] + torch.arange(count, device=ids.device) % period
    return Guess(ids.gather(1, at), found)


class Lookup:
    """Guesses, and how often they were right, by how many tokens were found again.

    Args:
        max_tokens: how many tokens to guess at a time, at most.
        max_size: the most last tokens to look for.
        adaptive: guess as many as pays by what was right so far; False guesses all that it may.
        prior: the share supposed to be right before any was judged, for one token that was found again and for more.
        prior_weight: how many guesses the prior counts for.
        memory: what is left of a guess's weight one guess later.

    Raises:
        ConfigurationError: a number below 1.
    """

    def __init__(
        self,
        max_tokens: int = 8,
        max_size: int = 3,
        adaptive: bool = True,
        prior: tuple[float, float] = (0.3, 0.5),
        prior_weight: float = 4.0,
        memory: float = 0.95,
    ) -> None:
        for name, value in (("prompt_lookup_num_tokens", max_tokens), ("max_matching_ngram_size", max_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} = {value!r}: give a number of tokens, 1 or more.")
        self.max_tokens, self.max_size, self.adaptive = max_tokens, max_size, adaptive
        self._prior, self._weight, self._memory = prior, prior_weight, memory
        self._right, self._judged = [0.0] * max_size, [0.0] * max_size

    def guess(self, ids: torch.Tensor, room: int, finished: torch.Tensor | None = None) -> Guess:
        """`look_up` in the texts so far."""
        return look_up(ids, min(room, self.max_tokens), self.max_size, finished)

    def chance(self, sizes: Sequence[int]) -> float:
        """The chance that the next guessed token is right in all rows."""
        return math.prod(
            (self._prior[size > 1] * self._weight + self._right[size - 1]) / (self._weight + self._judged[size - 1])
            for size in sizes
        )

    def observe(self, sizes: Sequence[int], right: Sequence[int], judged: int) -> None:
        """Learn from `judged` guessed tokens of each unfinished row, of which the first `right` were kept."""
        for size, kept in zip(sizes, right, strict=True):
            self._right[size - 1] = self._memory * self._right[size - 1] + min(kept, judged)
            self._judged[size - 1] = self._memory * self._judged[size - 1] + min(kept + 1, judged)

    def worth(self, sizes: Sequence[int], position: float, most: int) -> int:
        """How many of `most` guessed tokens a drafter should read at once.

        One more saves a pass of the drafter wherever all before it and it are right, and costs a position.

        Args:
            position: what one more position costs relative to a pass.
        """
        if not self.adaptive or not most:
            return most
        chance = self.chance(sizes)
        if chance >= 1 or position <= 0:
            return most
        return min(most, max(0, math.ceil(math.log(position) / math.log(chance)) - 1)) if chance > 0 else 0

    def pays(self, sizes: Sequence[int], position: float, most: int) -> int:
        """How many of `most` guessed tokens to draft where nothing else drafts.

        Args:
            position: what one more position costs relative to a pass of all members.
        """
        return best_length(self.chance(sizes), position, 0, most) if self.adaptive and most else most
