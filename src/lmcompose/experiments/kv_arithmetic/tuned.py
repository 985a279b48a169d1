"""m_B tuned in place of being composed: what the same data, rows and steps do without m_A.

Its rows for keys are zero before, so that all keys look alike. Fine-tuning trains them, from zero and with the rates
and the decay with which m_A learned its own. LoRA trains no embedding; for it the keys get random rows as long as those
of the digits, so that at least they can be told apart. The output head is untied first, since no answer has a key.
"""

import copy
import time
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2LMHeadModel

from lmcompose.experiments.kv_arithmetic.composition import UNFROZEN_RATE, CompositionBatches, CompositionProfile
from lmcompose.experiments.kv_arithmetic.members import MemberProfile, answer_loss, schedule
from lmcompose.experiments.kv_arithmetic.task import FIRST_DIGIT, FIRST_KEY, Task
from lmcompose.experiments.stages import Report
from lmcompose.training.lora import matching_rank

LORA_RATE = 2e-3
"""Of AdamW on the adapters."""


def untied(anchor: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A copy of m_B whose head has weights of its own."""
    model = copy.deepcopy(anchor).requires_grad_(True)
    model.lm_head.weight = nn.Parameter(anchor.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return model


@torch.no_grad()
def tell_keys_apart(model: GPT2LMHeadModel, keys: int, seed: int) -> None:
    """Give every key a random row, of the mean length of the digits'."""
    words = model.transformer.wte.weight
    rows = torch.randn((keys, words.shape[1]), generator=torch.Generator().manual_seed(seed))
    length = words[FIRST_DIGIT : FIRST_DIGIT + 10].norm(dim=1).mean()
    words[FIRST_KEY : FIRST_KEY + keys] = rows * (length / rows.norm(dim=1, keepdim=True))


def tune(
    anchor: GPT2LMHeadModel,
    task: Task,
    profile: CompositionProfile,
    how: str,
    keys_as: MemberProfile,
    budget: int,
    seed: int,
    pool: np.ndarray | None = None,
    report: Report | None = None,
) -> tuple[GPT2LMHeadModel, dict[str, Any]]:
    """A copy of m_B tuned on the composition data of `profile`.

    Args:
        how: "lora" or "whole".
        keys_as: how m_A was trained: the learning rate and decay of the embeddings where all is tuned.
        budget: parameters of the bridge, which LoRA's rank is solved to match.
        pool: the keys that the data show; by default those that the task holds in.

    Returns:
        The model, LoRA merged into it, and `seconds`, `parameters` and `curve`.
    """
    started = time.perf_counter()
    model = untied(anchor)
    trained: Any = model
    groups: list[dict[str, Any]]
    if how == "lora":
        tell_keys_apart(model, task.keys, seed)
        rank = matching_rank(model, budget)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = LoraConfig(
                r=rank, lora_alpha=rank, target_modules="all-linear", fan_in_fan_out=True, task_type="CAUSAL_LM"
            )
            trained = get_peft_model(model, config)
        groups = [{"params": [p for p in trained.parameters() if p.requires_grad], "lr": LORA_RATE}]
    else:
        embeddings = model.transformer.wte.weight
        groups = [
            {"params": [embeddings], "lr": keys_as.learning_rate, "weight_decay": keys_as.weight_decay},
            {"params": [p for p in model.parameters() if p is not embeddings], "lr": UNFROZEN_RATE},
        ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    curve = _train(model, optimizer, CompositionBatches(task, profile, seed, pool), report)
    parameters = sum(p.numel() for group in groups for p in group["params"])
    if how == "lora":
        model = trained.merge_and_unload()
    return model.eval(), {"seconds": time.perf_counter() - started, "parameters": parameters, "curve": curve}


def _train(
    model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, batches: CompositionBatches, report: Report | None
) -> list[dict[str, float]]:
    profile, task = batches.profile, batches.task
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule(step, profile.steps, profile.decay, profile.warmup)
    )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    curve, every = [], max(1, profile.steps // 100)
    model.train()
    for step in range(profile.steps):
        parts = batches[step]["parts"]
        tokens = sum(part["input_ids"][:, part["prompt"] :].numel() for part in parts)
        total = 0.0
        for part in parts:
            ids, prompt = part["input_ids"], part["prompt"]
            answers = ids[:, prompt:]
            states = model.transformer(ids[:, :-1], use_cache=False).last_hidden_state[:, prompt - 1 :]
            loss = (
                answer_loss(states, model.lm_head.weight[:FIRST_KEY], answers, task.vocab_size - FIRST_KEY)
                * answers.numel()
                / tokens
            )
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % every == 0:
            curve.append({"step": step + 1, "loss": total})
        if report is not None:
            report(step + 1, profile.steps, total)
    return curve
