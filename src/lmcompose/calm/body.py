"""A composition up to its anchor's last hidden states, for callers that apply the output head themselves.

TRL's trainers do: they call `model.base_model(...)` and project only the positions that are learned. This file is all
that knows of it.
"""

from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from lmcompose.architecture import run_without_head
from lmcompose.errors import ConfigurationError

if TYPE_CHECKING:
    from lmcompose.calm.model import CalmForCausalLM


class Body:
    """`CalmForCausalLM.base_model`: the composition without the anchor's head."""

    _tp_plan = _pp_plan = None  # asked for by transformers of every base model

    def __init__(self, composition: "CalmForCausalLM") -> None:
        self._composition = composition

    def __call__(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
    ) -> BaseModelOutput:
        """The anchor's last hidden states [batch, length, D_B], after its final norm. Takes no cache and makes none.

        Raises:
            ConfigurationError: the anchor is itself a composition whose head cannot be left out.
        """
        anchor: Any = self._composition.anchor
        with self._composition.writing(input_ids, attention_mask, position_ids) as inputs:
            if not getattr(anchor, "is_composed", False):
                return BaseModelOutput(last_hidden_state=run_without_head(anchor, **inputs)[0])
            if isinstance(anchor.base_model, Body):
                return anchor.base_model(**inputs)
        raise ConfigurationError(
            f"The anchor is a {type(anchor).__name__}, which has no single output head. Train with lmcompose's own "
            "CalmTrainer, or with transformers' Trainer."
        )
