"""The Hugging Face Trainer, told what a composition is.

The thin difference: only composition parameters are optimised, saved and read back; the order of the data is the
data's own; the evaluation loss is a mean over tokens, whatever the batches; checkpoints are whole or are not there.
Training by the plain Trainer or by TRL's SFTTrainer works too, since the model itself saves only what is its own.
This file knows nothing of recipes.
"""

import math
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmcompose.calm.prompts import prompt_of
from lmcompose.calm.unfrozen import UNFROZEN_PREFIX
from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError, LmcomposeError, SavedFolderError
from lmcompose.training.checkpoints import state_written_at
from lmcompose.training.packing import IGNORED


class CalmTrainer(Trainer):
    """`transformers.Trainer` for a `ComposedModel`; takes the same arguments.

    Datasets with `in_order = True` are read from first row to last. Where no `compute_metrics` is given, `eval_loss`
    is the mean over all learned tokens of the evaluation data: it does not depend on batch size or processes.

    Args:
        unfrozen_learning_rate: of unfrozen layers, which begin trained; by default that of the bridges, which begin at
            nothing. It follows the same schedule.

    Raises:
        ConfigurationError: the model is no composition, or several GPUs would be used by one process.
    """

    def __init__(
        self,
        model: ComposedModel | None = None,
        args: TrainingArguments | None = None,
        unfrozen_learning_rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(model, ComposedModel):
            raise ConfigurationError(
                f"CalmTrainer trains a composition, not a {type(model).__name__}. Make one with lmcompose.compose(...)."
            )
        if args is not None and args.n_gpu > 1:
            raise ConfigurationError(
                f"{args.n_gpu} GPUs are visible to one process, and replicas of a composition would share its hooks. "
                "Start one process per GPU (accelerate launch --num_processes ...), or show one GPU "
                "(CUDA_VISIBLE_DEVICES=0)."
            )
        self._unfrozen_learning_rate = unfrozen_learning_rate
        self._means_over_tokens = kwargs.get("compute_metrics") is None
        if self._means_over_tokens:
            kwargs["compute_metrics"] = _mean_over_tokens
        freeze_members(model)
        super().__init__(model=model, args=args, **kwargs)
        # What transformers guesses from a class name or a signature, said outright: the loss of a composition divides
        # by the num_items_in_batch it is given, and counts labels from the second position on.
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = True
        self.callback_handler.add_callback(LogWithCheckpoints())
        self.callback_handler.add_callback(StopAtNaN())

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        if getattr(dataset, "in_order", False):
            return SequentialSampler(dataset)
        return super()._get_train_sampler(train_dataset)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer of the composition parameters; no other tensor gets a state in it."""
        made = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if made and self._unfrozen_learning_rate is not None:
            _set_apart(optimizer, _unfrozen_parameters(cast(nn.Module, self.model)), self._unfrozen_learning_rate)
        if not any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]):
            raise ConfigurationError("The composition has no parameter to train: all of them have requires_grad=False.")
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """HF's, without vectors: HF knows a norm by its class, and of unfrozen ones only the weights are here."""
        vectors = {name for name, parameter in model.named_parameters() if parameter.ndim < 2}
        return [name for name in super().get_decay_parameter_names(model) if name not in vectors]

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
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        if getattr(self.accelerator.unwrap_model(self.model), "reads_prompts", False):  # the labels say what it is
            prompts = prompt_of(labels, inputs.get("attention_mask"), inputs.get("position_ids"))
            inputs.setdefault("prompt_mask", prompts)
        with torch.no_grad(), self.compute_loss_context_manager():
            # Without a cache, since transformers looks for packed documents only where there is none.
            logits = model(**inputs, use_cache=False).logits
        sums, counts = row_losses(logits, labels)
        return None, sums, counts

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        target = output_dir if output_dir is not None else self.args.output_dir
        self.accelerator.unwrap_model(self.model).save_pretrained(
            target, state_dict=state_dict, is_main_process=self.args.should_save
        )

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

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Members are never in a checkpoint; a composition parameter that is missing is an error, not a warning."""
        own = {name for name, _ in self.accelerator.unwrap_model(self.model).composition_parameters()}
        missing = sorted(own.intersection(load_result.missing_keys))
        if missing or load_result.unexpected_keys:
            raise SavedFolderError(
                f"The checkpoint does not fit this composition: missing {missing[:3]}, unexpected "
                f"{sorted(load_result.unexpected_keys)[:3]}. Resume with the recipe that the run was started with."
            )


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


def freeze_members(model: ComposedModel) -> None:
    """Make sure that no member is trained; composition parameters stay as they are, trained or kept (see `extend`)."""
    own = {name for name, _ in model.composition_parameters()}
    for name, parameter in model.named_parameters():
        if name not in own:
            parameter.requires_grad_(False)


def _unfrozen_parameters(model: nn.Module) -> set[nn.Parameter]:
    return {
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(UNFROZEN_PREFIX) and parameter.requires_grad
    }


def _set_apart(optimizer: torch.optim.Optimizer, parameters: set[nn.Parameter], learning_rate: float) -> None:
    """Move `parameters` to groups of their own, with another learning rate and else the same settings."""
    for group in list(optimizer.param_groups):
        apart = [parameter for parameter in group["params"] if parameter in parameters]
        if apart:
            group["params"] = [parameter for parameter in group["params"] if parameter not in parameters]
            optimizer.add_param_group({**group, "params": apart, "lr": learning_rate})


def row_losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed next-token loss and number of learned tokens of each row.

    Args:
        logits: [B, L, V].
        labels: [B, L], not shifted, IGNORED where nothing is learned.

    Returns:
        Two float tensors [B, 1].
    """
    targets = labels[:, 1:]
    # Row by row: the float32 copy of one row's logits is a fraction of the batch's.
    sums = [
        F.cross_entropy(row.float(), target, ignore_index=IGNORED, reduction="sum")
        for row, target in zip(logits[:, :-1], targets, strict=True)
    ]
    return torch.stack(sums).unsqueeze(1), (targets != IGNORED).sum(dim=1, keepdim=True).float()


def _mean_over_tokens(prediction: EvalPrediction) -> Mapping[str, float]:
    sums, counts = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    return {"loss": float(sums.astype(np.float64).sum() / max(1.0, counts.astype(np.float64).sum()))}
