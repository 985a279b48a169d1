"""Speculative decoding of any target (Leviathan et al. 2023, arXiv 2211.17192): a drafter writes some tokens, and the
target judges them all in one pass. What comes out is distributed as without a drafter; greedy texts are the same.

The target may be any sum of models, of which the drafter may be one. This file knows no model and no formula: a target
is whatever has the methods of `Target`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lmcompose.decoding.acceptance import DraftLength, Emitted, Statistics, emit_greedy, emit_sampled
from lmcompose.decoding.texts import Texts
from lmcompose.errors import ConfigurationError

Process = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits processors: ids [B, n] and scores [B, V] of the next token to the final scores [B, V]."""


class Target(Protocol):
    """What is decoded, with its drafter: models that have read a batch of texts, all but its last column.

    Nothing is read twice. What a method is given may go beyond what was read by any number of columns.
    """

    bonus: bool
    """Whether the target needs no scores of the drafter. Then it is scored after the last drafted token too; where it
    does need them, that would cost a pass of the drafter for one token."""

    def draft_scores(self, ids: torch.Tensor) -> torch.Tensor:
        """Let the drafter read what is new to it in `ids` [B, n]; returns its scores [B, V] for the next token."""

    def final_logits(self, ids: torch.Tensor, count: int) -> torch.Tensor:
        """Let the others read what is new to them in `ids` [B, n], in one pass; returns the target's logits
        [B, count, V] after each of the last `count` columns."""

    def crop(self, columns: int) -> None:
        """Forget what was read after so many columns."""

    def room(self, columns: int) -> int | None:
        """How many columns more than `columns` can be read by all; None where nothing limits them."""


@dataclass
class Speculation:
    """How to speculate: `model.generate(..., speculative=Speculation(drafter="expert"))`.

    Args:
        drafter: the member that drafts. By default the composition's own `drafter`, or else the member but the first
            that has the largest positive weight.
        draft_length: how many tokens to draft at a time, at most.
        adaptive: choose the length by the acceptance seen so far; False drafts `draft_length` tokens every time.
        cost: what one drafted token costs relative to one pass of all other members; by default estimated from the
            members' sizes. Lengths are chosen by it.

    Attributes:
        statistics: of the last call of `generate` that was given this object; None where it decoded plainly.

    Raises:
        ConfigurationError: a value of a wrong type or outside its range.
    """

    drafter: str | None = None
    draft_length: int = 8
    adaptive: bool = True
    cost: float | None = None
    statistics: Statistics | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.drafter is not None and not isinstance(self.drafter, str):
            raise ConfigurationError(f"drafter = {self.drafter!r} is no name. Give the role of a member.")
        length = self.draft_length
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ConfigurationError(f"draft_length = {length!r}: give how many tokens to draft, 1 or more.")
        if not isinstance(self.adaptive, bool):
            raise ConfigurationError(f"adaptive = {self.adaptive!r}: give True or False.")
        if self.cost is not None and (isinstance(self.cost, bool) or not isinstance(self.cost, (int, float))):
            raise ConfigurationError(f"cost = {self.cost!r} is no number. Leave it out to have it estimated.")
        self.lengths()

    def lengths(self, cost: float = 0.2, bonus: bool = False) -> DraftLength:
        """What chooses the draft lengths of one call, where the drafter costs `cost` unless `self.cost` says more."""
        return DraftLength(
            minimum=1 if self.adaptive else self.draft_length,
            maximum=self.draft_length,
            cost=cost if self.cost is None else self.cost,
            bonus=bonus,
        )


