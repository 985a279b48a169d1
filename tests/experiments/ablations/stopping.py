"""A run that is stopped by a signal at its third step, once."""

import signal
from typing import Any

import pytest

from lmcompose.training.interrupt import StopOnSignal


def stop_at_the_third_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Send SIGINT at the end of the third step from now on; returns the steps that runs take, as they take them."""
    step_end, steps = StopOnSignal.on_step_end, []

    def interrupted(self: StopOnSignal, args: Any, state: Any, control: Any, **more: Any) -> Any:
        steps.append(state.global_step)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return step_end(self, args, state, control, **more)

    monkeypatch.setattr(StopOnSignal, "on_step_end", interrupted)
    return steps
