"""Layers of a frozen model that a composition trains: it keeps weights of its own for them, and the model keeps its.

Within the composition's own pass, such a layer runs with the composition's weights; at any other time, and for anyone
else who holds the same live model, it runs with those that it came with. Nothing is put into the model and taken out
again: each pass makes a shallow copy of the layer that points to the other weights, so passes may overlap.

Weights are trained in float32 where the model's are smaller, since the small steps of training get lost in bfloat16,
and are rounded to the model's dtype in each pass: so the layer computes as it did, and an untrained one the same bits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose.architecture import decoder_layers
from lmcompose.calls import CallSlot
from lmcompose.errors import ConfigurationError

UNFROZEN_PREFIX = "unfrozen."
"""How the names of these weights begin among a composition's parameters."""

TRAINABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PACKED = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""What weights are packed into where a module keeps them as buffers."""


class Weights(nn.Module):
    """Copies of the parameters of a module and of its children, under their names. It cannot be run."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        for name, parameter in module.named_parameters(recurse=False):
            kept = torch.promote_types(parameter.dtype, dtype)
            self.register_parameter(name, nn.Parameter(parameter.detach().to(kept, copy=True)))
        for name, child in module.named_children():
            if any(True for _ in child.parameters()):
                self.add_module(name, Weights(child, dtype))


