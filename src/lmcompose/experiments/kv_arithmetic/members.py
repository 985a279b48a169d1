"""The two frozen members of the experiment, trained from nothing: m_A knows the keys, m_B knows arithmetic.

Both are small GPT-2 models with learned positions. Three choices make the composition learnable, and each was measured
(docs/kv-arithmetic.md):

- The keys of m_A start at zero and decay strongly. All keys then start at one point and move along the same few
  directions, so that their values can be read by a linear map, which is all that a linear f_proj can do.
- Half of m_B's numbers have many zero digits. Each digit place can then be learned before all carries are.
- m_B's rows for keys and fillers stay zero: it has never seen one, and adds nothing where a key stands.

Only words that an answer can have are trained in the heads; the keys' rows there are zero, and the loss counts them
exactly (`answer_loss`) without computing them. This file knows nothing about compositions.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from lmcompose.experiments.kv_arithmetic.short_states import short_states
from lmcompose.experiments.kv_arithmetic.task import BECOMES, BOS, EOS, FILLER, FIRST_DIGIT, FIRST_KEY, PAD, Kind, Task
from lmcompose.experiments.stages import Report

KEY_NORM = 4.0
"""Of m_A's keys once it is trained: of the order of m_B's digits, which have 1 to 2."""

Batch = tuple[torch.Tensor, int]
"""Token ids [rows, length] and the length of the prompt."""


@dataclass(frozen=True)
class MemberProfile:
    """The shape of a member and how it is trained.

    Args:
        width, layers, heads, mlp: of the model.
        steps, rows: optimizer steps, and expressions of the longest kind in each.
        learning_rate: of AdamW, on embeddings, norms and biases, and on matrices too where Muon has none.
        muon_learning_rate: of Muon on the matrices; 0 leaves them to AdamW.
        weight_decay: of both.
        single: the first fraction of the steps, in which expressions are short (one operand for m_A, up to two for
            m_B).
        mix: how often expressions of 1, 2, ... operands are drawn after that.
        sparse: how often a row's numbers get half of their digits zeroed (m_B only).
        unknown: how often a row's operands lose some or all of their digits to fillers (m_B only).
        noise: standard deviation of Gaussian noise on the embeddings (m_B only): bridges that are still learning write
            a little everywhere, and a model that never met a disturbed embedding loses its skill at once.
        mixing: standard deviation of the weights with which the other digits are mixed into the embedding of each (m_B
            only): the disturbance that is left where a linear map reads a digit from a state of m_A.
        echo: the share of the steps in which expressions of plain numbers are read back, `10 + 22 -> 10 + 22` (m_B
            only). Any pretrained anchor can repeat what it has read; there is no key in it. A bridge that tells the
            anchor which number a key is then has nothing more to learn for KV-SUBS.
        decay: the last fraction of the steps, over which the learning rates fall to zero.
    """

    width: int
    layers: int
    heads: int
    mlp: int
    steps: int
    rows: int
    learning_rate: float
    muon_learning_rate: float = 0.0
    weight_decay: float = 0.0
    single: float = 0.0
    mix: tuple[float, ...] = (1.0, 1.0, 1.0)
    sparse: float = 0.0
    unknown: float = 0.0
    noise: float = 0.0
    mixing: float = 0.0
    echo: float = 0.0
    decay: float = 0.35


def build_augmenting(task: Task, profile: MemberProfile, seed: int) -> GPT2LMHeadModel:
    """An untrained m_A: full embeddings, whose keys start at zero, and a head of answer words."""
    model = _gpt2(task.vocab_size, profile, tied=False, seed=seed)
    with torch.no_grad():
        model.transformer.wte.weight[FIRST_KEY : FIRST_KEY + task.keys] = 0
    model.lm_head = nn.Linear(profile.width, FIRST_KEY, bias=False)
    nn.init.normal_(model.lm_head.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
    return model


def build_anchor(task: Task, profile: MemberProfile, seed: int) -> GPT2LMHeadModel:
    """An untrained m_B: embeddings, tied to the head, of the words of arithmetic alone.

    Where the task has words of its own, they follow these without the keys between (see `without_keys`), and the head,
    which has none of them, is not tied.
    """
    model = _gpt2(FIRST_KEY + len(task.words), profile, tied=not task.words, seed=seed)
    if task.words:
        model.lm_head = nn.Linear(profile.width, FIRST_KEY, bias=False)
        nn.init.normal_(model.lm_head.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.transformer.wte.weight[[BECOMES, FILLER]] = 0  # it never reads these
    return model


def _gpt2(vocab_size: int, profile: MemberProfile, tied: bool, seed: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=64,
        n_embd=profile.width,
        n_layer=profile.layers,
        n_head=profile.heads,
        n_inner=profile.mlp,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


@torch.no_grad()
def with_full_vocabulary(model: GPT2LMHeadModel, task: Task) -> GPT2LMHeadModel:
    """The finished member: every row that it has not learned is zero, in the embeddings and in the head.

    What it has learned beyond the words of arithmetic stands at the end: the task's keys and words, or the words alone.
    """
    words, head = model.transformer.wte.weight.data, model.lm_head.weight.data
    tied = words.data_ptr() == head.data_ptr()
    for table in (model.transformer.wte,) if tied else (model.transformer.wte, model.lm_head):
        learned = table.weight.data
        table.weight = nn.Parameter(torch.zeros(task.vocab_size, learned.shape[1]))
        table.weight.data[:FIRST_KEY] = learned[:FIRST_KEY]
        table.weight.data[task.vocab_size - len(learned) + FIRST_KEY :] = learned[FIRST_KEY:]
    if tied:
        model.lm_head.weight = model.transformer.wte.weight
    model.transformer.wte.num_embeddings = model.lm_head.out_features = task.vocab_size
    model.config.vocab_size = task.vocab_size
    return model.eval()


def without_keys(ids: torch.Tensor, task: Task) -> torch.Tensor:
    """Token ids of prompts without keys as an m_B that has not met the keys' rows has them."""
    return torch.where(ids >= FIRST_KEY + task.keys, ids - task.keys, ids)


