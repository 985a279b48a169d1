"""The parameters of a formula at each position: numbers, one number per text, or a schedule over the decoded tokens.

This file knows no model and no formula.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from lmcompose.errors import ConfigurationError, nearest

Schedule = Callable[[int], float]
Value = float | torch.Tensor | Schedule | Sequence[float]
"""A number; a tensor [batch], one number per text; a function of the step; or a list, one number per step, of which the
last one goes on. Step 0 predicts the first token after the prompt."""


def check_value(name: str, value: Any) -> None:
    """Refuse what cannot be the value of a parameter.

    Raises:
        ConfigurationError: of a wrong type, not finite, or empty.
    """
    wanted = "a number, a tensor [batch], a list with one number per step, or a function of the step"
    if isinstance(value, torch.Tensor):
        if value.dim() > 1 or not (value.is_floating_point() or value.dtype in (torch.int32, torch.int64)):
            raise ConfigurationError(f"{name} is a {value.dtype} tensor of shape {list(value.shape)}; give {wanted}.")
        if not bool(torch.isfinite(value).all()):
            raise ConfigurationError(f"{name} holds a value that is not finite; give {wanted}.")
    elif isinstance(value, (list, tuple)):
        if not value:
            raise ConfigurationError(f"{name} is an empty list; give {wanted}.")
        for entry in value:
            _check_number(name, entry, wanted)
    elif not callable(value):
        _check_number(name, value, wanted)


def _check_number(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigurationError(f"{name} = {value!r} is no finite number; give {wanted}.")


def check_values(values: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check values by name.

    Raises:
        ConfigurationError: a name that the formula does not have, or a value that cannot be.
    """
    for name, value in values.items():
        if name not in known:
            raise ConfigurationError(
                f"The formula has no parameter '{name}'; its parameters are {list(known)}.{nearest(name, known)}"
            )
        check_value(name, value)


def is_scheduled(values: Mapping[str, Any]) -> bool:
    """Whether any value depends on the step."""
    return any(callable(value) or isinstance(value, (list, tuple)) for value in values.values())


def at_steps(values: Mapping[str, Any], rows: int, steps: range | None = None) -> dict[str, Any]:
    """The values as numbers or as tensors, on the CPU, that broadcast to [rows, steps, vocabulary].

    Args:
        rows: texts in the batch; a tensor of fewer values is repeated for the beams or samples of each text.
        steps: of the positions at hand; only asked where a value depends on it.

    Raises:
        ConfigurationError: a tensor that does not divide the rows, or a schedule that gives no finite number.
    """
    resolved: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.dim() == 1:
            if len(value) == 0 or rows % len(value):
                raise ConfigurationError(f"{name} has {len(value)} values for {rows} texts; give one per text.")
            resolved[name] = value.to("cpu", torch.float32).repeat_interleave(rows // len(value))[:, None, None]
        elif isinstance(value, torch.Tensor):
            resolved[name] = float(value)
        elif callable(value) or isinstance(value, (list, tuple)):
            resolved[name] = _scheduled(name, value, steps)
        else:
            resolved[name] = float(value)
    return resolved


def _scheduled(name: str, value: Any, steps: range | None) -> float | torch.Tensor:
    assert steps is not None, "whoever has a schedule asks for the steps"
    numbers = []
    for step in steps:
        step = max(step, 0)  # positions inside the prompt are scored with the first value
        number = value(step) if callable(value) else value[min(step, len(value) - 1)]
        _check_number(f"{name} at step {step}", number, "a schedule that returns numbers")
        numbers.append(float(number))
    if len(set(numbers)) == 1:
        return numbers[0]
    return torch.tensor(numbers)[None, :, None]
