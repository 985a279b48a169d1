"""Parameters at each position: numbers, one number per text, and schedules over the decoded tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lmcompose.errors import ConfigurationError
from lmcompose.logits.steps import at_steps, check_value, check_values, is_scheduled


def at(value: Any, rows: int = 2, steps: range | None = None) -> Any:
    return at_steps({"alpha": value}, rows, steps)["alpha"]


@pytest.mark.parametrize("value", [1, 0.5, -2.0, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor(2)])
def test_a_number_is_the_same_everywhere(value: Any) -> None:
    check_value("alpha", value)
    assert at(value) == float(value)
    assert isinstance(at(value), float)


def test_a_value_per_text() -> None:
    assert at(torch.tensor([1.0, 2.0])).tolist() == [[[1.0]], [[2.0]]]
    assert at(torch.tensor([1, 2])).dtype == torch.float32
    for wrong in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([])):
        with pytest.raises(ConfigurationError, match=f"alpha has {len(wrong)} values for 2 texts"):
            at(wrong)


def test_beams_and_samples_have_their_texts_value() -> None:
    """`generate` repeats each text for its beams, side by side."""
    assert at(torch.tensor([1.0, 2.0]), rows=6).flatten().tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_a_schedule_by_step() -> None:
    for schedule in ([1.0, 0.5, 0.0], (1, 0.5, 0), lambda step: [1.0, 0.5, 0.0][min(step, 2)]):
        assert at(schedule, steps=range(1)) == 1.0
        assert at(schedule, steps=range(3)).tolist() == [[[1.0], [0.5], [0.0]]]
        assert at(schedule, steps=range(2, 5)) == 0.0, "the last value goes on"
        assert at(schedule, steps=range(-3, 2)).flatten().tolist() == [1.0, 1.0, 1.0, 1.0, 0.5], "inside the prompt"


def test_what_asks_for_steps() -> None:
    assert is_scheduled({"a": 1.0, "b": [1.0]})
    assert is_scheduled({"a": lambda step: 1.0})
    assert not is_scheduled({"a": 1.0, "b": torch.tensor([1.0, 2.0])})
    assert not is_scheduled({})


@pytest.mark.parametrize(
    "value",
    [
        "1", None, True, float("nan"), float("inf"), 1j, {}, [], [1.0, "x"], [True], [float("nan")],
        torch.tensor([True]), torch.tensor([[1.0]]), torch.tensor([float("nan")]), torch.tensor(1j),
    ],
    ids=repr,
)  # fmt: skip
def test_what_cannot_be_a_value(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="alpha") as refused:
        check_value("alpha", value)
    assert "give a number, a tensor" in str(refused.value)


def test_a_schedule_that_gives_no_number() -> None:
    for wrong in (None, "x", float("nan"), torch.tensor(1.0)):
        with pytest.raises(ConfigurationError, match=r"alpha at step 4 = .*a schedule that returns numbers"):
            at(lambda step, wrong=wrong: wrong, steps=range(4, 5))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    check_values({"alpha": 1.0}, ["alpha", "beta"])
    with pytest.raises(
        ConfigurationError, match=r"no parameter 'alfa'; its parameters are \['alpha', 'beta'\]. Did you mean 'alpha'\?"
    ):
        check_values({"alfa": 1.0}, ["alpha", "beta"])
