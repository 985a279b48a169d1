"""A batch of texts as decoding writes them: column by column, whatever wrote several columns at once.

Plain decoding looks at every token as it comes (has this row ended, does the reader want to see it), and texts that
were written in blocks must come out the same. This file knows no model and no drafter.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import StoppingCriteriaList


class Texts:
    """The rows of one batch, and what was recorded on the way.

    Args:
        input_ids: [B, n] the prompts.
        stopping_criteria: asked after every column, as `generate` does.
        pad_id: what ended rows write; needed where a criterion has end-of-text tokens.
        streamer: `put` is called with every column [B].
        keep_scores, keep_logits: whether to record the final scores, and the logits before processors, per column.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        stopping_criteria: StoppingCriteriaList,
        pad_id: torch.Tensor | int | None = None,
        streamer: Any = None,
        keep_scores: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self.ids = input_ids
        self.ended = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        self.done = False
        self.scores: tuple[torch.Tensor, ...] | None = () if keep_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if keep_logits else None
        self.pad_id = 0 if pad_id is None else int(pad_id)
        self._criteria = stopping_criteria
        self._put: Callable[[torch.Tensor], None] | None = None if streamer is None else streamer.put
        final = [criterion.eos_token_id for criterion in stopping_criteria if hasattr(criterion, "eos_token_id")]
        self._final = torch.cat([ids.reshape(-1).to(input_ids.device) for ids in final]) if final else None

    @property
    def length(self) -> int:
        """Columns so far."""
        return self.ids.shape[1]

    @property
    def room(self) -> int | None:
        """How many columns may still be written; None where nothing limits them."""
        longest = self._criteria.max_length
        return None if longest is None else max(0, longest - self.length)

    @property
    def padded(self) -> torch.Tensor | None:
        """The ended rows [B] bool, which write padding; None where `generate` lets such rows go on writing.

        It does so without end-of-text tokens: a row that met a stop string then writes on until all rows have ended.
        """
        return None if self._final is None else self.ended

    def ends(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """Which tokens would end their row, the shape of `tokens`; None where no token does."""
        return None if self._final is None else torch.isin(tokens, self._final)

    def write(self, tokens: torch.Tensor, scores: torch.Tensor, logits: torch.Tensor) -> int:
        """Write columns until all rows have ended; returns how many were written.

        Args:
            tokens: [B, m].
            scores, logits: [B, m or more, V] for these columns.
        """
        for column in range(tokens.shape[1]):
            token = tokens[:, column]
            if self._final is not None:
                token = token.masked_fill(self.ended, self.pad_id)
            if self.scores is not None:
                self.scores += (scores[:, column],)
            if self.logits is not None:
                self.logits += (logits[:, column],)
            self.ids = torch.cat([self.ids, token[:, None]], dim=1)
            self.ended = self.ended | self._criteria(cast(Any, self.ids), cast(Any, self.scores))
            if self._put is not None:
                self._put(token.cpu())
            if bool(self.ended.all()):
                self.done = True
                return column + 1
        return tokens.shape[1]
