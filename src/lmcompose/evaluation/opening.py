"""Any model that a user names, loaded to be evaluated. This file knows no task and no lm-eval."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.kinds import load
from lmcompose.loading import Source, load_member, plan_member
from lmcompose.saved import kind_of


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
    return member.model, member.tokenizer
