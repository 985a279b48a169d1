"""Speculative decoding of any target (Leviathan et al. 2023, arXiv 2211.17192): a drafter writes some tokens, and the
target judges them all in one pass. What comes out is distributed as without a drafter; greedy texts are the same.

The target may be any sum of models, of which the drafter may be one. This file knows no model and no formula: a target
is whatever has the methods of `Target`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lmcompose.decoding.acceptance import (
    Emitted,
    accept_greedy,
    accept_sampled,
    emit_accepted,
    emit_greedy,
    ended,
    lockstep,
)
from lmcompose.decoding.counts import Statistics
from lmcompose.decoding.drafting import (
    Draft,
    Drafter,
    Process,
    draft_by_lookup,
    draft_by_model,
    final_scores,
    no_draft,
    open_rows,
)
from lmcompose.decoding.lengths import DraftLength
from lmcompose.decoding.lookup import Lookup
from lmcompose.decoding.pace import Pace, Round
from lmcompose.decoding.texts import Texts
from lmcompose.errors import ConfigurationError

LOOKUP = "lookup"
"""In place of a drafter: tokens are looked up in the text itself, and no model drafts."""

POSITION_COST = 0.07
"""What one more token in a block costs the members that score it, relative to a pass over one token: reading weights is
most of a pass, but not all. On two CPU cores, models of 0.1 to 1.5 billion parameters took 5 to 11 % (bfloat16)."""


class Target(Drafter, Protocol):
    """What is decoded, with its drafter: models that have read a batch of texts, all but its last column.

    Nothing is read twice. What a method is given may go beyond what was read by any number of columns.
    """

    drafts: bool
    """Whether there is a model that drafts."""

    @property
    def takes_guesses(self) -> bool:
        """Whether the drafter may read tokens in vain and forget them, while its draft goes on."""

    bonus: bool
    """Whether the target needs no scores of the drafter. Then it is scored after the last drafted token too; where it
    does need them, that costs a pass of the drafter for one token."""

    def draft_scores(self, ids: torch.Tensor, count: int = 1) -> torch.Tensor:
        """Let the drafter read what is new to it in `ids` [B, n]; returns its scores [B, count, V] after each of the
        last `count` columns."""

    def final_logits(self, ids: torch.Tensor, count: int, ahead: bool = False) -> torch.Tensor:
        """Let the others read what is new to them in `ids` [B, n], in one pass; returns the target's logits
        [B, count, V] after each of the last `count` columns; with `ahead`, of those before the last one, which only
        the others have read."""

    def logits_ahead(self, ids: torch.Tensor) -> torch.Tensor:
        """Let the drafter read the last column of `ids` [B, n] too, after `final_logits(ids, ..., ahead=True)`; returns
        the target's logits [B, 1, V] after it."""

    def crop_draft(self, columns: int) -> None:
        """Let the drafter forget what it read after so many columns; the others have not read so far."""

    def crop(self, columns: int) -> None:
        """Forget what was read after so many columns."""

    def room(self, columns: int) -> int | None:
        """How many columns more than `columns` can be read by all; None where nothing limits them."""


