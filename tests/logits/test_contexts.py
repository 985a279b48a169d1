"""Contexts of members: what each has still to read, and the mask of all that it has read, on paper."""

from __future__ import annotations

import pytest
import torch

from lmcompose.errors import ConfigurationError
from lmcompose.logits.contexts import Contexts, full_mask, new_ids

IDS = torch.tensor([[[0, 0, 5, 6], [0, 7, 8, 9]], [[1, 2, 3, 4], [0, 0, 0, 5]]])
MASK = torch.tensor([[[0, 0, 1, 1], [0, 1, 1, 1]], [[1, 1, 1, 1], [0, 0, 0, 1]]])


def test_members_are_stacked_without_common_padding() -> None:
    contexts = Contexts(IDS, MASK, length=3)
    contexts.check(2, ["expert", "antiexpert"])
    ids, mask = contexts.of((1,))
    assert ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    ids, mask = contexts.of((0, 1))
    assert ids.tolist() == [[0, 0, 5, 6], [1, 2, 3, 4], [0, 7, 8, 9], [0, 0, 0, 5]]
    assert contexts.extra_length((1,)) == 0
    assert contexts.extra_length((0, 1)) == 1
    assert Contexts(IDS, MASK, length=9).extra_length((1,)) == -6


def test_the_context_is_read_with_the_call_in_which_the_leaders_ends() -> None:
    """A leader's context of 4 columns, read in pieces; then the tail."""
    context = torch.tensor([[7, 8]])
    assert new_ids(context, torch.tensor([[1, 2, 3, 4]]), past=0, length=4).tolist() == [[7, 8]]
    assert new_ids(context, torch.tensor([[1, 2, 3, 4, 5]]), past=0, length=4).tolist() == [[7, 8, 5]]
    assert new_ids(context, torch.tensor([[4]]), past=3, length=4).tolist() == [[7, 8]]
    assert new_ids(context, torch.tensor([[4, 5]]), past=3, length=4).tolist() == [[7, 8, 5]]
    assert new_ids(context, torch.tensor([[5]]), past=4, length=4).tolist() == [[5]]
    assert new_ids(context, torch.tensor([[6, 7]]), past=6, length=4).tolist() == [[6, 7]]


def test_the_mask_of_all_positions() -> None:
    context = torch.tensor([[0, 1], [1, 1]])
    leader = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert full_mask(context, leader, columns=5, length=3).tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]
    assert full_mask(context, None, columns=5, length=3).tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert full_mask(context, leader.bool(), columns=5, length=3).dtype == torch.long
    wide = torch.cat([leader, torch.zeros(2, 4, dtype=torch.long)], dim=1)  # a static cache's
    assert full_mask(context, wide, columns=5, length=3).shape == (2, 2 + 6)


def test_what_does_not_fit_is_refused() -> None:
    roles = ["expert", "antiexpert"]
    for ids, mask, batch in (
        (IDS, MASK, 3), (IDS[:, :1], MASK[:, :1], 2), (IDS[0], MASK[0], 2), (IDS, MASK[..., 1:], 2)
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=r"\[batch, members, length\].*model\.prepare"):
            Contexts(ids, mask, 3).check(batch, roles)
    holed = MASK.clone()
    holed[1, 0, 1] = 0
    empty = MASK.clone()
    empty[0, 1] = 0
    for mask in (MASK.flip(-1), holed, empty):
        with pytest.raises(ConfigurationError, match="padded on the left"):
            Contexts(IDS, mask, 3).check(2, roles)
    with pytest.raises(ConfigurationError, match="padded on the left"):
        Contexts(IDS[..., :0], MASK[..., :0], 3).check(2, roles)
    for length in (0, -2, 1.0, True, None):
        with pytest.raises(ConfigurationError, match="is no number of columns"):
            Contexts(IDS, MASK, length)  # type: ignore[arg-type]