class Unfrozen(nn.ModuleDict):
    """The weights of all unfrozen layers of a composition, by `unfrozen_key`.

    Args:
        layers: role -> decoder layers, counted from 1.
        models: role -> live model.
        dtype: the smallest in which weights are kept.

    Raises:
        ConfigurationError: a layer whose weights cannot be trained apart.
    """

    def __init__(
        self, layers: Mapping[str, Sequence[int]], models: Mapping[str, PreTrainedModel], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._slots = {role: CallSlot() for role, numbers in layers.items() if numbers}
        self._layers = {role: tuple(layers[role]) for role in self._slots}
        for role, numbers in self._layers.items():
            for number in numbers:
                self[unfrozen_key(role, number)] = Weights(trainable_layer(models[role], role, number), dtype)

    @property
    def roles(self) -> list[str]:
        """The members of which a layer is unfrozen."""
        return list(self._slots)

    def hook(self, role: str, model: PreTrainedModel) -> list[Any]:
        """Make the layers of a live model ready for passes with these weights; returns handles with `remove()`."""
        modules = decoder_layers(model)
        return [StandIn.on(modules[number - 1], self._slots[role], number) for number in self._layers.get(role, ())]

    @contextmanager
    def running(self, role: str, enabled: bool = True) -> Iterator[None]:
        """Within the block, in this thread, the member's unfrozen layers run with these weights."""
        if not enabled or role not in self._slots:
            yield
            return
        with self._slots[role].during({n: self[unfrozen_key(role, n)] for n in self._layers[role]}):
            yield


class StandIn:
    """What is called in place of the `forward` of a live layer, for all compositions that unfreeze it."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.slots: list[tuple[CallSlot, int]] = []

    @classmethod
    def on(cls, layer: nn.Module, slot: CallSlot, number: int) -> "_Handle":
        """Let `layer` run with the weights that `slot` holds for `number` during a pass."""
        standing = vars(layer).get("forward")
        if not isinstance(standing, cls):
            standing = cls(layer)
            layer.forward = standing  # an attribute of this one layer, found before the forward of its class
        standing.slots.append((slot, number))
        return _Handle(standing, slot)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self.layer
        for slot, number in self.slots:
            if slot.current is not None:
                layer = dressed(self.layer, slot.current[number])
        return type(self.layer).forward(layer, *args, **kwargs)

    def leave(self, slot: CallSlot) -> None:
        """Forget one composition; after the last one, the layer is as it was."""
        self.slots = [entry for entry in self.slots if entry[0] is not slot]
        if not self.slots and vars(self.layer).get("forward") is self:
            del self.layer.forward


class _Handle:
    def __init__(self, standing: StandIn, slot: CallSlot) -> None:
        self.standing, self.slot = standing, slot

    def remove(self) -> None:
        self.standing.leave(self.slot)


def dressed(module: nn.Module, weights: nn.Module) -> nn.Module:
    """A shallow copy of `module` with other parameters, in the dtypes of its own; buffers and hooks are shared.

    Raises:
        ConfigurationError: the module has other parameters than when its weights were copied.
    """
    copied = object.__new__(type(module))
    state = {**vars(module), "_parameters": {}, "_modules": {}}
    state.pop("forward", None)
    if {name for name, parameter in module._parameters.items() if parameter is not None} != weights._parameters.keys():
        raise changed_since(module)
    for name, parameter in module._parameters.items():
        if parameter is None:
            state["_parameters"][name] = None
            continue
        own = cast(nn.Parameter, weights._parameters[name])
        # as frozen ones where no graph is wanted: torch chooses some products by whether a weight wants a gradient
        state["_parameters"][name] = (own if torch.is_grad_enabled() else own.detach()).to(parameter.dtype)
    for name, child in module._modules.items():
        theirs = weights._modules.get(name)
        if theirs is None and child is not None and any(True for _ in child.parameters()):
            raise changed_since(child)
        state["_modules"][name] = child if child is None or theirs is None else dressed(child, theirs)
    vars(copied).update(state)
    return copied


def changed_since(module: nn.Module) -> ConfigurationError:
    """What to say of a live model into which something was put after it was composed."""
    return ConfigurationError(
        f"An unfrozen layer has other parameters in its {type(module).__name__} than when it was composed, such as an "
        "adapter that was added. Change the model first, and compose it then."
    )


def trainable_layer(model: PreTrainedModel, role: str, number: int) -> nn.Module:
    """Decoder layer `number` of a member, of which the composition can have weights of its own.

    Raises:
        ConfigurationError: it cannot; the message says why.
    """

    def refuse(why: str) -> ConfigurationError:
        return ConfigurationError(f"unfreeze: layer {number} of '{role}' cannot be trained: {why}")

    if getattr(model, "is_composed", False):
        raise refuse("the member is itself a composition. Unfreeze layers where that one is composed.")
    layer = decoder_layers(model)[number - 1]
    modules = [module for _, module in layer.named_modules()]
    if any(hasattr(module, "base_layer") or hasattr(module, "modules_to_save") for module in modules):
        raise refuse("it has an adapter (PEFT). Merge it first (merge_and_unload), or leave this layer out.")
    own = dict(layer.named_parameters())
    packed = [buffer for buffer in layer.buffers() if buffer.ndim > 1 and buffer.dtype in PACKED]
    if packed or any(parameter.dtype not in TRAINABLE for parameter in own.values()):
        raise refuse("the model is quantised. Load it in bfloat16 or float32.")
    if any(parameter.device.type == "meta" for parameter in own.values()) or any(
        _runs_otherwise(module) for module in modules
    ):
        raise refuse(
            "another library runs its forward, as accelerate does for a model that device_map spreads over devices. "
            "Load the model onto one device."
        )
    places = [
        Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
        for module in (model, layer)
    ]
    shared = [name for name, parameter in own.items() if places[0][id(parameter)] > places[1][id(parameter)]]
    if shared:
        raise refuse(f"other parts of the model use its {shared[0]} too, and would not learn with it.")
    return layer


def _runs_otherwise(module: nn.Module) -> bool:
    """Whether a module has a forward of its own. Recording hidden states leaves its class's there."""
    forward = vars(module).get("forward")
    own = forward is None or isinstance(forward, StandIn) or getattr(forward, "__func__", None) is type(module).forward
    return not own


def unfrozen_key(role: str, layer: int) -> str:
    """The name of an unfrozen layer among the parameters."""
    return f"{role}_{layer}"
