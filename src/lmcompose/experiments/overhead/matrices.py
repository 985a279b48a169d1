"""What a decoder multiplies each token with, read off the model as it is built on the meta device.

Which matrices there are, and of what size, is asked of the modules themselves, so grouped keys and values, gated MLPs,
tied heads, fused projections and experts are counted as they are. What a layer does beside matrix products (norms,
activations, rotary positions, softmax, the scan of a recurrent state) is no part of it. This file knows no FLOPs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose.architecture import count_parameters, decoder_layers, text_config
from lmcompose.calm.bridge import Bridge
from lmcompose.errors import ConfigurationError
from lmcompose.training.lora import adapted_shapes


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    Attributes:
        weights: numbers of the matrices that one token is multiplied with; of experts, those that it is sent to.
        attention: N_H (d_qk + d_v): the widths of its queries and of what its heads return, together; 0 without.
        window: how many keys a decoded token sees at most; None for all.
    """

    weights: float
    attention: int = 0
    window: int | None = None


@dataclass(frozen=True)
class Decoder:
    """A language model as its matrix products.

    Attributes:
        layers: first to last.
        head: numbers of the matrices outside the layers: the output head, a tied one too, since it multiplies, and
            what some architectures put beside it. Embeddings are looked up, which is no product.
        per_rank: parameters of LoRA of rank 1 on all linear layers but the head: the sum of their inputs and outputs.
        parameters: all of them, tied ones once.
        uncounted: parameters in matrices of which no product was counted, as far as they are known.
    """

    layers: tuple[Layer, ...]
    head: int
    per_rank: int = 0
    parameters: int = 0
    uncounted: int = 0

    @property
    def body(self) -> float:
        """Numbers of the matrices of all layers."""
        return sum(layer.weights for layer in self.layers)


@dataclass(frozen=True)
class Connection:
    """The bridge of one connection as its matrix products.

    Attributes:
        anchor_layer: the layer of the anchor that it writes to; 0 is the embeddings.
        source: numbers of the matrix that reads H_A, which needs no gradient; for each augmenting token.
        keys: numbers of what follows it up to keys and values; for each augmenting token.
        query: numbers of the matrix that reads H_B; for each anchor token.
        output: numbers of the others, W_O among them; for each anchor token.
        attention: N_H (d_qk + d_v) = 2 D_B.
    """

    anchor_layer: int
    source: int
    keys: int
    query: int
    output: int
    attention: int

    @property
    def weights(self) -> int:
        """Numbers of all its matrices: D_A D_B + 4 D_B^2 in the paper's form."""
        return self.source + self.keys + self.query + self.output


def decoder_matrices(model: PreTrainedModel) -> Decoder:
    """The matrix products of a model, which may be on the meta device.

    Raises:
        ConfigurationError: a layer has experts, and nothing says how many of them a token is sent to.
        MemberError: the layers are not where lmcompose looks for them.
    """
    layers = decoder_layers(model)
    inside = {id(module) for module in layers.modules()}
    head: Any = model.get_output_embeddings()
    outside = [module for module in model.modules() if id(module) not in inside and module is not head]
    return Decoder(
        layers=tuple(_layer(model, layer, number) for number, layer in enumerate(layers)),
        head=(0 if head is None else head.weight.numel()) + sum(map(_own_weights, outside)),
        per_rank=sum(inputs + outputs for inputs, outputs in adapted_shapes(model)),
        parameters=count_parameters(model),
        uncounted=sum(map(_uncounted, layers.modules())),
    )


def bridge_matrices(
    augmenting_size: int, anchor_size: int, anchor_layer: int, num_heads: int = 1, rank: int | None = None
) -> Connection:
    """The matrix products of a bridge, from one that is built on the meta device. Heads do not change them."""
    with torch.device("meta"):
        bridge = Bridge(augmenting_size, anchor_size, num_heads, rank=rank)
    source, *projection = _sizes(bridge.projection)
    query, *thin = _sizes(bridge.q_proj)
    return Connection(
        anchor_layer=anchor_layer,
        source=source,
        keys=sum(projection) + sum(_sizes(bridge.k_proj)) + sum(_sizes(bridge.v_proj)),
        query=query,
        output=sum(thin) + sum(_sizes(bridge.o_proj)),
        attention=2 * anchor_size,
    )


