"""The folder of a saved composition: its configuration, composition parameters, tokenizer and card.

Composition parameters only: the members are named, with revision, shape and fingerprint, and read from where they are.
This file knows no model class; `composed.py` calls it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from lmcompose.adapters import adapter_source
from lmcompose.architecture import text_config
from lmcompose.errors import ConfigurationError, MemberError, SavedFolderError
from lmcompose.folders import atomic_folder, recover_folder
from lmcompose.gguf import is_gguf
from lmcompose.loading import (
    Member,
    Source,
    check_device_map,
    check_roles,
    for_role,
    load_member,
    plan_member,
    unharmed,
)
from lmcompose.places import is_missing_folder
from lmcompose.reference import MemberReference, check_same_base

FORMAT_VERSION = 1
"""The version of the saved folder. A folder of a later version is refused; one of an earlier version is read."""

WEIGHTS_NAME = "model.safetensors"


TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates", "vocab.json", "vocab.txt", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json",
)  # fmt: skip
"""What `PreTrainedTokenizerBase.save_pretrained` writes."""

HEAD_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
"""What architectures do to the logits after the head; TRL applies the head itself and reads these off the config."""


class ComposedConfig(PreTrainedConfig):
    """What every composition saves: its members' references, in order, the leader first."""

    model_type = "composed"
    is_composed: ClassVar[bool] = True
    made: ClassVar[str] = "is composed of"
    """What a composition has to do with its members, for messages."""

    members: dict[str, Any] | None = None
    format_version: int = FORMAT_VERSION
    provenance: dict[str, Any] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    max_position_embeddings: int | None = None
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Put the members in their order again: JSON configurations are written with sorted keys."""
        if self.members:
            self.members = dict(sorted(self.members.items(), key=lambda member: member[1].get("order", 0)))
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """HF's, which would take the models of `from_pretrained(folder, members=...)` for the saved references."""
        members = kwargs.pop("members", None)
        found: Any = super().from_dict(config_dict, **kwargs)
        if members is None or not kwargs.get("return_unused_kwargs"):
            return found
        return found[0], {**found[1], "members": members}

    def references(self) -> dict[str, MemberReference]:
        """The members' references by role, the leader first."""
        return {role: MemberReference.from_dict(saved) for role, saved in (self.members or {}).items()}

    def describe_leader(self, reference: MemberReference, config: PreTrainedConfig) -> None:
        """Take over what `generate`, Trainer and others read off a configuration."""
        self.hidden_size, self.vocab_size = reference.hidden_size, reference.vocab_size
        self.num_hidden_layers, self.num_attention_heads = reference.num_hidden_layers, reference.num_attention_heads
        for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(self, token, getattr(text_config(config), token, None))
        for name in HEAD_SETTINGS:
            if getattr(text_config(config), name, None) is not None:
                setattr(self, name, getattr(text_config(config), name))


def write_saved(
    target: Path,
    tensors: Mapping[str, torch.Tensor],
    config: ComposedConfig,
    generation_config: GenerationConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    card: str,
) -> None:
    """Write a composition's folder so that a crash leaves either the old one or the new one.

    Raises:
        SavedFolderError: it could not be written; what was there before is untouched.
    """
    try:
        # old files of a tokenizer would be read as the new composition's own
        with atomic_folder(target, drop=TOKENIZER_FILES) as folder:
            save_file(dict(tensors), folder / WEIGHTS_NAME, metadata={"format": "pt"})
            config.save_pretrained(folder)
            generation_config.save_pretrained(folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            (folder / "README.md").write_text(card, encoding="utf-8")
    except SavedFolderError:
        raise  # says already what happened and what to do
    except Exception as error:  # safetensors reports a full disk with an exception that is no OSError
        raise SavedFolderError(
            f"'{target}' could not be written: {error}. What was there before is untouched; free some space or "
            "choose another folder, and save again."
        ) from error


def upload(
    folder: Path, repo_id: str, *, private: bool | None = None, token: str | bool | None = None, **commit: Any
) -> str:
    """Create a hub repository where there is none and upload a saved folder to it; returns the commit's address.

    Args:
        commit: `revision`, `commit_message`, `commit_description`, `create_pr`, as `huggingface_hub` takes them.
    """
    api = HfApi()
    repo = api.create_repo(repo_id, private=private, token=token, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo, folder_path=folder, token=token, **commit))


