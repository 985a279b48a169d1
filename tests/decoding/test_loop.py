"""The loop itself, on a target that follows a script: what it asks for, how far it drafts, where it cuts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from lmcompose.decoding.counts import Statistics
from lmcompose.decoding.lengths import DraftLength
from lmcompose.decoding.lookup import Lookup
from lmcompose.decoding.pace import Pace
from lmcompose.decoding.speculative import speculate
from lmcompose.decoding.texts import Texts

VOCAB, PROMPT, END, PAD = 10, 2, 9, 0


class Script:
    """A target and a drafter that are sure of the token of every column, whatever came before.

    Args:
        wanted, drafted: [B, columns] by column of the text, from the first after the prompt on.
    """

    def __init__(
        self, wanted: list[list[int]], drafted: list[list[int]], bonus: bool = False, limit: int | None = None
    ) -> None:
        self.scores = [
            20.0 * torch.eye(VOCAB)[torch.tensor([row + [1] * (12 - len(row)) for row in rows])]
            for rows in (wanted, drafted)
        ]
        self.bonus, self.limit = bonus, limit
        self.drafts = self.takes_guesses = True
        self.asked: list[Any] = []

    def draft_scores(self, ids: torch.Tensor, count: int = 1) -> torch.Tensor:
        self.asked.append(("draft", ids.shape[1], count)[: 2 + (count > 1)])
        return self.at(1, ids.shape[1], count)

    def final_logits(self, ids: torch.Tensor, count: int, ahead: bool = False) -> torch.Tensor:
        self.asked.append(("final", ids.shape[1], count, "ahead")[: 3 + ahead])
        return self.at(0, ids.shape[1] - ahead, count)

    def logits_ahead(self, ids: torch.Tensor) -> torch.Tensor:
        self.asked.append(("ahead", ids.shape[1]))
        return self.at(0, ids.shape[1], 1)

    def at(self, which: int, columns: int, count: int) -> torch.Tensor:
        return self.scores[which][:, columns - PROMPT - count + 1 : columns - PROMPT + 1]

    def crop_draft(self, columns: int) -> None:
        self.asked.append(("crop draft", columns))

    def crop(self, columns: int) -> None:
        self.asked.append(("crop", columns))

    def room(self, columns: int) -> int | None:
        return None if self.limit is None else self.limit - columns


def write(script: Script, new: int, length: int, do_sample: bool = False, **options: Any) -> tuple[Any, Statistics]:
    """The tokens [B, new] as lists, and the statistics."""
    rows = script.scores[0].shape[0]
    criteria = StoppingCriteriaList([MaxLengthCriteria(PROMPT + new), EosTokenCriteria(END)])
    texts = Texts(torch.full((rows, PROMPT), 7), criteria, PAD)
    options.setdefault("lengths", DraftLength(minimum=length, maximum=length, bonus=script.bonus))
    statistics = speculate(
        script, texts, script.scores[0][:, 0], process=lambda ids, scores: scores,
        do_sample=do_sample, **options,
    )  # fmt: skip
    return texts.ids[:, PROMPT:].tolist(), statistics


ALL = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("do_sample", [False, True])
def test_what_is_asked_for_when_every_draft_is_kept(do_sample: bool) -> None:
    script = Script([ALL], [ALL])
    tokens, counts = write(script, 6, 3, do_sample)
    assert tokens == [ALL[:6]]
    assert script.asked == [
        ("draft", 3), ("draft", 4), ("draft", 5), ("final", 5, 3), ("crop", 5),
        ("draft", 6), ("draft", 7), ("final", 7, 2), ("crop", 7),  # two more are wanted, and no more are drafted
    ]  # fmt: skip
    assert (counts.passes, counts.rounds, counts.drafter_passes, counts.positions, counts.tokens) == (3, 2, 5, 5, 6)
    assert counts.acceptance == 1


def test_a_target_that_needs_no_scores_of_the_drafter_is_scored_once_more() -> None:
    script = Script([ALL], [ALL], bonus=True)
    tokens, _ = write(script, 7, 3)
    assert tokens == [ALL[:7]]
    assert script.asked == [
        ("draft", 3), ("draft", 4), ("draft", 5), ("final", 6, 4), ("crop", 6),
        ("draft", 7), ("final", 8, 2), ("crop", 8),
    ]  # fmt: skip
    script = Script([ALL], [ALL], bonus=True)
    assert write(script, 6, 3)[0] == [ALL[:6]]
    assert script.asked[5:] == [("final", 7, 1), ("crop", 7)]  # one token is wanted: nothing is drafted for it


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("bonus", [False, True])
def test_the_cut_comes_after_the_first_token_that_any_row_refuses(do_sample: bool, bonus: bool) -> None:
    wanted = [[1, 2, 3, 4, 5, 6], [8, 7, 6, 5, 4, 3]]
    drafted = [[0, 2, 3, 4, 5, 6], [0, 7, 1, 5, 4, 3]]
    script = Script(wanted, drafted, bonus)
    tokens, counts = write(script, 6, 4, do_sample)
    assert tokens == wanted
    assert ("crop", PROMPT + 3 - 1) in script.asked  # of the first token and the two of the first round
    assert (counts.drafted, counts.accepted) == ((14, 11) if not bonus else (12, 9))


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_row_that_ends_within_its_draft_holds_no_other_back(do_sample: bool) -> None:
    """Behind its end it would have refused, and another row goes on."""
    wanted = [[1, END, 4, 4, 4, 4, 4], [1, 2, 3, 4, 5, 6, 7]]
    drafted = [[0, END, 3, 3, 3, 3, 3], [0, 2, 3, 4, 5, 6, 7]]
    script = Script(wanted, drafted)
    tokens, counts = write(script, 7, 3, do_sample)
    assert tokens == [[1, END, PAD, PAD, PAD, PAD, PAD], wanted[1]]
    assert (counts.rounds, counts.passes) == (2, 3)


@pytest.mark.parametrize("do_sample", [False, True])
def test_all_rows_end_within_their_drafts(do_sample: bool) -> None:
    wanted = [[1, 2, END, 4, 4], [1, 2, 3, END, 4]]
    script = Script(wanted, wanted)
    tokens, counts = write(script, 9, 4, do_sample)
    assert tokens == [[1, 2, END, PAD], [1, 2, 3, END]]
    assert (counts.rounds, counts.tokens) == (1, 4)
    assert script.asked[-1] == ("crop", PROMPT + 3)  # as if it had been written plainly


def test_positions_limit_the_draft() -> None:
    script = Script([ALL], [ALL], limit=PROMPT + 4)
    write(script, 7, 6, unfinished=lambda done: not done and len(script.asked) < 8)
    assert script.asked[:6] == [("draft", 3), ("draft", 4), ("draft", 5), ("draft", 6), ("final", 6, 4), ("crop", 6)]
    assert script.asked[6:] == [("final", 7, 1), ("crop", 7)]  # and the members say what is the matter


def test_without_a_length_nothing_is_drafted_and_nothing_cropped() -> None:
    script = Script([ALL], [ALL])
    texts = Texts(torch.full((1, PROMPT), 7), StoppingCriteriaList([MaxLengthCriteria(PROMPT + 3)]))
    counts = speculate(script, texts, script.scores[0][:, 0], process=lambda ids, scores: scores, lengths=None)
    assert texts.ids[:, PROMPT:].tolist() == [ALL[:3]]
    assert script.asked == [("final", 3, 1), ("final", 4, 1)]
    assert (counts.passes, counts.rounds, counts.tokens) == (3, 0, 3)


def test_a_text_that_is_done_goes_on_for_other_processes() -> None:
    """It drafts what they draft, and writes nothing."""
    script = Script([[1, 2]], [[1, 2]])
    wants: list[int] = []
    tokens, counts = write(
        script,
        2,
        5,
        unfinished=lambda done: len(wants) < 3,
        shortest=lambda length: wants.append(length) or min(length, 2),
    )
    assert tokens == [[1, 2]]
    assert wants == [1, 5, 5]  # done, it leaves the length to the others
    assert script.asked[3:] == [("draft", 4), ("draft", 5), ("final", 5, 2), ("crop", 3)] * 2
    assert (counts.rounds, counts.tokens) == (1, 2)


def test_both_are_asked_about_each_position_with_its_own_prefix() -> None:
    seen = []

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids[0, PROMPT:].tolist())
        assert ids.is_contiguous()
        return scores.fill_(0).index_fill(1, torch.tensor([len(seen[-1]) + 1]), 1.0)  # of a copy

    script = Script([[5] * 8], [[6] * 8])
    before = [scores.clone() for scores in script.scores]
    texts = Texts(torch.full((1, PROMPT), 7), StoppingCriteriaList([MaxLengthCriteria(PROMPT + 4)]), keep_logits=True)
    lengths = DraftLength(minimum=3, maximum=3)
    speculate(script, texts, script.scores[0][:, 0], process=process, lengths=lengths)
    assert texts.ids[:, PROMPT:].tolist() == [[1, 2, 3, 4]]
    assert seen == [[], [1], [1, 2], [1, 2, 3], [1], [1, 2], [1, 2, 3]]
    assert texts.logits is not None
    assert all(torch.equal(column, before[0][:, 0]) for column in texts.logits)
    assert all(torch.equal(*scores) for scores in zip(script.scores, before, strict=True))


def test_a_drafter_without_any_token_left_stops_nothing() -> None:
    """Its only token is ruled out: it drafts at random, and the target decides."""

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores < 20, -torch.inf).index_fill(1, torch.tensor([5]), -torch.inf)

    torch.manual_seed(0)
    script = Script([ALL[:4]], [[5] * 8])
    texts = Texts(torch.full((1, PROMPT), 7), StoppingCriteriaList([MaxLengthCriteria(PROMPT + 4)]))
    lengths = DraftLength(minimum=2, maximum=2)
    counts = speculate(script, texts, script.scores[0][:, 0], process=process, lengths=lengths, do_sample=True)
    assert texts.ids[:, PROMPT:].tolist() == [ALL[:4]]
    assert counts.rounds > 1


# ------------------------------------------------------------------------------------------------- ahead, and looked up


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_token_more_for_a_pass_of_the_drafter(do_sample: bool) -> None:
    """The others read the last drafted token too; the drafter reads it only where the whole draft was kept."""
    script = Script([ALL], [ALL])
    tokens, counts = write(script, 7, 2, do_sample, lengths=Pace(2, cost=0.2, position=1e-6))
    assert tokens == [ALL[:7]]
    assert script.asked == [
        ("draft", 3), ("draft", 4), ("final", 5, 2, "ahead"), ("ahead", 5), ("crop", 5),
        ("draft", 6), ("draft", 7), ("final", 8, 2, "ahead"), ("ahead", 8), ("crop", 8),
    ]  # fmt: skip
    assert (counts.passes, counts.rounds, counts.drafter_passes, counts.positions, counts.tokens) == (3, 2, 6, 4, 7)
    script = Script([ALL], [[1, 2, 9, 4, 5, 6]])
    tokens, counts = write(script, 4, 2, do_sample, lengths=Pace(2, cost=0.2, position=1e-6))
    assert tokens == [ALL[:4]]
    assert script.asked[2:4] == [("final", 5, 2, "ahead"), ("crop", 4)]  # the second was refused


def test_rows_that_ended_want_no_token_more() -> None:
    script = Script([[1, 2, END]], [[1, 2, END]])
    tokens, counts = write(script, 7, 2, lengths=Pace(2, cost=0.2, position=1e-6))
    assert tokens == [[1, 2, END]]
    assert script.asked[2:] == [("final", 5, 2, "ahead"), ("crop", 4)]
    assert counts.tokens == 3
    wanted = [[1, 2, END, 1, 1, 1], [1, 2, 3, 4, 5, 6]]  # another row goes on
    script = Script(wanted, wanted)
    tokens, _ = write(script, 6, 2, lengths=Pace(2, cost=0.2, position=1e-6))
    assert tokens == [[1, 2, END, PAD, PAD, PAD], wanted[1]]
    assert ("ahead", 5) in script.asked


ROUND = [1, 2, 3, 1, 2, 3, 1, 2, 5, 6]
"""From the fifth token on it repeats itself; the ninth breaks off."""


@pytest.mark.parametrize("do_sample", [False, True])
def test_the_drafter_reads_what_was_looked_up(do_sample: bool) -> None:
    """It keeps what it would have written, and forgets the rest."""
    script = Script([ROUND], [ROUND])
    lengths = DraftLength(minimum=9, maximum=9)
    tokens, counts = write(script, 10, 9, do_sample, lengths=lengths, lookup=Lookup(3, 3, adaptive=False))
    assert tokens == [ROUND]
    assert script.asked == [
        ("draft", 3), ("draft", 4), ("draft", 5), ("draft", 9, 4),  # after 1, 2, 3, 1 it guesses 2, 3, 1
        ("draft", 11, 2), ("crop draft", 10), ("draft", 11), ("final", 11, 9), ("crop", 11),  # 3, and 5 follows
    ]  # fmt: skip
    assert (counts.guessed, counts.right, counts.drafter_passes, counts.positions) == (4, 3, 6, 9)


def test_without_a_drafter_what_was_looked_up_is_the_draft() -> None:
    for do_sample in (False, True):
        script = Script([ROUND], [ROUND], bonus=True)
        script.drafts = False
        tokens, counts = write(script, 10, 9, do_sample, lookup=Lookup(3, 3, adaptive=False))
        assert tokens == [ROUND]
        assert script.asked == [
            ("final", 3, 1), ("crop", 3), ("final", 4, 1), ("crop", 4), ("final", 5, 1), ("crop", 5),
            ("final", 9, 4), ("crop", 9), ("final", 11, 2), ("crop", 10), ("final", 11, 1), ("crop", 11),
        ]  # fmt: skip
        assert (counts.drafted, counts.accepted) == (counts.guessed, counts.right) == (4, 3)
        assert (counts.passes, counts.drafter_passes, counts.rounds) == (7, 0, 2)


def test_guesses_that_were_never_right_are_read_no_more_until_they_are() -> None:
    lookup = Lookup(4, 1)
    for _ in range(100):
        lookup.observe([1], [0], 1)
    script = Script([ROUND[:6] * 2], [ROUND[:6] * 2])
    write(script, 11, 9, lookup=lookup, lengths=DraftLength(minimum=9, maximum=9))
    assert max((asked[2] for asked in script.asked if asked[0] == "draft" and len(asked) > 2), default=1) > 1
    assert script.asked[3] == ("draft", 6)
