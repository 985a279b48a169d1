"""A packed document reads nothing of its neighbours: in the batch, in every member, and in the bridge."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from lmcompose.errors import MemberError
from lmcompose.training.packing import IGNORED, Collator, check_packing, pack, packed_row
from tests.architectures import UNPACKABLE
from tests.compositions import TOLERANCE, random_composition
from tests.tiny import ARCHITECTURES, DEFAULT_PAIRS, PAIRS, architecture_params, random_ids, tiny_model

VERSION_DEPENDENT = {"falcon"}  # from transformers 5.24 on


@pytest.mark.parametrize("seed", range(5))
def test_packing_keeps_every_document_whole_once_and_in_bounds(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 33, size=500).tolist()
    rows = pack(lengths, 32)
    assert sorted(document for row in rows for document in row) == list(range(500))
    assert all(sum(lengths[document] for document in row) <= 32 for row in rows)
    filled = sum(lengths) / (32 * len(rows))
    assert filled > 0.9, filled


def test_packing_moves_no_document_far() -> None:
    lengths = np.random.default_rng(0).integers(1, 33, size=2000).tolist()
    rows = pack(lengths, 32, open_rows=8)
    for row, following in pairwise(rows):
        assert row[0] < following[0]
        assert max(row) - min(row) < 200


@pytest.mark.parametrize("length", [0, 5])
def test_a_document_that_fits_no_row_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="a row holds 1 to 4"):
        pack([2, length], 4)


def test_a_packed_row_restarts_positions_and_learns_no_first_token() -> None:
    first, second = np.array([5, 6, 7]), np.array([8, 9])
    row = packed_row([(first, first), (second, second)])
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 9]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 1]
    assert row["labels"].tolist() == [IGNORED, 6, 7, IGNORED, 9]
    assert first.tolist() == [5, 6, 7]  # the documents themselves are left as they were


def test_padding_is_masked_or_is_a_document_of_its_own() -> None:
    long, short = np.array([5, 6, 7, 8]), np.array([9, 10])
    plain = Collator(0)([{"input_ids": long, "labels": long}, {"input_ids": short, "labels": short}])
    assert plain["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert plain["labels"].tolist()[1] == [9, 10, IGNORED, IGNORED]
    packed = Collator(0)([packed_row([(long, long)]), packed_row([(short, short)])])
    assert "attention_mask" not in packed
    assert packed["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]


def test_padding_takes_no_position_that_no_text_takes() -> None:
    """A member's table of positions may be shorter than a row, as long as it is no shorter than a text."""
    text = np.array([5, 6])
    packed = Collator(0)([packed_row([(text, text)] * 3), packed_row([(text[:1], text[:1])])])
    assert packed["position_ids"].tolist() == [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0]]


@pytest.mark.parametrize("arch", architecture_params(sorted(set(ARCHITECTURES) - VERSION_DEPENDENT)))
def test_members_that_cannot_keep_documents_apart_are_found(arch: str) -> None:
    member = tiny_model(arch)
    if arch in UNPACKABLE:
        with pytest.raises(MemberError, match=r"would see the one before it.*in 'helper'.*packing: false"):
            check_packing({"helper": member})
    else:
        check_packing({"helper": member})


def test_a_member_that_ignores_positions_is_found() -> None:
    """A leak that attention has only in a batch of more than one, as in some kernels, is found as well."""
    member = tiny_model("llama")
    forward = member.forward

    def leaky(input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool = False, **rest: object) -> object:
        if len(input_ids) > 1:
            position_ids = torch.arange(input_ids.shape[1]).expand(len(input_ids), -1)
        return forward(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)

    member.forward = leaky  # type: ignore[method-assign]
    with pytest.raises(MemberError, match="packing"):
        check_packing({"helper": member})


PACKABLE_PAIRS = [
    name
    for name in DEFAULT_PAIRS
    if not {PAIRS[name].anchor, PAIRS[name].augmenting} & (UNPACKABLE | VERSION_DEPENDENT)
]


@pytest.mark.parametrize("name", PACKABLE_PAIRS)
def test_a_composition_gives_packed_documents_the_logits_that_they_have_alone(name: str) -> None:
    model = random_composition(PAIRS[name])
    rows = [
        [random_ids(1, length, seed)[0].numpy() for length, seed in row] for row in (((8, 1), (5, 2)), ((3, 3), (9, 4)))
    ]
    batch = Collator(0)([packed_row([(ids, ids) for ids in row]) for row in rows])
    with torch.no_grad():
        packed = model(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        for row, logits in zip(rows, packed, strict=True):
            start = 0
            for ids in row:
                alone = model(torch.from_numpy(ids)[None], use_cache=False).logits[0]
                torch.testing.assert_close(
                    logits[start : start + len(ids)], alone, atol=TOLERANCE[torch.float32], rtol=0
                )
                start += len(ids)


def test_the_loss_of_a_packed_batch_is_that_of_its_documents() -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    documents = [random_ids(1, length, seed)[0].numpy() for seed, length in enumerate((4, 7, 3, 9))]
    packed = Collator(0)([packed_row([(ids, ids) for ids in documents[i : i + 2]]) for i in (0, 2)])
    plain = Collator(0)([{"input_ids": ids, "labels": ids} for ids in documents])
    with torch.no_grad():
        losses = [model(**batch, use_cache=False).loss for batch in (packed, plain)]
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