def read_config(config_class: type[ComposedConfig], saved: str, revision: str | None = None) -> ComposedConfig:
    """The configuration of the composition at `saved`, a folder or a hub id.

    Raises:
        SavedFolderError: there is none, it does not parse, it is of a plain model, or of a later format.
    """
    recover_folder(saved)
    if is_missing_folder(saved):
        raise SavedFolderError(
            f"No saved composition at '{saved}': there is no such folder. Give the folder that save_pretrained wrote."
        )
    try:
        config = AutoConfig.from_pretrained(saved, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise SavedFolderError(
            f"No saved composition at '{saved}': its config.json could not be read ({reason}). "
            "Give the folder that save_pretrained wrote."
        ) from error
    if not isinstance(config, config_class):
        raise SavedFolderError(
            f"'{saved}' holds a '{config.model_type}' model and not the composition that was asked for. Load it with "
            "AutoModelForCausalLM, or compose it with another model: lmcompose.compose(anchor=..., augmenting=...)."
        )
    return config


def check_format(config: ComposedConfig, saved: str) -> None:
    """Refuse a folder that a later lmcompose wrote.

    Raises:
        SavedFolderError: the format version is above `FORMAT_VERSION`.
    """
    if config.format_version > FORMAT_VERSION:
        raise SavedFolderError(
            f"'{saved}' has format version {config.format_version}, and this lmcompose reads up to {FORMAT_VERSION}. "
            "Install a newer lmcompose."
        )


def read_tensors(saved: str, revision: str | None = None) -> dict[str, torch.Tensor]:
    """The composition parameters at `saved`, on the CPU.

    Raises:
        SavedFolderError: the file is missing or cut short.
    """
    try:
        return load_file(cached_file(saved, WEIGHTS_NAME, revision=revision))
    except Exception as error:  # safetensors has an exception of its own that is no OSError
        raise SavedFolderError(
            f"'{saved}/{WEIGHTS_NAME}' is missing or cut short ({error}). Copy or download the folder again, or save "
            "it again from the model."
        ) from error


def put_tensors(
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, torch.Tensor],
    saved: str,
    dtype: torch.dtype | None = None,
) -> None:
    """Set composition parameters to saved values, strictly.

    Raises:
        SavedFolderError: a name or a shape does not fit.
    """
    missing, unexpected = parameters.keys() - tensors.keys(), tensors.keys() - parameters.keys()
    misfits = [
        f"{name} is {list(tensors[name].shape)} and should be {list(parameter.shape)}"
        for name, parameter in parameters.items()
        if name in tensors and tensors[name].shape != parameter.shape
    ]
    if missing or unexpected or misfits:
        raise SavedFolderError(
            f"'{saved}/{WEIGHTS_NAME}' does not fit its config.json: missing {sorted(missing)[:3]}, unexpected "
            f"{sorted(unexpected)[:3]}, misfits {misfits[:3]}. The files are of different compositions; save it again."
        )
    for name, parameter in parameters.items():
        parameter.data = tensors[name].to(device=parameter.device, dtype=dtype or tensors[name].dtype)