def _sizes(part: nn.Module) -> list[int]:
    """The numbers of each matrix, in the order in which they multiply."""
    return [module.weight.numel() for module in part.modules() if isinstance(module, nn.Linear)]


def _layer(model: PreTrainedModel, layer: nn.Module, number: int) -> Layer:
    modules, config = list(layer.modules()), text_config(model)
    attention = next((module for module in modules if _attends(module, config, number)), None)
    return Layer(
        weights=sum(map(_own_weights, modules)) + _expert_weights(model, modules),
        attention=0 if attention is None else _attention_width(attention, config),
        window=None if attention is None else _window(config, number),
    )


def _own_weights(module: nn.Module) -> int:
    """The numbers of a module's own matrix: of linear layers, routers of experts, and filters over the text."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or isinstance(module, nn.Embedding):
        return 0
    return weight.numel() if weight.ndim == 2 or isinstance(module, nn.Conv1d) else 0


def _stacks(module: nn.Module) -> list[nn.Parameter]:
    """The matrices of experts, [experts, ., .]."""
    found = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim == 3]
    return found if "Expert" in type(module).__name__ else []


def _expert_weights(model: PreTrainedModel, modules: Iterable[nn.Module]) -> float:
    """The numbers that one token meets of all stacks of experts."""
    modules = list(modules)
    stacks = [stack for module in modules for stack in _stacks(module)]
    if not stacks:
        return 0
    active = _active_experts(model, modules)
    return sum(stack.numel() * active / stack.shape[0] for stack in stacks)


def _active_experts(model: PreTrainedModel, modules: Iterable[nn.Module]) -> int:
    """How many experts a token is sent to, as the layer's router has it, or else the configuration."""
    for owner in (*modules, text_config(model)):
        for name in ("top_k", "num_experts_per_tok"):
            if isinstance(found := getattr(owner, name, None), int):
                return found
    raise ConfigurationError(
        f"A layer of this {model.config.model_type} has experts, and neither its router nor its configuration says how "
        "many of them a token is sent to, so its FLOPs cannot be counted. Choose another model."
    )


def _uncounted(module: nn.Module) -> int:
    """The numbers of a module's matrices that no product was counted of: a state's decay, experts of another form."""
    if isinstance(module, nn.Embedding) or _own_weights(module) or _stacks(module):
        return 0
    return sum(
        parameter.numel()
        for parameter in module.parameters(recurse=False)
        if parameter.ndim > 1 and min(parameter.shape) > 1  # a row is no matrix
    )


def _attends(module: nn.Module, config: Any, number: int) -> bool:
    """Whether a module is attention over all keys: hybrids call some of their recurrent layers attention as well."""
    kinds = getattr(config, "layer_types", None)
    recurrent = kinds is not None and kinds[number] in ("linear_attention", "mamba", "conv")
    return (
        not recurrent and "Attention" in type(module).__name__ and any(_own_weights(part) for part in module.children())
    )


def _attention_width(attention: nn.Module, config: Any) -> int:
    """N_H (d_qk + d_v); keys and values have fewer heads in many models, and meet every query head all the same."""
    heads = config.num_attention_heads
    width = getattr(attention, "head_dim", None) or config.hidden_size // heads
    widths = (getattr(attention, name, None) or width for name in ("qk_head_dim", "v_head_dim"))
    return int(heads * sum(widths))


def _window(config: Any, number: int) -> int | None:
    """The sliding window of a layer, by the rule of transformers' caches."""
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return window if kinds is None or kinds[number] == "sliding_attention" else None