@dataclass
class Speculation:
    """How to speculate: `model.generate(..., speculative=Speculation(drafter="expert"))`.

    Args:
        drafter: the member that drafts. By default the composition's own `drafter`, or else the member but the first
            that has the largest positive weight. "lookup": none does, and drafts are looked up in the text itself.
        draft_length: how many tokens to draft at a time, at most.
        adaptive: stop drafting where it does not pay, by how sure the drafter is and what was kept so far; False drafts
            `draft_length` tokens every time.
        cost: what one drafted token costs relative to one pass of all other members; by default estimated from the
            members' sizes. How far is drafted depends on it.
        prompt_lookup_num_tokens: how many tokens to look up at a time, at most: those that followed the last few where
            these stood before in the text. The drafter reads them in one pass, and keeps what it would have written. 0
            looks nothing up. By default `draft_length`, or 0 where lengths are not adaptive and a member drafts.
        max_matching_ngram_size: how many last tokens to look for, at most.

    Attributes:
        statistics: of the last call of `generate` that was given this object; None where it decoded plainly.

    Raises:
        ConfigurationError: a value of a wrong type or outside its range.
    """

    drafter: str | None = None
    draft_length: int = 8
    adaptive: bool = True
    cost: float | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int = 3
    statistics: Statistics | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.drafter is not None and not isinstance(self.drafter, str):
            raise ConfigurationError(f"drafter = {self.drafter!r} is no name. Give the role of a member, or 'lookup'.")
        length = self.draft_length
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ConfigurationError(f"draft_length = {length!r}: give how many tokens to draft, 1 or more.")
        if not isinstance(self.adaptive, bool):
            raise ConfigurationError(f"adaptive = {self.adaptive!r}: give True or False.")
        if self.cost is not None and (isinstance(self.cost, bool) or not isinstance(self.cost, (int, float))):
            raise ConfigurationError(f"cost = {self.cost!r} is no number. Leave it out to have it estimated.")
        self.lengths()
        self.lookup(self.drafter)

    def lengths(self, cost: float = 0.2, bonus: bool = False) -> DraftLength:
        """What chooses the draft lengths of one call, where the drafter costs `cost` unless `self.cost` says more."""
        return DraftLength(
            minimum=1 if self.adaptive else self.draft_length,
            maximum=self.draft_length,
            cost=cost if self.cost is None else self.cost,
            bonus=bonus,
        )

    def pace(self, cost: float = 0.2, bonus: bool = False, synced: bool = False) -> "DraftLength | Pace":
        """What decides how far to draft in one call: token by token, or beforehand where the length is fixed or several
        processes must run the same passes (`synced`)."""
        if synced or not self.adaptive:
            return self.lengths(cost, bonus)
        return Pace(self.draft_length, cost if self.cost is None else self.cost, POSITION_COST, bonus)

    def lookup(self, drafter: str | None, synced: bool = False) -> Lookup | None:
        """What looks tokens up in one call in which `drafter` drafts; None where nothing does.

        Raises:
            ConfigurationError: a number that cannot be, or nothing is left to draft.
        """
        count, alone = self.prompt_lookup_num_tokens, drafter == LOOKUP
        if count is None:
            count = self.draft_length if self.adaptive or alone else 0
        if count == 0 and not isinstance(count, bool):
            if alone:
                raise ConfigurationError(
                    "drafter='lookup' with prompt_lookup_num_tokens=0 drafts nothing: give a number of tokens."
                )
            count = None
        lookup = Lookup(1 if count is None else count, self.max_matching_ngram_size, self.adaptive)
        return None if count is None or synced else lookup


