"""What an augmenting model with a tokenizer of its own reads in one pass, and what the anchor may see of it.

Rows of a batch grow by different numbers of its tokens. In its cache all rows end at the last column, so that padding
is in front only, as every model and every attention window takes it: a row that grows less than the others reads some
of its last tokens once more, in the columns that would be padding otherwise.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from lmcompose.alignment.rows import Rows
from lmcompose.alignment.spans import Aligner
from lmcompose.cache import ComposedCache, realign
from lmcompose.calm.prompts import document_starts


@dataclass(frozen=True)
class OwnPass:
    """One pass.

    Attributes:
        inputs: what the augmenting model is called with; None where no token became final.
        start, stop: [batch, new] the columns, of all that the model has read, that each anchor position may attend to.
        columns: how many there are.
    """

    inputs: dict[str, Any] | None
    start: torch.Tensor
    stop: torch.Tensor
    columns: int

    @property
    def seen(self) -> torch.Tensor:
        """bool [batch, new]: whether a position may attend to anything yet."""
        return self.stop > self.start

    @property
    def seeing(self) -> torch.Tensor | None:
        """`seen` as [batch, new, 1]; None where every position sees something."""
        return None if self.seen.all() else self.seen.unsqueeze(-1)

    def mask(self, implementation: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[batch, 1, new, columns]: bool for sdpa, and additive for eager attention.

        A position that sees nothing attends to everything, since a softmax over nothing is none; what it gets must be
        thrown away (`seen`).
        """
        column = torch.arange(self.columns)
        allowed = (column >= self.start[..., None]) & (column < self.stop[..., None])
        allowed = (allowed | ~self.seen[..., None]).unsqueeze(1).to(device)
        if implementation != "eager":
            return allowed
        return torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(~allowed, torch.finfo(dtype).min)


def read_on(rows: Rows, name: str, inputs: dict[str, Any], cache: ComposedCache) -> OwnPass:
    """The next pass over texts that `cache` holds; its layers are made ready for it.

    Args:
        rows: what the augmenting model has read, which `cache` keeps.
        name: of the augmenting model.
        inputs: of the anchor: `input_ids` [batch, new] and `attention_mask` [batch, all] or None.
    """
    before = max(rows.lengths, default=0)
    new, visible = rows.read(*_columns(inputs))
    lengths, count = torch.tensor(rows.lengths), max(new)
    if count == 0:
        start = (before - lengths)[:, None]
        return OwnPass(None, start.expand_as(visible), start + visible, before)
    again = lengths.clamp(max=count) - torch.tensor(new)  # tokens that are read once more
    kept = int((lengths - torch.tensor(new) - again).max())
    realign(cache, name, again.tolist(), kept)
    columns = kept + count
    start = (columns - lengths)[:, None]
    own = {
        "input_ids": rows.last(count, padding=0),
        "attention_mask": (torch.arange(columns) >= start).long(),
        "position_ids": (torch.arange(kept, columns) - start).clamp(min=0),
        "use_cache": True,
    }
    return OwnPass(own, start.expand_as(visible), start + visible, columns)


def read_at_once(aligner: Aligner, inputs: dict[str, Any]) -> OwnPass:
    """A pass over whole texts, without a cache. Packed documents are texts of their own.

    Rows are padded behind, where a causal model does not look.
    """
    ids, keep = _columns(inputs)
    positions = inputs["position_ids"]
    packed = inputs["attention_mask"] is None and positions is not None
    texts: list[_Text] = []
    for index in range(len(ids)):
        text = _Text()
        for piece in _documents(positions[min(index, len(positions) - 1)] if packed else None, ids.shape[1]):
            rows = Rows(aligner)
            _, visible = rows.read(ids[index : index + 1, piece], None if keep is None else keep[index : index + 1])
            text.start.append(torch.full_like(visible[0], len(text.ids)))
            text.stop.append(visible[0] + len(text.ids))
            text.ids += rows.rows[0].ids
            text.positions += range(rows.lengths[0])
        texts.append(text)
    columns = max(len(text.ids) for text in texts)
    start = torch.stack([torch.cat(text.start) for text in texts])
    stop = torch.stack([torch.cat(text.stop) for text in texts])
    if columns == 0:
        return OwnPass(None, start, stop, 0)
    own = {
        "input_ids": torch.tensor([text.ids + [0] * (columns - len(text.ids)) for text in texts]),
        "attention_mask": None,
        "position_ids": torch.tensor([_continued(text.positions, columns) for text in texts]),
        "use_cache": False,
    }
    return OwnPass(own, start, stop, columns)


@dataclass
class _Text:
    """A row that is put together from its packed documents."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    start: list[torch.Tensor] = field(default_factory=list)
    stop: list[torch.Tensor] = field(default_factory=list)


def _columns(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    return ids.cpu(), None if mask is None else mask[:, -ids.shape[1] :].cpu()


def _documents(positions: torch.Tensor | None, length: int) -> list[slice]:
    """The packed documents of a row: a position that does not follow the one before it begins another."""
    if positions is None:
        return [slice(0, length)]
    edges = [*document_starts(positions[None])[0].nonzero().flatten().tolist(), length]
    return [slice(left, right) for left, right in itertools.pairwise(edges)]


def _continued(places: list[int], columns: int) -> list[int]:
    """Positions of padding go on from the last token's, so that it is not taken for another document."""
    last = places[-1] if places else -1
    return places + list(range(last + 1, last + 1 + columns - len(places)))
