"""The optimizer that a recipe names: one of transformers', or Muon.

Muon (momentum whose matrices are orthogonalised; Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) takes
matrices only, and all composition parameters are matrices. Its steps are scaled to the size of AdamW's (Liu et al.
2025, arXiv 2502.16982), so that a learning rate means the same for both.
"""

from typing import Any

import torch
from transformers.training_args import OptimizerNames

from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.training.recipe import Optimization

MUON = "muon"


def check_optimizer(settings: Optimization) -> None:
    """Refuse an optimizer that is not there, before anything is loaded.

    Raises:
        ConfigurationError: an unknown name, or Muon with a torch that lacks it.
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


def moments(settings: Optimization) -> int:
    """How many numbers the optimizer keeps for each parameter: Adam two, Muon one."""
    return 1 if settings.optimizer == MUON else 2


def optimizer_arguments(settings: Optimization, model: ComposedModel) -> dict[str, Any]:
    """What a recipe's optimizer adds to the arguments of `Trainer`: nothing where transformers knows it by name.

    Raises:
        ConfigurationError: Muon for a parameter that is no matrix.
    """
    if settings.optimizer != MUON:
        return {}
    others = [name for name, parameter in model.composition_parameters() if parameter.ndim != 2]
    if others:
        raise ConfigurationError(
            f"training.optimizer: muon trains matrices only, and {others[:3]} are none. Use adamw_torch."
        )
    options = {"lr": settings.learning_rate, "adjust_lr_fn": "match_rms_adamw"}  # Trainer sets the weight decay
    return {"optimizer_cls_and_kwargs": (torch.optim.Muon, options)}
