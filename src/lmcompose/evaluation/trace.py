"""What a composition does with a prompt, token by token: who wanted the token, and how far the composition moved it.

A trace is a dict that JSON can hold; `reporting.page` draws it. This file knows no method of composition: the base is
the composition's leader, and its members are what their scores say.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lmcompose.card import run_record
from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.scoring import (
    Scores,
    Tuned,
    composed_scores,
    divergence,
    evaluating,
    finite,
    leader_role,
    parameters_given,
    standing,
    tuned_model,
)
from lmcompose.evaluation.texts import continuation_ids, decode, piece, spelling
from lmcompose.loading import Source
from lmcompose.logits.model import LogitForCausalLM
from lmcompose.logits.prompts import Prompt

MAX_NEW_TOKENS = 64

Given = Prompt | Sequence[int] | Tensor | Mapping[str, Tensor]
"""A prompt: a text, a conversation, token ids, or what `model.prepare(...)` made of one prompt."""


def trace(
    model: ComposedModel,
    prompt: Given,
    continuation: str | Sequence[int] | None = None,
    *,
    max_new_tokens: int | None = None,
    alpha: Any = None,
    parameters: Mapping[str, Any] | None = None,
    tuned: Source | None = None,
    seed: int | None = None,
    command: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Follow a composition through the tokens that it generates, or through a continuation that is given.

    Generated or given, the tokens are scored in one pass without a cache, before any temperature or filter of the
    sampling. In half precision that pass may differ from the decoding in the last digits.

    Args:
        model: any composition. Of one that is no sum of scores (CALM), the members are its leader alone.
        prompt: a text, a conversation, token ids, or one prompt from `model.prepare(...)`.
        continuation: what to score, a text or token ids; without it, the composition writes it.
        max_new_tokens: of the texts that the composition, its base alone, and `tuned` go on to write; by default 64.
            With a continuation, nothing is written unless this is given.
        alpha, parameters: of a logit composition's formula, as its `generate` takes them.
        tuned: a directly tuned model to stand beside the composition: anything that can be a member.
        seed: of the sampling, set before each text.
        command: what to record as the command.
        options: of `generate`: `do_sample`, `temperature`, ...; greedy by default.

    Returns:
        A dict of plain values, with the run record beside them:

        - `what` ("trace"), `model`, `base` (the role of the leader), `members` (role -> name), `tuned` (its name);
        - `prompt`, `prompt_ids`, `text`, `source` ("generated" or "given");
        - `tokens`: for each token its `id`, `text`, `spelling`; `members`: role -> `probability`, `log_probability`,
          `rank` (1 is the likeliest); `composition` and `tuned` with the same three; `base_choice` and
          `composition_choice`, the likeliest token of each with its `id`, `text` and `probability`; `shift`, the
          composition's log-probability of the token minus the base's; and `kl`, KL(composition || base) at this
          position; all in nats;
        - `outputs`: what the `composition`, the `base` alone and `tuned` write, each with `text` and `ids`;
        - `summary`: how many `tokens`; how many where the likeliest token is another one (`changed`); means of `shift`
          and `kl`; and the `log_probability` of the whole by `members`, `composition` and `tuned`.

        Numbers that are infinite (a token that is ruled out) are None.

    Raises:
        ConfigurationError: an empty prompt or continuation, no tokenizer for a text, parameters that are not there.
        MemberError: `tuned` cannot be read, or reads other tokens.
    """
    given = parameters_given(model, alpha, parameters)
    if max_new_tokens is not None and max_new_tokens < 1:
        raise ConfigurationError(f"max_new_tokens = {max_new_tokens}: ask for one new token at least.")
    inputs, text = _inputs(model, prompt)
    prompt_ids: list[int] = inputs["input_ids"][0].tolist()
    beside = tuned_model(tuned, model) if tuned is not None else None
    tokenizer = model.tokenizer
    outputs: dict[str, list[int]] = {}
    if continuation is None or max_new_tokens is not None:
        written = {"max_new_tokens": max_new_tokens or MAX_NEW_TOKENS, "do_sample": False, **options}
        outputs = _outputs(model, inputs, {**given, **written}, beside, seed)
    if continuation is not None:
        ids = continuation_ids(tokenizer, text, prompt_ids, continuation)
    else:
        ids = outputs["composition"]
    scores = _scores(model, inputs, ids, given, beside)
    tokens = _tokens(scores, tokenizer, prompt_ids, ids)
    return {
        "what": "trace",
        **run_record(
            {"max_new_tokens": max_new_tokens, **{name: _plain(of) for name, of in options.items()}}, seed, command
        ),
        "model": describe(model, given),
        "base": leader_role(model),
        "members": {role: model.config.references()[role].full_name for role in scores.members},
        "tuned": beside.name if beside else None,
        "prompt": text if text is not None else decode(tokenizer, prompt_ids),
        "prompt_ids": prompt_ids,
        "text": decode(tokenizer, ids, special=False),
        "source": "generated" if continuation is None else "given",
        "tokens": tokens,
        "outputs": {name: {"text": decode(tokenizer, row, special=False), "ids": row} for name, row in outputs.items()},
        "summary": _summary(tokens),
    }


