"""Where a Hugging Face decoder keeps its layers, its embeddings and its head: the only file that knows.

The rest of the project speaks of *layer k* of a model: 0 is what enters the first decoder layer (the embeddings, with
whatever scale or position table the architecture adds), k >= 1 is the output of decoder layer k, always before any
final norm. This file knows nothing about compositions.
"""

import inspect
import logging
import math
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from lmcompose.errors import ConfigurationError, MemberError

CACHE_ARGUMENT = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""The name of the cache in `forward` and in outputs: transformers 5.24 renamed `past_key_values` to `cache`."""


def text_config(model_or_config: PreTrainedModel | PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text decoder (multimodal models keep it one level down)."""
    config: Any = getattr(model_or_config, "config", model_or_config)
    return config.get_text_config(decoder=True)


_HALF = "it is the decoder of an encoder-decoder, which counts padding as a part of the text"
_ROBERTA = "it counts its positions from the id of its padding token, so that a padded text has others here"
_STATE = (
    "it is a model without attention heads, whose state cannot go back to an earlier token as a cache of keys and "
    "values can"
)
REFUSED: dict[str, str] = {
    "openai-gpt": "it has no cache, and its layers return lists",
    "recurrent_gemma": "it keeps its state in its own modules, where two texts at once would mix",
    "minimax": "it keeps its state in a cache of a class of its own",
    "moshi": "it looks beyond its sliding window when it has no cache, and it reads audio codes beside the tokens",
    "xlnet": "its tokens see the ones after them",
    "xlm": "its tokens see the ones after them",
    "cpmant": "its tokens see the ones after them, and it puts tokens of its own before every text",
    "reformer": "it draws at random which tokens see each other",
    "blt": "it reads bytes that it joins into patches, so its layers have no state for each token",
    "trocr": _HALF, "bart": _HALF, "bigbird_pegasus": _HALF, "blenderbot": _HALF, "blenderbot-small": _HALF,
    "marian": _HALF, "mbart": _HALF, "mvp": _HALF, "pegasus": _HALF, "plbart": _HALF, "prophetnet": _HALF,
    "whisper": _HALF, "musicgen": _HALF, "musicgen_melody": _HALF, "musicgen_decoder": _HALF,
    "musicgen_melody_decoder": _HALF,
    "roberta": _ROBERTA, "roberta-prelayernorm": _ROBERTA, "camembert": _ROBERTA, "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA, "xmod": _ROBERTA, "data2vec-text": _ROBERTA,
    "mamba": _STATE, "mamba2": _STATE, "falcon_mamba": _STATE, "rwkv": _STATE, "xlstm": _STATE,
}  # fmt: skip
"""Causal language models of transformers that cannot be members, by their `model_type`, and why. A page of the docs is
drawn from it (`docs/architectures.md`)."""

_STREAMS = "its layers hand on several hidden states for each token ({})"
UNCONNECTED: dict[str, str] = {
    "gemma3n_text": _STREAMS.format("altup_num_inputs"),
    "gemma3n": _STREAMS.format("altup_num_inputs"),
    "deepseek_v4": _STREAMS.format("hc_mult"),
    "hy_v4": _STREAMS.format("hc_mult"),
    "qwen4_exp": _STREAMS.format("hc_count"),
    "qwen4_exp_text": _STREAMS.format("hc_count"),
    "longcat_flash": "its configuration counts two layers for each that it has",
}
"""Causal language models whose layers cannot be connected to, by their `model_type`, and why. Logit compositions take
them."""


def check_causal_decoder(config: PreTrainedConfig, name: str, role: str) -> None:
    """Refuse what is not a decoder-only causal language model, from its configuration alone.

    Raises:
        MemberError: `config` is of an encoder-decoder, of an encoder, of no language model at all, or of one that is
            known not to work (`REFUSED`).
    """
    advice = "Choose a decoder-only model: one that AutoModelForCausalLM loads and that generates from left to right."
    kind = f"'{name}' ({config.model_type}) cannot be the {role}: "
    if config.is_encoder_decoder:
        raise MemberError(f"{kind}it is an encoder-decoder. {advice}")
    encodes = type(config) in MODEL_FOR_MASKED_LM_MAPPING or config.model_type in _ENCODERS
    if encodes and not getattr(config, "is_decoder", False):
        raise MemberError(f"{kind}it is an encoder, its tokens see the ones after them. {advice}")
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not remote:
        raise MemberError(f"{kind}it is not a causal language model. {advice}")
    reason = REFUSED.get(config.model_type)
    if reason is None and getattr(text_config(config), "num_attention_heads", None) is None:
        reason = _STATE
    if reason == _STATE:  # beams, drafts and chunks would be wrong
        raise MemberError(f"{kind}{reason}. Choose a model with attention layers; it may have others too.")
    if reason is not None:
        raise MemberError(f"{kind}{reason}. docs/architectures.md names those that work.")


