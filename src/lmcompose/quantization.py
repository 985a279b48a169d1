"""Quantised weights: what a user may ask for, what a checkpoint or a live model says of its own, and how to say it.

Four and eight bits by bitsandbytes are made while weights are read; whatever else transformers knows is read as the
checkpoint has it. This file reads no weights and knows nothing about compositions.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from lmcompose.errors import ConfigurationError, MemberError, nearest

INSTALL_BITSANDBYTES = "pip install 'lmcompose[quantized]'"
FOUR_BITS, EIGHT_BITS, NONE = WORDS = ("4bit", "8bit", "none")

Quantization = str | QuantizationConfigMixin
"""How a user asks for one member's: one of `WORDS`, or a configuration of transformers such as BitsAndBytesConfig."""


def asked_for(asked: Any, role: str) -> dict[str, Any] | None:
    """What a user asks for as plain values; None for "none", which is not the same as not to ask.

    Raises:
        ConfigurationError: neither a known word nor a configuration.
    """
    if asked == NONE:
        return None
    if asked == FOUR_BITS:  # the published kind for weights that are normally distributed (QLoRA, arXiv 2305.14314)
        return plain(BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"))
    if asked == EIGHT_BITS:
        return plain(BitsAndBytesConfig(load_in_8bit=True))
    if isinstance(asked, QuantizationConfigMixin):
        return plain(asked)
    raise ConfigurationError(
        f"quantization: {asked!r} (for the {role}) is unknown. Give one of {', '.join(WORDS)}, or in Python a "
        f"BitsAndBytesConfig.{nearest(str(asked), WORDS)}"
    )


def plain(config: QuantizationConfigMixin | Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON can hold it, without the parts that it works out for itself."""
    values = dict(config) if isinstance(config, Mapping) else json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in values.items() if not name.startswith("_")}


def stored(config: PreTrainedConfig) -> dict[str, Any] | None:
    """What a checkpoint, or the model that was made of it, says of its own weights; None where they are plain."""
    found = getattr(config, "quantization_config", None)
    values = plain(found) if found is not None else {}
    return values if values and values.get("quant_method") != "gguf" else None


def configuration(values: Mapping[str, Any]) -> QuantizationConfigMixin:
    """The configuration that `plain` wrote down."""
    found: QuantizationConfigMixin = AutoQuantizationConfig.from_dict(dict(values))
    return found


def check_available(values: Mapping[str, Any], name: str, role: str) -> None:
    """Refuse weights that take bitsandbytes where it is not installed.

    Raises:
        MemberError: it is not.
    """
    if values.get("quant_method") != "bitsandbytes":
        return  # transformers says what else is missing
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MemberError(
            f"'{name}' (for the {role}) in {in_words(values)} takes bitsandbytes, which is not installed. "
            f"{INSTALL_BITSANDBYTES}. Or leave the quantization out."
        ) from error


def check_devices(values: Mapping[str, Any], devices: Iterable[Any], name: str, role: str) -> None:
    """Refuse devices on which bitsandbytes has no kernels.

    Args:
        devices: as a device map names them; what is no device, such as "auto", is passed over.

    Raises:
        ConfigurationError: there is one.
    """
    if values.get("quant_method") != "bitsandbytes":
        return
    import bitsandbytes

    known = getattr(bitsandbytes, "supported_torch_devices", {"cpu", "cuda"})
    for place in devices:
        kind = _device_type(place)
        if kind is not None and kind not in known:
            raise ConfigurationError(
                f"device_map puts '{name}' (for the {role}) on '{place}', and bitsandbytes has no {in_words(values)} "
                f"weights there; it has on {', '.join(sorted(known))}. Choose one of these, or leave the quantization "
                "out."
            )


def _device_type(place: Any) -> str | None:
    if isinstance(place, int):
        return "cuda"
    try:
        return torch.device(place).type
    except (RuntimeError, TypeError):  # a word such as "auto"
        return None


def bits_of(values: Mapping[str, Any]) -> int | None:
    """How many bits a quantised number takes, where the configuration says so."""
    if values.get("load_in_4bit") or values.get("load_in_8bit"):
        return 4 if values.get("load_in_4bit") else 8
    bits = values.get("bits") or values.get("w_bit") or (8 if "fp8" in str(values.get("quant_method")) else None)
    return bits if isinstance(bits, int) else None


def in_words(values: Mapping[str, Any]) -> str:
    """A configuration in a few words, such as "4-bit nf4" or "8-bit"."""
    bits, method = bits_of(values), str(values.get("quant_method") or "quantised")
    if method == "bitsandbytes":
        kind = f" {values.get('bnb_4bit_quant_type', 'fp4')}" if bits == 4 else ""
        return f"{bits}-bit{kind}"
    return f"{bits}-bit {method}" if bits else method
