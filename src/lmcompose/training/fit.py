"""A model, its trainer and prepared data become a finished run: trained, saved, and with its results on disk.

What of the model learns is its maker's business. This file knows neither compositions nor how they are planned.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import ProgressCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lmcompose.folders import write_json_atomic
from lmcompose.training.arguments import is_main_process, processes, training_arguments
from lmcompose.training.curve import loss_curve, write_curve
from lmcompose.training.data import CompositionData
from lmcompose.training.interrupt import Interrupted, StopOnSignal
from lmcompose.training.plan import TrainingPlan
from lmcompose.training.recipe import TrainingRecipe
from lmcompose.training.resume import checkpoint_to_resume, step_of

Say = Callable[[str], None]
MakeTrainer = Callable[[TrainingArguments, list[TrainerCallback]], Trainer]


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        recipe: its training section, seed and validation are read.
        name: of the recipe, for the loss curve.
        output: where the results go.
        record: what stands beside the results (see `card.run_record`).
        resume: go on from the latest checkpoint in `output`.
        again: the command that goes on after an interruption.
    """

    recipe: TrainingRecipe
    name: str
    data: CompositionData
    plan: TrainingPlan
    output: Path
    record: dict[str, Any]
    resume: bool
    again: str
    say: Say
    progress: bool


def fit(run: Run, model: nn.Module, make_trainer: MakeTrainer, save: Callable[[Path], None]) -> dict[str, Any]:
    """Train, save and write the results; returns what `OUTPUT/result.json` holds.

    Args:
        make_trainer: (arguments, callbacks) -> the trainer of `model`.
        save: writes the trained model to a folder.

    Raises:
        SavedFolderError: a checkpoint or the result could not be written; what was there before is whole.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint was written and the message says how to go on.
    """
    recipe, data, output = run.recipe, run.data, run.output
    folder = output / "checkpoints"
    start = checkpoint_to_resume(folder, run.say) if run.resume else None
    started = time.monotonic()
    with StopOnSignal(run.say) as stop:
        progress = run.progress and is_main_process()
        arguments = training_arguments(recipe, folder, data.steps, progress, start is not None)
        trainer = make_trainer(arguments, [stop])
        _show_losses(trainer)
        outcome = trainer.train(resume_from_checkpoint=str(start) if start else None)
        curve = loss_curve(trainer.state.log_history)
        if stop.signal is not None and trainer.state.global_step < data.steps:
            if is_main_process():
                write_curve(curve, output, f"{run.name} (interrupted)")
            raise Interrupted(
                f"Stopped at step {trainer.state.global_step} of {data.steps}. Go on with:\n  {run.again}",
                stop.exit_code,
            )
        validation_loss = trainer.evaluate()["eval_loss"] if data.validation is not None else None
        if not recipe.training.early_stopping:  # which may have put back an earlier step's parameters
            curve = loss_curve(trainer.state.log_history)
        results = {
            "steps": trainer.state.global_step,
            "epochs": data.epochs * trainer.state.global_step / data.steps,
            "stopped_early": trainer.state.global_step < data.steps,
            "best_step": trainer.state.best_global_step if recipe.training.early_stopping else None,
            "train_loss_last": curve["train"][-1]["loss"] if curve["train"] else None,
            "validation_loss": validation_loss,
            "validation_loss_untrained": curve["validation"][0]["loss"] if curve["validation"] else None,
            "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "tokens_seen": data.train.tokens(trainer.state.global_step * recipe.training.batch_size),
            "seconds": round(time.monotonic() - started, 1),
            "steps_per_second": outcome.metrics.get("train_steps_per_second"),
            "resumed_from_step": step_of(start),
            "processes": processes(),
            "data": data.summary,
            "data_fingerprint": data.fingerprint,
            "plan": run.plan.to_dict(),
        }
        result = {"what": "training", **run.record, "results": results}
        if is_main_process():
            save(output / "model")
            write_curve(curve, output, run.name)
            write_json_atomic(output / "result.json", result)
    return result


def _show_losses(trainer: Trainer) -> None:
    trainer.remove_callback(PrinterCallback)
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(LossProgress)


class LossProgress(ProgressCallback):
    """The progress bar of transformers with the losses at its end, instead of a line per logged step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shown: dict[str, str] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        for key in ("loss", "eval_loss"):
            if logs and key in logs:
                self._shown[key] = f"{float(logs[key]):.4f}"
        if state.is_world_process_zero and self.training_bar is not None:
            self.training_bar.set_postfix(self._shown)
