"""The models of the experiment: small Llamas with the storyteller's tokenizer, trained from nothing or tuned further.

This file knows nothing about compositions.
"""

import copy
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from lmcompose.experiments.proxy_tuning.profiles import Schooling, Shape
from lmcompose.experiments.proxy_tuning.texts import Rows
from lmcompose.experiments.stages import Report

WARM_UP = 0.08
"""The share of the steps in which the learning rate rises."""


def build(shape: Shape, tokenizer: PreTrainedTokenizerBase, length: int, seed: int) -> LlamaForCausalLM:
    """An untrained model of that shape."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=2 * length,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def tuned(
    model: LlamaForCausalLM, rows: Rows, schooling: Schooling, seed: int, report: Report | None = None
) -> tuple[LlamaForCausalLM, float]:
    """A copy of `model`, trained on `rows`, and the seconds of processor time; `model` stays as it is."""
    model = copy.deepcopy(model)
    return model, train(model, rows, schooling, seed, report)


def train(model: LlamaForCausalLM, rows: Rows, schooling: Schooling, seed: int, report: Report | None = None) -> float:
    """Train all of `model` on every token of `rows` but the first of each; returns the seconds of processor time.

    The order of the rows depends on `seed` and on how many there are, and on no model: two models that are trained with
    the same arguments see the same rows in the same steps.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=schooling.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    started = time.process_time()
    model.train()
    for step, chosen in enumerate(order(len(rows), schooling, seed)):
        for group in optimizer.param_groups:
            group["lr"] = schooling.learning_rate * schedule(step, schooling.steps)
        ids, mask = rows.take(chosen)
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss  # padding is on the right: no mask is needed
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if report is not None:
            report(step + 1, schooling.steps, loss.item())
    model.eval()
    return time.process_time() - started


def order(count: int, schooling: Schooling, seed: int) -> Iterator[torch.Tensor]:
    """The rows of each step: all `count` of them in a random order, and then again in another."""
    generator = np.random.default_rng([seed, 1])
    waiting = np.empty(0, dtype=np.int64)
    for _ in range(schooling.steps):
        while len(waiting) < schooling.rows:
            waiting = np.concatenate([waiting, generator.permutation(count)])
        yield torch.from_numpy(waiting[: schooling.rows])
        waiting = waiting[schooling.rows :]


def schedule(step: int, steps: int) -> float:
    """The share of the peak learning rate at `step`: a short rise, and a straight fall that ends just above zero."""
    rise = max(1, round(WARM_UP * steps))
    return (step + 1) / rise if step < rise else (steps - step) / (steps - rise + 1)
