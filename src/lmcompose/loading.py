"""A hub id, a folder, a GGUF file, a PEFT adapter or a live object becomes a frozen member.

A member is a model, its tokenizer and a reference to both.

The plan (`plan_member`) reads configurations only, so that what cannot work is refused before any weight is read.
This file knows nothing about how members are composed.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.adapters import AdapterSource, adapter_folder, adapter_source, check_adapter, with_adapters
from lmcompose.architecture import check_causal_decoder
from lmcompose.commits import commit_of_live
from lmcompose.errors import ConfigurationError, MemberError, nearest
from lmcompose.freezing import freeze, let_go
from lmcompose.gguf import is_gguf, unpacked
from lmcompose.places import (
    PLACES,
    check_safetensors,
    first_line,
    has_own_code,
    is_missing_folder,
    license_of,
    location,
    no_connection,
    read_model_config,
    reason_of,
    resolved_revision,
    tokenizer_of,
)
from lmcompose.quantization import asked_for, check_available, check_devices, configuration, in_words, stored
from lmcompose.reference import MemberReference, fingerprint

Source = str | Path | AdapterSource | PreTrainedModel | tuple[PreTrainedModel, PreTrainedTokenizerBase]
"""What a user may name as a member: a hub id, a folder or a GGUF file; a PEFT adapter on its base, by its own folder or
hub id; a live model, or a live model with its tokenizer."""


@dataclasses.dataclass
class Member:
    """A frozen model, its tokenizer where there is one, and the reference to both."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    reference: MemberReference


@contextmanager
def unharmed(members: Mapping[str, Member]) -> Iterator[None]:
    """Give `members` back as they were, should the block fail: no live model stays frozen for nothing."""
    try:
        yield
    except BaseException:
        for member in members.values():
            let_go(member.model)
        raise


def unwrapped(source: Any, role: str = "member") -> Source:
    """`source` with a PEFT wrapper taken off its live model; the adapted layers stay inside and in use.

    Raises:
        MemberError: the wrapper adds virtual tokens (prompt learning), which live outside the model's layers.
    """
    if isinstance(source, tuple):
        return unwrapped(source[0], role), source[1]  # type: ignore[return-value]
    if not hasattr(source, "get_base_model"):
        return source
    if source.active_peft_config.is_prompt_learning:
        raise MemberError(
            f"The {role} is a PEFT model with {source.active_peft_config.peft_type.value}, whose virtual tokens a "
            "composition cannot see. Use adapters inside the layers, such as LoRA."
        )
    return source.get_base_model()


def source_name(source: Source) -> str:
    """The name by which to speak of a source."""
    if isinstance(source, tuple):
        source = source[0]
    if isinstance(source, PreTrainedModel):
        return source.name_or_path or source.config.name_or_path or f"a live {type(source).__name__}"
    return str(source)


def for_role(value: Any, role: str, roles: Iterable[str]) -> Any:
    """What an option says for one role: of a mapping from `roles` its own entry, and None where it has none."""
    if isinstance(value, Mapping) and set(value) <= set(roles):
        return value.get(role)
    return value


def check_roles(option: str, value: Any, roles: Iterable[str]) -> None:
    """Refuse an option that names a role which is not there.

    Raises:
        ConfigurationError: naming the nearest role.
    """
    known = list(roles)
    for role in value if isinstance(value, Mapping) else ():
        if role not in known:
            raise ConfigurationError(f"{option}: there is no member '{role}' to load.{nearest(role, known)}")


def check_device_map(device_map: Any, roles: Iterable[str]) -> None:
    """Refuse a device map by role that also names something else, or a role that is misspelt.

    A map without roles is one of a model's modules, as transformers has it.

    Raises:
        ConfigurationError: naming the nearest role.
    """
    known = list(roles)
    if not isinstance(device_map, Mapping):
        return
    for name in device_map:
        if name not in known and (set(device_map) & set(known) or ("." not in name and nearest(name, known))):
            raise ConfigurationError(
                f"device_map: there is no member '{name}'.{nearest(name, known)} The members are {', '.join(known)}."
            )


def plan_member(
    source: Source,
    role: str = "anchor",
    revision: str | None = None,
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
) -> MemberReference:
    """The reference of a member from configurations alone; no weight is read (a GGUF file on the hub is downloaded).

    Args:
        revision: on the hub; of an adapter, the adapter's: that of its base is the one that the adapter names.
        quantization: see `lmcompose.compose`; or what a reference says, which gives way to what the source is by
            itself.
        use_safetensors: False or None to let weights be pickles where there are no safetensors.

    Raises:
        MemberError: there is no such model, it is not a decoder-only causal language model, it has code of its own
            that is not trusted, its weights are pickles, or it is an adapter that cannot be a part of a member (see
            `check_adapter`).
        ConfigurationError: a quantization that cannot be.
    """
    source = unwrapped(source, role)
    live = source[0] if isinstance(source, tuple) else source
    if isinstance(live, PreTrainedModel):
        return _plan_live(live, role, quantization)
    options = {"quantization": quantization, "use_safetensors": use_safetensors}
    if isinstance(live, AdapterSource):
        return _plan_adapted(live, role, trust_remote_code, **options)
    try:
        return _plan_named(live, role, revision, trust_remote_code, **options)
    except MemberError as error:
        # what cannot be had is not asked for a second time: each time costs half a minute offline
        adapter = None if is_missing_folder(live) else adapter_source(live, revision, no_connection(error))
        if adapter is None:
            raise
    return _plan_adapted(adapter, role, trust_remote_code, **options)


