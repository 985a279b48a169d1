"""Any model that a user names, loaded to be evaluated. This file knows no task and no lm-eval."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.architecture import hook_head
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.identity import describe
from lmcompose.kinds import load
from lmcompose.loading import Source, load_member, plan_member, source_name
from lmcompose.saved import kind_of


@dataclass(frozen=True)
class Loading:
    """How models are loaded, and how many texts they work on at once.

    Attributes:
        batch_size: texts at once.
        device: None is a GPU where there is one.
        dtype: of the weights; None keeps what was saved.
        trust_remote_code, use_safetensors: as for every model.
    """

    batch_size: int = 8
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    use_safetensors: bool = True

    def model(self, source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model at `source` and its tokenizer.

        Raises:
            MemberError, SavedFolderError: it cannot be loaded.
            ConfigurationError: it has no tokenizer.
        """
        model, tokenizer = load_model(source, self.device, self.dtype, self.trust_remote_code, self.use_safetensors)
        if tokenizer is None:
            raise ConfigurationError(
                f"'{source_name(source)}' has no tokenizer, and texts cannot be read without one. Save the tokenizer "
                "into the model's folder, or give (model, tokenizer)."
            )
        return model, tokenizer

    def describe(self, source: Source) -> dict[str, Any]:
        """Which model stands at `source`; see `identity.describe`."""
        return describe(source, self.trust_remote_code, self.use_safetensors)


def load_model(
    source: Source,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    use_safetensors: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """The model at `source`, of whatever kind, in evaluation mode, with its tokenizer.

    Raises:
        MemberError, SavedFolderError: it cannot be loaded.
    """
    if isinstance(source, tuple):
        return source
    if isinstance(source, PreTrainedModel):
        return source, getattr(source, "tokenizer", None)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    options |= {"use_safetensors": use_safetensors} | ({} if device == "cpu" else {"device_map": device})
    reference = plan_member(source, "evaluation", trust_remote_code=trust_remote_code, use_safetensors=use_safetensors)
    if kind_of(reference) == "composition" and isinstance(source, str | Path):
        model = load(source, **options)
        return model, model.tokenizer
    member = load_member(source, role="evaluation", planned=reference, **options)
    hook_head(member.model)  # a composition does so to its members
    return member.model, member.tokenizer
