"""GGUF files: which names mean one, where it is, and how its weights are to come.

The file holds configuration, tokenizer and weights. This file reads none of them and knows nothing about compositions.
"""

import re
from pathlib import Path
from typing import Any

from transformers import GgufConfig
from transformers.utils.hub import cached_file

INSTALL_GGUF = "pip install 'lmcompose[gguf]'"

_ON_THE_HUB = re.compile(r"([\w-][\w.-]*/[\w.-]+)/([\w.-]+\.gguf)", re.IGNORECASE)


def is_gguf(source: Any) -> bool:
    """Whether `source` names a GGUF file: a path, or `owner/repository/file.gguf` on the hub. A folder is none."""
    return isinstance(source, (str, Path)) and str(source).lower().endswith(".gguf") and not Path(source).is_dir()


def hub_gguf(source: Any) -> tuple[str, str] | None:
    """Repository and file name of a GGUF file on the hub; None where `source` is a path, or a file that is here."""
    match = _ON_THE_HUB.fullmatch(source) if isinstance(source, str) else None
    return None if match is None or Path(source).exists() else (match[1], match[2])


def gguf_path(source: str | Path, revision: str | None = None) -> Path:
    """Where a GGUF file is on this machine, downloaded where need be.

    Raises:
        OSError: it is not on the hub, or cannot be had.
    """
    on_hub = hub_gguf(source)
    found = source if on_hub is None else cached_file(*on_hub, revision=revision)
    assert found is not None  # a file that is missing raises
    return Path(found).absolute()


def unpacked() -> GgufConfig:
    """Weights as plain tensors. Packed ones are slow in training, and have neither a dtype nor a fingerprint."""
    return GgufConfig(dequantize=True)
