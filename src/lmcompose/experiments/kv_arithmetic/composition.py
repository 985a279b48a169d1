"""The composition of the two members, trained by lmcompose's own trainer on expressions over the keys held in.

One composition is trained on all that it will be asked: arithmetic over held-in keys, substitution of held-in keys,
and arithmetic on plain numbers, in the shares that the profile states.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lmcompose.calm.compose import compose
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.experiments.kv_arithmetic.answer_states import answer_states
from lmcompose.experiments.kv_arithmetic.members import answer_loss, schedule
from lmcompose.experiments.kv_arithmetic.task import FIRST_KEY, Kind, Task
from lmcompose.experiments.stages import Report, StepReport
from lmcompose.training.trainer import CalmTrainer


@dataclass(frozen=True)
class CompositionProfile:
    """The composition and how it is trained.

    Args:
        connections: (layer of m_A, layer of m_B) pairs, 0 = the embeddings.
        num_heads: N_H of the cross-attention.
        initializer_range: standard deviation of the initial composition parameters but W_O.
        steps, rows: optimizer steps, and expressions in each.
        learning_rate: of Muon, scaled to the step size of AdamW, for W_Q and W_K.
        written: the learning rate of f_proj, W_V and W_O, what is read and written, as a share of `learning_rate`.
        substitution: the share of KV-SUBS among the rows; the others are arithmetic.
        mix: the shares of expressions with 1, 2, ... operands.
        all_keys: the share of arithmetic rows whose operands are all keys: at first, and at last. The others have one
            key among plain numbers, which tells the bridges best what it means.
        ramp: the fractions of the steps between which `all_keys` rises.
        no_key: the share of arithmetic rows of plain numbers only, so that the anchor's own skill is kept.
        weight_decay: of W_Q and W_K, whose scores must grow before one key can be told from all other positions.
        written_decay: of f_proj, W_V and W_O. Muon's steps have one size, and without a stronger decay these three can
            grow until a bridge writes many times what the anchor's own embeddings are, which drowns the anchor's skill.
        warmup: steps in which the learning rate rises.
        decay: the last fraction of the steps, over which the learning rate falls to zero.
    """

    connections: tuple[tuple[int, int], ...]
    num_heads: int
    initializer_range: float
    steps: int
    rows: int
    learning_rate: float
    mix: tuple[float, ...]
    substitution: float = 0.3
    all_keys: tuple[float, float] = (0.1, 0.75)
    ramp: tuple[float, float] = (0.2, 0.4)
    no_key: float = 0.1
    written: float = 0.5
    weight_decay: float = 0.1
    written_decay: float = 0.3
    warmup: int = 20
    decay: float = 0.75


UNFROZEN_RATE = 1e-3
"""The learning rate of AdamW for layers of a member that are trained on: what they know already must not be lost."""

Part = dict[str, Any]
"""`input_ids` [rows, length] and `prompt`, the length of the prompt, for expressions of one kind and length."""


class CompositionBatches(Dataset):
    """Batch number n of the composition data: a function of n, the seed and nothing else, so that a run can resume.

    Every batch holds all kinds and lengths in their shares: Muon's steps have one size, whatever the gradient's, and
    batches of one kind pull the bridges to and fro.

    Args:
        pool: the keys that the data show; by default those that the task holds in.
    """

    in_order = True

    def __init__(self, task: Task, profile: CompositionProfile, seed: int, pool: np.ndarray | None = None) -> None:
        self.task, self.profile, self.seed = task, profile, seed
        self.pool = task.split[0] if pool is None else pool

    def __len__(self) -> int:
        return self.profile.steps

    def __getitem__(self, step: int) -> dict[str, list[Part]]:
        """`parts`: the batch, grouped by kind and length."""
        task, profile = self.task, self.profile
        generator = np.random.default_rng([self.seed, 4, step])
        all_keys = float(np.interp(step / profile.steps, profile.ramp, profile.all_keys))
        mix = np.array(profile.mix[: task.operands])
        parts = []
        for kind, share in ((Kind.KV_MATH, 1 - profile.substitution), (Kind.KV_SUBS, profile.substitution)):
            for operands, rows in enumerate(np.round(profile.rows * share * mix / mix.sum()).astype(int), start=1):
                if rows == 0:
                    continue
                kinds = {"all_keys": all_keys, "no_key": profile.no_key} if kind is Kind.KV_MATH else {}
                expressions = task.sample(generator, int(rows), operands, self.pool, **kinds)
                ids, prompt = task.encode(expressions, kind)
                parts.append({"input_ids": torch.from_numpy(ids), "prompt": prompt})
        return {"parts": parts}


class AnswerTrainer(CalmTrainer):
    """`CalmTrainer` for the parts of a batch, whose loss computes only what an answer can be made of."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss over all answer tokens of the batch (see `answer_loss`)."""
        composition: CalmForCausalLM = self.accelerator.unwrap_model(model)
        head = composition.anchor.get_output_embeddings().weight[:FIRST_KEY]
        keys = composition.anchor.config.vocab_size - FIRST_KEY
        loss, tokens = torch.zeros(()), 0
        for part in inputs["parts"]:
            ids, prompt = part["input_ids"], part["prompt"]
            answers = ids[:, prompt:]
            states = answer_states(composition, ids[:, :-1], prompt)
            loss = loss + answers.numel() * answer_loss(states, head, answers, keys)
            tokens += answers.numel()
        return loss / tokens