@torch.no_grad()
def scale_states(model: GPT2LMHeadModel, key_norm: float) -> None:
    """Multiply every hidden state of `model` so that its keys have the norm `key_norm`; its answers stay the same.

    Weight decay leaves small states behind, which the norms inside the model make up for. Bridges read the states
    before any norm, and start blind where those are much smaller than the anchor's.
    """
    factor = key_norm / model.transformer.wte.weight[FIRST_KEY:].norm(dim=1).mean()
    model.transformer.wte.weight *= factor
    model.transformer.wpe.weight *= factor
    for name, parameter in model.transformer.h.named_parameters():
        if "c_proj" in name:  # what attention and MLP add to the stream
            parameter.mul_(factor)


def answer_loss(hidden_states: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, keys: int) -> torch.Tensor:
    """The mean cross-entropy of the answer over the whole vocabulary, of which only the words are computed.

    Args:
        hidden_states: [rows, answer, width], the states that predict the answer.
        head: [words, width], the rows of the head that were learned.
        labels: [rows, answer].
        keys: how many further rows there are; they are zero, so each of their logits is 0.
    """
    logits = nn.functional.linear(hidden_states, head).float()
    total = torch.logaddexp(logits.logsumexp(dim=-1), torch.tensor(math.log(keys)))
    return (total - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)).mean()


def train_augmenting(
    task: Task, profile: MemberProfile, seed: int, report: Report | None = None
) -> tuple[GPT2LMHeadModel, float]:
    """m_A: KV-SUBS over all keys, and no arithmetic. Returns the model and the seconds it took."""
    model = build_augmenting(task, profile, seed)
    every_key = np.arange(task.keys)

    def batches() -> Iterator[Batch]:
        generator = np.random.default_rng([seed, 2])
        for step in range(profile.steps):
            operands = 1 if step < profile.single * profile.steps else _draw_operands(generator, task, profile)
            rows = profile.rows * task.operands // operands  # as many keys in every step
            yield _encoded(task, Kind.KV_SUBS, task.sample(generator, rows, operands, every_key))

    seconds = train_member(model, batches(), profile, task.vocab_size - FIRST_KEY, report)
    scale_states(model, KEY_NORM)
    return with_full_vocabulary(model, task), seconds


def train_anchor(
    task: Task, profiles: tuple[MemberProfile, ...], seed: int, report: Report | None = None
) -> tuple[GPT2LMHeadModel, float]:
    """m_B: NUM-MATH, and no key, in the stages `profiles`. Returns the model and the seconds it took."""
    model, seconds, steps = build_anchor(task, profiles[0], seed), 0.0, 0
    for number, profile in enumerate(profiles):
        report_on = None if report is None else _later(report, steps, sum(stage.steps for stage in profiles))
        seconds += train_anchor_stage(model, task, profile, seed + 1_000 * number, report_on)
        steps += profile.steps
    return with_full_vocabulary(model, task), seconds


def _later(report: Report, before: int, steps: int) -> Report:
    return lambda step, _, loss: report(before + step, steps, loss)


def train_anchor_stage(
    model: GPT2LMHeadModel, task: Task, profile: MemberProfile, seed: int, report: Report | None = None
) -> float:
    """One stage of m_B, with an optimizer of its own; returns the seconds it took."""

    def batches() -> Iterator[Batch]:
        generator = np.random.default_rng([seed, 3])
        for step in range(profile.steps):
            longest = 2 if step < profile.single * profile.steps else task.operands
            operands = _draw_operands(generator, task, profile, longest)
            drawn = task.sample(generator, profile.rows, operands, sparse=profile.sparse)
            echo = profile.echo > 0 and generator.random() < profile.echo
            ids, prompt = _encoded(task, Kind.KV_SUBS if echo else Kind.NUM_MATH, drawn)
            yield without_keys(forget_digits(ids, prompt, profile.unknown, generator), task), prompt

    def keep_unread_words_at_zero() -> None:
        words = model.transformer.wte.weight
        assert words.grad is not None
        words.grad[[FILLER] if profile.echo else [BECOMES, FILLER]] = 0

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the noise
        return train_member(model, batches(), profile, task.vocab_size - FIRST_KEY, report, keep_unread_words_at_zero)


