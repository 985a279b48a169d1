"""One more augmenting model for a composition that is there already: the old bridges stay, new ones start at zero."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.calm.compose import (
    Connections,
    Dtype,
    align_members,
    connections_of,
    layers_of,
    read_by,
    source_tokenizer,
)
from lmcompose.calm.config import ANCHOR, CalmConfig, check_name
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.loading import (
    Member,
    Source,
    check_device_map,
    check_roles,
    for_role,
    load_member,
    plan_member,
    unharmed,
    unwrapped,
)
from lmcompose.places import read_tokenizer
from lmcompose.quantization import Quantization
from lmcompose.reference import describe_members
from lmcompose.saved import check_format, put_tensors, read_config

Trainable = Literal["new", "all"]


def plan_extension(
    composition: str | Path | CalmForCausalLM,
    augmenting: Mapping[str, Source],
    connections: Connections | Mapping[str, Connections] | None = None,
    every: int = 4,
    revisions: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
    unfreeze: Mapping[str, Sequence[int]] | None = None,
    reads: str | Mapping[str, str] | None = None,
) -> CalmConfig:
    """The configuration of an extended composition, checked, from configurations alone: no weight is read.

    Arguments are those of `extend`; raises the same errors.
    """
    config = _config_of(composition)
    new = _new_sources(config, augmenting)
    check_roles("revisions", revisions, new)
    check_roles("quantization", quantization, new)
    old = config.references()
    planned = {
        name: plan_member(
            source,
            name,
            (revisions or {}).get(name),
            trust_remote_code,
            for_role(quantization, name, new),
            use_safetensors,
        )
        for name, source in new.items()
    }
    added = connections_of({ANCHOR: old[ANCHOR], **planned}, connections, every)
    if added.keys() != planned.keys():
        raise ConfigurationError(
            f"Connections are given for {sorted(added)}, but the new augmenting models are {sorted(planned)}. Give "
            "connections for each of them, or for none; those of the others stay as they are."
        )
    config.name_or_path = ""  # the extended composition is not what is saved there
    config.provenance = {
        "added": list(planned),
        "to": {
            "composition": _name_of(composition),
            "augmenting": config.augmenting_names(),
            "provenance": config.provenance or {},
        },
    }
    config.members = describe_members({**old, **planned})
    config.connections = {**(config.connections or {}), **added}
    config.unfreeze = _unfrozen_too(config.unfreeze or {}, layers_of(unfreeze) or {}) or None
    config.reads = {**(config.reads or {}), **(read_by(reads, list(planned)) or {})} or None
    config.check()
    return config


def extend(
    composition: str | Path | CalmForCausalLM,
    augmenting: Mapping[str, Source],
    *,
    connections: Connections | Mapping[str, Connections] | None = None,
    every: int = 4,
    unfreeze: Mapping[str, Sequence[int]] | None = None,
    reads: str | Mapping[str, str] | None = None,
    trainable: Trainable = "new",
    dtype: Dtype | Mapping[str, Dtype] | None = None,
    bridge_dtype: torch.dtype = torch.float32,
    device_map: Any = None,
    seed: int = 0,
    alignment: str | Mapping[str, str] | None = None,
    members: Mapping[str, Source] | None = None,
    revisions: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    quantization: Quantization | Mapping[str, Quantization] | None = None,
    use_safetensors: bool | None = True,
) -> CalmForCausalLM:
    """Add augmenting models to a composition, whose own bridges keep their names and values bit for bit.

    The result gives the logits of `composition` bit for bit until it is trained: W_O of the new bridges starts at zero,
    or their gates do. Heads, projection, gate, norm and rank of the new bridges are those of the composition.

    A live composition stays attached and usable. The two share the frozen members and no parameter, so that training
    one changes nothing of the other.

    Args:
        composition: a saved folder, a hub id, or a live composition.
        augmenting: name -> model, the new ones; in the forms that `compose` takes.
        connections, every, revisions: of the new ones, as in `compose`.
        unfreeze: role -> layers of any member to train from here on, as in `compose`; those that the composition
            trained before are kept.
        reads: of the new ones, as in `compose`.
        trainable: "new" leaves a gradient to the new bridges and the newly unfrozen layers alone; "all" trains the old
            ones too. This is not saved: after loading, all of them can be trained.
        dtype: of the new models that are loaded here, or name -> dtype; the others are read as they were saved.
        bridge_dtype: of the new bridges; the old ones keep theirs.
        device_map: of all members that are loaded here; or role -> device.
        seed: of the new bridges.
        alignment: of the new models, as in `compose`.
        members: role -> model in place of a saved name, as in `lmcompose.load`.
        quantization: of the new ones, as in `compose`; the others are read as they were saved.
        trust_remote_code, use_safetensors: of all members that are loaded here, as in `compose`.

    Raises:
        ConfigurationError: a name that is taken, or connections and options that cannot be.
        MemberError: a new member cannot be read, is no decoder-only model, or tokenizers differ.
        SavedFolderError, WrongBaseError: see `ComposedModel.from_pretrained`.

    Example:
        >>> model = lmcompose.extend("runs/law/model", {"medicine": "models/medicine"})  # doctest: +SKIP
    """
    if trainable not in get_args(Trainable):
        raise ConfigurationError(
            f"trainable='{trainable}' is unknown; it is one of {list(get_args(Trainable))}."
            f"{nearest(str(trainable), get_args(Trainable))}"
        )
    config = plan_extension(
        composition,
        augmenting,
        connections,
        every,
        revisions,
        trust_remote_code,
        quantization,
        use_safetensors,
        unfreeze,
        reads,
    )
    references = config.references()
    new = _new_sources(_config_of(composition), augmenting)
    check_roles("dtype", dtype, new)
    check_device_map(device_map, references)
    tokenizers = {name: source_tokenizer(source, references[name], trust_remote_code) for name, source in new.items()}
    tokenizers |= {ANCHOR: _tokenizer_of(composition, trust_remote_code)}
    config.alignment = {**(config.alignment or {}), **align_members(references, tokenizers, alignment)}
    config.check()
    by_role = {role: for_role(device_map, role, references) for role in references}
    old = _loaded(composition, members, by_role, trust_remote_code, use_safetensors)
    loaded: dict[str, Member] = {}
    try:
        with unharmed(loaded):
            for name, source in new.items():
                loaded[name] = load_member(
                    source,
                    role=name,
                    dtype=for_role(dtype, name, new),
                    device_map=by_role[name],
                    planned=references[name],
                    trust_remote_code=trust_remote_code,
                    use_safetensors=use_safetensors,
                )
                references[name] = loaded[name].reference
            config.members = describe_members(references)
            kept = {
                role: Member(old.member(role), old.tokenizers.get(role), reference)
                for role, reference in old.config.references().items()
            }
            generator = torch.Generator().manual_seed(seed)
            model = CalmForCausalLM(config, {**kept, **loaded}, generator, bridge_dtype)
    finally:
        if old is not composition:  # what was loaded for this call goes; the members are the new one's by now
            old.detach()
    _take_over(model, old, trainable, copied=old is composition)
    return model


def _unfrozen_too(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """All unfrozen layers by role.

    Raises:
        ConfigurationError: one of the new ones is unfrozen already.
    """
    both = dict(old)
    for role, layers in new.items():
        again = [layer for layer in layers if layer in old.get(role, [])] if isinstance(layers, list) else []
        if again:
            raise ConfigurationError(
                f"unfreeze: layers {again} of '{role}' are unfrozen in the composition already. Leave them out; "
                "trainable='all' goes on training them."
            )
        both[role] = [*old.get(role, []), *layers] if isinstance(layers, list) else layers
    return both


def _take_over(model: CalmForCausalLM, old: CalmForCausalLM, trainable: Trainable, copied: bool) -> None:
    """Give `model` the parameters of `old`, which have the same names in both, and its generation settings."""
    before = {name: parameter.detach() for name, parameter in old.composition_parameters()}
    if copied:  # its owner goes on with it
        before = {name: tensor.clone() for name, tensor in before.items()}
    shared = {name: parameter for name, parameter in model.composition_parameters() if name in before}
    put_tensors(shared, before, _name_of(old))
    for parameter in shared.values():
        parameter.requires_grad_(trainable == "all")
    model.generation_config = copy.deepcopy(old.generation_config)


def _config_of(composition: str | Path | CalmForCausalLM) -> CalmConfig:
    """A copy of the configuration of a saved or live composition.

    Raises:
        ConfigurationError, SavedFolderError: it is no CALM composition.
    """
    if isinstance(composition, CalmForCausalLM):
        return copy.deepcopy(composition.config)
    if isinstance(composition, PreTrainedModel):
        raise ConfigurationError(
            f"A {type(composition).__name__} is no CALM composition, so there is nothing to extend. Make it the anchor "
            "of one: lmcompose.compose(anchor=model, augmenting={'name': ...})."
        )
    config = read_config(CalmConfig, str(composition))
    check_format(config, str(composition))
    assert isinstance(config, CalmConfig)
    return config


def _new_sources(config: CalmConfig, augmenting: Mapping[str, Source]) -> dict[str, Source]:
    if not isinstance(augmenting, Mapping):
        raise ConfigurationError(
            "Give what is added a name, by which it is trained, left out and shown: augmenting={'name': model}. The "
            f"composition has {config.augmenting_names()}."
        )
    if not augmenting:
        raise ConfigurationError("augmenting is empty: name at least one model to add.")
    for name in augmenting:
        check_name(name)
        if name in config.augmenting_names():
            raise ConfigurationError(
                f"The composition has an augmenting model '{name}' already (it has {config.augmenting_names()}). "
                "Give the new one another name."
            )
    return {name: unwrapped(source, name) for name, source in augmenting.items()}


def _name_of(composition: str | Path | CalmForCausalLM) -> str:
    if isinstance(composition, CalmForCausalLM):
        return composition.name_or_path or "a live composition"
    return str(composition)


def _tokenizer_of(composition: str | Path | CalmForCausalLM, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    if isinstance(composition, CalmForCausalLM):
        return composition.tokenizer
    return read_tokenizer(composition, trust_remote_code=trust_remote_code)


def _loaded(
    composition: str | Path | CalmForCausalLM,
    members: Mapping[str, Source] | None,
    device_map: Mapping[str, Any],
    trust_remote_code: bool,
    use_safetensors: bool | None,
) -> CalmForCausalLM:
    if not isinstance(composition, CalmForCausalLM):
        placed = {role: device_map[role] for role in _config_of(composition).references()}
        return CalmForCausalLM.from_pretrained(
            composition,
            members=members,
            device_map=placed,
            trust_remote_code=trust_remote_code,
            use_safetensors=use_safetensors,
        )
    if members:
        raise ConfigurationError("A live composition has its members: leave out `members`.")
    return composition
