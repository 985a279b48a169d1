"""The stages of a run, each kept on disk when it is done, so that a run that was stopped goes on where it was."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from lmcompose.folders import write_json_atomic

STAMP = "stage.json"

Report = Callable[[int, int, float], None]
"""Called with (step, steps, loss)."""


class StepReport(TrainerCallback):
    """Tells a `Report` of every step."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer."""
        losses = [entry["loss"] for entry in state.log_history[-1:] if "loss" in entry]
        self.report(state.global_step, state.max_steps, losses[0] if losses else float("nan"))


def stamp_of(*settings: Any) -> str:
    """A short hash of all that decides what a stage makes."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def stamped(folder: Path, stamp: str) -> bool:
    """Whether the stage that is kept in `folder` was made with this stamp."""
    return (_read(folder / STAMP) or {}).get("stamp") == stamp


def _plain(setting: Any) -> Any:
    return dataclasses.asdict(setting) if dataclasses.is_dataclass(setting) else str(setting)  # type: ignore[arg-type]


class Stages:
    """Runs stages in order, with progress on the terminal, and remembers what each made and how long it took.

    Args:
        folder: each stage's product is a folder in here.
        console: where progress goes.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self.console = folder, console
        self.seconds: list[dict[str, Any]] = []

    def made(
        self,
        name: str,
        label: str,
        stamp: str,
        make: Callable[[Report], tuple[PreTrainedModel, dict[str, Any]]],
        load: Callable[[Path], PreTrainedModel],
    ) -> tuple[PreTrainedModel, dict[str, Any]]:
        """The product of stage `name`: what an earlier run left, where its stamp fits, or a new one.

        Args:
            stamp: see `stamp_of`; anything else on disk is made again.
            make: returns the model and what to remember of the stage, with `seconds` among it.
            load: reads the model back.
        """
        folder = self.folder / name
        kept = _read(folder / STAMP)
        if kept is not None and stamped(folder, stamp):
            self.console.print(f"[dim]{label}: taken from {folder}[/dim]")
            model, notes = load(folder), kept["notes"]
        else:
            with self.progress(label) as report:
                model, notes = make(report)
            (folder / STAMP).unlink(missing_ok=True)  # from here on, what is there is neither the old nor the new
            model.save_pretrained(folder)
            write_json_atomic(folder / STAMP, {"stamp": stamp, "notes": notes})  # last: only now is the stage done
        self.seconds.append({"name": label, "seconds": notes["seconds"]})
        return model, notes

    def kept(self, name: str, label: str, stamp: str, make: Callable[[Report], Any]) -> Any:
        """The same for a stage that makes no model but a value for JSON, which is kept in `<name>.json`."""
        path = self.folder / f"{name}.json"
        found = _read(path) or {}
        if found.get("stamp") != stamp:
            started = time.process_time()
            with self.progress(label) as report:
                value = make(report)
            found = {"stamp": stamp, "seconds": time.process_time() - started, "value": value}
            write_json_atomic(path, found)
        else:
            self.console.print(f"[dim]{label}: taken from {path}[/dim]")
        self.seconds.append({"name": label, "seconds": found["seconds"]})
        return found["value"]

    @contextmanager
    def timed(self, label: str) -> Iterator[Report]:
        """A stage that leaves no model behind."""
        started = time.perf_counter()
        with self.progress(label) as report:
            yield report
        self.seconds.append({"name": label, "seconds": time.perf_counter() - started})

    @contextmanager
    def progress(self, label: str) -> Iterator[Report]:
        """A progress bar for one stage; where there is no terminal to draw it on, ten lines on the way."""
        if not self.console.is_terminal:
            yield self._lines(label)
            return
        columns = (
            TextColumn("{task.description:<44}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:>5}/{task.total}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figure]}"),
        )
        with Progress(*columns, console=self.console) as bars:
            bar = bars.add_task(label, total=None, figure="")
            yield lambda step, steps, loss: bars.update(bar, completed=step, total=steps, figure=_figure(loss))

    def _lines(self, label: str) -> Report:
        started, told = time.perf_counter(), 0

        def report(step: int, steps: int, loss: float) -> None:
            nonlocal told
            if step * 10 // steps > told:
                told = step * 10 // steps
                passed = f"{time.perf_counter() - started:.0f} s"
                self.console.print(f"{label}: {step}/{steps}, {passed} {_figure(loss)}")

        return report


def _figure(loss: float) -> str:
    return "" if math.isnan(loss) else f"loss {loss:.3f}"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