def compose_members(
    task: Task,
    anchor: GPT2LMHeadModel,
    augmenting: GPT2LMHeadModel,
    profile: CompositionProfile,
    seed: int,
    **options: Any,
) -> CalmForCausalLM:
    """The untrained composition of two members, with the tokenizer that they share.

    Args:
        options: of `compose`, before what the profile says.
    """
    tokenizer = task.tokenizer()
    settings = {
        "connections": list(profile.connections),
        "num_heads": profile.num_heads,
        "bridge_initializer_range": profile.initializer_range,
        "seed": seed,
    }
    return compose(anchor=(anchor, tokenizer), augmenting=(augmenting, tokenizer), **{**settings, **options})


class Together(torch.optim.Optimizer):
    """Two optimizers as one, each for the parameters that it was given."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of each, at the learning rates that stand in the groups of this one."""
        start = 0
        for optimizer in self.optimizers:
            end = start + len(optimizer.param_groups)
            optimizer.param_groups = self.param_groups[start:end]  # which a schedule, or a trainer, has replaced
            optimizer.step()
            start = end


def train_composition(
    model: CalmForCausalLM,
    task: Task,
    profile: CompositionProfile,
    seed: int,
    report: Report | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[float, list[dict[str, float]]]:
    """Train all of `model` that wants a gradient: its bridges, and layers of the members that are not frozen.

    Returns:
        The seconds it took, and the loss curve.
    """
    started = time.perf_counter()
    asked: list[torch.nn.Parameter] = []
    written: list[torch.nn.Parameter] = []
    gates: list[torch.nn.Parameter] = []
    unfrozen: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not name.startswith("bridges."):
            unfrozen.append(parameter)
        elif name.endswith(".gate"):
            gates.append(parameter)
        else:
            (asked if "q_proj" in name or "k_proj" in name else written).append(parameter)
    # Muon takes matrices, and for those of a bridge AdamW takes several times as many steps. A gate is one number,
    # which must be open before anything else has a gradient to speak of: AdamW's steps are five times Muon's.
    optimizer: torch.optim.Optimizer = torch.optim.Muon(
        [
            {"params": asked, "lr": profile.learning_rate, "weight_decay": profile.weight_decay},
            {
                "params": written,
                "lr": profile.learning_rate * profile.written,
                "weight_decay": profile.written_decay,
            },
        ],
        adjust_lr_fn="match_rms_adamw",
    )
    beside = ((gates, profile.learning_rate), (unfrozen, UNFROZEN_RATE))
    if groups := [{"params": parameters, "lr": rate} for parameters, rate in beside if parameters]:
        optimizer = Together(optimizer, torch.optim.AdamW(groups, weight_decay=0.0))
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule(step, profile.steps, profile.decay, profile.warmup)
    )
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
            callbacks=[*([] if report is None else [StepReport(report)]), *callbacks],
        )
        trainer.remove_callback(PrinterCallback)  # it prints every logged dict where there is no bar
        trainer.train()
    model.eval()
    curve = [{"step": entry["step"], "loss": entry["loss"]} for entry in trainer.state.log_history if "loss" in entry]
    return time.perf_counter() - started, curve