_ENCODERS = ("bert-generation",)
"""Encoders unless they say that they are decoders, and not masked language models to transformers."""


def check_connectable(model_type: str, name: str, role: str) -> None:
    """Refuse a model whose layers have no hidden state for each token where a connection would look for it.

    Raises:
        MemberError: `model_type` is in `UNCONNECTED`.
    """
    if model_type in UNCONNECTED:
        raise MemberError(
            f"'{name}' ({model_type}) cannot be the {role}: {UNCONNECTED[model_type]}, so a connection finds no hidden "
            "state to read or write. It can be a member of a logit composition."
        )


def exact_parameters(config: PreTrainedConfig, trust_remote_code: bool = False) -> int:
    """The parameters of the model that `config` describes, tied ones once, counted on the meta device.

    Raises:
        ConfigurationError: transformers cannot build a model from `config`.
    """
    return count_parameters(meta_model(config, trust_remote_code))


def count_parameters(model: PreTrainedModel) -> int:
    """The parameters of `model`, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def meta_model(config: PreTrainedConfig, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model that `config` describes on the meta device, where it has shapes and no weights.

    Raises:
        ConfigurationError: transformers cannot build a model from `config`.
    """
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or trust_remote_code
    builder = AutoModelForCausalLM if causal else AutoModel
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)  # advice on how to use the model, which nobody runs
    try:
        with torch.device("meta"):
            model: PreTrainedModel = builder.from_config(config, trust_remote_code=trust_remote_code)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"No model can be built from this {config.model_type} configuration: {error}"
        ) from error
    finally:
        logger.setLevel(level)
    return model


def decoder_of(model: PreTrainedModel) -> Any:
    """`model` without its head."""
    decoder = model.get_decoder()
    # ModernBERT calls its head `decoder`, and that is what transformers then finds
    return model.base_model if decoder is model.get_output_embeddings() else decoder


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of `model`, first to last.

    Raises:
        MemberError: no list of as many layers as the configuration names was found.
    """
    count = text_config(model).num_hidden_layers
    for module in decoder_of(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise MemberError(
        f"'{model.name_or_path}' ({model.config.model_type}) keeps its {count} decoder layers where lmcompose does not "
        "find them, so nothing can be connected to it. Choose another architecture for this member."
    )


def runs_on(model: PreTrainedModel) -> bool:
    """Whether `model` keeps a state that runs on from token to token and cannot go back to an earlier one."""
    return bool(getattr(model, "_is_stateful", False))


def stated_length(config: PreTrainedConfig) -> int | None:
    """The longest text that a configuration says its model is made for, in tokens; None where it says nothing."""
    text = text_config(config)
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)  # the latter in MPT
    return length if isinstance(length, int) else None


def position_limit(model: PreTrainedModel) -> int | None:
    """How many positions `model` can tell apart before it fails; None where positions are computed as needed.

    Rotary positions go on past the stated length, only worse. A table ends: learned embeddings (GPT-2, OPT),
    sinusoids worked out once (GPT-J), and the biases of MPT.
    """
    decoder = decoder_of(model)
    if getattr(model, "is_composed", False) or (length := stated_length(model.config)) is None:
        return None  # a composed member looks after its own members
    tables = [name for name, module in decoder.named_modules() if isinstance(module, nn.Embedding)]
    tables += [name for name, _ in decoder.named_buffers()]
    has_table = any(name.rsplit(".", 1)[-1] in _POSITION_TABLES for name in tables)
    return length if has_table or counts_slots(model) else None


def counts_slots(model: PreTrainedModel | PreTrainedConfig) -> bool:
    """Whether padding and packed texts use up positions too: tables that are cut to the keys, and not looked up."""
    return text_config(model).model_type in ("mpt", "gpt_neo")


_POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "positions_embed", "pos_encoding")


def layer_device(model: PreTrainedModel, layer: int) -> torch.device:
    """Where the hidden states of layer `layer` (0 = the embeddings) are: a model may be spread over devices."""
    parameters = decoder_layers(model)[max(layer, 1) - 1].parameters()
    return next((parameter.device for parameter in parameters), model.device)


def hidden_states_of(layer_output: torch.Tensor | tuple) -> torch.Tensor:
    """The hidden states in a decoder layer's output: some architectures return a tensor, some a tuple."""
    return layer_output[0] if isinstance(layer_output, tuple) else layer_output


