"""The default spacing and its rounding rule, and the refusal of connections that cannot be."""

import pytest

from lmcompose.calm.connections import check_connections, default_connections
from lmcompose.errors import ConfigurationError


@pytest.mark.parametrize(
    ("augmenting", "anchor", "every", "expected"),
    [
        (12, 24, 4, [(4, 8), (8, 16), (12, 24)]),
        (4, 12, 4, [(4, 12)]),
        (1, 3, 4, [(1, 3)]),  # at least one
        (6, 10, 4, [(3, 5), (6, 10)]),  # 6 / 4 = 1.5 rounds up to 2
        (5, 10, 4, [(5, 10)]),  # 5 / 4 = 1.25 rounds down to 1
        (10, 7, 4, [(3, 2), (7, 5), (10, 7)]),  # 2.5 rounds up to 3; 10/3 = 3.33, 20/3 = 6.67; 7/3 = 2.33, 14/3 = 4.67
        (8, 2, 1, [(4, 1), (8, 2)]),  # never more than the shallower model has layers
        (30, 18, 4, [(4, 2), (8, 5), (11, 7), (15, 9), (19, 11), (23, 14), (26, 16), (30, 18)]),
    ],
)
def test_default_spacing(augmenting: int, anchor: int, every: int, expected: list[tuple[int, int]]) -> None:
    assert default_connections(augmenting, anchor, every) == expected


def test_default_is_always_possible_and_ends_at_the_last_layers() -> None:
    for augmenting in range(1, 40):
        for anchor in range(1, 40):
            pairs = default_connections(augmenting, anchor)
            assert check_connections(pairs, augmenting, anchor) == pairs
            assert pairs[-1] == (augmenting, anchor)


@pytest.mark.parametrize(
    ("connections", "message"),
    [
        ([], "no connections"),
        ([(5, 1)], "augmenting model has no layer 5"),
        ([(1, 9)], "anchor model has no layer 9"),
        ([(-1, 1)], "no layer -1"),
        ([(1, 2), (1, 2)], "given twice"),
        ([(1, 2, 3)], "pair of integers"),
        ([1], "pair of integers"),
        ([("1", 2)], "pair of integers"),
        ([(True, 2)], "pair of integers"),
    ],
)
def test_impossible_connections_are_refused(connections: list, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_connections(connections, augmenting_layers=4, anchor_layers=8)


def test_embeddings_and_a_shared_anchor_layer_are_possible() -> None:
    assert check_connections([[0, 0], [1, 0], [4, 8]], 4, 8) == [(0, 0), (1, 0), (4, 8)]


def test_every_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="every"):
        default_connections(4, 4, 0)
