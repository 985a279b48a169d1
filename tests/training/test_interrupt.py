"""The first signal asks, the second one insists; a launcher's echo of the first is not a second."""

import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl

from lmcompose.training import interrupt
from lmcompose.training.interrupt import Interrupted, StopOnSignal


def after_step(stop: StopOnSignal) -> TrainerControl:
    arguments: Any = SimpleNamespace(world_size=1)
    return stop.on_step_end(arguments, Any, TrainerControl())  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_stops_after_the_step_with_a_checkpoint(number: int, code: int) -> None:
    said: list[str] = []
    with StopOnSignal(said.append) as stop:
        assert not after_step(stop).should_training_stop
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a launcher passes it on
        control = after_step(stop)
    assert (control.should_training_stop, control.should_save) == (True, True)
    assert stop.exit_code == code
    assert len(said) == 1


def test_the_second_signal_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "AGAIN", 0.01)
    with StopOnSignal(lambda text: None):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)
        with pytest.raises(Interrupted, match="at once"):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_are_as_they_were_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopOnSignal():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
