"""The optimizer that a recipe names: one of transformers', or Muon.

Muon (momentum whose matrices are orthogonalised; Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) takes
matrices only, and all composition parameters are matrices. Its steps are scaled to the size of AdamW's (Liu et al.
2025, arXiv 2502.16982), so that a learning rate means the same for both.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers.training_args import OptimizerNames

from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.training.recipe import Optimization

MUON = "muon"
ADAFACTOR = "adafactor"

MOMENTS = {"adamw_torch": 2, "adamw_torch_fused": 2, "sgd": 0, "adagrad": 1, "rmsprop": 1, MUON: 1}
"""How many numbers an optimizer keeps for each parameter, in the parameter's dtype."""

STANDARD = (*MOMENTS, ADAFACTOR)
"""What needs nothing but torch and transformers. These are tested; others are handed on where they can work."""

_PACKAGES = {
    ("adamw_torch_4bit", "adamw_torch_8bit"): "torchao",
    ("adamw_bnb", "adamw_8bit", "ademamix", "lion", "paged", "rmsprop_bnb"): "bitsandbytes",
    ("schedule_free",): "schedulefree",
    ("stable_adamw",): "optimi",
    ("grokadamw",): "grokadamw",
    ("adamw_anyprecision",): "torchdistx",
    ("adamw_torch_xla",): "torch_xla",
    ("adamw_torch_npu",): "torch_npu",
}
"""How the names of optimizers begin that are imported from another package, and that package."""

_BEYOND_A_RECIPE = ("galore", "apollo", "lomo", "adalomo")


def check_optimizer(settings: Optimization) -> None:
    """Refuse an optimizer that is not there, before anything is loaded.

    Raises:
        ConfigurationError: an unknown name, one whose package is missing, one that needs what a recipe cannot say, or
            Muon with a torch that lacks it.
    """
    names = [MUON, *(name.value for name in OptimizerNames)]
    if settings.optimizer not in names:
        hint = nearest(settings.optimizer, names) or " adamw_torch and muon are good choices."
        raise ConfigurationError(f"training.optimizer: '{settings.optimizer}' is unknown.{hint}")
    if settings.optimizer == MUON and not hasattr(torch.optim, "Muon"):
        raise ConfigurationError(
            f"training.optimizer: torch {torch.__version__} has no Muon. Install torch 2.9 or newer, "
            "or use adamw_torch."
        )
    choices = f"use one of {', '.join(STANDARD)}"
    if settings.optimizer.startswith(_BEYOND_A_RECIPE):
        raise ConfigurationError(
            f"training.optimizer: '{settings.optimizer}' must be told which layers to project, or be given the model "
            f"itself, and a recipe can do neither: {choices}."
        )
    package = required_package(settings.optimizer)
    if package is not None and find_spec(package) is None:
        raise ConfigurationError(
            f"training.optimizer: '{settings.optimizer}' comes from the package {package}, which is not installed. "
            f"Install it, or {choices}."
        )


def required_package(optimizer: str) -> str | None:
    """The package that an optimizer is imported from; None where it is torch or transformers."""
    return next((package for beginnings, package in _PACKAGES.items() if optimizer.startswith(beginnings)), None)


def state_bytes(settings: Optimization, matrices: Iterable[tuple[int, int]], number: int) -> int:
    """Bytes that the optimizer keeps for matrices of the given shapes, but for a step count each.

    An optimizer of another package is counted as Adam, which is more than its forms of 8 bits take.

    Args:
        matrices: (rows, columns) of every matrix that is trained.
        number: bytes of one of its numbers.
    """
    if settings.optimizer == ADAFACTOR:  # a mean over each row and each column stands for a number per parameter
        return 4 * sum(rows + columns for rows, columns in matrices)
    return MOMENTS.get(settings.optimizer, 2) * number * sum(rows * columns for rows, columns in matrices)


def optimizer_arguments(settings: Optimization, model: nn.Module) -> dict[str, Any]:
    """What a recipe's optimizer adds to the arguments of `Trainer`: nothing where transformers knows it by name.

    Args:
        model: a composition, whose own parameters are trained; or a model whose trained parameters want gradients.

    Raises:
        ConfigurationError: Muon for a parameter that is no matrix.
    """
    if settings.optimizer != MUON:
        return {}
    trained = (
        model.composition_parameters()
        if isinstance(model, ComposedModel)
        else ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    )
    others = [name for name, parameter in trained if parameter.ndim != 2]
    if others:
        raise ConfigurationError(
            f"training.optimizer: muon trains matrices only, and {others[:3]} are none. Use adamw_torch."
        )
    options = {"lr": settings.learning_rate, "adjust_lr_fn": "match_rms_adamw"}  # Trainer sets the weight decay
    return {"optimizer_cls_and_kwargs": (torch.optim.Muon, options)}
