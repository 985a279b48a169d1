"""Texts that are written several columns at a time end where they would have, column by column."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from lmcompose.decoding.texts import Texts

PROMPTS = torch.tensor([[7, 7], [7, 8]])
END, PAD = 2, 0


class Seen(StoppingCriteria):
    """Stops a row after token 5, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.asked.append((input_ids.shape[1], None if scores is None else len(scores)))
        return input_ids[:, -1] == 5


def block(tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens [B, m] with scores that name their column and logits that are twice as much."""
    ids = torch.tensor(tokens)
    scores = torch.arange(ids.shape[1], dtype=torch.float32)[None, :, None].expand(len(ids), -1, 9)
    return ids, scores, 2 * scores


def test_rows_end_in_the_middle_of_a_block_and_are_padded() -> None:
    criterion = Seen()
    texts = Texts(PROMPTS, StoppingCriteriaList([EosTokenCriteria(END), criterion]), torch.tensor(PAD))
    assert texts.write(*block([[4, END, 4], [4, 4, 4]])) == 3
    assert texts.ids.tolist() == [[7, 7, 4, END, PAD], [7, 8, 4, 4, 4]]
    assert (texts.ended.tolist(), texts.done) == ([True, False], False)
    assert texts.padded is texts.ended
    assert texts.write(*block([[4, 4, 4], [3, 5, 4]])) == 2  # nothing is written after the last row's end
    assert texts.ids.tolist() == [[7, 7, 4, END, PAD, PAD, PAD], [7, 8, 4, 4, 4, 3, 5]]
    assert texts.done
    assert criterion.asked == [(length, None) for length in (3, 4, 5, 6, 7)]


def test_without_an_end_token_stopped_rows_write_on_as_in_generate() -> None:
    texts = Texts(PROMPTS, StoppingCriteriaList([Seen()]))
    assert texts.write(*block([[5, 4, 4], [4, 4, 5]])) == 3
    assert texts.ids.tolist() == [[7, 7, 5, 4, 4], [7, 8, 4, 4, 5]]
    assert texts.done
    assert (texts.padded, texts.ends(torch.tensor([[2, 5]]))) == (None, None)


def test_which_tokens_end_a_row() -> None:
    criteria = StoppingCriteriaList([EosTokenCriteria([END, 6]), EosTokenCriteria(3)])
    ends = Texts(PROMPTS, criteria, PAD).ends(torch.tensor([[2, 5, 6], [3, 4, 2]]))
    assert ends is not None
    assert ends.tolist() == [[True, False, True], [True, False, True]]


def test_the_room_that_is_left() -> None:
    assert Texts(PROMPTS, StoppingCriteriaList()).room is None
    texts = Texts(PROMPTS, StoppingCriteriaList([MaxLengthCriteria(4)]))
    assert texts.room == 2
    assert texts.write(*block([[4, 4, 4], [4, 4, 4]])) == 2
    assert (texts.room, texts.length, texts.done) == (0, 4, True)


@pytest.mark.parametrize("kept", [(True, True), (True, False), (False, False)])
def test_scores_are_recorded_by_column_and_shown_to_criteria(kept: tuple[bool, bool]) -> None:
    criterion = Seen()
    texts = Texts(PROMPTS, StoppingCriteriaList([criterion]), None, None, *kept)
    texts.write(*block([[4, 4], [4, 4]]))
    texts.write(*block([[4], [4]]))
    for recorded, wanted, factor in ((texts.scores, kept[0], 1), (texts.logits, kept[1], 2)):
        assert (recorded is not None) == wanted
        if recorded is not None:
            assert [float(column[0, 0]) for column in recorded] == [0, factor, 0]
            assert {tuple(column.shape) for column in recorded} == {(2, 9)}
    assert [scores for _, scores in criterion.asked] == ([1, 2, 3] if kept[0] else [None] * 3)