def forget_digits(ids: torch.Tensor, prompt: int, share: float, generator: np.random.Generator) -> torch.Tensor:
    """Word dropout: in a share of the rows, digits of the prompt become fillers, each row with a rate of its own.

    The filler's row is zero and stays zero, so this is a digit that m_B does not know. It learns to answer as well as
    what it knows allows, and so the bridges, which start by adding nothing there, get a gradient that points at the
    missing digit; a model that was never in doubt answers nonsense with confidence, and the gradient with it.
    """
    rates = generator.random((len(ids), 1)) * (generator.random((len(ids), 1)) < share)
    dropped = torch.from_numpy(generator.random((len(ids), prompt)) < rates)
    digits = (ids[:, :prompt] >= FIRST_DIGIT) & (ids[:, :prompt] < FIRST_DIGIT + 10)
    forgotten = ids.clone()
    forgotten[:, :prompt][dropped & digits] = FILLER
    return forgotten


def _draw_operands(
    generator: np.random.Generator, task: Task, profile: MemberProfile, longest: int | None = None
) -> int:
    weights = np.array(profile.mix[: min(longest or task.operands, task.operands)], dtype=float)
    return int(generator.choice(len(weights), p=weights / weights.sum())) + 1


def _encoded(task: Task, kind: Kind, expressions: object) -> Batch:
    ids, prompt = task.encode(expressions, kind)  # type: ignore[arg-type]
    return torch.from_numpy(ids), prompt


def train_member(
    model: GPT2LMHeadModel,
    batches: Iterator[Batch],
    profile: MemberProfile,
    keys: int,
    report: Report | None = None,
    before_step: Callable[[], None] | None = None,
) -> float:
    """Train all of a member on the answers of `batches`; returns the seconds it took.

    Learning rates rise over 50 steps, stay, and fall to zero over the last `profile.decay` of the steps.
    """
    optimizers = _optimizers(model, profile)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    started = time.perf_counter()
    model.train()
    for step, (ids, prompt) in enumerate(batches):
        for optimizer, rates in zip(optimizers, peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step, profile.steps, profile.decay)
        embeddings = model.transformer.wte(ids[:, :-1])
        if profile.noise:
            embeddings = embeddings + profile.noise * torch.randn_like(embeddings)
        if profile.mixing:
            embeddings = embeddings + mixed_in(model.transformer.wte.weight, ids[:, :-1], profile.mixing)
        read = partial(model.transformer, inputs_embeds=embeddings, use_cache=False)
        states = short_states(model.transformer, prompt - 1, read)
        loss = answer_loss(states, model.lm_head.weight, ids[:, prompt:], keys)
        loss.backward()
        if before_step is not None:
            before_step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if report is not None:
            report(step + 1, profile.steps, loss.item())
    model.eval()
    return time.perf_counter() - started


def mixed_in(words: torch.Tensor, ids: torch.Tensor, std: float) -> torch.Tensor:
    """What to add to the embeddings [rows, length, width] of `ids` so that every digit is mixed with the others.

    Each of the ten digits is added with a weight from N(0, std^2), as far as it differs from their mean; other words
    stay as they are.
    """
    digits = words[FIRST_DIGIT : FIRST_DIGIT + 10].detach()
    added = std * torch.randn(*ids.shape, 10) @ (digits - digits.mean(dim=0))
    return added * ((ids >= FIRST_DIGIT) & (ids < FIRST_DIGIT + 10)).unsqueeze(-1)


def schedule(step: int, steps: int, decay: float, warmup: int = 50) -> float:
    """The share of the peak learning rate at `step`: a rise, a plateau, and a fall over the last `decay` of all."""
    rise = min(1.0, (step + 1) / warmup)
    fall = min(1.0, (steps - step) / (steps * decay)) if decay > 0 else 1.0
    return rise * max(0.02, fall)


def _optimizers(model: GPT2LMHeadModel, profile: MemberProfile) -> list[torch.optim.Optimizer]:
    positions = [model.transformer.wpe.weight]
    matrices = [
        parameter
        for parameter in model.transformer.h.parameters()
        if parameter.ndim == 2 and profile.muon_learning_rate
    ]
    apart = {id(parameter) for parameter in (*positions, *matrices)}
    others = [parameter for parameter in model.parameters() if id(parameter) not in apart]
    # Positions that no short expression reaches must not decay while only short ones are trained on.
    groups: list[dict[str, Any]] = [{"params": others}, {"params": positions, "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            groups, lr=profile.learning_rate, weight_decay=profile.weight_decay, betas=(0.9, 0.98), fused=True
        )
    ]
    if matrices:
        optimizers.append(
            torch.optim.Muon(
                matrices,
                lr=profile.muon_learning_rate,
                weight_decay=profile.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return optimizers
