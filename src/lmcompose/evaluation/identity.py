"""Which model a score is of: what changes when its weights do, and stays when its folder is moved.

Results are taken up again only for the model that they were made with. This file loads no model.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lmcompose.kinds import read_composition
from lmcompose.loading import Source, plan_member, source_name
from lmcompose.saved import kind_of, saved_source

_READ = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja", ".gguf")
_WHOLE, _PARTS, _PART = 4_000_000, 64, 16_384
"""Files up to this many bytes are read whole; of larger ones so many parts of so many bytes, spread over them."""


def describe(source: Source, trust_remote_code: bool = False, use_safetensors: bool = True) -> dict[str, Any]:
    """Which model stands at `source`: its name, its recipe where it is a composition, and `digest`, which tells it.

    The digest of a folder is of its files, with that of its members for a composition; of a hub id, of the commit; of a
    live model, of the sums of its parameters.

    Raises:
        MemberError, SavedFolderError: there is no such model.
    """
    live = source[0] if isinstance(source, tuple) else source
    if isinstance(live, PreTrainedModel):
        return {"name": source_name(source), "digest": digest_parameters(live)}
    reference = plan_member(live, "evaluation", trust_remote_code=trust_remote_code, use_safetensors=use_safetensors)
    parts: list[Any] = [reference.revision, reference.adapter_revision, reference.quantization]
    parts += [_of_files(Path(place)) for place in reference.places]
    found: dict[str, Any] = {"name": reference.full_name, "revision": reference.revision}
    if kind_of(reference) == "composition":
        config = read_composition(reference.name_or_path)
        members = {
            role: describe(saved_source(member, reference.name_or_path), trust_remote_code, use_safetensors)
            for role, member in config.references().items()
        }
        parts.append([member["digest"] for member in members.values()])
        found |= {"members": members, "recipe": config.provenance}
    return {**found, "digest": digest(parts)}


def digest(value: Any) -> str:
    """A short text that differs where plain values do; of functions their names count."""
    text = json.dumps(value, sort_keys=True, default=lambda other: getattr(other, "__qualname__", str(other)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_files(place: Path) -> dict[str, str] | None:
    """The files of a folder, or a single one, each by its name; None for what is no place on this machine."""
    if place.is_file():
        return {place.name: _of_file(place)}
    if not place.is_dir():
        return None
    return {file.name: _of_file(file) for file in sorted(place.iterdir()) if file.suffix in _READ and file.is_file()}


def _of_file(file: Path) -> str:
    size = file.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        if size <= _WHOLE:
            found.update(opened.read())
        else:
            for part in range(_PARTS):
                opened.seek(part * (size - _PART) // (_PARTS - 1))
                found.update(opened.read(_PART))
    return found.hexdigest()


@torch.no_grad()
def digest_parameters(model: PreTrainedModel) -> str:
    """A short text that differs where the parameters' sums do."""
    sums = [
        (name, float(parameter.double().sum()), float(parameter.double().abs().sum()))
        for name, parameter in model.named_parameters()
        if parameter.device.type != "meta"
    ]
    return digest(sums)
