"""Members that share one model's weights: with and without an adapter, or with different adapters.

A LoRA layer can add another adapter to every row of a batch (peft's `adapter_names`), so an expert and its antiexpert
are one pass over 2B rows and the weights of one small model. Where peft cannot do that (DoRA, other kinds of adapters,
layers that lose sight of the rows), the adapters are switched between two passes over the same weights.

This file knows peft's layers, and no formula.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose.calls import CallSlot
from lmcompose.errors import MemberError
from lmcompose.reference import BARE

_SWITCHING: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
"""Who switches a model's adapters waits for the others who do, whichever composition they belong to."""


def adapted_modules(model: nn.Module) -> list[Any]:
    """The modules that peft wrapped: layers with adapters, and whole modules of which an adapter has its own copy."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [module for module in model.modules() if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))]


def check_switchable(model: PreTrainedModel, name: str) -> None:
    """Refuse a model that has been changed in a way that its adapters' switches do not undo.

    Raises:
        MemberError: an adapter is merged into the weights, which taking it out again would not leave as they were; or
            an adapter was trained together with the biases of its base.
    """
    if any(getattr(module, "merged_adapters", None) for module in adapted_modules(model)):
        raise MemberError(
            f"An adapter is merged into the weights of '{name}', so it cannot also play a role without it. Call "
            "unmerge_adapter() first, or load the bare model apart."
        )
    for adapter, config in getattr(model, "peft_config", {}).items():
        if getattr(config, "bias", "none") != "none":
            raise MemberError(
                f"The adapter '{adapter}' was trained with the biases of '{name}' (bias='{config.bias}'), so the two "
                "cannot share weights. Load the bare model apart: (model, tokenizer), or a copy of its folder."
            )


class AdapterHook:
    """A forward pre-hook on a module of peft: tells it which adapter each row of the batch has."""

    def __init__(self, slot: CallSlot) -> None:
        self.slot = slot

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        names = self.slot.current
        return None if names is None else (args, {**kwargs, "adapter_names": names})


def hook_adapters(model: PreTrainedModel, slot: CallSlot) -> list[Any]:
    """Let `slot` say which adapter each row has; returns the handles that undo it."""
    return [module.register_forward_pre_hook(AdapterHook(slot), with_kwargs=True) for module in adapted_modules(model)]


def mixes_adapters(model: PreTrainedModel, adapters: Sequence[str]) -> bool:
    """Whether every adapted module can add another one of `adapters` to each row of one batch.

    That depends on the kind of adapter, and on the model: OPT and mixtures of experts hand some of their layers all
    tokens in one row. So the model is asked, by a pass over a few tokens.
    """
    names = list(dict.fromkeys([BARE, *adapters]))
    modules = adapted_modules(model)
    if any(getattr(module, "lora_variant", None) for module in modules):
        return False

    def check(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        rows, words = args[0].shape[0], 2 if args[0].is_floating_point() else 1
        if rows != len(names) or args[0].dim() <= words:
            raise ValueError("the first dimension is not the batch")

    slot = CallSlot()
    handles = [module.register_forward_pre_hook(check, with_kwargs=True) for module in modules]
    handles += hook_adapters(model, slot)
    ids = torch.zeros((len(names), 3), dtype=torch.long, device=model.device)
    try:
        with torch.no_grad(), slot.during(names):
            model(input_ids=ids, use_cache=False)
    except Exception:  # whatever peft raises where it cannot; what cannot run at all will fail again, in the open
        return False
    finally:
        for handle in handles:
            handle.remove()
    return True


@contextmanager
def switched_to(model: nn.Module, adapter: str) -> Iterator[None]:
    """Within the block, the whole model has one adapter, or none (`BARE`); then it is as it was."""
    with _SWITCHING.setdefault(model, threading.RLock()):
        modules = adapted_modules(model)
        before = [(module._disable_adapters, module._active_adapter) for module in modules]
        set_in_use(model, adapter)
        try:
            yield
        finally:
            for module, (disabled, active) in zip(modules, before, strict=True):
                module._disable_adapters, module._active_adapter = disabled, active


def set_in_use(model: nn.Module, adapter: str) -> None:
    """Let the whole model run with one adapter, or with none (`BARE`), until told otherwise.

    peft's own switches would also change which parameters want a gradient.
    """
    for module in adapted_modules(model):
        module._disable_adapters = adapter == BARE
        if adapter != BARE:
            module._active_adapter = [adapter]


def mixing_roles(models: Mapping[str, PreTrainedModel], adapters: Mapping[str, str]) -> set[str]:
    """The roles in `adapters` whose model can have another adapter in each row of a batch."""
    mixing: dict[int, bool] = {}
    for role in adapters:
        model = models[role]
        if id(model) not in mixing:
            mixing[id(model)] = mixes_adapters(model, [adapters[other] for other in adapters if models[other] is model])
    return {role for role in adapters if mixing[id(models[role])]}


def passes_of(
    models: Mapping[str, PreTrainedModel], adapters: Mapping[str, str], mixing: set[str], leader: str, share: bool
) -> list[tuple[str, ...]]:
    """Which members run together in one pass, in order: each its own, or all that share one model's weights.

    The leader runs alone, since its text may come in pieces before the contexts of others are read. Members that share
    a model share a pass where each has an adapter of its own or none, and the layers can mix them; or where the model
    has no adapters to tell them by, and only their contexts differ.

    Args:
        adapters: role -> adapter, of members whose model plays several roles.
        mixing: the roles whose model can mix adapters within a batch.
        share: False gives every member a pass of its own.
    """
    passes: list[tuple[str, ...]] = []
    for role, model in models.items():
        for index, roles in enumerate(passes):
            together = share and leader not in roles and models[roles[0]] is model
            if together and (role not in adapters or role in mixing):
                passes[index] = (*roles, role)
                break
        else:
            passes.append((role,))
    return passes


def row_adapters(roles: Sequence[str], adapters: Mapping[str, str], rows: int) -> list[str]:
    """The adapter of each of the rows of a pass, member by member."""
    return [adapters[role] for role in roles for _ in range(rows // len(roles))]
