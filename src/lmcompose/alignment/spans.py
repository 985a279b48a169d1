"""Which augmenting tokens an anchor token may attend to, where the two models have different tokenizers.

Both models read the same text, each in its own tokens. An anchor token sees those augmenting tokens that are final
given the text up to its own end: no later text can change them. So nothing leaks, the augmenting side only ever
appends, and a text that is read token by token gives what it gives at once. The cost is a lag: the word that is being
written is not seen yet (`lag` measures it; `finality.py` and `cuts.py` state the rules).

The text is what the anchor's ids spell, canonical or not. A special token of the anchor has no text and closes a
segment: all of it is final, and the augmenting model reads the next segment as a text of its own, with no new BOS.

Two tokenizers that read the same tokens take no such way: the augmenting ids are the anchor's, and an anchor token
sees the augmenting tokens up to its own place.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from lmcompose.alignment.backend import read_backend
from lmcompose.alignment.finality import FinalTokens, Kept
from lmcompose.alignment.pieces import Pieces, Reading
from lmcompose.alignment.vocabulary import check_same_tokenizer
from lmcompose.errors import DataError, TokenizerMismatchError


class Alignment(NamedTuple):
    """One row in the tokens of the augmenting model.

    Attributes:
        ids: the augmenting ids that are final after the whole row.
        visible: for each anchor id, how many of `ids` it may attend to, from the first on; never decreasing.
    """

    ids: list[int]
    visible: list[int]


@dataclass
class RowState:
    """How far one row was read. `copy` it where a row forks (beams) or may be taken back (drafts).

    Attributes:
        count: how many augmenting ids the row has.
        begun: whether the first of them (BOS) were given out.
        reading: of the anchor's ids.
        kept: of the text that is not final.
    """

    count: int = 0
    begun: bool = False
    reading: Reading = field(default_factory=Reading)
    kept: tuple[Kept, ...] = ()

    def copy(self) -> "RowState":
        """A state that goes its own way from here."""
        return copy.copy(self)


class Aligner(ABC):
    """The augmenting tokens of rows of anchor ids. Made by `aligner`."""

    same_tokens: bool = False
    """Whether the augmenting ids are the anchor's own."""

    @abstractmethod
    def start(self) -> RowState:
        """The state of a row of which nothing was read."""

    @abstractmethod
    def advance(self, state: RowState, ids: Iterable[int] | torch.Tensor) -> tuple[list[int], list[int]]:
        """Read the next anchor ids of a row; `state` moves on. Reading in chunks gives what reading at once gives.

        Args:
            ids: any number of ids, without padding: integers, or a tensor [n].

        Returns:
            The augmenting ids that became final, to be appended; and for each of `ids`, how many augmenting ids, from
            the start of the row, are final after it.

        Raises:
            ConfigurationError: an id is negative.
        """

    def align(self, ids: Iterable[int] | torch.Tensor) -> Alignment:
        """A whole row; the errors are those of `advance`."""
        return Alignment(*self.advance(self.start(), ids))


class SameTokens(Aligner):
    """The anchor's ids are the augmenting model's: the path of models that share a tokenizer."""

    same_tokens = True

    def start(self) -> RowState:
        return RowState(begun=True)

    def advance(self, state: RowState, ids: Iterable[int] | torch.Tensor) -> tuple[list[int], list[int]]:
        new = _listed(ids)
        visible = list(range(state.count + 1, state.count + len(new) + 1))
        state.count += len(new)
        return new, visible


class TextAligner(Aligner):
    """Two tokenizers over one text.

    Raises:
        MemberError: a tokenizer that is missing or that has no fast backend; one of an unknown family.
    """

    def __init__(
        self,
        anchor: PreTrainedTokenizerBase | None,
        augmenting: PreTrainedTokenizerBase | None,
        anchor_name: str = "anchor",
        augmenting_name: str = "augmenting",
    ) -> None:
        spec = read_backend(anchor, anchor_name)
        assert anchor is not None
        self.anchor_tokenizer = anchor
        self.pieces = Pieces(anchor, spec, anchor_name)
        self.final = FinalTokens(augmenting, augmenting_name)

    def start(self) -> RowState:
        return RowState(kept=self.final.start())

    def advance(self, state: RowState, ids: Iterable[int] | torch.Tensor) -> tuple[list[int], list[int]]:
        new: list[int] = []
        visible: list[int] = []
        # Work on copies: an id that is refused leaves the row as it was.
        reading, kept = state.reading, state.kept
        if not state.begun:
            new += self.final.leading
        for token in _listed(ids):
            text, closes, reading = self.pieces.read(reading, token)
            more, kept = self.final.grow(kept, text, closes)
            new += more
            visible.append(state.count + len(new))
        state.count += len(new)
        state.begun, state.reading, state.kept = True, reading, kept
        return new, visible


def aligner(
    anchor_tokenizer: PreTrainedTokenizerBase | None,
    augmenting_tokenizer: PreTrainedTokenizerBase | None,
    anchor_name: str = "anchor",
    augmenting_name: str = "augmenting",
) -> Aligner:
    """The aligner of two members. Where both read the same tokens, by the test that members of one tokenizer pass
    anywhere in this project, the anchor's ids are passed through.

    Args:
        anchor_name, augmenting_name: for messages.

    Raises:
        MemberError: a tokenizer that is missing or that cannot say where its tokens begin and end; one of a family of
            which nothing says what it adds to a text (anchor) or what is final (augmenting).
    """
    if anchor_tokenizer is not None and augmenting_tokenizer is not None:
        try:
            check_same_tokenizer(anchor_tokenizer, augmenting_tokenizer, anchor_name, augmenting_name)
        except TokenizerMismatchError:
            pass
        else:
            return SameTokens()
    return TextAligner(anchor_tokenizer, augmenting_tokenizer, anchor_name, augmenting_name)


class Lag(NamedTuple):
    """By how much the visible augmenting tokens trail a text, on average over the anchor's tokens.

    Attributes:
        tokens: augmenting tokens of the text so far, without those that are visible.
        characters: characters of the text so far that no visible token covers.
    """

    tokens: float
    characters: float


def lag(aligner: Aligner, text: str) -> Lag:
    """Measure the lag over one text, read by the anchor token by token.

    Raises:
        DataError: the text has a lone surrogate, or no anchor token.
    """
    check_text(text)
    if not isinstance(aligner, TextAligner):
        return Lag(0.0, 0.0)
    ids = aligner.anchor_tokenizer(text, verbose=False)["input_ids"]
    if not ids:
        raise DataError("A lag is measured over the tokens of a text, and this text has none.")
    state = aligner.start()
    tokens = characters = 0
    for token in ids:
        aligner.advance(state, [token])
        tokens += len(aligner.final.grow(state.kept, "", closed=True)[0])
        characters += aligner.final.waiting(state.kept)
    return Lag(tokens / len(ids), characters / len(ids))


def check_text(text: str) -> None:
    """Refuse a text that is none: a lone surrogate has no bytes, and no tokenizer reads it.

    Raises:
        DataError: the text has one; its place is named.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"The text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, which is no "
            "character and has no bytes. Read the text with errors='replace', or remove it."
        ) from None


def _listed(ids: Iterable[int] | torch.Tensor) -> list[int]:
    return ids.tolist() if isinstance(ids, torch.Tensor) else [int(i) for i in ids]
