"""Exact match by real generation, and the linear probe that predicts what a linear f_proj can carry."""

import dataclasses
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose.calls import CallSlot
from lmcompose.calm.attach import hook_layers
from lmcompose.experiments.kv_arithmetic.task import EOS, FIRST_DIGIT, FIRST_KEY, PAD, Kind, Task
from lmcompose.experiments.stages import Report

TEST_SEED = 1_000_003
"""Test expressions come from a stream of their own, so that every model answers the same ones."""


def test_prompts(task: Task, kind: Kind, count: int, pool: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` longest expressions of one kind: prompts [count, prompt length] and answers [count, answer length]."""
    generator = np.random.default_rng([TEST_SEED, task.seed, list(Kind).index(kind)])
    expressions = task.sample(generator, count, task.operands, None if kind is Kind.NUM_MATH else pool)
    ids, prompt = task.encode(expressions, kind)
    encoded = torch.from_numpy(ids)
    return encoded[:, :prompt], encoded[:, prompt:]


test_prompts.__test__ = False  # type: ignore[attr-defined]  # no test, whatever its name looks like to pytest


@torch.no_grad()
def right_answers(
    model: PreTrainedModel, task: Task, kind: Kind, count: int, pool: np.ndarray | None, batch_size: int = 250
) -> list[bool]:
    """Which of `count` expressions `model` answers right, token for token up to its end-of-text token.

    Answers are generated greedily with the cache. Plain models and compositions are called alike.
    """
    prompts, answers = test_prompts(task, kind, count, pool)
    right: list[bool] = []
    generate = cast(Any, model).generate
    for start in range(0, count, batch_size):
        rows = prompts[start : start + batch_size]
        generated = generate(
            input_ids=rows,
            attention_mask=torch.ones_like(rows),
            max_new_tokens=answers.shape[1],
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )[:, rows.shape[1] :]
        full = torch.full((len(rows), answers.shape[1]), PAD)
        full[:, : generated.shape[1]] = generated
        right += (full == answers[start : start + batch_size]).all(dim=1).tolist()
    return right


def answers_of(
    model: PreTrainedModel, task: Task, count: int, pool: np.ndarray, report: Report | None = None
) -> dict[str, list[int]]:
    """Task -> 1 for each of `count` expressions that `model` answers right, else 0; keys are from `pool`."""
    found = {}
    for index, kind in enumerate(Kind):
        found[str(kind)] = [int(right) for right in right_answers(model, task, kind, count, pool)]
        if report is not None:
            report(index + 1, len(Kind), float("nan"))
    return found


def exact_match(
    model: PreTrainedModel, task: Task, kind: Kind, count: int, pool: np.ndarray | None, batch_size: int = 250
) -> dict[str, int]:
    """How many of `count` expressions `model` answers right (see `right_answers`)."""
    return {"correct": sum(right_answers(model, task, kind, count, pool, batch_size)), "total": count}


def score(model: PreTrainedModel, task: Task, count: int, pool: np.ndarray) -> dict[str, dict[str, int]]:
    """One row of the paper's Table 1: one model on the three tasks, keys from `pool`."""
    return {str(kind): exact_match(model, task, kind, count, pool) for kind in Kind}


@torch.no_grad()
def key_states(model: PreTrainedModel, task: Task, keys: np.ndarray, layer: int) -> torch.Tensor:
    """The hidden states [keys, D_A] of layer `layer` at a key in the first place of an expression."""
    slot, seen = CallSlot(), []
    one = task.sample(np.random.default_rng(0), len(keys), 1, keys)
    alone = dataclasses.replace(one, keys=keys[:, None], values=task.values[keys][:, None])
    ids, length = task.encode(alone, Kind.KV_SUBS)
    prompt = ids[:, :length]
    place = int(np.flatnonzero(prompt[0] == FIRST_KEY + keys[0])[0])

    def read(_: int, hidden_states: torch.Tensor) -> torch.Tensor:
        seen.append(hidden_states[:, place].float())
        return hidden_states

    handles = hook_layers(model, [layer], slot)
    with slot.during(read):
        for rows in torch.from_numpy(prompt).split(2048):
            model.get_decoder()(input_ids=rows, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.cat(seen)


def probe_layer(model: PreTrainedModel, task: Task, layer: int, steps: int = 400) -> dict[str, Any]:
    """How well a linear map reads the digits of a key's value from m_A's state there.

    A softmax regression for each digit, fitted on the keys held in and tested on the keys held out: what it cannot
    read, a linear f_proj cannot carry.

    Returns:
        `digits`: accuracy of each digit, the least significant first; `all`: the share of keys with every digit right.
    """
    held_in, held_out = task.split
    fit, test = (key_states(model, task, keys, layer) for keys in (held_in, held_out))
    mean, spread = fit.mean(dim=0), fit.std(dim=0) + 1e-6
    fit, test = (fit - mean) / spread, (test - mean) / spread
    labels, expected = (
        torch.from_numpy(task.digits(task.values[keys], task.width)) - FIRST_DIGIT for keys in (held_in, held_out)
    )
    probe = nn.Linear(fit.shape[1], 10 * task.width)
    nn.init.zeros_(probe.weight)
    nn.init.zeros_(probe.bias)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=2e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    with torch.enable_grad():
        for _ in range(steps):
            loss = nn.functional.cross_entropy(probe(fit).view(-1, 10), labels.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        right = probe(test).view(len(test), task.width, 10).argmax(dim=-1) == expected
    return {"digits": right.float().mean(dim=0).tolist(), "all": right.all(dim=1).float().mean().item()}
