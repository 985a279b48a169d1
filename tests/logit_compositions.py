"""Tiny logit compositions for the laws: every claimed architecture is a base, with other ones as the small pair.

The composed logits must differ from the base's, or most laws would pass with members that do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose import LogitForCausalLM, proxy_tune
from tests.compositions import DIFFERENT, plain_logits
from tests.rarer_architectures import RARER
from tests.tiny import ARCHITECTURES, EOS_ID, PAD_ID, padded, random_ids, ring, tiny_model

NEW = 7
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]
IDS, MASK, POSITIONS = padded(ROWS, "left")

PROXY = "base + alpha * (expert - antiexpert)"


@dataclass(frozen=True)
class Trio:
    """A base, and the architectures of its expert and antiexpert."""

    base: str
    expert: str
    antiexpert: str

    @property
    def name(self) -> str:
        small = self.expert if self.expert == self.antiexpert else f"{self.expert}-{self.antiexpert}"
        return f"{self.base}+{small}"

    @property
    def names(self) -> tuple[str, str, str]:
        """All three architectures."""
        return self.base, self.expert, self.antiexpert

    @property
    def static_cache(self) -> bool:
        """Whether all plain members generate rightly with a static cache (``tests/test_tiny.py``)."""
        return all(ARCHITECTURES[arch].static_cache for arch in (self.base, self.expert, self.antiexpert))


TRIOS: dict[str, Trio] = {
    trio.name: trio
    for trio in (
        Trio("llama", "gpt2", "gpt2"),
        Trio("qwen2", "qwen2", "qwen2"),
        Trio("qwen3", "qwen2_sliding", "qwen2_sliding"),
        Trio("gemma2", "mistral", "mistral"),
        Trio("gemma3", "llama", "gemma3"),
        Trio("mistral", "bloom", "bloom"),
        Trio("phi3", "olmo2", "phi3"),
        Trio("gpt2", "opt", "opt"),
        Trio("gpt_neox", "gpt_neox", "gpt_neox"),
        Trio("opt", "falcon", "llama"),
        Trio("olmo2", "gemma2", "gemma2"),
        Trio("falcon", "mpt", "mpt"),
        # Slow: the others as bases, and as small models.
        Trio("mixtral", "llama", "mixtral"),
        Trio("starcoder2", "stablelm", "stablelm"),
        Trio("stablelm", "cohere", "cohere"),
        Trio("cohere", "granite", "granite"),
        Trio("granite", "starcoder2", "starcoder2"),
        Trio("bloom", "phi", "phi"),
        Trio("mpt", "mixtral", "mixtral"),
        Trio("phi", "qwen3", "qwen3"),
        Trio("gpt_neo", "phi3", "phi3"),
        Trio("qwen2_sliding", "gpt_neo", "gpt_neo"),
        *(Trio(base, small, small) for base, small in ring(list(RARER))),
    )
}

DEFAULT_TRIOS = tuple(TRIOS)[:12]
"""The trios of ``make test``; the others are marked slow."""


FEW_TRIOS = ("llama+gpt2", "qwen3+qwen2_sliding", "gemma3+llama-gemma3", "falcon+mpt")
"""Every kind of cache and of positions once, for the laws that decode many times."""


def trio_params(names: Iterable[str] = TRIOS, default: Sequence[str] = DEFAULT_TRIOS) -> list[Any]:
    """The trios as pytest parameters: those outside `default` are marked slow."""
    return [pytest.param(TRIOS[name], id=name, marks=() if name in default else pytest.mark.slow) for name in names]


def base_of(trio: Trio, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A fresh base, frozen: every call gives the same weights. It is deeper than the small models where it can be."""
    sizes = {} if trio.base == "gpt_neo" or trio.base in RARER else {"num_hidden_layers": 4}
    return tiny_model(trio.base, seed=0, **sizes).to(dtype).requires_grad_(False)


def expert_of(trio: Trio, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A fresh expert, frozen: every call gives the same weights."""
    return tiny_model(trio.expert, seed=1).to(dtype).requires_grad_(False)


def antiexpert_of(trio: Trio, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A fresh antiexpert, frozen: every call gives the same weights."""
    return tiny_model(trio.antiexpert, seed=2).to(dtype).requires_grad_(False)


def composition(trio: Trio, dtype: torch.dtype = torch.float32, **options: Any) -> LogitForCausalLM:
    """The proxy-tuned base of a trio, whose logits are shown to differ from the base's."""
    model = proxy_tune(base_of(trio, dtype), expert_of(trio, dtype), antiexpert_of(trio, dtype), **options)
    ids = random_ids(2, 10, seed=3)
    composed = plain_logits(model, ids)
    with model.disable():
        bare = plain_logits(model, ids)
    assert (composed - bare).abs().amax(dim=-1).min() > DIFFERENT, "the pair does not reach the logits"
    return model


def decode(model: PreTrainedModel, rows: slice = slice(None), seed: int = 5, **arguments: Any) -> Any:
    """Left-padded rows, NEW tokens, greedy unless told, without repeated bigrams; returns sequences and scores."""
    torch.manual_seed(seed)
    ids, mask = IDS[rows], MASK[rows]
    if len(ids) == 1:
        ids, mask = ids[mask.bool()][None], mask[mask.bool()][None]
    settings: dict[str, Any] = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": PAD_ID,
        "no_repeat_ngram_size": 2,
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    return model.generate(ids, attention_mask=mask, **(settings | arguments))  # type: ignore[operator]


def assert_same_decoding(got: Any, expected: Any) -> None:
    """Token for token and, bit for bit, the scores of every step."""
    assert torch.equal(got.sequences, expected.sequences)
    assert len(got.scores) == len(expected.scores)
    assert all(torch.equal(a, b.float()) for a, b in zip(got.scores, expected.scores, strict=True))


def lora_of(model: PreTrainedModel, seed: int = 0, targets: Any = ("q_proj", "v_proj"), **settings: Any) -> Any:
    """`model` as a PEFT model whose every adapter weight is random."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM", **settings)
    return randomise_adapters(peft.get_peft_model(model, config), seed)


def randomise_adapters(model: Any, seed: int = 0, std: float = 0.5) -> Any:
    """Draw every adapter weight from N(0, std^2): a fresh adapter does nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


__all__ = ["EOS_ID", "IDS", "MASK", "NEW", "PAD_ID", "POSITIONS", "PROXY", "ROWS", "TRIOS", "Trio"]
