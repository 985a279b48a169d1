"""What is looked up in a text, and how much of it is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lmcompose.decoding.lookup import Lookup, look_up
from lmcompose.errors import ConfigurationError


def found(text: list[int], count: int = 4, max_size: int = 3) -> tuple[list[int], list[int]]:
    guess = look_up(torch.tensor([text]), count, max_size)
    return guess.tokens[0].tolist(), guess.sizes


def test_the_longest_ending_at_its_latest_place() -> None:
    assert found([1, 2, 3, 7, 8, 1, 2, 3]) == ([7, 8, 1, 2], [3])
    assert found([1, 2, 3, 7, 9, 2, 3, 8, 8, 1, 2, 3]) == ([7, 9, 2, 3], [3])  # three tokens far away beat two nearby
    assert found([5, 3, 7, 5, 3, 8, 4, 3]) == ([8, 4, 3, 8], [1])  # the latest of two places
    assert found([1, 2, 3, 7, 9, 2, 3, 8, 8, 1, 2, 3], max_size=1) == ([8, 8, 1, 2], [1])
    assert found([1, 2, 3]) == ([], [])
    assert found([4]) == ([], [])
    assert found([1, 2, 1], count=0) == ([], [])


def test_a_text_that_goes_round_in_a_circle() -> None:
    assert found([9, 9], count=5) == ([9] * 5, [1])
    assert found([1, 2, 1, 2, 1], count=5) == ([2, 1, 2, 1, 2], [3])
    assert found([6, 1, 2, 3, 1, 2, 3], count=7) == ([1, 2, 3, 1, 2, 3, 1], [3])


def test_rows_find_their_own_tokens_and_all_must_find_some() -> None:
    ids = torch.tensor([[1, 2, 3, 1, 2], [5, 6, 5, 5, 6], [1, 2, 3, 4, 5]])
    assert look_up(ids, 3, 3).tokens.shape == (3, 0)
    first = look_up(ids[:2], 3, 3)
    assert (first.tokens.tolist(), first.sizes) == ([[3, 1, 2], [5, 5, 6]], [2, 2])
    guess = look_up(ids, 3, 3, torch.tensor([False, False, True]))  # the third has ended
    assert (guess.tokens[:2].tolist(), guess.sizes) == (first.tokens.tolist(), first.sizes)
    assert look_up(ids, 3, 3, torch.ones(3, dtype=torch.bool)).sizes == []


def test_each_size_has_an_acceptance_of_its_own() -> None:
    lookup = Lookup()
    before = lookup.chance([1])
    for _ in range(60):
        lookup.observe([1, 3], [0, 4], judged=4)
    assert lookup.chance([1]) < 0.1 < before < lookup.chance([2]) < 0.9 < lookup.chance([3])
    assert lookup.chance([3, 2]) == pytest.approx(lookup.chance([3]) * lookup.chance([2]))  # all rows must be right
    one, more = Lookup(), Lookup()
    one.observe([1], [0], 1)
    more.observe([1], [0], 6)  # nothing was judged behind the refused one
    assert one.chance([1]) == more.chance([1])


def test_how_many_are_worth_it() -> None:
    lookup = Lookup()
    chance = lookup.chance([2])
    count = lookup.worth([2], 0.07, 8)
    assert chance**count > 0.07 >= chance ** (count + 1)
    assert lookup.worth([2], 0.6, 8) == 0
    assert lookup.worth([2], 0.07, 1) == 1
    for _ in range(100):
        lookup.observe([1, 2], [0, 8], 8)
    assert (lookup.worth([1], 0.07, 8), lookup.pays([1], 0.07, 8)) == (0, 0)
    assert (lookup.worth([2], 0.07, 8), lookup.pays([2], 0.07, 8)) == (8, 8)
    for _ in range(100):
        lookup.observe([1], [1], 1)  # what is not read is still compared, so that it is seen to be right again
    assert lookup.pays([1], 0.07, 8) == 8
    fixed = Lookup(adaptive=False)
    assert (fixed.worth([1], 5.0, 6), fixed.pays([1], 5.0, 6)) == (6, 6)


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"max_size": 0}, {"max_size": 1.5}, {"max_tokens": True}], ids=str
)
def test_numbers_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        Lookup(**wrong)