def describe(model: ComposedModel, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The composition in plain values: its type, and of a logit composition the formula with the parameters used."""
    if not isinstance(model, LogitForCausalLM):
        return {"model_type": model.config.model_type}
    config = model.config
    values = model.values((given or {}).get("alpha"), (given or {}).get("parameters"))
    return {
        "model_type": config.model_type,
        "formula": config.formula,
        "parameters": {name: _plain(value) for name, value in values.items()},
        "scores": config.scores,
        "temperatures": dict(config.temperatures or {}),
        "plausibility": config.plausibility,
    }


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; of functions and objects, the name."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else getattr(value, "__name__", str(value))


# ------------------------------------------------------------------------------------------------------ inputs, outputs


def _inputs(model: ComposedModel, prompt: Given) -> tuple[dict[str, Tensor], str | None]:
    """What `generate` takes, of one text, on the model's device; and the prompt's text where it was one."""
    text: str | None = None
    if isinstance(prompt, Mapping):
        inputs = dict(prompt)
    elif isinstance(prompt, Tensor) or (len(prompt) > 0 and isinstance(prompt[0], int)):
        inputs = {"input_ids": torch.as_tensor(cast(Any, prompt)).reshape(1, -1)}
    else:
        text = prompt if isinstance(prompt, str) else None
        inputs = _encoded(model, cast(Prompt, prompt))
    if inputs["input_ids"].shape[0] != 1:
        raise ConfigurationError(f"A trace follows one prompt, and {inputs['input_ids'].shape[0]} were given.")
    if inputs["input_ids"].shape[1] == 0:
        raise ConfigurationError(
            "The prompt is empty: there is no token to go on from. Give one at least, such as the beginning of text."
        )
    inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}, text


def _encoded(model: ComposedModel, prompt: Prompt) -> dict[str, Tensor]:
    if isinstance(model, LogitForCausalLM):
        return model.prepare(prompt)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ConfigurationError(
            "The composition has no tokenizer, so a prompt is given as token ids. Or compose it with one: "
            "(model, tokenizer)."
        )
    if not isinstance(prompt, str):
        if not tokenizer.chat_template:
            raise ConfigurationError("The anchor's tokenizer has no chat template. Give the prompt as a text.")
        prompt = cast(str, tokenizer.apply_chat_template(cast(Any, prompt), tokenize=False, add_generation_prompt=True))
        return {"input_ids": torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])}
    return {"input_ids": torch.tensor([tokenizer(prompt)["input_ids"]], dtype=torch.long)}


def _outputs(
    model: ComposedModel, inputs: dict[str, Tensor], options: dict[str, Any], tuned: Tuned | None, seed: int | None
) -> dict[str, list[int]]:
    """What the composition, its leader alone, and the tuned model write after the prompt."""
    alone = {name: value for name, value in options.items() if name not in ("alpha", "parameters")}
    plain = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    outputs = {"composition": _written(model, inputs, options, seed)}
    with model.disable():
        outputs["base"] = _written(model, plain, alone, seed)
    if tuned is not None:
        with evaluating(tuned.model):
            outputs["tuned"] = _written(tuned.model, tuned.inputs(plain), alone, seed)
    return outputs


def _written(model: Any, inputs: Mapping[str, Tensor], options: Mapping[str, Any], seed: int | None) -> list[int]:
    if seed is not None:
        torch.manual_seed(seed)
    output = model.generate(**inputs, **{**options, "num_return_sequences": 1, "return_dict_in_generate": False})
    return cast(list[int], output[0, inputs["input_ids"].shape[1] :].tolist())


def _scores(
    model: ComposedModel, inputs: dict[str, Tensor], ids: list[int], given: dict[str, Any], tuned: Tuned | None
) -> Scores:
    """The scores at the positions that predict `ids`."""
    prompt, mask = inputs["input_ids"], inputs["attention_mask"]
    new = torch.tensor([ids], device=prompt.device)
    whole = {
        **inputs,
        "input_ids": torch.cat([prompt, new], dim=1)[:, :-1],
        "attention_mask": torch.cat([mask, torch.ones_like(new, dtype=mask.dtype)], dim=1)[:, :-1],
    }
    steps = {"context_length": prompt.shape[1]} if isinstance(model, LogitForCausalLM) else {}
    scores = composed_scores(model, {**whole, **steps}, len(ids), **given)
    if tuned is None:
        return scores
    return Scores(scores.members, scores.composition, tuned.scores(whole, len(ids)).to(scores.composition.device))


# ---------------------------------------------------------------------------------------------------------- the trace


def _tokens(
    scores: Scores, tokenizer: PreTrainedTokenizerBase | None, prompt_ids: list[int], ids: list[int]
) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = []
    for rows, part in scores.log_probabilities():
        chosen = torch.tensor(ids[rows], device=part.composition.device)
        members = {role: _standing(member, chosen) for role, member in part.members.items()}
        composition = _standing(part.composition, chosen)
        tuned = _standing(part.tuned, chosen) if part.tuned is not None else None
        shifts = (standing(part.composition, chosen)[0] - standing(part.base, chosen)[0]).tolist()
        kl = divergence(part.composition, part.base).tolist()
        choices = {name: _choices(each) for name, each in (("base", part.base), ("composition", part.composition))}
        for at, token in enumerate(ids[rows]):
            before = [*prompt_ids, *ids[: rows.start + at]]
            tokens.append(
                {
                    "id": token,
                    "text": piece(tokenizer, before, token),
                    "spelling": spelling(tokenizer, token),
                    "members": {role: member[at] for role, member in members.items()},
                    "composition": composition[at],
                    **({"tuned": tuned[at]} if tuned is not None else {}),
                    **{
                        f"{name}_choice": {
                            "id": choice,
                            "text": piece(tokenizer, before, choice),
                            "probability": chance,
                        }
                        for name, each in choices.items()
                        for choice, chance in [each[at]]
                    },
                    "shift": finite(shifts[at]),
                    "kl": finite(kl[at]),
                }
            )
    return tokens


def _standing(scores: Tensor, tokens: Tensor) -> list[dict[str, Any]]:
    chances, ranks = (values.tolist() for values in standing(scores, tokens))
    return [
        {"probability": math.exp(chance), "log_probability": finite(chance), "rank": rank}
        for chance, rank in zip(chances, ranks, strict=True)
    ]


def _choices(scores: Tensor) -> list[tuple[int, float]]:
    """The likeliest token of each position, and its probability."""
    best = scores.max(dim=-1)
    return list(zip(best.indices.tolist(), best.values.exp().tolist(), strict=True))


def _summary(tokens: list[dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {
        name: _total([token[name] for token in tokens]) for name in ("composition", "tuned") if name in tokens[0]
    }
    totals["members"] = {role: _total([token["members"][role] for token in tokens]) for role in tokens[0]["members"]}
    return {
        "tokens": len(tokens),
        "changed": sum(token["base_choice"]["id"] != token["composition_choice"]["id"] for token in tokens),
        "shift": _mean([token["shift"] for token in tokens]),
        "kl": _mean([token["kl"] for token in tokens]),
        "log_probability": totals,
    }


def _total(standings: list[dict[str, Any]]) -> float | None:
    mean = _mean([standing["log_probability"] for standing in standings])
    return None if mean is None else mean * len(standings)


def _mean(numbers: list[float | None]) -> float | None:
    """The mean of the numbers; None where one of them is infinite."""
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if len(known) == len(numbers) else None
