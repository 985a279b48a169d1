"""The short way in: members and a formula become one model that decodes like any other."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from lmcompose.alignment.vocab_maps import MIN_COVERAGE, VocabularyMap
from lmcompose.errors import ConfigurationError, nearest
from lmcompose.loading import Source, check_roles, for_role, plan_member, unharmed
from lmcompose.logits.arithmetic import Plausibility
from lmcompose.logits.config import LogitConfig, plausibility_fields
from lmcompose.logits.formula import Formula
from lmcompose.logits.members import Tokenizers, load_roles, map_vocabularies, tokenizers_of
from lmcompose.logits.model import LogitForCausalLM
from lmcompose.logits.presets import PRESETS, Preset, preset_named
from lmcompose.quantization import Quantization
from lmcompose.reference import MemberReference, describe_members


def plan_logits(
    formula: str | Formula,
    members: Mapping[str, Source],
    *,
    alpha: float | None = None,
    parameters: Mapping[str, float] | None = None,
    temperatures: Mapping[str, float] | None = None,
    scores: str | None = None,
    plausibility: Plausibility | Mapping[str, Any] | bool | None = None,
    missing_tokens: str = "leader",
    min_coverage: float = MIN_COVERAGE,
    drafter: str | None = None,
    share_passes: bool = True,
    revisions: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    quantization: Any = None,
    use_safetensors: bool | None = True,
) -> LogitConfig:
    """The configuration of a logit composition, checked, from the members' own configurations: no weight is read.

    Arguments are those of `combine`; raises the same errors.
    """
    if not isinstance(members, Mapping) or not members:
        raise ConfigurationError("There are no members. Name at least one: members={'base': ..., ...}.")
    preset = _preset(formula, members, drafter)
    if preset:  # whose leader comes first, in whatever order the members are given
        members = {role: members[role] for role in (*preset.roles, *(role for role in members if role == drafter))}
    config = LogitConfig(
        members={role: {"order": order} for order, role in enumerate(members)},
        formula=preset.formula if preset else str(formula),
        parameters=_parameters(preset, alpha, parameters),
        temperatures=dict(temperatures or {}),
        scores=scores or (preset.scores if preset else "logits"),
        plausibility=_plausibility(preset, plausibility),
        missing_tokens=missing_tokens,
        min_coverage=min_coverage,
        drafter=drafter,
        share_passes=share_passes,
    )
    config.check()
    check_roles("quantization", quantization, members)
    references: dict[str, MemberReference] = {
        role: plan_member(
            source,
            role,
            (revisions or {}).get(role),
            trust_remote_code,
            for_role(quantization, role, members),
            use_safetensors,
        )
        for role, source in members.items()
    }
    config.members = describe_members(references)
    return config


def combine(
    formula: str | Formula,
    members: Mapping[str, Source],
    *,
    alpha: float | None = None,
    parameters: Mapping[str, float] | None = None,
    temperatures: Mapping[str, float] | None = None,
    scores: str | None = None,
    plausibility: Plausibility | Mapping[str, Any] | bool | None = None,
    missing_tokens: str = "leader",
    min_coverage: float = MIN_COVERAGE,
    drafter: str | None = None,
    share_passes: bool = True,
    dtype: torch.dtype | str | Mapping[str, Any] | None = None,
    device_map: Any = None,
    revisions: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    quantization: Quantization | Mapping[str, Quantization] | None = None,
    use_safetensors: bool | None = True,
) -> LogitForCausalLM:
    """Make one model whose scores are a weighted sum of its members' scores, at every token.

    Args:
        formula: a weighted sum of the members by role, `"base + alpha * (expert - antiexpert)"`, as text or written
            with `term` and `parameter`; or the name of a preset (`lmcompose.logits.presets.PRESETS`).
        members: role -> a hub id, a folder, a GGUF file, an adapter, a live model or (model, tokenizer). The first is
            the leader, whose vocabulary and special tokens are the composition's. Roles with one and the same model
            share its weights.
        alpha: the formula's parameter of that name.
        parameters: the formula's parameters by name: their values unless a call gives others.
        temperatures: role -> temperature of that member's scores.
        scores: "logits" or "logprobs"; a preset's own, or logits.
        plausibility: a mask {"member", "kind", "value"}; a preset's own by default, and none with False.
        missing_tokens: what becomes of tokens that a member lacks: "leader", "forbid" or "lowest" (see
            `arithmetic.combine`).
        min_coverage: the least share of the leader's tokens that each member must have.
        drafter: the role that drafts in speculative decoding. One that is not in the formula does nothing else.
        share_passes: run roles that share one model's weights as one batch.
        dtype, device_map, quantization: as in `lmcompose.compose`, for all members or by role.
        revisions, trust_remote_code, use_safetensors: as in `lmcompose.compose`.

    Raises:
        ConfigurationError: a formula or an option that cannot be.
        MemberError: a member cannot be read, is no decoder-only model, or reads other tokens.

    Example:
        >>> model = lmcompose.combine(  # doctest: +SKIP
        ...     "base + alpha * (expert - antiexpert)",
        ...     {"base": "large", "expert": "small-tuned", "antiexpert": "small"},
        ...     alpha=1.0,
        ... )
    """
    config = plan_logits(
        formula,
        members,
        alpha=alpha,
        parameters=parameters,
        temperatures=temperatures,
        scores=scores,
        plausibility=plausibility,
        missing_tokens=missing_tokens,
        min_coverage=min_coverage,
        drafter=drafter,
        share_passes=share_passes,
        revisions=revisions,
        trust_remote_code=trust_remote_code,
        quantization=quantization,
        use_safetensors=use_safetensors,
    )
    references = config.references()
    members = {role: members[role] for role in references}
    tokenizers = tokenizers_of(members, references, trust_remote_code)
    return build(
        config,
        members,
        tokenizers,
        map_vocabularies(tokenizers, references, min_coverage),
        dtypes=dtype if isinstance(dtype, Mapping) else dict.fromkeys(members, dtype),
        device_map=device_map,
        trust_remote_code=trust_remote_code,
        use_safetensors=use_safetensors,
    )


def build(
    config: LogitConfig,
    sources: Mapping[str, Source],
    tokenizers: Tokenizers,
    vocabularies: Mapping[str, VocabularyMap],
    *,
    dtypes: Mapping[str, Any],
    device_map: Any = None,
    trust_remote_code: bool = False,
    use_safetensors: bool | None = True,
) -> LogitForCausalLM:
    """Load the members that a checked configuration plans for, and compose them.

    Raises:
        MemberError: a member's weights cannot be read, or members cannot share a model as they should.
    """
    loaded, adapters = load_roles(
        sources,
        config.references(),
        tokenizers,
        dtypes=dtypes,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
        use_safetensors=use_safetensors,
    )
    with unharmed(loaded):
        config.members = describe_members({role: member.reference for role, member in loaded.items()})
        leader = loaded[config.leader]
        config.describe_leader(leader.reference, leader.model.config)
        return LogitForCausalLM(config, loaded, vocabularies, adapters)


def proxy_tune(
    base: Source,
    expert: Source,
    antiexpert: Source | None = None,
    *,
    alpha: float = 1.0,
    **options: Any,
) -> LogitForCausalLM:
    """A large base that behaves as if it had been tuned as the small expert was (proxy-tuning, arXiv 2401.08565).

    At every token, softmax(s_base + alpha * (s_expert - s_antiexpert)), the paper's equation 1.

    Args:
        base: the large untuned model.
        expert: the small tuned model.
        antiexpert: the small model before its tuning. Without it the expert is simply added (`base + alpha * expert`),
            the comparison that shows what the difference is needed for.
        alpha: how strongly; 0 is the base.
        options: those of `combine`.

    Raises:
        ConfigurationError, MemberError: see `combine`.
    """
    if antiexpert is None:
        return combine("expert_only", {"base": base, "expert": expert}, alpha=alpha, **options)
    members = {"base": base, "expert": expert, "antiexpert": antiexpert}
    return combine("proxy_tuning", members, alpha=alpha, **options)


def _preset(formula: str | Formula, members: Mapping[str, Source], drafter: str | None) -> Preset | None:
    if not isinstance(formula, str) or formula in members:
        return None
    if formula not in PRESETS:
        if formula.isidentifier() and nearest(formula, PRESETS):
            preset_named(formula)  # which says that there is none, and what there is
        return None
    preset = PRESETS[formula]
    if set(preset.roles) != set(members) - ({drafter} - set(preset.roles)):
        raise ConfigurationError(
            f"The preset '{formula}' ({preset.formula}) has the members {list(preset.roles)}, and {list(members)} were "
            "given. Rename them, or write the formula out."
        )
    return preset


def _parameters(preset: Preset | None, alpha: float | None, parameters: Mapping[str, float] | None) -> dict[str, float]:
    given = {**(parameters or {}), **({} if alpha is None else {"alpha": alpha})}
    return {**(preset.parameters if preset else {}), **{name: _plain(value) for name, value in given.items()}}


def _plain(value: Any) -> Any:
    """NumPy numbers and tuples as JSON can save them; what can be no value is left for the configuration to refuse."""
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def _plausibility(preset: Preset | None, given: Any) -> dict[str, Any] | None:
    if given is None or given is True:
        given = (preset.plausibility if preset else None) or (given or None)
    return plausibility_fields(given) if given is not None and given is not False else None
