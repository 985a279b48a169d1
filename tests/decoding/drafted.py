"""Compositions of tiny models whose drafter is right now and then, and wrong now and then."""

from __future__ import annotations

from typing import Any

import torch

import lmcompose
from lmcompose import LogitForCausalLM
from tests.tiny import padded, random_ids, tiny_model

FORMULAS = {
    2: "0.5 * base + expert",
    3: "0.4 * base + expert - 0.3 * antiexpert",
    4: "0.4 * base + expert - 0.3 * antiexpert + 0.2 * other",
}
ROLES = ("base", "expert", "antiexpert", "other")

ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 5, 11)]
IDS, MASK, _ = padded(ROWS, "left")
BATCH = {"input_ids": IDS, "attention_mask": MASK}
ROW = {"input_ids": ROWS[2][None]}

GREEDY: dict[str, Any] = {"max_new_tokens": 18, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def drafted(base: str = "llama", expert: str | None = None, terms: int = 3, **options: Any) -> LogitForCausalLM:
    """A composition of random models with an expert of large weight, which is its drafter."""
    architectures = (base, expert or base, "llama", "gpt2")
    members = {
        role: tiny_model(architectures[seed], seed, num_hidden_layers=2 if seed < 2 else 1)
        for seed, role in enumerate(ROLES[:terms])
    }
    return lmcompose.combine(options.pop("formula", FORMULAS[terms]), members | options.pop("more", {}), **options)


def texts(model: LogitForCausalLM, speculative: Any, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
    """The ids that `generate` returns, prompt and all."""
    ids: torch.Tensor = model.generate(**inputs, **(GREEDY | options), speculative=speculative)
    return ids


def assert_same_text(model: LogitForCausalLM, inputs: dict[str, Any], speculative: Any = True, **options: Any) -> Any:
    """Speculation writes what plain decoding writes; returns its result, and asserts that it did speculate."""
    plain = texts(model, None, inputs, **options)
    result = model.generate(**inputs, **(GREEDY | options), speculative=speculative, return_dict_in_generate=True)
    assert result.sequences.tolist() == plain.tolist()
    assert result.speculation["fallback"] is None
    assert result.speculation["rounds"] > 0
    return result
