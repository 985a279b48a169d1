"""Tiny random causal language models and a tokenizer, built in this process with no download.

Every law runs on these. The weights are random but wide (``initializer_range`` 0.2 and positive norms), so that logits
differ clearly between tokens and between models; dropout is zero everywhere; sliding windows are smaller than the
texts of the tests, so that a window that is applied wrongly is seen.

What this file does not know: compositions. It builds plain members only; ``tests/conftest.py`` composes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tests.architectures import USUAL, VOCAB_SIZE, Architecture
from tests.architectures import WINDOW as WINDOW
from tests.rarer_architectures import RARER

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
INITIALIZER_RANGE = 0.2

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)


ARCHITECTURES: dict[str, Architecture] = USUAL | RARER
"""By name, which is the `model_type` where there is one of it."""


def architecture_params(names: Iterable[str] = ARCHITECTURES) -> list[Any]:
    """Architectures as pytest parameters: the rarer ones are marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in RARER else ()) for name in names]


@dataclass(frozen=True)
class Pair:
    """One anchor and one augmenting model of a law, with the sizes that differ from the defaults."""

    anchor: str
    augmenting: str
    anchor_sizes: dict[str, Any] = field(default_factory=dict)
    augmenting_sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        wide = "_wide" if self.augmenting_sizes.get("hidden_size", 0) > 32 else ""
        deep = "_deep" if self.augmenting_sizes.get("num_hidden_layers", 0) > 3 else ""
        return f"{self.anchor}+{self.augmenting}{wide}{deep}"

    @property
    def names(self) -> tuple[str, str]:
        """Both architectures."""
        return self.anchor, self.augmenting


