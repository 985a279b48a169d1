"""The trainer of `ordered.py`, told what a composition is: only its own parameters are optimised, saved and read back.

Training by the plain Trainer or by TRL's SFTTrainer works too, since the model itself saves only what is its own.
This file knows nothing of recipes.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers import TrainingArguments

from lmcompose.calm.prompts import prompt_of
from lmcompose.calm.unfrozen import UNFROZEN_PREFIX
from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError, SavedFolderError
from lmcompose.training.ordered import ONE_EACH, OrderedTrainer


class CalmTrainer(OrderedTrainer):
    """`transformers.Trainer` for a `ComposedModel`; takes the same arguments.

    The order of the data and the evaluation loss are those of `OrderedTrainer`.

    Args:
        unfrozen_learning_rate: of unfrozen layers, which begin trained; by default that of the bridges, which begin at
            nothing. It follows the same schedule.

    Raises:
        ConfigurationError: the model is no composition, or several GPUs would be used by one process.
    """

    def __init__(
        self,
        model: ComposedModel | None = None,
        args: TrainingArguments | None = None,
        unfrozen_learning_rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(model, ComposedModel):
            raise ConfigurationError(
                f"CalmTrainer trains a composition, not a {type(model).__name__}. Make one with lmcompose.compose(...)."
            )
        if args is not None and args.n_gpu > 1:
            raise ConfigurationError(
                f"{args.n_gpu} GPUs are visible to one process, and replicas of a composition would share its hooks. "
                f"{ONE_EACH}"
            )
        self._unfrozen_learning_rate = unfrozen_learning_rate
        freeze_members(model)
        super().__init__(model=model, args=args, **kwargs)
        # What transformers guesses from a class name or a signature, said outright: the loss of a composition divides
        # by the num_items_in_batch it is given, and counts labels from the second position on.
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = True

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer of the composition parameters; no other tensor gets a state in it."""
        made = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if made and self._unfrozen_learning_rate is not None:
            _set_apart(optimizer, _unfrozen_parameters(cast(nn.Module, self.model)), self._unfrozen_learning_rate)
        if not any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]):
            raise ConfigurationError("The composition has no parameter to train: all of them have requires_grad=False.")
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """HF's, without vectors: HF knows a norm by its class, and of unfrozen ones only the weights are here."""
        vectors = {name for name, parameter in model.named_parameters() if parameter.ndim < 2}
        return [name for name in super().get_decay_parameter_names(model) if name not in vectors]

    def _without_labels(self, inputs: dict[str, Any], labels: torch.Tensor) -> dict[str, Any]:
        if getattr(self.accelerator.unwrap_model(self.model), "reads_prompts", False):  # the labels say what it is
            prompts = prompt_of(labels, inputs.get("attention_mask"), inputs.get("position_ids"))
            inputs.setdefault("prompt_mask", prompts)
        return inputs

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        target = output_dir if output_dir is not None else self.args.output_dir
        self.accelerator.unwrap_model(self.model).save_pretrained(
            target, state_dict=state_dict, is_main_process=self.args.should_save
        )

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Members are never in a checkpoint; a composition parameter that is missing is an error, not a warning."""
        own = {name for name, _ in self.accelerator.unwrap_model(self.model).composition_parameters()}
        missing = sorted(own.intersection(load_result.missing_keys))
        if missing or load_result.unexpected_keys:
            raise SavedFolderError(
                f"The checkpoint does not fit this composition: missing {missing[:3]}, unexpected "
                f"{sorted(load_result.unexpected_keys)[:3]}. Resume with the recipe that the run was started with."
            )


def freeze_members(model: ComposedModel) -> None:
    """Make sure that no member is trained; composition parameters stay as they are, trained or kept (see `extend`)."""
    own = {name for name, _ in model.composition_parameters()}
    for name, parameter in model.named_parameters():
        if name not in own:
            parameter.requires_grad_(False)


def _unfrozen_parameters(model: nn.Module) -> set[nn.Parameter]:
    return {
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(UNFROZEN_PREFIX) and parameter.requires_grad
    }


def _set_apart(optimizer: torch.optim.Optimizer, parameters: set[nn.Parameter], learning_rate: float) -> None:
    """Move `parameters` to groups of their own, with another learning rate and else the same settings."""
    for group in list(optimizer.param_groups):
        apart = [parameter for parameter in group["params"] if parameter in parameters]
        if apart:
            group["params"] = [parameter for parameter in group["params"] if parameter not in parameters]
            optimizer.add_param_group({**group, "params": apart, "lr": learning_rate})
