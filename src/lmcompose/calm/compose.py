"""The short way in: two or more models become one untrained CALM composition, which is the anchor exactly."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.alignment.spans import aligner
from lmcompose.alignment.vocabulary import check_same_size, check_same_tokenizer
from lmcompose.calm.config import ALIGNMENTS, ANCHOR, IDS, SPANS, TEXT, CalmConfig, check_name
from lmcompose.calm.connections import default_connections
from lmcompose.calm.model import CalmForCausalLM
from lmcompose.errors import ConfigurationError, TokenizerMismatchError, nearest
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
from lmcompose.places import tokenizer_of
from lmcompose.quantization import Quantization
from lmcompose.reference import MemberReference, describe_members

Connections = Sequence[Sequence[int]]
Dtype = torch.dtype | str


def plan_composition(
    anchor: Source,
    augmenting: Source | Mapping[str, Source],
    connections: Connections | Mapping[str, Connections] | None = None,
    num_heads: int | None = None,
    every: int = 4,
    projection: str = "linear",
    gate: bool = False,
    norm: bool = False,
    rank: int | None = None,
    bridge_initializer_range: float = 0.02,
    revisions: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
    unfreeze: Mapping[str, Sequence[int]] | None = None,
    reads: str | Mapping[str, str] | None = None,
) -> CalmConfig:
    """The configuration of a composition, checked, from the members' own configurations: no weight is read.

    Arguments are those of `compose`; raises the same errors.
    """
    sources = _by_role(anchor, augmenting)
    check_roles("quantization", quantization, sources)
    references = {
        role: plan_member(
            source,
            role,
            (revisions or {}).get(role),
            trust_remote_code,
            for_role(quantization, role, sources),
            use_safetensors,
        )
        for role, source in sources.items()
    }
    config = CalmConfig(
        members=describe_members(references),
        connections=connections_of(references, connections, every),
        num_heads=num_heads or references[ANCHOR].num_attention_heads,
        projection=projection,
        gate=gate,
        norm=norm,
        rank=rank,
        bridge_initializer_range=bridge_initializer_range,
        unfreeze=layers_of(unfreeze),
        reads=read_by(reads, [role for role in sources if role != ANCHOR]),
    )
    config.check()
    return config


def compose(
    anchor: Source,
    augmenting: Source | Mapping[str, Source],
    *,
    connections: Connections | Mapping[str, Connections] | None = None,
    num_heads: int | None = None,
    every: int = 4,
    projection: str = "linear",
    gate: bool = False,
    norm: bool = False,
    rank: int | None = None,
    bridge_initializer_range: float = 0.02,
    unfreeze: Mapping[str, Sequence[int]] | None = None,
    reads: str | Mapping[str, str] | None = None,
    dtype: Dtype | Mapping[str, Dtype] | None = None,
    bridge_dtype: torch.dtype = torch.float32,
    device_map: Any = None,
    seed: int = 0,
    alignment: str | Mapping[str, str] | None = None,
    revisions: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    quantization: Quantization | Mapping[str, Quantization] | None = None,
    use_safetensors: bool | None = True,
) -> CalmForCausalLM:
    """Compose an anchor model with one or more augmenting models (CALM, arXiv 2401.02412).

    The result gives the anchor's logits bit for bit until it is trained: W_O, or the gate, starts at zero.

    Args:
        anchor: the large general model, m_B: a hub id, a folder, a GGUF file, a PEFT adapter by its own folder or hub
            id, a live model, or (live model, its tokenizer).
        augmenting: the small specialised model, m_A, in the same forms; or a dict name -> model for several.
        connections: (augmenting layer, anchor layer) pairs, 0 = the embeddings; by default every `every`-th
            augmenting layer, spread evenly over the anchor (see `default_connections`).
        num_heads: N_H of the cross-attention; the anchor's own by default, as in the paper.
        projection: f_proj: "linear" as in the paper, or "mlp" (beyond the paper).
        gate: beyond the paper: multiply what each connection adds by tanh of a learned number that starts at zero (see
            `calm.bridge.Bridge`, for the next two as well).
        norm: beyond the paper: RMS-norm what the bridges read of both models.
        rank: beyond the paper: make every matrix of the bridges a product of two of this rank.
        unfreeze: role -> decoder layers, counted from 1, to train with the bridges (beyond the paper). The composition
            has weights of its own for them: the member is not changed (see `calm.unfrozen`).
        reads: "text" lets an augmenting model read every token, as in the paper; "prompt" lets it read the prompt once
            and no token after it (the paper's ablation); or name -> one of these.
        dtype: of members that are loaded here, or role -> dtype; by default what their checkpoints have.
        device_map: of members that are loaded here, as transformers has it; or role -> device or device map.
        bridge_dtype: of the composition parameters; float32 under bfloat16 members trains best.
        seed: of the initial composition parameters.
        alignment: "ids" to insist that an augmenting model reads the anchor's tokens, "spans" for one that reads the
            text in tokens of its own (see `alignment.spans`), or a dict name -> one of these. By default whatever their
            tokenizers ask for.
        revisions: role -> revision on the hub, to pin; of an adapter, its own.
        trust_remote_code: let code run that comes with a member. Read it first.
        quantization: of the weights of members that are read here: "4bit", "8bit" (both take bitsandbytes) or a
            configuration of transformers such as BitsAndBytesConfig; or role -> one of these.
        use_safetensors: False to read weights that are pickles, where there are no safetensors.

    Raises:
        MemberError: a member cannot be read, is no decoder-only model, or has a tokenizer that cannot be aligned.
        ConfigurationError: connections, heads, names or options that cannot be.

    Example:
        >>> model = lmcompose.compose(anchor="models/large", augmenting="models/small")  # doctest: +SKIP
        >>> model.generate(**model.tokenizer("Hello", return_tensors="pt"))  # doctest: +SKIP
    """
    sources = _by_role(anchor, augmenting)
    config = plan_composition(
        anchor,
        augmenting,
        connections,
        num_heads,
        every,
        projection,
        gate,
        norm,
        rank,
        bridge_initializer_range,
        revisions,
        trust_remote_code,
        quantization,
        use_safetensors,
        unfreeze,
        reads,
    )
    references = config.references()
    config.alignment = align_members(
        references,
        {role: source_tokenizer(of, references[role], trust_remote_code) for role, of in sources.items()},
        alignment,
    )
    config.check()  # an augmenting model's tokens may not go with how it is to read
    check_roles("dtype", dtype, sources)
    check_device_map(device_map, sources)
    members: dict[str, Member] = {}
    with unharmed(members):
        for role, source in sources.items():
            members[role] = load_member(
                source,
                role=role,
                dtype=for_role(dtype, role, sources),
                device_map=for_role(device_map, role, sources),
                planned=references[role],
                trust_remote_code=trust_remote_code,
                use_safetensors=use_safetensors,
            )
        config.members = describe_members({role: member.reference for role, member in members.items()})
        config.describe_leader(members[ANCHOR].reference, members[ANCHOR].model.config)
        generator = torch.Generator().manual_seed(seed)
        return CalmForCausalLM(config, members, generator, bridge_dtype)


def _by_role(anchor: Source, augmenting: Source | Mapping[str, Source]) -> dict[str, Source]:
    named = dict(augmenting) if isinstance(augmenting, Mapping) else {"augmenting": augmenting}
    if not named:
        raise ConfigurationError("augmenting is empty: name at least one augmenting model.")
    for name in named:
        check_name(name)
    return {role: unwrapped(source, role) for role, source in {ANCHOR: anchor, **named}.items()}


def connections_of(
    references: Mapping[str, MemberReference],
    connections: Connections | Mapping[str, Connections] | None,
    every: int,
) -> dict[str, list[list[int]]]:
    """The connections of each augmenting model among `references`, which the anchor leads: as given, or spread evenly.

    Raises:
        ConfigurationError: one list of connections for several augmenting models.
    """
    names = [role for role in references if role != ANCHOR]
    depth = references[ANCHOR].num_hidden_layers
    if connections is None:
        connections = {name: default_connections(references[name].num_hidden_layers, depth, every) for name in names}
    elif not isinstance(connections, Mapping):
        if len(names) > 1:
            raise ConfigurationError(
                f"There are several augmenting models: give connections as a dict, {names} -> pairs."
            )
        connections = {names[0]: connections}
    return {name: [_as_list(pair) for pair in pairs] for name, pairs in connections.items()}


def read_by(reads: str | Mapping[str, str] | None, names: Sequence[str]) -> dict[str, str] | None:
    """What each augmenting model that is not to read every token reads."""
    words = dict(reads) if isinstance(reads, Mapping) else {name: reads for name in names if reads is not None}
    return {name: word for name, word in words.items() if word != TEXT or name not in names} or None


def layers_of(unfreeze: Mapping[str, Sequence[int]] | None) -> dict[str, Any] | None:
    """`unfreeze` as a configuration keeps it; what is no list of layers is left for `check_unfrozen` to name."""
    found = {role: _as_list(layers) for role, layers in (unfreeze or {}).items()}
    return {role: sorted(layers) if _are_numbers(layers) else layers for role, layers in found.items()} or None


def _are_numbers(layers: Any) -> bool:
    return isinstance(layers, list) and all(isinstance(layer, int) for layer in layers)


def _as_list(pair: Any) -> Any:
    """JSON has no tuples; what is no pair at all is left for `check_connections` to name."""
    return list(pair) if isinstance(pair, (list, tuple)) else pair


def align_members(
    references: Mapping[str, MemberReference],
    tokenizers: Mapping[str, PreTrainedTokenizerBase | None],
    chosen: str | Mapping[str, str] | None = None,
) -> dict[str, str]:
    """How each augmenting model among `tokenizers` reads the text: they are small, so before any weight is read.

    Args:
        tokenizers: of the anchor and of the augmenting models to look at.
        chosen: see `compose`.

    Returns:
        Name -> one of `ALIGNMENTS`.

    Raises:
        ConfigurationError: an unknown name or choice.
        TokenizerMismatchError: tokens that were said to be the anchor's are not; or there is no tokenizer to compare,
            and the numbers of token ids differ.
        MemberError: a tokenizer that cannot be aligned.
    """
    names = [name for name in tokenizers if name != ANCHOR]
    wanted = dict(chosen) if isinstance(chosen, Mapping) else {name: chosen for name in names if chosen is not None}
    for name, word in wanted.items():
        if word not in ALIGNMENTS or name not in names:
            word, words = (word, ALIGNMENTS) if name in names else (name, names)
            raise ConfigurationError(f"alignment: '{word}' is none of {', '.join(words)}.{nearest(str(word), words)}")
    anchor, ours = references[ANCHOR], tokenizers[ANCHOR]
    found: dict[str, str] = {}
    for name in names:
        paths, theirs = (anchor.name_or_path, references[name].name_or_path), tokenizers[name]
        how = wanted.get(name)
        if how == SPANS or (how is None and ours and theirs and not _same_tokens(ours, theirs)):
            aligner(ours, theirs, *paths)  # what cannot be aligned is refused here
            found[name] = SPANS
            continue
        if ours is not None and theirs is not None:
            check_same_tokenizer(ours, theirs, *paths)
        else:
            check_same_size(anchor.vocab_size, references[name].vocab_size, *paths)
        found[name] = IDS
    return found


def _same_tokens(ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase) -> bool:
    try:
        check_same_tokenizer(ours, theirs, "", "")
    except TokenizerMismatchError:
        return False
    return True


def source_tokenizer(
    source: Source, reference: MemberReference, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase | None:
    """The tokenizer that came with a source, or stands beside it; None where there is none."""
    if isinstance(source, tuple):
        return source[1]
    return None if isinstance(source, PreTrainedModel) else tokenizer_of(reference, trust_remote_code)
