"""Stopping a run politely: the first Ctrl-C (or SIGTERM) ends it after the step under way, with a checkpoint.

A second one ends it at once; the last checkpoint that was written is then the one to resume from.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

AGAIN = 1.0
"""Seconds after which a second signal is meant as one: a launcher passes on the Ctrl-C that its processes had too."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal and can be resumed. `exit_code` is the shell's: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopOnSignal(TrainerCallback):
    """A trainer callback and a context manager: within the block, signals stop the trainer after its current step.

    with StopOnSignal() as stop:
        CalmTrainer(..., callbacks=[stop]).train()
    if stop.signal is not None: ...
    """

    def __init__(self, announce: Callable[[str], None] | None = None) -> None:
        self.signal: int | None = None
        self._noted = 0.0
        self._announce = announce or (lambda text: print(text, file=sys.stderr, flush=True))
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():  # only there may Python handle signals
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What the process should exit with."""
        return 128 + (self.signal or signal.SIGINT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if time.monotonic() - self._noted < AGAIN:
                return
            self.__exit__()
            raise Interrupted("Stopped at once. The last checkpoint is whole; resume from it.", 128 + number)
        self.signal, self._noted = number, time.monotonic()
        self._announce("\nStopping after this step, with a checkpoint. Press Ctrl-C again to stop at once.")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self._any_process_signalled(args):
            control.should_save = True
            control.should_training_stop = True
        return control

    def _any_process_signalled(self, args: TrainingArguments) -> bool:
        """All processes must stop after the same step, and a signal reaches them at different times."""
        if args.world_size == 1:
            return self.signal is not None
        noted = torch.tensor(self.signal or 0, device=args.device)
        distributed.all_reduce(noted, op=distributed.ReduceOp.MAX)
        self.signal = int(noted) or None
        return self.signal is not None
