"""The composition of the two members, trained by lmcompose's own trainer on expressions over the keys held in.

One composition is trained on all that it will be asked: arithmetic over held-in keys, substitution of held-in keys,
and arithmetic on plain numbers, in the shares that the profile states.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lmcompose.calm.compose import compose
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.experiments.kv_arithmetic.members import Report, answer_loss, schedule
from lmcompose.experiments.kv_arithmetic.task import FIRST_KEY, Kind, Task
from lmcompose.training.trainer import CalmTrainer


@dataclass(frozen=True)
class CompositionProfile:
    """The connections of the composition and how it is trained.

    Args:
        connections: (layer of m_A, layer of m_B) pairs, 0 = the embeddings.
        num_heads: N_H of the cross-attention.
        initializer_range: standard deviation of the initial composition parameters but W_O.
        steps, rows: optimizer steps, and expressions in each.
        shares: how often each task is drawn.
        stages: the fractions of the steps after which expressions may have 2, 3, ... operands.
        mix: how often expressions of 1, 2, ... operands are drawn, as far as they are allowed yet.
        decay: the last fraction of the steps, over which the learning rate falls to zero.
    """

    connections: tuple[tuple[int, int], ...]
    num_heads: int
    steps: int
    rows: int
    learning_rate: float
    shares: dict[str, float]
    stages: tuple[float, ...] = ()
    mix: tuple[float, ...] = (1.0, 1.0, 1.0)
    weight_decay: float = 0.01
    initializer_range: float = 0.02
    warmup: int = 50
    decay: float = 0.4


class CompositionBatches(Dataset):
    """Batch number n of the composition data: a function of n, the seed and nothing else, so that a run can resume."""

    in_order = True

    def __init__(self, task: Task, profile: CompositionProfile, seed: int) -> None:
        self.task, self.profile, self.seed = task, profile, seed

    def __len__(self) -> int:
        return self.profile.steps

    def __getitem__(self, step: int) -> dict[str, Any]:
        """`input_ids` [rows, length], `labels` of the same shape, and `prompt`, the length of the prompt."""
        task, profile = self.task, self.profile
        generator = np.random.default_rng([self.seed, 4, step])
        kinds, shares = list(profile.shares), np.array(list(profile.shares.values()))
        kind = Kind(kinds[generator.choice(len(kinds), p=shares / shares.sum())])
        longest = 1 + sum(step >= fraction * profile.steps for fraction in profile.stages[: task.operands - 1])
        weights = np.array(profile.mix[:longest])
        operands = int(generator.choice(longest, p=weights / weights.sum())) + 1
        pool = None if kind is Kind.NUM_MATH else task.split[0]
        ids, prompt = task.encode(task.sample(generator, profile.rows, operands, pool), kind)
        input_ids = torch.from_numpy(ids)
        labels = input_ids.clone()
        labels[:, :prompt] = -100
        return {"input_ids": input_ids, "labels": labels, "prompt": prompt}


class AnswerTrainer(CalmTrainer):
    """`CalmTrainer` whose loss computes only what an answer can be made of: see `answer_loss`."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss of the answers of one batch."""
        composition: CalmForCausalLM = self.accelerator.unwrap_model(model)
        ids, prompt = inputs["input_ids"], inputs["prompt"]
        states = composition.base_model(ids[:, :-1]).last_hidden_state[:, prompt - 1 :]
        head = composition.anchor.get_output_embeddings().weight[:FIRST_KEY]
        keys = composition.anchor.config.vocab_size - FIRST_KEY
        return answer_loss(states, head, ids[:, prompt:], keys)


class StepReport(TrainerCallback):
    """Tells a `Report` of every step, and calls `check` a few times on the way."""

    def __init__(self, report: Report | None, check: Callable[[int], None] | None, checks: int) -> None:
        self.report, self.check, self.checks = report, check, checks

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer."""
        every = max(1, state.max_steps // self.checks)
        if self.check is not None and state.global_step % every == 0:
            self.check(state.global_step)
        if self.report is not None:
            loss = state.log_history[-1].get("loss", float("nan")) if state.log_history else float("nan")
            self.report(state.global_step, state.max_steps, loss)


def compose_members(
    task: Task,
    anchor: GPT2LMHeadModel,
    augmenting: GPT2LMHeadModel,
    profile: CompositionProfile,
    seed: int,
    projection: str = "linear",
) -> CalmForCausalLM:
    """The untrained composition of two members, with the tokenizer that they share."""
    tokenizer = task.tokenizer()
    return compose(
        anchor=(anchor, tokenizer),
        augmenting=(augmenting, tokenizer),
        connections=profile.connections,
        num_heads=profile.num_heads,
        bridge_initializer_range=profile.initializer_range,
        projection=projection,
        seed=seed,
    )


def train_composition(
    model: CalmForCausalLM,
    task: Task,
    profile: CompositionProfile,
    seed: int,
    report: Report | None = None,
    check: Callable[[int], None] | None = None,
    checks: int = 10,
) -> tuple[float, list[dict[str, float]]]:
    """Train the composition parameters of `model`.

    Returns:
        The seconds it took (without `check`, which is called `checks` times on the way), and the loss curve.
    """
    checking = 0.0

    def timed_check(step: int) -> None:
        nonlocal checking
        started = time.perf_counter()
        model.eval()
        if check is not None:
            check(step)
        model.train()
        checking += time.perf_counter() - started

    parameters = [parameter for _, parameter in model.composition_parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=profile.learning_rate, weight_decay=profile.weight_decay, betas=(0.9, 0.98), fused=True
    )
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule(step, profile.steps, profile.decay, profile.warmup)
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainer = AnswerTrainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=profile.steps,
                per_device_train_batch_size=1,  # a row of this dataset is a batch
                logging_steps=max(1, profile.steps // 100),
                save_strategy="no",
                report_to="none",
                remove_unused_columns=False,
                disable_tqdm=True,
                use_cpu=True,
                seed=seed,
                log_level="error",
            ),
            train_dataset=CompositionBatches(task, profile, seed),
            data_collator=lambda batches: batches[0],
            optimizers=(optimizer, rates),
            callbacks=[StepReport(report, timed_check if check else None, checks)],
        )
        trainer.remove_callback(PrinterCallback)  # it prints every logged dict where there is no bar
        trainer.train()
    seconds = time.perf_counter() - started - checking
    model.eval()
    curve = [{"step": entry["step"], "loss": entry["loss"]} for entry in trainer.state.log_history if "loss" in entry]
    return seconds, curve
