"""A saved composition of any kind becomes a model again. The only file that knows all the kinds there are."""

from pathlib import Path
from typing import Any

from lmcompose.calm.model import CalmForCausalLM
from lmcompose.composed import ComposedModel
from lmcompose.logits.model import LogitForCausalLM
from lmcompose.saved import ComposedConfig, check_format, read_config

KINDS: dict[type[ComposedConfig], type[ComposedModel]] = {
    CalmForCausalLM.config_class: CalmForCausalLM,
    LogitForCausalLM.config_class: LogitForCausalLM,
}
"""The kinds of compositions by their configuration."""


def read_composition(saved: str | Path, revision: str | None = None) -> ComposedConfig:
    """The configuration of a saved composition, of whatever kind it is.

    Raises:
        SavedFolderError: no composition is saved there, or one of a later format.
    """
    config = read_config(ComposedConfig, str(saved), revision)
    check_format(config, str(saved))
    return config


def load(saved: str | Path, *, revision: str | None = None, **options: Any) -> ComposedModel:
    """Load a saved composition of any kind, and the members that it names.

    Args:
        saved: the folder that `save_pretrained` wrote, or a hub id.
        options: those of the kind's `from_pretrained`: `members={role: model}` or `role=model` for members that have
            moved or are live, `dtype`, `device_map` and others.

    Raises:
        SavedFolderError, MemberError, WrongBaseError: see `ComposedModel.from_pretrained`.
    """
    config = read_composition(saved, revision)
    kind = KINDS[type(config)]
    if kind is not CalmForCausalLM:  # which takes `anchor` and `augmenting` itself, the latter also as a dict
        roles = {role: options.pop(role) for role in config.references() if role in options}
        options["members"] = {**(options.get("members") or {}), **roles}
    return kind.from_pretrained(saved, config=config, revision=revision, **options)
