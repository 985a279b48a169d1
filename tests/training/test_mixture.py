"""The order of a run is a function of its seed, and honours weights everywhere in it."""

from collections import Counter

import numpy as np
import pytest

from lmcompose.training.mixture import epoch_order, held_out, shares, stream_slice


def test_without_weights_an_epoch_holds_every_example_once() -> None:
    order = epoch_order([5, 3], None, epoch=0, seed=1)
    assert sorted(order) == [(0, i) for i in range(5)] + [(1, i) for i in range(3)]
    assert order != epoch_order([5, 3], None, epoch=1, seed=1)
    assert order != epoch_order([5, 3], None, epoch=0, seed=2)
    assert order == epoch_order([5, 3], None, epoch=0, seed=1)


def test_shares_are_in_proportion_and_add_up() -> None:
    assert shares([100, 100], [3, 1]) == [150, 50]
    assert shares([1, 1, 1], [1, 1, 1]) == [1, 1, 1]
    assert sum(shares([7, 5, 11], [0.3, 0.3, 0.4])) == 23


def test_every_stretch_of_an_epoch_is_close_to_the_weights() -> None:
    order = epoch_order([300, 300], [3, 1], epoch=0, seed=0)
    for start in range(0, len(order) - 40, 40):
        share = sum(source == 0 for source, _ in order[start : start + 40]) / 40
        assert 0.65 <= share <= 0.85  # 0.75, give or take one example at each end of each source


def test_a_small_weight_shows_the_rest_of_its_source_in_later_epochs() -> None:
    seen = Counter(example for epoch in range(8) for example in epoch_order([80, 80], [7, 1], epoch, seed=0))
    assert {count for (source, _), count in seen.items() if source == 1} == {2}  # 8 epochs x 20 of 80
    assert {count for (source, _), count in seen.items() if source == 0} == {14}


def test_a_stream_goes_on_where_it_stopped() -> None:
    whole = stream_slice(7, 0, 40, [3])
    pieces = [stream_slice(7, start, 8, [3]) for start in range(0, 40, 8)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert sorted(whole[:7]) == list(range(7)) == sorted(whole[7:14])
    assert whole[:7].tolist() != whole[7:14].tolist()


@pytest.mark.parametrize(("size", "fraction", "count"), [(100, 0.1, 10), (3, 0.01, 1), (2, 0.99, 1)])
def test_held_out_takes_its_fraction_but_never_none_nor_all(size: int, fraction: float, count: int) -> None:
    held = held_out(size, fraction, seed=0)
    assert len(set(held.tolist())) == count
    assert (held == held_out(size, fraction, seed=0)).all()


def test_one_example_cannot_be_held_out() -> None:
    with pytest.raises(ValueError, match="fewer than two"):
        held_out(1, 0.5, seed=0)