def ring(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each name with the next one, and the last with the first."""
    return list(zip(names, [*names[1:], *names[:1]], strict=True))


WIDE = {"hidden_size": 48}
DEEP = {"num_hidden_layers": 5}
NARROW = {"hidden_size": 24}

PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        # One architecture twice: every claimed architecture is an anchor at least once, here or below.
        Pair("llama", "llama", augmenting_sizes=WIDE),
        Pair("qwen2", "qwen2", augmenting_sizes=DEEP),
        Pair("gpt_neox", "gpt_neox", augmenting_sizes=NARROW),
        Pair("opt", "opt"),
        Pair("bloom", "bloom"),
        Pair("mistral", "mistral", augmenting_sizes=WIDE | DEEP),
        # Mixed: positions learned and rotary, windows and none, ALiBi and none, experts and none.
        Pair("llama", "gpt2", augmenting_sizes=NARROW),
        Pair("gpt2", "llama", augmenting_sizes=WIDE | DEEP),
        Pair("gemma3", "llama"),
        Pair("llama", "gemma3", anchor_sizes={"num_hidden_layers": 5}),
        Pair("gemma2", "mistral", augmenting_sizes=DEEP),
        Pair("qwen3", "qwen2_sliding"),
        Pair("qwen2_sliding", "qwen3", augmenting_sizes=WIDE),
        Pair("gpt_neo", "phi3", augmenting_sizes=WIDE),
        Pair("phi", "gpt_neo", augmenting_sizes=NARROW),
        Pair("phi3", "olmo2"),
        Pair("olmo2", "stablelm", augmenting_sizes=WIDE),
        Pair("stablelm", "starcoder2", augmenting_sizes=DEEP),
        Pair("starcoder2", "mixtral"),
        Pair("mixtral", "llama", augmenting_sizes=WIDE),
        Pair("falcon", "opt"),
        Pair("cohere", "granite", augmenting_sizes=DEEP),
        Pair("granite", "bloom"),
        Pair("mpt", "llama", augmenting_sizes=WIDE),
        Pair("llama", "mpt"),
        Pair("bloom", "falcon", augmenting_sizes=WIDE),
        # The rarer ones in a ring: each is an anchor once, and augments the one before it.
        *(Pair(anchor, augmenting) for anchor, augmenting in ring([name for name in RARER if RARER[name].connects])),
    )
}

DEFAULT_PAIRS = (
    "llama+llama_wide",
    "llama+gpt2",
    "gpt2+llama_wide_deep",
    "gemma3+llama",
    "llama+gemma3",
    "gemma2+mistral_deep",
    "qwen2_sliding+qwen3_wide",
    "gpt_neo+phi3_wide",
    "gpt_neox+gpt_neox",
    "starcoder2+mixtral",
    "falcon+opt",
    "granite+bloom",
)
"""The pairs of ``make test``; the others are marked slow and run in ``make test-all``."""


def tiny_model(
    arch: str, seed: int = 0, *, attn_implementation: str | None = None, **overrides: Any
) -> PreTrainedModel:
    """A tiny random causal language model in eval mode, fp32, on the CPU.

    Args:
        arch: a key of ``ARCHITECTURES``.
        seed: of the weights; the same arguments give the same weights, whatever was drawn before.
        attn_implementation: "eager", "sdpa" or None for the architecture's own default.
        overrides: config values; ``hidden_size``, ``num_hidden_layers`` and ``num_attention_heads`` are translated to
            the architecture's own names.
    """
    config = tiny_config(arch, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation)
        _widen(model, seed)
    return model.eval()


def tiny_config(arch: str, **overrides: Any) -> Any:
    """The config of ``tiny_model(arch)``, without weights."""
    architecture = ARCHITECTURES[arch]
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "initializer_range": INITIALIZER_RANGE,
    }
    values |= architecture.config | architecture.overrides(overrides)
    if "num_hidden_layers" in overrides:
        depth = architecture.config.get("num_hidden_layers")
        for key, kinds in values.items():
            if isinstance(kinds, list) and len(kinds) == depth:  # something of every layer
                values[key] = [kinds[i % depth] for i in range(overrides["num_hidden_layers"])]
    if arch == "gpt_neo" and "num_hidden_layers" in overrides:
        values["attention_types"] = [[["global", "local"], overrides["num_hidden_layers"] // 2]]
    if arch == "opt" and "hidden_size" in overrides:
        values["word_embed_proj_dim"] = overrides["hidden_size"]
    return AutoConfig.for_model(architecture.model_type, **values)


def _widen(model: nn.Module, seed: int) -> None:
    """Give every parameter a value that matters: an initial bias of 0 or norm of 1 hides a term that is dropped."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            # Gemma's norms store weight - 1: a small shift is right for both spellings, and for biases.
            parameter.add_(0.2 * noise if "norm" in name or "ln" in name else 0.1 * noise)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of ``VOCAB_SIZE`` tokens, with pad, bos and eos, and a chat template."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system", ":", "+", "-", "=", "."]
    words += [str(digit) for digit in range(10)]
    words += [f"w{i}" for i in range(VOCAB_SIZE - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tiny(folder: Path | str, arch: str, seed: int = 0, **overrides: Any) -> Path:
    """Write ``tiny_model(arch, seed, **overrides)`` and ``tiny_tokenizer()`` to a folder, as a user would have them."""
    folder = Path(folder)
    tiny_model(arch, seed, **overrides).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random ordinary token ids, without pad, bos and eos: [batch, length]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCAB_SIZE, (batch, length), generator=generator)


def padded(rows: list[torch.Tensor], side: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad rows of unequal length: ``input_ids``, ``attention_mask``, ``position_ids``, each [batch, longest].

    Pad slots hold a token that occurs in texts, so that attending to one shows.
    """
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), 7)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[i, where] = row
        mask[i, where] = 1
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def valid_rows(values: torch.Tensor, mask: torch.Tensor) -> Iterator[torch.Tensor]:
    """The unpadded part of each row: tensors of [row length, ...]."""
    for row, keep in zip(values, mask.bool(), strict=True):
        yield row[keep]
