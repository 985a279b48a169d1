"""The arms of a comparison by name: what each is, and of what kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmcompose.errors import ConfigurationError, nearest

Family = Literal["composition", "tuned", "untrained"]


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        title: in words; of a composition, what its augmenting model is. It may name the settings {weight}, {scale} and
            {alpha}.
        family: a composition that is trained, the anchor tuned by itself, or something that is not trained.
        replace: (model, seed) -> the model that stands in the augmenting model's place; None leaves it as it is.
    """

    title: str
    family: Family = "composition"
    replace: Callable[[PreTrainedModel, int], PreTrainedModel] | None = None


def fresh(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A model of the shape and dtype of `model`, as its architecture initialises it."""
    with torch.random.fork_rng(devices=[]):
        return _fresh(model, seed)


def shuffled(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A copy of `model` with the entries of each tensor in another order: their sizes stay, what they know goes."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        new = _fresh(model, seed)
        for parameter, original in zip(new.parameters(), model.parameters(), strict=True):
            order = torch.randperm(original.numel())
            parameter.copy_(original.flatten()[order].view_as(original))
    return new


def _fresh(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    new: torch.nn.Module = AutoModelForCausalLM.from_config(model.config)
    return cast(PreTrainedModel, new.to(model.dtype))


ARMS: dict[str, Arm] = {
    "composition": Arm("m_A as it is"),
    "vanilla": Arm("m_A before its domain training"),
    "random": Arm("m_A with fresh random weights", replace=fresh),
    "shuffled": Arm("m_A with each tensor shuffled", replace=shuffled),
    "encoder": Arm("m_A reads the prompt alone"),
    "lora": Arm("LoRA on the anchor, as many parameters", "tuned"),
    "finetuned": Arm("the anchor tuned whole on the composition data", "tuned"),
    "finetuned_domain": Arm("the anchor tuned whole on the domain data", "tuned"),
    "routing": Arm("the better single model for each document (an oracle)", "untrained"),
    "ensemble": Arm("logit ensemble, {weight:.3g} of it m_A", "untrained"),
    "average": Arm("average of the weights, {weight:.3g} of it m_A", "untrained"),
    "task_arithmetic": Arm("weights of the anchor + {scale:g} (m_A - vanilla)", "untrained"),
    "proxy": Arm("proxy-tuning, alpha {alpha:g}", "untrained"),
    "pipeline": Arm("m_A's answer in the anchor's prompt", "untrained"),
}

ALL = "all"
"""Stands for every arm there is."""


def arm_named(name: str) -> Arm:
    """The arm `name`.

    Raises:
        ConfigurationError: there is none; the message names the nearest.
    """
    if name not in ARMS:
        raise ConfigurationError(f"There is no arm '{name}'; there are {', '.join(ARMS)}.{nearest(name, ARMS)}")
    return ARMS[name]


def named(arms: Sequence[str]) -> dict[str, Arm]:
    """The arms of these names, each once, in their order; `ALL` stands for those that are not named before it.

    Raises:
        ConfigurationError: there is no such arm, or none is named.
    """
    names = [each for name in arms for each in (ARMS if name == ALL else (name,))]
    if not names:
        raise ConfigurationError("Give at least one arm and one seed.")
    return {name: arm_named(name) for name in dict.fromkeys(names)}
