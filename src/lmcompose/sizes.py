"""How much memory a member of a composition takes, counted from configurations and headers of files.

Parameters are exact, on the meta device. The cache is an estimate: keys and values of every layer, whatever slides or
shares them. This file knows no formula.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from safetensors import safe_open
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.hub import cached_file

from lmcompose.adapters import WEIGHTS_NAME as ADAPTER_WEIGHTS
from lmcompose.adapters import adapter_folder
from lmcompose.architecture import count_parameters, meta_model, text_config
from lmcompose.memory import BYTES
from lmcompose.places import read_model_config
from lmcompose.quantization import bits_of, stored
from lmcompose.reference import MemberReference
from lmcompose.saved import WEIGHTS_NAME as COMPOSITION_WEIGHTS
from lmcompose.saved import ComposedConfig, saved_place


@dataclass(frozen=True)
class Size:
    """What a model takes: its parameters, the bytes of its weights, and about those of its cache for each token."""

    parameters: int
    weight_bytes: int
    cache_bytes: int


def stored_dtype(config: PreTrainedConfig) -> str:
    """The dtype of the weights as they are saved."""
    stored = getattr(config, "dtype", None) or getattr(text_config(config), "dtype", None) or "float32"
    return str(stored).removeprefix("torch.")


def size_of(
    config: PreTrainedConfig,
    place: str,
    dtype: str | None = None,
    trust: bool = False,
    quantization: Mapping[str, Any] | None = None,
) -> Size:
    """What a model takes.

    Args:
        place: where it is, for what a composition names beside itself.
        dtype: of the weights as they are loaded; None keeps what they have.
        quantization: what they are loaded with; by default what the checkpoint says of itself.

    Raises:
        ConfigurationError, OSError: a model's configuration cannot be read, or no model can be built from it.
    """
    if isinstance(config, ComposedConfig):  # a composition is its members and what it adds to them
        sizes = []
        for reference in config.references().values():
            name = saved_place(reference.name_or_path, place)
            member = read_model_config(name, reference.revision, trust)
            sizes.append(size_of(member, name, dtype or reference.dtype, trust, reference.quantization))
            if reference.adapter is not None:
                reference = replace(reference, adapter=saved_place(reference.adapter, place))
            added = adapter_parameters_of(reference)
            sizes.append(Size(added, added * BYTES["float32"], 0))  # PEFT keeps adapters in float32
        own = _numbers_in(place, COMPOSITION_WEIGHTS)
        return Size(
            own + sum(size.parameters for size in sizes),
            own * BYTES["float32"] + sum(size.weight_bytes for size in sizes),
            sum(size.cache_bytes for size in sizes),
        )
    text, model = text_config(config), meta_model(config, trust)
    number, parameters = BYTES.get(dtype or stored_dtype(config), 4), count_parameters(model)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    weights = parameters * number - _saved_by(stored(config) or quantization or {}, model, number)
    return Size(parameters, weights, 2 * text.num_hidden_layers * heads * width * number)


def _saved_by(quantization: Mapping[str, Any], model: PreTrainedModel, number: int) -> int:
    """The bytes that quantised weights take less than those of `number` bytes each.

    Exact for bitsandbytes: the matrices of all linear layers but the head (or those that the configuration leaves
    out), and the numbers by which they are scaled. Of other methods the scales are passed over.
    """
    bits = bits_of(quantization)
    if bits is None:
        return 0
    kept = quantization.get("llm_int8_skip_modules") or quantization.get("modules_to_not_convert")
    kept = get_keys_to_not_convert(model) if kept is None else kept
    saved = 0
    for name, module in model.named_modules():
        if should_convert_module(name, kept) and (type(module) is nn.Linear or isinstance(module, Conv1D)):
            numbers = module.weight.numel()
            rows = module.weight.shape[1 if isinstance(module, Conv1D) else 0]
            saved += numbers * number - _quantised_bytes(numbers, rows, bits, quantization)
    return saved


BLOCK, BLOCKS_OF_BLOCKS = 64, 256
"""How many 4-bit numbers share one scale in bitsandbytes, and with double quantisation how many scales another one."""


def _quantised_bytes(numbers: int, rows: int, bits: int, quantization: Mapping[str, Any]) -> int:
    packed = math.ceil(numbers * bits / 8)
    if quantization.get("quant_method") != "bitsandbytes":
        return packed
    if bits == 8:
        return packed + rows * BYTES["float32"]
    blocks = math.ceil(numbers / BLOCK)
    if quantization.get("bnb_4bit_use_double_quant"):
        return packed + blocks + math.ceil(blocks / BLOCKS_OF_BLOCKS) * BYTES["float32"]
    return packed + blocks * BYTES["float32"]


def adapter_parameters_of(reference: MemberReference) -> int:
    """The parameters of a member's adapter; 0 where it has none, or where its size cannot be told."""
    if reference.adapter is None:
        return 0
    try:
        return _numbers_in(adapter_folder(reference.adapter, reference.adapter_revision), ADAPTER_WEIGHTS)
    except OSError:  # loading it says why
        return 0


def _numbers_in(place: str, file: str) -> int:
    """How many numbers a file of weights holds, from its header."""
    with safe_open(cached_file(place, file), framework="pt") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
