"""Freezing live models for as long as compositions hold them, and giving them back as they were.

What a model was like is noted beside it and not on it, once for all compositions that share it: the first one to hold
it finds it as its owner left it, and only after the last one let go may it train again. This file knows no
composition, only that something holds a model.
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

_REPACKS = "support_avx512bf16_for_cpu"
"""Of a 4-bit layer of bitsandbytes: whether, in evaluation mode, it may lay its weights out for a kernel of some CPUs.

That kernel has no backward pass, and bitsandbytes takes evaluation mode for a sign that none is wanted. A frozen member
is in evaluation mode in training too, where a gradient is to pass through it: it would be lost without a word.
"""

_ATTRIBUTES = ("training", "gradient_checkpointing", "_gradient_checkpointing_func", _REPACKS)


class _Before(NamedTuple):
    """How a model was: parameters that wanted a gradient, and by module what freezing and checkpointing change."""

    trainable: frozenset[str]
    attributes: dict[str, dict[str, Any]]
    holders: WeakSet[Any]


_BEFORE: WeakKeyDictionary[nn.Module, _Before] = WeakKeyDictionary()


def freeze(model: nn.Module) -> None:
    """No gradients, evaluation mode; how it was before is noted, unless an earlier `freeze` did so."""
    before = _BEFORE.get(model)
    trainable = frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    # one that nobody holds any more, and that wants gradients again, was changed by its owner meanwhile
    if before is None or (trainable and not before.holders):
        _BEFORE[model] = _Before(trainable, {name: _noted(module) for name, module in model.named_modules()}, WeakSet())
    model.requires_grad_(False)
    model.eval()
    _keep_layout(model)


def hold(model: nn.Module, holder: Any) -> None:
    """Freeze `model` until `holder`, and everyone else who holds it, lets go."""
    freeze(model)
    _BEFORE[model].holders.add(holder)


def let_go(model: nn.Module, holder: Any = None) -> None:
    """Give up `model`; the last one to do so leaves it as it was before the first one froze it.

    Without a `holder`, undo a `freeze` that nobody went on to hold.
    """
    before = _BEFORE.get(model)
    if before is None:
        return
    if holder is not None:
        before.holders.discard(holder)
    if before.holders:
        return
    del _BEFORE[model]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in before.trainable)
    for name, module in model.named_modules():
        was = before.attributes.get(name, {})
        for attribute in _noted(module).keys() | was.keys():
            if attribute in was:
                setattr(module, attribute, was[attribute])
            else:
                delattr(module, attribute)


def _keep_layout(model: nn.Module) -> None:
    """Let 4-bit weights lie so that a gradient can pass through their layers, and lie so if they do not."""
    for module in model.modules():
        if not hasattr(module, _REPACKS):
            continue
        setattr(module, _REPACKS, False)
        weight: Any = module.weight
        if getattr(weight.quant_state, "packing_format_for_cpu", False):
            module.state_dict()  # by which bitsandbytes lays a weight out as it was
            scales = weight.quant_state.absmax
            if scales.ndim == 2:  # bitsandbytes 0.50 forgets to lay these out as they were, too
                weight.quant_state.absmax = scales.T.reshape(-1).float()


def _noted(module: nn.Module) -> dict[str, Any]:
    """The module's own attributes that freezing and checkpointing change (see `checkpointing.py` for the dropouts)."""
    return {
        name: value
        for name, value in vars(module).items()
        if name in _ATTRIBUTES or (isinstance(value, float) and "dropout" in name)
    }
