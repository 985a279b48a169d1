"""PEFT adapters in a folder or on the hub: what one says of itself, and how it gets into its base.

An adapter keeps an adapter_config.json where a model has its config.json, and names the model that it was trained on.
This file loads no base model and knows nothing about compositions.
"""

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from lmcompose.errors import MemberError
from lmcompose.reference import commit_of

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLED_NAME = "adapter_model.bin"
INSTALL_PEFT = "pip install 'lmcompose[peft]'"


@dataclass(frozen=True)
class AdapterSource:
    """A PEFT adapter and the model that it belongs on. May stand wherever a member is named.

    Args:
        base: the base model, a folder or a hub id.
        path: the adapter, a folder or a hub id.
        peft_type: the kind of adapter as PEFT spells it, such as LORA.
        revision: of the adapter on the hub.
        base_revision: of the base on the hub; None takes the newest.
        task_type: what PEFT was told that the model is for; CAUSAL_LM, or None where it was not told.
    """

    base: str
    path: str
    peft_type: str
    revision: str | None = None
    base_revision: str | None = None
    task_type: str | None = None

    def __str__(self) -> str:
        return self.path


def adapter_source(source: Any, revision: str | None = None, local_files_only: bool = False) -> AdapterSource | None:
    """The adapter that `source` names, or None where it is none: a model of its own, or nothing that can be found.

    The base is looked for under its own name first, and then from the adapter's folder.

    Args:
        source: what a user named as a member. A folder or hub id with a config.json is a model and no adapter.
        revision: of the adapter on the hub.
        local_files_only: do not ask the hub; what was downloaded before is found.

    Raises:
        MemberError: its adapter_config.json does not parse, or names no base model.
    """
    if isinstance(source, AdapterSource):
        return source
    if not isinstance(source, (str, Path)) or Path(source).is_file():
        return None
    if isinstance(source, Path) and not source.exists():
        return None  # the hub is not asked for a path
    name = str(source)
    config_file = _file(name, CONFIG_NAME, revision, local_files_only)
    if config_file is None or _file(name, "config.json", revision, local_files_only) is not None:
        return None
    try:
        config = json.loads(Path(config_file).read_text(encoding="utf-8"))
        base, peft_type = config["base_model_name_or_path"], config["peft_type"]
        if not (isinstance(base, str) and base and isinstance(peft_type, str)):
            raise ValueError(f"base_model_name_or_path is {base!r} and peft_type is {peft_type!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MemberError(
            f"The adapter '{name}' does not say what it is: its {CONFIG_NAME} must name base_model_name_or_path and "
            f"peft_type ({type(error).__name__}: {error}). Save it again with PEFT's save_pretrained."
        ) from error
    if Path(name).is_dir():
        beside = os.path.normpath(Path(name) / base)
        base = beside if not Path(base).is_dir() and Path(beside).is_dir() else base
    return AdapterSource(
        base=base,
        path=name,
        peft_type=peft_type,
        revision=commit_of(config_file),
        base_revision=config.get("revision"),
        task_type=config.get("task_type"),
    )


def check_adapter(adapter: AdapterSource, role: str, use_safetensors: bool | None = True) -> None:
    """Refuse an adapter that cannot be a part of a member, before any weight is read.

    Args:
        use_safetensors: False or None to take a pickle where there are no safetensors.

    Raises:
        MemberError: PEFT is not installed or too old; the adapter adds virtual tokens (prompt learning), is for
            another task, or has no weights in safetensors.
    """
    beginning = f"The adapter '{adapter.path}' cannot be the {role}:"
    try:
        import peft
    except ImportError as error:
        raise MemberError(f"{beginning} PEFT is not installed. {INSTALL_PEFT}") from error
    try:
        config_class = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(adapter.peft_type)]
    except (ValueError, KeyError) as error:
        raise MemberError(
            f"{beginning} the PEFT that is installed ({peft.__version__}) knows no {adapter.peft_type}. Install a "
            "newer one: pip install --upgrade peft"
        ) from error
    if issubclass(config_class, peft.PromptLearningConfig):
        raise MemberError(
            f"{beginning} it is a {adapter.peft_type}, whose virtual tokens a composition cannot see. Use adapters "
            "inside the layers, such as LoRA."
        )
    if adapter.task_type not in (None, "CAUSAL_LM"):
        raise MemberError(
            f"{beginning} it was trained for {adapter.task_type} and not as a causal language model. Choose one with "
            "task_type CAUSAL_LM."
        )
    names = (WEIGHTS_NAME,) if use_safetensors else (WEIGHTS_NAME, PICKLED_NAME)
    if Path(adapter.path).is_dir() and not any((Path(adapter.path) / name).is_file() for name in names):
        raise MemberError(
            f"{beginning} there is no {WEIGHTS_NAME} in it, and only safetensors are read. Save it again with PEFT's "
            "save_pretrained; or, if you trust where it is from, pass use_safetensors=False."
        )


def adapter_folder(path: str, revision: str | None = None, use_safetensors: bool | None = True) -> str:
    """The folder on this machine with the adapter's configuration and weights, downloaded where need be.

    Raises:
        OSError: one of the two files is missing or cannot be had.
    """
    try:
        cached_file(path, WEIGHTS_NAME, revision=revision)
    except OSError:
        if use_safetensors:
            raise
        cached_file(path, PICKLED_NAME, revision=revision)
    return str(Path(cached_file(path, CONFIG_NAME, revision=revision) or path).parent)


def with_adapters(model: PreTrainedModel, folders: Mapping[str, str]) -> PreTrainedModel:
    """`model` with adapters inside its layers, in place; the first one is in use. No wrapper of PEFT is left around it.

    Args:
        folders: the adapters' names in the model, at least one, and where each one is on this machine.

    Raises:
        Exception: whatever PEFT raises where an adapter does not fit; also where a part of one is missing, which PEFT
            lets pass, so that the model would be the bare base there.
    """
    from peft import PeftModel

    (first, folder), *others = folders.items()
    device = str(model.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        wrapped = PeftModel.from_pretrained(model, folder, adapter_name=first, torch_device=device)
    for name, folder in others:
        missing = wrapped.load_adapter(folder, adapter_name=name, torch_device=device).missing_keys
        if missing:
            raise ValueError(f"Found missing adapter keys in '{folder}': {missing}.")
    base: PreTrainedModel = wrapped.get_base_model()
    return base


def _file(name: str, file_name: str, revision: str | None, local_files_only: bool) -> str | None:
    """Where a file of a folder or of a hub repository is, or None where there is none."""
    options = {"revision": revision, "local_files_only": local_files_only}
    try:
        return cached_file(name, file_name, **options, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):  # no such repository, no connection, or no possible name
        return None
