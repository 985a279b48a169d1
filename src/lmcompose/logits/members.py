"""Loading members of which several may be one model: with and without an adapter, or in different contexts.

Each model is read once, however many roles it has. This file knows no formula.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.adapters import adapter_folder, with_adapters
from lmcompose.alignment.vocab_maps import VocabularyMap, map_vocabulary
from lmcompose.errors import MemberError
from lmcompose.loading import Member, Source, check_device_map, for_role, load_member, unharmed, unwrapped
from lmcompose.logits.shared import check_switchable
from lmcompose.places import first_line, tokenizer_of
from lmcompose.reference import BARE, MemberReference, fingerprint

Tokenizers = dict[str, PreTrainedTokenizerBase | None]


@dataclasses.dataclass(frozen=True)
class Played:
    """What a role is played by.

    Attributes:
        key: the same for all roles that share one model's weights.
        model: what to load where the model is shared: the base, where there is an adapter.
        active: the adapters of a live PEFT model that are in use; a named adapter is in the role's reference.
    """

    key: Any
    model: Source
    active: tuple[str, ...] = ()


def played_by(source: Source, reference: MemberReference) -> Played:
    """What `source` means where other roles may have the same model.

    A live PEFT model means its adapter, and the model inside of it means the bare model. Two names mean one model where
    they are of the same folder, or of the same commit on the hub, and quantised alike.
    """
    live: Any = source[0] if isinstance(source, tuple) else source
    if hasattr(live, "get_base_model"):
        return Played(id(live.get_base_model()), unwrapped(source), tuple(live.active_adapters))
    if isinstance(live, PreTrainedModel):
        return Played(id(live), source)
    place = Path(reference.name_or_path)
    same = str(place.resolve()) if place.exists() else reference.name_or_path
    packed = json.dumps(reference.quantization, sort_keys=True)
    return Played((same, reference.revision, packed), reference.name_or_path)


def load_roles(
    sources: Mapping[str, Source],
    references: Mapping[str, MemberReference],
    tokenizers: Tokenizers,
    *,
    dtypes: Mapping[str, Any],
    device_map: Any = None,
    trust_remote_code: bool = False,
    use_safetensors: bool | None = True,
    **options: Any,
) -> tuple[dict[str, Member], dict[str, str]]:
    """Load every model once, and freeze it.

    Args:
        sources: by role.
        references: the plans of these, whose revisions are read.
        tokenizers: those of `tokenizers_of`.
        dtypes: by role; of roles that share a model, the first one's counts.
        device_map: as HF takes it, or a dict role -> device map.
        options: further arguments of `load_member`.

    Returns:
        The members, and for roles that share a model with adapters the name of their adapter or `BARE`.

    Raises:
        MemberError: see `load_member`; or members cannot share a model as they should.
    """
    check_device_map(device_map, sources)
    played = {role: played_by(source, references[role]) for role, source in sources.items()}
    members: dict[str, Member] = {}
    adapters: dict[str, str] = {}
    with unharmed(members):
        for role, source in sources.items():
            sharing = [other for other in played if played[other].key == played[role].key]
            if sharing[0] != role:
                members[role] = members[sharing[0]]
                continue
            shared, reference = len(sharing) > 1, references[role]
            members[role] = load_member(
                played[role].model if shared else source,
                role=role,
                dtype=dtypes.get(role),
                planned=dataclasses.replace(reference, adapter=None, adapter_revision=None) if shared else reference,
                device_map=for_role(device_map, role, sources),
                trust_remote_code=trust_remote_code,
                use_safetensors=use_safetensors,
                **options,
            )
            if shared:
                adapters |= _adapters_of(
                    members[role].model,
                    {other: (played[other], references[other]) for other in sharing},
                    use_safetensors,
                )
    return {
        role: _described(member, references[role], tokenizers[role], adapters.get(role))
        for role, member in members.items()
    }, adapters


def _adapters_of(
    model: PreTrainedModel, sharing: Mapping[str, tuple[Played, MemberReference]], use_safetensors: bool | None
) -> dict[str, str]:
    """Which adapter each role runs with, of those that share `model`; named ones are put into it.

    Empty where all of them run the model as it is.
    """
    named = {role: reference for role, (_, reference) in sharing.items() if reference.adapter is not None}
    active = {role: played.active for role, (played, _) in sharing.items()}
    if not named and len(set(active.values())) == 1:
        return {}
    several = [role for role in sharing if len(active[role]) > 1]
    if several:
        raise MemberError(
            f"The model of the {several[0]} has several adapters in use at once, {list(active[several[0]])}, and other "
            "members share its weights. Make one of them first (PEFT's add_weighted_adapter), and set_adapter(...)."
        )
    _put_adapters(model, named, use_safetensors)
    check_switchable(model, next(iter(sharing.values()))[1].name_or_path)
    return {role: _adapter_name(role) if role in named else next(iter(active[role]), BARE) for role in sharing}


def _put_adapters(model: PreTrainedModel, named: Mapping[str, MemberReference], use_safetensors: bool | None) -> None:
    """Put the adapters that are named by folder or hub id into `model`, each under a name of its role."""
    if not named:
        return
    try:
        folders = {
            _adapter_name(role): adapter_folder(str(reference.adapter), reference.adapter_revision, use_safetensors)
            for role, reference in named.items()
        }
        with_adapters(model, folders)
    except Exception as error:  # files, shapes and names of layers: PEFT's errors have no common base
        places = " and ".join(f"'{reference.adapter}' (for the {role})" for role, reference in named.items())
        raise MemberError(
            f"The adapter {places} could not be put on '{next(iter(named.values())).name_or_path}': "
            f"{first_line(error)} Check that it was trained on this base, and save it again with PEFT."
        ) from error
    model.requires_grad_(False)
    model.eval()


def _adapter_name(role: str) -> str:
    """The adapter's name in the model. A bare role such as `a` is a part of PEFT's own `lora_`, which it minds."""
    return f"role_{role}"


def _described(
    member: Member, plan: MemberReference, tokenizer: PreTrainedTokenizerBase | None, adapter: str | None
) -> Member:
    reference = dataclasses.replace(plan, dtype=member.reference.dtype, fingerprint=fingerprint(member.model, adapter))
    return Member(member.model, tokenizer, reference)


def tokenizers_of(
    sources: Mapping[str, Source], references: Mapping[str, MemberReference], trust_remote_code: bool = False
) -> Tokenizers:
    """The tokenizers by role, before any weight is read.

    A live model that came without one has that of another role with the same model, or None.
    """
    own = {role: _own_tokenizer(source, references[role], trust_remote_code) for role, source in sources.items()}
    keys = {role: played_by(source, references[role]).key for role, source in sources.items()}
    shared = {keys[role]: tokenizer for role, tokenizer in own.items() if tokenizer is not None}
    return {role: tokenizer or shared.get(keys[role]) for role, tokenizer in own.items()}


def _own_tokenizer(source: Source, reference: MemberReference, trust: bool) -> PreTrainedTokenizerBase | None:
    if isinstance(source, tuple):
        return source[1]
    live = isinstance(source, PreTrainedModel) or hasattr(source, "get_base_model")
    return None if live else tokenizer_of(reference, trust)


def map_vocabularies(
    tokenizers: Tokenizers,
    references: Mapping[str, MemberReference],
    min_coverage: float,
) -> dict[str, VocabularyMap]:
    """How the leader's ids become those of each other member, by role.

    Raises:
        TokenizerMismatchError: a member reads other tokens.
    """
    leader, *others = references
    return {
        role: map_vocabulary(
            tokenizers[leader],
            tokenizers[role],
            references[leader].vocab_size,
            references[role].vocab_size,
            min_coverage,
            references[leader].name_or_path,
            references[role].name_or_path,
        )
        for role in others
    }


def end_tokens(
    members: Mapping[str, Member], vocabularies: Mapping[str, VocabularyMap], roles: Iterable[str]
) -> list[int]:
    """Where a text may end, in the leader's ids: its own end tokens, then those of the members in `roles`.

    An untuned base does not know the token with which its tuned expert ends an answer, and would go on after it.
    """
    ends: list[int] = []
    leader = next(iter(members))
    for role in dict.fromkeys((leader, *roles)):
        found = members[role].model.generation_config.eos_token_id
        for token in [] if found is None else found if isinstance(found, list) else [found]:
            known = (vocabularies[role].to_member == token).nonzero() if role in vocabularies else None
            ends += [token] if known is None else known.flatten().tolist()
    return list(dict.fromkeys(ends))
