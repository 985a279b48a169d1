"""What the models say about the translations of held-out sentences, pair by pair, and what they write themselves.

All of it is sums over the tokens of a translation, of which `proxy_tuning.gaps` makes figures; this file makes none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

import lmcompose
from lmcompose.evaluation.positions import score_text, split
from lmcompose.evaluation.scoring import Scores, Tuned, divergence, log_probabilities
from lmcompose.experiments.proxy_translation.pairs import Pair, answer, first_line, prompt
from lmcompose.experiments.stages import Report
from lmcompose.logits.model import LogitForCausalLM

FORMULA = "base + alpha * (expert - beta * antiexpert)"
"""Proxy-tuning for beta = 1 (arXiv 2401.08565, equation 1); the expert added without an antiexpert for beta = 0."""
WITH, WITHOUT = {"alpha": 1.0, "beta": 1.0}, {"alpha": 1.0, "beta": 0.0}
ARMS = {"proxy": WITH, "expert_only": WITHOUT}

Sums = dict[str, list[float]]


def composition(base: str, expert: str, antiexpert: str) -> LogitForCausalLM:
    """The three members as one model, in bf16; an expert that is an adapter of the antiexpert shares its weights."""
    members = {"base": base, "expert": expert, "antiexpert": antiexpert}
    return lmcompose.combine(FORMULA, members, parameters=WITH, dtype=torch.bfloat16)


@torch.no_grad()
def measure(
    model: LogitForCausalLM,
    tuned: Tuned,
    pairs: Sequence[Pair],
    language: str,
    alphas: Sequence[float],
    temperatures: Sequence[float],
    report: Report,
) -> dict[str, Any]:
    """All sums over the held-out pairs; every model runs once for each of them.

    Returns:
        By pair, `characters` of the answer, its line end among them, and its `tokens`; Sums `nats` of every model, in
        bits in spite of the name that `gaps.figures` looks for; `alpha` and `temperature`, the same of the sweeps, by
        "<model>@<value>"; `kl`, divergences in nats by "<p> <q>"; and `agreement`, how often two models have the same
        likeliest token.
    """
    sums: dict[str, dict[str, list[float]]] = {kind: {} for kind in ("nats", "alpha", "temperature", "kl", "agreement")}
    found: dict[str, Any] = {"characters": [], "tokens": [], **sums}

    def add(kind: str, name: str, value: torch.Tensor | float) -> None:
        sums[kind].setdefault(name, []).append(float(value))

    for number, (english, translation) in enumerate(pairs, start=1):
        before, after = split(model, (prompt(english, language), answer(translation)), None)
        scores = score_text(model, tuned, before + after, len(after), None, None)
        true = torch.tensor(after)
        members = {role: member[None] for role, member in scores.members.items()}
        logits = _by_name(model, scores, members)

        def bits(kind: str, name: str, given: torch.Tensor, true: torch.Tensor = true) -> None:
            chosen = given.gather(-1, true[:, None])[:, 0].float() - given.float().logsumexp(dim=-1)
            add(kind, name, -chosen.double().sum() / math.log(2))

        for name, given in logits.items():
            bits("nats", name, given)
            if name in ("base", "expert", "proxy", "tuned"):
                for temperature in temperatures:
                    bits("temperature", f"{name}@{temperature:g}", given.float() / temperature)
        for name, arm in ARMS.items():
            for alpha in alphas:
                bits("alpha", f"{name}@{alpha:g}", model.composed_logits(members, {**arm, "alpha": alpha})[0])
        logs = {name: log_probabilities(given) for name, given in logits.items()}
        for name in logs.keys() - {"tuned"}:
            add("kl", f"tuned {name}", divergence(logs["tuned"], logs[name]).sum())
            add("agreement", f"tuned {name}", (logs["tuned"].argmax(-1) == logs[name].argmax(-1)).sum())
        add("kl", "base antiexpert", divergence(logs["base"], logs["antiexpert"]).sum())
        found["characters"].append(len(answer(translation)))
        found["tokens"].append(len(after))
        report(number, len(pairs), float("nan"))
    return found


def _by_name(model: LogitForCausalLM, scores: Scores, members: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The scores [positions, vocabulary] of members and compositions, and of the tuned model."""
    assert scores.tuned is not None
    composed = {name: model.composed_logits(members, arm)[0] for name, arm in ARMS.items()}
    return {**scores.members, **composed, "tuned": scores.tuned}


@torch.inference_mode()
def translate(
    model: PreTrainedModel,
    tokenizer: Any,
    pairs: Sequence[Pair],
    language: str,
    new_tokens: int,
    rows_at_once: int,
    report: Callable[[int], None],
    **options: Any,
) -> list[str]:
    """The first line that `model` writes after each prompt, greedily, in batches of prompts of about one length.

    Args:
        report: called with how many are done.
        options: further ones of `generate`, such as a composition's `parameters`.
    """
    prompts = [prompt(english, language) for english, _ in pairs]
    order = sorted(range(len(pairs)), key=lambda index: len(prompts[index]))
    lines: dict[int, str] = {}
    for start in range(0, len(order), rows_at_once):
        chosen = order[start : start + rows_at_once]
        inputs = tokenizer([prompts[index] for index in chosen], return_tensors="pt", padding=True, padding_side="left")
        written = model.generate(  # type: ignore[operator]
            **inputs,
            max_new_tokens=new_tokens,
            do_sample=False,
            stop_strings=["\n"],
            tokenizer=tokenizer,
            **options,
        )
        texts = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        lines |= {index: first_line(text) for index, text in zip(chosen, texts, strict=True)}
        report(len(lines))
    return [lines[index] for index in range(len(pairs))]