def _plan_live(model: PreTrainedModel, role: str, quantization: Any) -> MemberReference:
    name = source_name(model)
    check_causal_decoder(model.config, name, role)
    if quantization is not None and not isinstance(quantization, Mapping):
        raise ConfigurationError(
            f"quantization is of weights that are read here, and the {role} ('{name}') is a live model. Load it so: "
            "AutoModelForCausalLM.from_pretrained(..., quantization_config=...); or give its folder or hub id."
        )
    return MemberReference.from_config(
        model.config,
        name,
        revision=commit_of_live(model, name),
        license=license_of(name) if Path(name).is_dir() else None,
        quantization=stored(model.config),
    )


def _plan_named(
    source: str | Path,
    role: str,
    revision: str | None,
    trust_remote_code: bool,
    quantization: Any,
    use_safetensors: bool | None,
) -> MemberReference:
    if is_missing_folder(source):
        written_out = Path(source).expanduser()
        hint = f" ('~' is not replaced here: write {written_out}.)" if str(source).startswith("~") else ""
        raise MemberError(
            f"No model could be read at '{source}' (for the {role}): there is no such "
            f"{'file' if is_gguf(source) else 'folder'}.{hint} Give {PLACES}."
        )
    try:
        config = read_model_config(source, revision, trust_remote_code)
    except Exception as error:  # hub, file-system and remote-code errors have no common base
        if has_own_code(error):
            raise MemberError(
                f"'{source}' (for the {role}) comes with code of its own, which is not run unless you say so. Read "
                "that code first; then pass trust_remote_code=True (in a recipe, trust_remote_code: true; on the "
                "command line, --trust-remote-code)."
            ) from error
        raise MemberError(
            f"No model could be read at '{source}' (for the {role}): {reason_of(error, source)} Give {PLACES}."
        ) from error
    check_causal_decoder(config, str(source), role)
    if use_safetensors:
        check_safetensors(source, role)
    return MemberReference.from_config(
        config,
        str(source),
        revision=resolved_revision(str(source), revision),
        license=license_of(str(source)),
        quantization=_quantization_of(config, source, role, quantization),
    )


def _quantization_of(config: PreTrainedConfig, source: str | Path, role: str, asked: Any) -> dict[str, Any] | None:
    """How the weights at `source` are to be: as the checkpoint has them, as they were saved, or as they are asked for.

    Raises:
        ConfigurationError: asked of what is quantised already, or cannot be.
        MemberError: bitsandbytes is not installed.
    """
    as_saved = asked is None or isinstance(asked, Mapping)
    wanted = dict(asked) if isinstance(asked, Mapping) else asked if asked is None else asked_for(asked, role)
    own = stored(config)
    if not as_saved and own is not None:
        raise ConfigurationError(
            f"'{source}' (for the {role}) is saved as {in_words(own)} weights and is read as it is. Leave out the "
            f"quantization of the {role}, or name a checkpoint that is not quantised."
        )
    if not as_saved and wanted is not None and (is_gguf(source) or getattr(config, "is_composed", False)):
        what = (
            "a GGUF file, whose weights are read as plain numbers. Name the model that it was made from"
            if is_gguf(source)
            else "a composition. Compose it of quantised members: compose(..., quantization={'anchor': '4bit'})"
        )
        raise ConfigurationError(f"quantization: '{source}' (for the {role}) is {what}, or leave it out.")
    found = own or wanted
    if found is not None:
        check_available(found, str(source), role)
    return found


def _plan_adapted(
    adapter: AdapterSource, role: str, trust_remote_code: bool, quantization: Any, use_safetensors: bool | None
) -> MemberReference:
    check_adapter(adapter, role, use_safetensors)
    try:
        reference = _plan_named(
            adapter.base, role, adapter.base_revision, trust_remote_code, quantization, use_safetensors
        )
    except MemberError as error:
        raise MemberError(
            f"{error} The adapter '{adapter.path}' is made for '{adapter.base}': where that is elsewhere now, correct "
            "base_model_name_or_path in the adapter's adapter_config.json."
        ) from error
    terms = license_of(adapter.path)
    if terms not in (None, reference.license):
        terms = f"{reference.license or 'not stated'}, adapter: {terms}"
    return dataclasses.replace(
        reference, adapter=adapter.path, adapter_revision=adapter.revision, license=terms or reference.license
    )


