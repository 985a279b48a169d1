"""What stands at a name: a folder, a GGUF file or a hub id has a configuration, a tokenizer, a revision and a licence.

This file reads no weights, and knows neither live models nor compositions.
"""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from lmcompose.adapters import adapter_source
from lmcompose.errors import MemberError, RecipeError
from lmcompose.gguf import INSTALL_GGUF, gguf_path, hub_gguf, is_gguf
from lmcompose.reference import MemberReference, commit_of

PLACES = "a folder with a config.json or an adapter_config.json, a .gguf file, or the id of a model on the hub"
"""What a model can be named by, for messages."""


def is_written_as_path(source: str | Path) -> bool:
    """Whether `source` can only be a path: no hub id looks like it, and no `owner/repository/file.gguf` on the hub."""
    text = str(source)
    if is_gguf(source):
        return hub_gguf(source) is None
    return isinstance(source, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text


def is_missing_folder(source: str | Path) -> bool:
    """Whether `source` can only be a path and nothing is there: asking the hub would cost half a minute offline."""
    return is_written_as_path(source) and not Path(source).exists()


def located(source: str, base: Path, role: str) -> str:
    """What a recipe names as a member: a folder or a GGUF file from the recipe's folder `base`, else a hub id.

    Raises:
        RecipeError: what is written as a path is neither.
    """
    place = base / Path(source).expanduser()
    if place.is_dir() or (is_gguf(source) and place.is_file()):
        return os.path.normpath(place)
    if is_written_as_path(source):
        kind = "file" if is_gguf(source) else "folder"
        raise RecipeError(f"{role}: there is no {kind} {place}. Relative paths start from the recipe's folder.")
    return source


def read_model_config(
    source: str | Path, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedConfig:
    """The configuration of a model in a folder, on the hub or in a GGUF file.

    Raises:
        Exception: whatever transformers raises where it finds none that it can read.
    """
    name, options = location(source, revision)
    return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **options)


def read_tokenizer(
    source: str | Path, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase | None:
    """The tokenizer that stands beside a model or an adapter, else that of the adapter's base, or None."""
    found = _tokenizer_beside(source, revision, trust_remote_code)
    adapter = adapter_source(source, revision) if found is None else None
    return found if adapter is None else _tokenizer_beside(adapter.base, adapter.base_revision, trust_remote_code)


def tokenizer_of(reference: MemberReference, trust_remote_code: bool = False) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a member that was planned by name: its adapter's own, else the model's, or None."""
    found = None
    if reference.adapter is not None:
        found = _tokenizer_beside(reference.adapter, reference.adapter_revision, trust_remote_code)
    return found or _tokenizer_beside(reference.name_or_path, reference.revision, trust_remote_code)


def _tokenizer_beside(source: str | Path, revision: str | None, trust: bool) -> PreTrainedTokenizerBase | None:
    try:
        name, options = location(source, revision)
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust, **options)
    except (OSError, ValueError, KeyError):
        return None


def location(source: str | Path, revision: str | None) -> tuple[str | Path, dict[str, Any]]:
    """The name, and the options beside it, by which any `from_pretrained` of transformers finds `source`."""
    if not is_gguf(source):
        return source, {"revision": revision}
    path = gguf_path(source, revision)
    return path.parent, {"gguf_file": str(path)}  # the whole path: a bare name is looked for where Python runs first


def check_safetensors(source: str | Path, role: str) -> None:
    """Refuse a folder whose weights are pickles alone: reading one can run whatever code somebody put in it.

    Of a hub id this shows where its weights are read.

    Raises:
        MemberError: it is one.
    """
    folder = Path(source)
    if folder.is_dir() and any(folder.glob("pytorch_model*.bin*")) and not any(folder.glob("*.safetensors")):
        raise MemberError(f"The weights in '{source}' (for the {role}) are pickles. {PICKLES}")


PICKLES = (
    "Only safetensors are read, since a pickle can run code. Save the model again with save_pretrained, which writes "
    "safetensors; or, if you trust where it is from, pass use_safetensors=False (in a recipe, use_safetensors: false; "
    "on the command line, --no-safetensors)."
)
"""What to do about weights that are pickles, for messages."""


def has_own_code(error: BaseException | None) -> bool:
    """Whether transformers refused a model or tokenizer because code that comes with it would have to run."""
    return isinstance(error, ValueError) and "contains custom code" in str(error)


def resolved_revision(name: str, revision: str | None) -> str | None:
    """The commit that a hub id stands at, so that a saved composition names exact weights; None for a folder."""
    if Path(name).is_dir():
        return revision
    if is_gguf(name):
        return commit_of(gguf_path(name, revision)) or revision
    file = cached_file(name, "config.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    return (commit_of(file) if file else None) or revision


def license_of(name: str) -> str | None:
    """The licence that a model card names in its header, or None where it cannot be told."""
    on_hub = hub_gguf(name)
    if is_gguf(name) and on_hub is None:
        return None  # a folder with such a file can hold models of several licences
    try:
        card = cached_file(on_hub[0] if on_hub else name, "README.md")
        return ModelCard.load(card).data.get("license") if card else None
    except (OSError, ValueError):  # no card, no connection, or a header that does not parse
        return None


def no_connection(error: BaseException | None) -> bool:
    """Whether an error was caused by a hub that could not be reached."""
    while error is not None and not isinstance(error, LocalEntryNotFoundError):
        error = error.__cause__
    return error is not None


def reason_of(error: Exception, source: str | Path) -> str:
    """Why nothing could be read at `source`, as one sentence."""
    if is_gguf(source) and isinstance(error, ImportError):
        return f"reading a GGUF file takes the gguf package. {INSTALL_GGUF}."
    if isinstance(error, OSError) and "safetensors" in str(error) and "use_safetensors" in str(error):
        return f"there are no safetensors. {PICKLES}"
    return first_line(error)


def first_line(error: Exception) -> str:
    """The first line of what an error says, as a sentence."""
    line = str(error).strip().split("\n")[0] or type(error).__name__
    return line if line.endswith((".", "!", "?")) else line + "."
