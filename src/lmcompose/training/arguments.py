"""A recipe's training section in the words of `transformers.TrainingArguments`. Loads nothing and trains nothing."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from lmcompose.errors import ConfigurationError
from lmcompose.training.optimizers import MUON
from lmcompose.training.recipe import Optimization, TrainingRecipe

_FIELDS = {field.name for field in dataclasses.fields(TrainingArguments)}


def processes() -> int:
    """How many processes train together: what `accelerate launch` and `torchrun` say, or 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes results."""
    return int(os.environ.get("RANK", "0")) == 0


def micro_batch(settings: Optimization) -> int:
    """Rows that one process computes at once.

    Raises:
        ConfigurationError: the batch cannot be divided evenly.
    """
    parts = settings.gradient_accumulation * processes()
    if settings.batch_size % parts:
        raise ConfigurationError(
            f"training.batch_size {settings.batch_size} cannot be divided among {processes()} processes and "
            f"{settings.gradient_accumulation} accumulation steps. Choose a multiple of {parts}."
        )
    return settings.batch_size // parts


def training_arguments(
    recipe: TrainingRecipe, folder: Path, steps: int, progress: bool = False, resumed: bool = False
) -> TrainingArguments:
    """The arguments of a run.

    Args:
        recipe: validated.
        folder: where checkpoints go.
        steps: optimizer steps of the whole run.
        progress: show a progress bar.
        resumed: the run goes on from a checkpoint.

    Raises:
        ConfigurationError: a batch that cannot be divided, or processes that did not find each other.
    """
    settings = recipe.training
    eval_every, save_every = intervals(recipe, steps)
    rows = micro_batch(settings)
    # 5.24 renamed gradient checkpointing and warns about the old name.
    checkpointing = "activation_checkpointing" if "activation_checkpointing" in _FIELDS else "gradient_checkpointing"
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": rows,
        "per_device_eval_batch_size": settings.eval_batch_size or rows,
        "gradient_accumulation_steps": settings.gradient_accumulation,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.lr_scheduler,
        "lr_scheduler_kwargs": settings.lr_scheduler_kwargs or None,
        "warmup_steps": settings.warmup,
        "optim": "adamw_torch" if settings.optimizer == MUON else settings.optimizer,  # Muon goes to the trainer itself
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "bf16": settings.bf16,
        checkpointing: settings.gradient_checkpointing,
        f"{checkpointing}_kwargs": {"use_reentrant": False},
        "logging_strategy": "steps",
        "logging_steps": settings.log_every,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,  # a loss that is not a number is shown, not papered over
        "eval_strategy": "steps" if recipe.validation else "no",
        "eval_steps": eval_every if recipe.validation else None,
        # Untrained, the composition is its anchor: the point of step 0 is what there is to improve on.
        "eval_on_start": recipe.validation is not None and not resumed,
        "save_strategy": "steps",
        "save_steps": save_every,
        "save_total_limit": settings.keep_checkpoints,
        "load_best_model_at_end": settings.early_stopping is not None,
        "metric_for_best_model": "eval_loss" if recipe.validation else None,
        "greater_is_better": False if recipe.validation else None,
        "restore_callback_states_from_checkpoint": True,  # the patience that is used up already
        "dataloader_num_workers": settings.workers,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
        # Without this, accelerate leaves processes on CPUs alone: each would train on all the data by itself; and
        # transformers refuses bf16 where no GPU has it.
        "use_cpu": (processes() > 1 or settings.bf16) and not torch.accelerator.is_available(),
        "label_names": ["labels"],
        "seed": recipe.seed,
        "report_to": "none",
        "disable_tqdm": not progress,
        "log_level": "error",
    }
    arguments = TrainingArguments(**values)
    if arguments.world_size != processes():
        raise ConfigurationError(
            f"{processes()} processes were started, but transformers joined {arguments.world_size}. Start them with "
            "'accelerate launch --multi_gpu --num_processes ...' or 'torchrun --nproc-per-node ...'."
        )
    return arguments


def intervals(recipe: TrainingRecipe, steps: int) -> tuple[int, int]:
    """Steps between evaluations and between checkpoints: as given, or a tenth of the run.

    With early stopping every checkpoint has been evaluated, so that the best one can be taken back.
    """
    settings = recipe.training
    tenth = max(1, steps // 10)
    if settings.early_stopping is not None:
        eval_every = settings.eval_every or settings.save_every or tenth
        return eval_every, settings.save_every or eval_every
    return settings.eval_every or tenth, settings.save_every or tenth


def early_stopping(recipe: TrainingRecipe) -> list[TrainerCallback]:
    """The callback that stops early, where the recipe asks for it."""
    stopping = recipe.training.early_stopping
    return [] if stopping is None else [EarlyStoppingCallback(stopping.patience, stopping.min_delta)]