def load_member(
    source: Source,
    *,
    role: str = "anchor",
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    revision: str | None = None,
    planned: MemberReference | None = None,
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
    **model_kwargs: Any,
) -> Member:
    """Load one member and freeze it: no gradients, evaluation mode.

    Args:
        source: a hub id, a folder, a GGUF file, an adapter, a live model, or a (model, tokenizer) pair.
        planned: what `plan_member` said of it, where it was asked before: the very commits of that plan are loaded,
            whatever was uploaded since. `revision` and `quantization` then say nothing.
        quantization, use_safetensors: see `plan_member`.
        dtype: of the weights as read; None keeps what the checkpoint has, and reads most GGUF files as float32.
            Live models keep their own; adapters are float32 beside a base of a smaller dtype, as PEFT has it.
        model_kwargs: handed on to `AutoModelForCausalLM.from_pretrained`.

    Raises:
        MemberError: see `plan_member`; or the weights could not be read, or not all of them fit on the devices.
        ConfigurationError: a device map that cannot be.
    """
    source = unwrapped(source, role)
    reference = planned or plan_member(source, role, revision, trust_remote_code, quantization, use_safetensors)
    if isinstance(source, tuple):
        model, tokenizer = source
    elif isinstance(source, PreTrainedModel):
        model, tokenizer = source, None
    else:
        model_kwargs["use_safetensors"] = True if use_safetensors else None  # None: where there are any
        model = _read_model(reference, role, trust_remote_code, dtype, device_map, model_kwargs)
        tokenizer = tokenizer_of(reference, trust_remote_code)
    freeze(model)
    reference = dataclasses.replace(
        reference, dtype=str(model.dtype).removeprefix("torch."), fingerprint=fingerprint(model)
    )
    return Member(model, tokenizer, reference)


def _read_model(
    reference: MemberReference, role: str, trust: bool, dtype: Any, device_map: Any, model_kwargs: dict
) -> PreTrainedModel:
    name = reference.name_or_path
    try:
        # the adapter first: where it cannot be had, no base is read for nothing
        folder = (
            adapter_folder(reference.adapter, reference.adapter_revision, model_kwargs["use_safetensors"])
            if reference.adapter
            else None
        )
    except Exception as error:
        raise MemberError(
            f"The weights of the adapter '{reference.adapter}' (for the {role}) could not be had, and only "
            f"safetensors are read: {first_line(error)} Save it again with PEFT's save_pretrained."
        ) from error
    packing: dict[str, Any] = {"quantization_config": unpacked()} if is_gguf(name) else {}
    devices = list(device_map.values()) if isinstance(device_map, Mapping) else [device_map]
    _check_no_offload(devices, name, role)
    if reference.quantization is not None:
        check_devices(reference.quantization, devices, name, role)
    try:
        place, options = location(name, reference.revision)
        if reference.quantization is not None and stored(read_model_config(name, reference.revision, trust)) is None:
            packing = {"quantization_config": configuration(reference.quantization)}
        model = AutoModelForCausalLM.from_pretrained(
            place,
            trust_remote_code=trust,
            dtype="auto" if dtype is None else dtype,
            device_map=device_map,
            **(options | packing | model_kwargs),
        )
    except Exception as error:  # a cut file, missing weights, memory: all of them end the same way for the user
        raise MemberError(
            f"The weights of '{name}' (for the {role}) could not be read: {reason_of(error, name)} Load it alone with "
            "AutoModelForCausalLM.from_pretrained to see more."
        ) from error
    _check_no_offload(list((getattr(model, "hf_device_map", None) or {}).values()), name, role)
    if is_gguf(name):  # transformers notes the folder, which can hold many
        model.name_or_path = model.config.name_or_path = name
    if folder is None:
        return model
    try:
        return with_adapters(model, {"default": folder})
    except Exception as error:  # other shapes, missing or cut weights, an architecture that PEFT does not know
        raise MemberError(
            f"The adapter '{reference.adapter}' (for the {role}) could not be put on '{name}': {first_line(error)} "
            "Check that it was trained on this base; or merge the two (PEFT's merge_and_unload), save the result with "
            "save_pretrained, and name that folder."
        ) from error


def _check_no_offload(devices: Iterable[Any], name: str, role: str) -> None:
    """Refuse weights that are elsewhere between passes: nothing can be connected to a layer that has none.

    Raises:
        MemberError: a device map, or what became of "auto", puts parts on the disk, or beside a GPU on the CPU.
    """
    places = {str(place) for place in devices if place is not None}
    if "disk" in places or ("cpu" in places and len(places) > 1):
        where = "on the disk" if "disk" in places else "in the CPU's memory, and the others on a GPU"
        raise MemberError(
            f"device_map puts some layers of '{name}' (for the {role}) {where}, to be fetched for every pass. A "
            "composition keeps its members where they run: use a smaller dtype, quantization='4bit', more GPUs, or "
            "device_map='cpu' for the whole of it."
        )