def speculate(
    target: Target,
    texts: Texts,
    first_logits: torch.Tensor,
    *,
    process: Process,
    lengths: DraftLength | None,
    do_sample: bool = False,
    unfinished: Callable[[bool], bool] | None = None,
    shortest: Callable[[int], int] | None = None,
) -> Statistics:
    """Write `texts` to their end, after the target read the prompts.

    Every row is written as if it were alone; all rows advance together, by as many tokens as all of them kept.

    Args:
        target: has read all columns of `texts`.
        first_logits: [B, V] the target's logits after them.
        process: applied at each position to its own prefix, to the scores of drafter and target alike. It must be a
            function of its arguments: it is also asked about tokens that are thrown away.
        lengths: chooses how many tokens to draft; None drafts none, which is plain decoding and never crops.
        do_sample: sample from the final scores rather than take the best token.
        unfinished: whether to go on, given whether these texts are done: with several processes that must run the same
            number of passes, as long as any process has texts to write.
        shortest: the shortest of the draft lengths that all processes want.
    """
    statistics = Statistics()
    nothing = texts.ids[:, :0]
    _write(texts, nothing, first_logits.new_zeros(len(nothing), 0, 1), first_logits[:, None], process, do_sample,
           statistics, passes=1)  # fmt: skip
    while not texts.done if unfinished is None else unfinished(texts.done):
        length = _draft_length(target, texts, lengths)
        if shortest is not None:
            length = shortest(length)
        draft, probs, drafter_passes = _draft(target, texts, length, process, do_sample)
        count = length + 1 if target.bonus or length == 0 else length
        read = torch.cat([texts.ids, draft], dim=1)[:, : texts.length + count - 1]
        logits = target.final_logits(read, count)
        if not texts.done:
            emitted = _write(texts, draft, probs, logits, process, do_sample, statistics, 1, drafter_passes)
            if lengths is not None and length:
                lengths.observe(emitted.kept, length)
        if lengths is not None:
            target.crop(texts.length - 1)
    return statistics


def _draft_length(target: Target, texts: Texts, lengths: DraftLength | None) -> int:
    if lengths is None:
        return 0
    if texts.done:  # and only other processes go on
        return lengths.maximum
    rooms = [room for room in (texts.room, target.room(texts.length - 1)) if room is not None]
    return lengths.next(min(rooms) - target.bonus if rooms else None)


def _draft(
    target: Target, texts: Texts, length: int, process: Process, do_sample: bool
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Tokens [B, k] that the drafter writes after `texts`, its distributions [B, k, V] where they are sampled from,
    and how many passes it made."""
    ids, probs = texts.ids, []
    for _ in range(length):
        scores = _final(process, ids, target.draft_scores(ids))
        if do_sample:
            probs.append(_drafter_probs(scores))
            token = torch.multinomial(probs[-1], 1)[:, 0]
        else:
            token = scores.argmax(dim=-1)
        ids = torch.cat([ids, token[:, None]], dim=1)
    draft = ids[:, texts.length :]
    return draft, torch.stack(probs, dim=1) if probs else draft.new_zeros(len(draft), 0, 1), length


def _write(
    texts: Texts,
    draft: torch.Tensor,
    draft_probs: torch.Tensor,
    logits: torch.Tensor,
    process: Process,
    do_sample: bool,
    statistics: Statistics,
    passes: int = 1,
    drafter_passes: int = 0,
) -> Emitted:
    """Judge a draft by the target's `logits` [B, k or k + 1, V], write what comes of it, and count."""
    prefixes = torch.cat([texts.ids, draft], dim=1)
    scores = torch.stack(
        [_final(process, prefixes[:, : texts.length + at], logits[:, at]) for at in range(logits.shape[1])], dim=1
    )
    padded, drafted = texts.padded, draft.shape[1]
    ends = texts.ends(draft)
    if do_sample:
        target_probs = scores.softmax(dim=-1)
        if not drafted:
            draft_probs = target_probs[:, :0]
        emitted = emit_sampled(draft, draft_probs, target_probs, ends=ends, finished=padded, pad_id=texts.pad_id)
    else:
        emitted = emit_greedy(draft, scores, ends=ends, finished=padded, pad_id=texts.pad_id)
    written = texts.write(emitted.tokens, scores, logits)
    statistics.add(emitted._replace(tokens=emitted.tokens[:, :written]), drafted, padded, passes, drafter_passes)
    return emitted


def _final(process: Process, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Final scores [B, V] in float32; of a copy, since processors may write into what they are given."""
    return process(ids.contiguous(), logits.to(ids.device, torch.float32, copy=True))


def _drafter_probs(scores: torch.Tensor) -> torch.Tensor:
    """The drafter's distribution [B, V]; where processors leave it no token, all are as good as any.

    A drafter that lacks all tokens that are allowed must not stop a target that has them.
    """
    probs = scores.softmax(dim=-1)
    return torch.where(probs.isnan().any(dim=-1, keepdim=True), 1.0 / scores.shape[-1], probs)
