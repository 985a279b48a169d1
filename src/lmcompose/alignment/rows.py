"""A batch of rows in the tokens of a model that reads the same text with another tokenizer: bookkeeping, no model.

Every row grows by columns of the leader's ids, padding among them, and by as many ids of its own as become final. Rows
can be put in another order, repeated, and shortened again, as a cache can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lmcompose.alignment.spans import Aligner, RowState

PADDING = -1
"""A column that is no token of the row."""


@dataclass
class Row:
    """One row.

    Attributes:
        state: how far it was read.
        columns: the leader's ids, `PADDING` where there is none.
        visible: after each column, how many of `ids` may be attended to there.
        ids: its own ids so far.
        marks: before each reading, how many columns there were, and the state: where to go on after a shortening.
    """

    state: RowState
    columns: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    marks: list[tuple[int, RowState]] = field(default_factory=list)

    def copy(self) -> "Row":
        """A row that goes its own way from here."""
        return Row(self.state.copy(), self.columns[:], self.visible[:], self.ids[:], self.marks[:])

    def read(self, aligner: Aligner, columns: Sequence[int]) -> int:
        """Read more columns; returns how many ids became final."""
        self.marks.append((len(self.columns), self.state.copy()))
        new, counts = aligner.advance(self.state, [column for column in columns if column != PADDING])
        seen, following = self.visible[-1] if self.visible else 0, iter(counts)
        for column in columns:
            seen = seen if column == PADDING else next(following)
            self.visible.append(seen)
        self.columns += columns
        self.ids += new
        return len(new)

    def drop(self, aligner: Aligner, count: int) -> int:
        """Forget the last `count` columns; returns how many ids went with them."""
        length, before = len(self.columns) - count, len(self.ids)
        while len(self.marks) > 1 and self.marks[-1][0] > length:
            self.marks.pop()
        at, state = self.marks.pop()
        again = self.columns[at:length]
        self.state = state
        del self.columns[at:], self.visible[at:], self.ids[state.count :]
        self.read(aligner, again)
        return before - len(self.ids)


class Rows:
    """The rows of a batch.

    Args:
        aligner: of the two tokenizers.
        rows: made by `read` where there are none yet.
    """

    def __init__(self, aligner: Aligner) -> None:
        self.aligner = aligner
        self.rows: list[Row] = []

    @property
    def columns(self) -> int:
        """How many columns were read."""
        return len(self.rows[0].columns) if self.rows else 0

    @property
    def lengths(self) -> list[int]:
        """How many ids of its own each row has."""
        return [len(row.ids) for row in self.rows]

    def read(self, ids: torch.Tensor, keep: torch.Tensor | None) -> tuple[list[int], torch.Tensor]:
        """Read more columns of every row.

        Args:
            ids: [batch, new] of the leader.
            keep: [batch, new], 0 at padding; without it nothing is padding.

        Returns:
            How many ids became final, by row; and [batch, new] how many ids may be attended to at each new column, on
            the CPU.
        """
        if keep is not None:
            ids = ids.masked_fill(keep == 0, PADDING)
        listed = ids.tolist()
        if not self.rows:
            self.rows = [Row(self.aligner.start()) for _ in listed]
        new = [row.read(self.aligner, columns) for row, columns in zip(self.rows, listed, strict=True)]
        return new, torch.tensor([row.visible[len(row.visible) - ids.shape[1] :] for row in self.rows])

    def last(self, count: int, padding: int) -> torch.Tensor:
        """The last `count` ids of every row [batch, count], shorter rows padded in front with `padding`."""
        ends = [row.ids[-count:] for row in self.rows]
        return torch.tensor([[padding] * (count - len(end)) + end for end in ends])

    def select(self, indices: torch.Tensor) -> None:
        """Keep the rows at `indices`, in that order; a row may come several times."""
        self.rows = [self.rows[index].copy() for index in indices.tolist()]

    def repeat(self, repeats: int) -> None:
        """Every row `repeats` times, one after the other."""
        self.rows = [row.copy() for row in self.rows for _ in range(repeats)]

    def drop(self, count: int) -> list[int]:
        """Forget the last `count` columns; returns how many ids went with them, by row."""
        return [row.drop(self.aligner, count) for row in self.rows]

    def reset(self) -> None:
        """Forget everything."""
        self.rows = []