def member_sources(
    config: ComposedConfig,
    saved: str,
    replaced: Mapping[str, Source],
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
) -> tuple[dict[str, Source], dict[str, MemberReference]]:
    """What to load in each role: the members that a saved composition names, or what the caller gives in their place.

    All shapes are compared before the first weight is read.

    Args:
        quantization: for all, or by role; what is not said is as it was saved.

    Returns:
        The sources, and their plans, whose revisions are the ones to read.

    Raises:
        ConfigurationError: `replaced` names a member that is not there.
        MemberError, WrongBaseError: a member cannot be found, or is of another shape than the one that was saved.
    """
    references = config.references()
    unknown = sorted(replaced.keys() - references.keys())
    if unknown:
        raise ConfigurationError(f"'{saved}' has no member {unknown}; its members are {list(references)}.")
    check_roles("quantization", quantization, references)
    sources: dict[str, Source] = {}
    plans: dict[str, MemberReference] = {}
    for role, reference in references.items():
        revision = None if role in replaced else reference.revision
        asked = for_role(quantization, role, references)
        try:
            sources[role] = replaced.get(role) or saved_source(reference, saved)
            plans[role] = plan_member(
                sources[role],
                role,
                revision,
                trust_remote_code,
                reference.quantization if asked is None else asked,
                use_safetensors,
            )
        except MemberError as error:
            if role in replaced:
                raise
            raise MemberError(
                f"{error} If it is elsewhere now, say where: from_pretrained(folder, members={{'{role}': ...}}), or "
                f"--member {role}=... on the command line."
            ) from error
        check_same_base(reference, plans[role], role, config.made)
    return sources, plans


def load_members(
    config: ComposedConfig,
    saved: str,
    replaced: Mapping[str, Source],
    *,
    dtype: torch.dtype | str | Mapping[str, torch.dtype | str] | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
    **kwargs: Any,
) -> dict[str, Member]:
    """Load the members that a saved composition names, or what the caller gives in their place.

    `dtype`, `device_map` and `quantization` are for all of them, or role -> dtype, role -> device and so on.

    Each member's weights are compared as soon as they are read.

    Raises:
        ConfigurationError, MemberError, WrongBaseError: see `member_sources`; or the weights are of another model.
    """
    check_roles("dtype", dtype, config.references())
    check_device_map(device_map, config.references())
    sources, plans = member_sources(config, saved, replaced, trust_remote_code, quantization, use_safetensors)
    members: dict[str, Member] = {}
    with unharmed(members):
        for role, reference in config.references().items():
            wanted = for_role(dtype, role, sources)
            members[role] = load_member(
                sources[role],
                role=role,
                dtype=reference.dtype if wanted in (None, "auto") else wanted,
                device_map=for_role(device_map, role, sources),
                planned=plans[role],
                trust_remote_code=trust_remote_code,
                use_safetensors=use_safetensors,
                **kwargs,
            )
            check_same_base(reference, members[role].reference, role, config.made)
    return members


def saved_source(reference: MemberReference, saved: str) -> Source:
    """What a saved member is loaded from: its model, or its adapter on the base that it was saved with.

    Where that base is gone, the adapter is put on the one that it names itself.

    Raises:
        MemberError: it had an adapter, and none can be read at that place.
    """
    base = saved_place(reference.name_or_path, saved)
    if reference.adapter is None:
        return base
    place = saved_place(reference.adapter, saved)
    adapter = adapter_source(place, reference.adapter_revision)
    if adapter is None:
        raise MemberError(f"No adapter could be read at '{place}', where the composition was saved with one.")
    return adapter if is_missing_folder(base) else replace(adapter, base=base, base_revision=reference.revision)


def kind_of(reference: MemberReference) -> str:
    """What a member is to those who name it: a model, an adapter on one, a GGUF file or another composition."""
    if reference.adapter is not None:
        return "adapter"
    if is_gguf(reference.name_or_path):
        return "GGUF file"
    composed = {kind.model_type for kind in ComposedConfig.__subclasses__()}
    return "composition" if reference.model_type in composed else "model"


def saved_place(name: str, saved: str) -> str:
    """Where a saved name is: as it stands, or taken from the saved folder."""
    beside = Path(saved) / name
    kind = Path.is_file if is_gguf(name) else Path.is_dir
    return str(beside) if not kind(Path(name)) and kind(beside) else name
