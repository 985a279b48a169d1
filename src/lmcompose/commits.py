"""Which commit on the hub a live model was made of, where transformers does not say so (from 5.24 on it does not).

It is told from what was downloaded: the one commit that there is, or of several the one with the model's weights. This
file asks no hub.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from safetensors import safe_open
from transformers import PreTrainedModel

COMPARED = 4
"""How many parameters of a model are compared with those of a commit."""


def commit_of_live(model: PreTrainedModel, name: str) -> str | None:
    """The commit of `name` that `model` was loaded from; None for a folder, or where it cannot be told."""
    noted: str | None = getattr(model.config, "_commit_hash", None)
    if noted is not None or Path(name).exists():
        return noted
    try:
        repository = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model") / "snapshots"
    except HFValidationError:  # a live model without a name
        return None
    commits = [folder for folder in sorted(repository.glob("*")) if any(folder.glob("*.safetensors"))]
    if len(commits) > 1:
        commits = [folder for folder in commits if _has_weights_of(folder, model)]
    return commits[0].name if len(commits) == 1 else None


def _has_weights_of(folder: Path, model: PreTrainedModel) -> bool:
    """Whether some parameters of `model`, spread over it, are in a folder bit for bit, under the same names."""
    plain = {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.device.type != "meta"
    }
    names = list(plain)[:: max(1, len(plain) // COMPARED)]
    found = [torch.equal(stored.to(plain[name]), plain[name]) for name, stored in _stored(folder, set(names))]
    return bool(found) and all(found)


def _stored(folder: Path, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in names & set(weights.keys()):
                yield name, weights.get_tensor(name)