def with_hidden_states(layer_output: torch.Tensor | tuple, hidden_states: torch.Tensor) -> torch.Tensor | tuple:
    """`layer_output` with its hidden states replaced."""
    return (hidden_states, *layer_output[1:]) if isinstance(layer_output, tuple) else hidden_states


_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {}


@torch.compiler.assume_constant_result
def _named_arguments(module_class: type[nn.Module]) -> tuple[str, ...]:
    if module_class not in _ARGUMENTS:  # reading a signature costs more than a small layer's forward pass
        _ARGUMENTS[module_class] = tuple(inspect.signature(module_class.forward).parameters)
    return _ARGUMENTS[module_class]


def accepted(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The part of `inputs` that `module.forward` names.

    Naming is what counts: a bare `**kwargs` swallows, say, `position_ids` in an architecture without positions.
    """
    wrapper: Any = module
    target = wrapper.get_base_model() if hasattr(wrapper, "get_base_model") else module  # a PEFT wrapper names nothing
    names = _named_arguments(type(target))
    return {name: value for name, value in inputs.items() if name in names}


def run_with_head(model: PreTrainedModel, **inputs: Any) -> CausalLMOutputWithPast:
    """One forward pass of a member up to its logits, of the positions that `logits_to_keep` wants."""
    # many architectures take these two without naming them
    extras = {name: inputs[name] for name in ("output_hidden_states", "output_attentions") if inputs.get(name)}
    output: CausalLMOutputWithPast = model(**{**accepted(model, inputs), **extras}, return_dict=True)
    assert output.logits is not None
    output.logits = _kept(output.logits, inputs.get("logits_to_keep", 0), inputs["input_ids"].shape[1])
    return output


def _kept(logits: torch.Tensor, logits_to_keep: int | torch.Tensor, length: int) -> torch.Tensor:
    """The wanted positions of `logits`, where a model's own forward knows no `logits_to_keep`."""
    if isinstance(logits_to_keep, int):
        return logits[:, -logits_to_keep:] if logits_to_keep else logits
    return logits[:, logits_to_keep] if logits.shape[1] == length != len(logits_to_keep) else logits


def hook_head(model: nn.Module) -> Any:
    """Let the head of `model` read its hidden states from memory without gaps; returns a handle with `remove()`.

    Architectures cut the positions that need logits out of the hidden states, which leaves gaps between the rows. On
    CPUs, frozen weights in bfloat16 and such strides meet in a product that is 200 to 400 times slower (measured with
    torch 2.13; weights that want a gradient take another path): a prompt of a batch takes minutes in the head alone.
    """
    head = cast(PreTrainedModel, model).get_output_embeddings()
    return None if head is None else head.register_forward_pre_hook(_without_gaps)


def _without_gaps(head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    states = inputs[0] if inputs else None
    if not isinstance(states, torch.Tensor) or states.device.type != "cpu" or states.dtype != torch.bfloat16:
        return None
    steps = [math.prod(states.shape[place + 1 :]) for place in range(states.ndim)]
    if list(states.stride()) == steps:  # is_contiguous() passes over dimensions of size 1, and the product does not
        return None
    return (states.clone(memory_format=torch.contiguous_format), *inputs[1:])


def run_without_head(model: PreTrainedModel, **inputs: Any) -> Any:
    """One forward pass of a member for what hooks read on the way: the head is left out where it can be.

    A composed member runs whole, since its decoder alone would bypass what the composition adds. Returns the output
    of what was run: of a decoder, the last hidden states come first in it.
    """
    runner = model if getattr(model, "is_composed", False) else decoder_of(model)
    return runner(**accepted(runner, inputs), return_dict=True)


def supports_gradient_checkpointing(model: PreTrainedModel) -> bool:
    """Whether the architecture lets its decoder layers be recomputed in the backward pass."""
    return bool(getattr(model, "supports_gradient_checkpointing", False))