def speculate(
    target: Target,
    texts: Texts,
    first_logits: torch.Tensor,
    *,
    process: Process,
    lengths: DraftLength | Pace | None,
    lookup: Lookup | None = None,
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
        lookup: guesses tokens that the drafter may read at once; where no model drafts, they are the draft.
        do_sample: sample from the final scores rather than take the best token.
        unfinished: whether to go on, given whether these texts are done: with several processes that must run the same
            number of passes, as long as any process has texts to write. Their lengths must be known beforehand.
        shortest: the shortest of the draft lengths that all processes want.
    """
    statistics = Statistics()
    judge = _Judge(target, texts, process, do_sample, statistics)
    judge.write(no_draft(texts), first_logits[:, None], texts.ids)
    while not texts.done if unfinished is None else unfinished(texts.done):
        plan = _round(target, texts, lengths, lookup, shortest)
        if target.drafts or lookup is None:
            draft = draft_by_model(target, texts, plan, process, do_sample, lookup, POSITION_COST)
        else:
            vocabulary = first_logits.shape[-1]
            draft = draft_by_lookup(texts, lookup, plan.limit, POSITION_COST, vocabulary, do_sample)
        length = draft.tokens.shape[1]
        ahead = plan.looks_ahead(length)
        count = length + 1 if target.bonus or length == 0 else length
        read = torch.cat([texts.ids, draft.tokens], dim=1)[:, : texts.length + count + ahead - 1]
        logits = target.final_logits(read, count, ahead)
        if not texts.done:
            padded, before, passes = texts.padded, texts.length, statistics.drafter_passes
            emitted = judge.write(draft, logits, read, ahead)
            plan.judged(open_rows(emitted.accepted, padded), emitted.kept, length)
            passes = statistics.drafter_passes - passes
            plan.done(texts.length - before, passes, draft.positions + passes - draft.passes)
            if draft.guess is not None and lookup is not None and draft.guess.sizes:
                right = emitted.accepted if length else (draft.guess.tokens[:, 0] == emitted.tokens[:, 0]).long()
                lookup.observe(draft.guess.sizes, open_rows(right, padded), max(1, length))
        if lengths is not None:
            target.crop(texts.length - 1)
    return statistics


def _round(
    target: Target,
    texts: Texts,
    lengths: DraftLength | Pace | None,
    lookup: Lookup | None,
    shortest: Callable[[int], int] | None,
) -> Round:
    """How far to draft next."""
    limit = 0
    if lengths is not None and (target.drafts or lookup is not None):
        rooms = [room for room in (texts.room, target.room(texts.length - 1)) if room is not None]
        room = min(rooms) - target.bonus if rooms else None
        if not target.drafts:  # what is looked up says itself how far it goes
            return Round(lengths.maximum if room is None else max(0, min(lengths.maximum, room)))
        if isinstance(lengths, Pace):
            return lengths.start(room)
        limit = lengths.maximum if texts.done else lengths.next(room)  # done: only other processes go on
    return Round(limit if shortest is None else shortest(limit), lengths if isinstance(lengths, DraftLength) else None)


class _Judge:
    """Judges drafts by the target's logits, writes what comes of them, and counts."""

    def __init__(self, target: Target, texts: Texts, process: Process, do_sample: bool, statistics: Statistics) -> None:
        self.target, self.texts, self.process, self.do_sample = target, texts, process, do_sample
        self.statistics = statistics

    def write(self, draft: Draft, logits: torch.Tensor, read: torch.Tensor, ahead: bool = False) -> Emitted:
        """One round.

        Args:
            draft: of k tokens.
            logits: [B, k or k + 1, V] the target's, from the token after the texts on.
            read: [B, n] the columns that the target has read.
            ahead: whether the target can be asked for its logits after the last drafted token.
        """
        texts, tokens = self.texts, draft.tokens
        padded, ends, drafted = texts.padded, texts.ends(tokens), tokens.shape[1]
        whole = torch.cat([texts.ids, tokens], dim=1)
        scores = final_scores(self.process, whole[:, : texts.length + logits.shape[1] - 1], logits)
        probs = draft.probs
        if self.do_sample:
            law = scores.softmax(dim=-1)
            probs = probs if drafted else law[:, :0]
            accepted = accept_sampled(tokens, probs, law, torch.rand(tokens.shape, device=tokens.device))
        else:
            accepted = accept_greedy(tokens, scores)
        passes = draft.passes
        if ahead and _kept_whole(accepted, ends, padded, drafted):
            more = self.target.logits_ahead(read)
            logits = torch.cat([logits, more.to(logits.dtype)], dim=1)
            scores = torch.cat([scores, final_scores(self.process, read, more)], dim=1)
            passes += 1
        if self.do_sample:
            emitted = emit_accepted(
                tokens, probs, scores.softmax(dim=-1), accepted, ends=ends, finished=padded, pad_id=texts.pad_id
            )
        else:
            emitted = emit_greedy(tokens, scores, ends=ends, finished=padded, pad_id=texts.pad_id)
        written = texts.write(emitted.tokens, scores, logits)
        right = draft.right if draft.guess is None else sum(open_rows(accepted, padded))
        emitted_here = emitted._replace(tokens=emitted.tokens[:, :written])
        self.statistics.add(emitted_here, drafted, padded, 1, passes, draft.guessed, right)
        return emitted


def _kept_whole(accepted: torch.Tensor, ends: torch.Tensor | None, padded: torch.Tensor | None, drafted: int) -> bool:
    """Whether the rows that write on after a draft kept all of it, and there are such rows."""
    idle = torch.zeros_like(accepted, dtype=torch.bool)
    for rows in (padded, None if ends is None else ended(accepted, ends)):
        idle = idle if rows is None else idle | rows
    return not bool(idle.all()) and lockstep(accepted, idle) == drafted
