"""The Hugging Face Trainer for data that say in which order they are read.

The thin difference: rows are read from first to last; logits are computed where something is learned; the evaluation
loss is a mean over tokens, whatever the batches; a run whose loss is no number ends; checkpoints are whole or are not
there. Every model of a comparison is trained by
this one trainer, whatever of it learns. This file knows neither compositions nor recipes.
"""

import math
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmcompose.errors import ConfigurationError, LmcomposeError, SavedFolderError
from lmcompose.training.checkpoints import state_written_at
from lmcompose.training.loss import learned_columns, learned_loss, shifted, takes_columns
from lmcompose.training.packing import IGNORED

ONE_EACH = (
    "Start one process per GPU (accelerate launch --num_processes ...), or show one GPU (CUDA_VISIBLE_DEVICES=0)."
)
"""What to do where one process sees several GPUs, for messages."""


class OrderedTrainer(Trainer):
    """`transformers.Trainer` for a causal language model; takes the same arguments.

    Datasets with `in_order = True` are read from first row to last. Where no `compute_metrics` is given, `eval_loss`
    is the mean over all learned tokens of the evaluation data: it does not depend on batch size or processes.

    Raises:
        ConfigurationError: several GPUs would be used by one process, each with a batch of its own.
    """

    def __init__(self, model: Any = None, args: TrainingArguments | None = None, **kwargs: Any) -> None:
        if args is not None and args.n_gpu > 1:
            raise ConfigurationError(
                f"{args.n_gpu} GPUs are visible to one process, and each would take a batch of its own. {ONE_EACH}"
            )
        self._means_over_tokens = kwargs.get("compute_metrics") is None
        if self._means_over_tokens:
            kwargs["compute_metrics"] = _mean_over_tokens
        super().__init__(model=model, args=args, **kwargs)
        self._keeps_columns = takes_columns(self.accelerator.unwrap_model(self.model))
        if self._keeps_columns and self.compute_loss_func is None and self.label_smoother is None:
            self.compute_loss_func = learned_loss
        self.callback_handler.add_callback(LogWithCheckpoints())
        self.callback_handler.add_callback(StopAtNaN())

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if getattr(dataset, "in_order", False):
            return SequentialSampler(dataset)
        return super()._get_train_sampler(train_dataset)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in `Trainer`; a composition, or a model whose loss is the usual one, computes logits where it learns."""
        if self.compute_loss_func is learned_loss and "labels" in inputs:
            inputs, targets = self._where_learned(inputs)
            inputs["labels"] = targets
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """One batch of evaluation: for each row its summed loss and its number of learned tokens, both [rows, 1]."""
        if not self._means_over_tokens:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs, targets = self._where_learned(self._prepare_inputs(inputs))
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        sums, counts = row_losses(logits, targets)
        return None, sums, counts

    def _where_learned(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
        """What the model is called with for the logits of learned tokens, and those tokens [B, K]."""
        labels = inputs["labels"]
        inputs = self._without_labels({name: value for name, value in inputs.items() if name != "labels"}, labels)
        inputs["use_cache"] = False  # transformers looks for packed documents only where there is no cache
        if not self._keeps_columns:
            return inputs, shifted(labels)
        inputs["logits_to_keep"], targets = learned_columns(labels)
        return inputs, targets

    def _without_labels(self, inputs: dict[str, Any], labels: torch.Tensor) -> dict[str, Any]:
        """What the model is called with for its logits; what only the labels say is put into words here."""
        return inputs

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        existed, before = folder.exists(), state_written_at(folder)
        try:
            super()._save_checkpoint(model, trial)
        except (LmcomposeError, OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError
            if isinstance(error, OSError) and self.args.should_save and state_written_at(folder) not in (None, before):
                warnings.warn(
                    f"The checkpoint of step {self.state.global_step} is whole, but what comes after it failed "
                    f"({error}). Training goes on. Older checkpoints in {folder.parent} may be left over: delete them "
                    "yourself where the disk gets full.",
                    stacklevel=2,
                )
                return
            if self.args.should_save and not existed:
                shutil.rmtree(folder, ignore_errors=True)
            raise SavedFolderError(
                f"The checkpoint of step {self.state.global_step} could not be written: {error} Earlier checkpoints in "
                f"{folder.parent} are whole; free some space and resume from there."
            ) from error


class LogWithCheckpoints(TrainerCallback):
    """Log at every checkpoint, so that the points of the loss curve are the same after a resume from it.

    A point is the mean loss since the point before, and a resumed run counts from its checkpoint.
    """

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        control.should_log = control.should_log or control.should_save
        return control


class StopAtNaN(TrainerCallback):
    """End a run whose loss is no number any more, before its parameters go into a checkpoint."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Raises LmcomposeError where a logged loss is infinite or not a number."""
        for name in ("loss", "eval_loss"):
            if logs and not math.isfinite(logs.get(name, 0.0)):
                raise LmcomposeError(
                    f"The {name} is {logs[name]} at step {state.global_step}. Lower the learning rate, lengthen the "
                    "warm-up, or load the members in float32; checkpoints of earlier steps are whole."
                )


def row_losses(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss and number of learned tokens of each row.

    Args:
        logits: [B, K, V].
        targets: [B, K], what each position is to predict; IGNORED where nothing is learned.

    Returns:
        Two float tensors [B, 1].
    """
    targets = targets.to(logits.device)
    # Row by row: the float32 copy of one row's logits is a fraction of the batch's.
    sums = [
        F.cross_entropy(row.float(), target, ignore_index=IGNORED, reduction="sum")
        for row, target in zip(logits, targets, strict=True)
    ]
    return torch.stack(sums).unsqueeze(1), (targets != IGNORED).sum(dim=1, keepdim=True).float()


def _mean_over_tokens(prediction: EvalPrediction) -> Mapping[str, float]:
    sums, counts = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    return {"loss": float(sums.astype(np.float64).sum() / max(1.0, counts.astype(np.float64).sum()))}
