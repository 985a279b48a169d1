"""The part of a text that is its prompt, for augmenting models that read the prompt and nothing after it.

The prompt of a generation is what it starts from; in training it is what comes before the first token that is learned.
A position of the prompt sees it up to itself, and every later position sees all of it. This file knows no model.
"""

from dataclasses import dataclass
from typing import Any

import torch

from lmcompose.cache import ComposedCache
from lmcompose.errors import ConfigurationError

IGNORED = -100
"""The label of a position that is not learned, as in torch and transformers."""


@dataclass(frozen=True)
class PromptPass:
    """What is read of the prompt in one pass, and what the anchor may see of it.

    Attributes:
        inputs: what an augmenting model is called with; None where nothing of the prompt is new.
        count: how many of the new columns are read.
        allowed: bool [batch, new, columns]: the columns, of all that were read, that a position may attend to.
    """

    inputs: dict[str, Any] | None
    count: int
    allowed: torch.Tensor

    @property
    def seeing(self) -> torch.Tensor | None:
        """bool [batch, new, 1]: whether a position may attend to anything; None after the prompt, where all may."""
        return None if self.inputs is None else self.allowed.any(dim=-1, keepdim=True)

    def mask(self, implementation: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[batch, 1, new, columns]: bool for sdpa, and additive for eager attention.

        A position that sees nothing attends to everything; what it gets must be thrown away (`seeing`).
        """
        allowed = self.allowed if self.seeing is None else self.allowed | ~self.seeing
        allowed = allowed.unsqueeze(1).to(device)
        if implementation != "eager":
            return allowed
        return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def prompt_pass(inputs: dict[str, Any], cache: ComposedCache | None) -> PromptPass:
    """The next pass over texts whose prompt is read.

    Args:
        inputs: of the anchor: `input_ids` [batch, new], `attention_mask` [batch, all] or None, `position_ids`; and
            `prompt_length`, the columns of every prompt, or `prompt_mask` [batch, new], or neither: then all that is
            new in a first pass is prompt.
        cache: which counts how much of the prompt was read.

    Raises:
        CacheError: the cache holds another prompt.
        ConfigurationError: a mask where there is a cache.
    """
    ids, length, mask = inputs["input_ids"], inputs["prompt_length"], inputs["prompt_mask"]
    new, device = ids.shape[1], ids.device
    keep = inputs["attention_mask"]
    before, documents = 0, None
    if cache is None:
        if mask is None:
            count = new if length is None else min(length, new)
            keys = (torch.arange(new, device=device) < count).expand(ids.shape)
        else:
            keys = mask.bool()
            count = int((keys.any(dim=0) * torch.arange(1, new + 1, device=device)).max())
        columns = count
        if keep is None and inputs["position_ids"] is not None:
            documents = document_starts(inputs["position_ids"]).cumsum(dim=-1)
    else:
        if mask is not None:
            raise ConfigurationError("prompt_mask is for whole texts: leave out the cache, or give prompt_length.")
        before = cache.prompt_read
        count = min(new, cache.begin_prompt(length, new) - before)
        columns = cache.get_max_length() if cache.is_compileable else before + count
        keys = (torch.arange(columns, device=device) < before + count).expand(len(ids), -1)
    keys = keys[:, :columns]
    if keep is not None:
        keys = keys & keep[:, :columns].bool()
    place = before + torch.arange(new, device=device)
    allowed = keys.unsqueeze(1) & (torch.arange(columns, device=device) <= place.unsqueeze(1))
    if documents is not None:
        allowed = allowed & (documents.unsqueeze(2) == documents[:, :columns].unsqueeze(1))
    return PromptPass(_read(inputs, cache, before, count) if count else None, count, allowed)


def _read(inputs: dict[str, Any], cache: ComposedCache | None, before: int, count: int) -> dict[str, Any]:
    keep, positions = inputs["attention_mask"], inputs["position_ids"]
    if keep is not None and (cache is None or not cache.is_compileable):  # a static cache has a mask of its own width
        keep = keep[:, : before + count]
    return {
        "input_ids": inputs["input_ids"][:, :count],
        "attention_mask": keep,
        "position_ids": None if positions is None else positions[:, :count],
        "use_cache": inputs["use_cache"],
    }


def document_starts(positions: torch.Tensor) -> torch.Tensor:
    """bool [batch, length]: where a text begins, in rows of packed texts: a position that does not follow the last."""
    starts = torch.ones_like(positions, dtype=torch.bool)
    starts[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return starts


def prompt_of(
    labels: torch.Tensor, attention_mask: torch.Tensor | None = None, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """bool [batch, length]: the prompts of texts that are learned from: what comes before the first learned token.

    The first token of a text is never learned, so a prompt has one token at least.

    Args:
        labels: [batch, length], unshifted, -100 where nothing is learned.
        attention_mask: [batch, length], 0 at padding.
        position_ids: of packed texts, which come without a mask.
    """
    packed = attention_mask is None and position_ids is not None
    starts = torch.zeros_like(labels, dtype=torch.bool)
    starts[:, 0] = True
    if packed:
        starts = document_starts(position_ids.expand_as(labels))  # type: ignore[union-attr]
    begins = starts if attention_mask is None else attention_mask.cumsum(dim=-1) <= 1  # and padding before the text
    learned = ((labels != IGNORED) & ~begins).cumsum(dim=-1)
    columns = torch.arange(labels.shape[1], device=labels.device)
    start = torch.where(starts, columns, 0).cummax(dim=-1).values
    return learned == learned.gather(1, start)
