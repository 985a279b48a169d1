"""What a logit composition will be, told before any weight is read: members, memory, formula, vocabularies.

This file does not know how a plan is shown.
"""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lmcompose.alignment.vocab_maps import VocabularyMap
from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError, MemberError
from lmcompose.loading import Source
from lmcompose.logits.compose import build, plan_logits
from lmcompose.logits.config import LogitConfig
from lmcompose.logits.members import Tokenizers, map_vocabularies, played_by, tokenizers_of
from lmcompose.logits.model import LogitForCausalLM
from lmcompose.logits.recipe import LogitRecipe
from lmcompose.memory import BYTES, as_size, memory
from lmcompose.places import read_model_config, read_tokenizer, tokenizer_of
from lmcompose.recipe import read_recipe
from lmcompose.reference import MemberReference
from lmcompose.saved import kind_of, saved_place
from lmcompose.sizes import Size, adapter_parameters_of, size_of, stored_dtype

DIFFERENCES = 3
"""How many differences of two vocabularies are told in words."""


@dataclass(frozen=True)
class MemberPlan:
    """One member: what is known of it without its weights.

    Attributes:
        size: of the model, without its adapter.
        adapter_parameters: 0 where there is no adapter, or where its size cannot be told.
        shares_with: the role whose weights it uses; None where it brings its own.
    """

    reference: MemberReference
    dtype: str
    size: Size
    adapter_parameters: int = 0
    shares_with: str | None = None

    @property
    def weight_bytes(self) -> int:
        """Of what this member brings: its adapter alone, where the model is another's."""
        own = 0 if self.shares_with else self.size.weight_bytes
        return own + self.adapter_parameters * BYTES["float32"]  # PEFT keeps adapters in float32

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **described(self.reference),
            "dtype": self.dtype,
            "parameters": self.size.parameters,
            "adapter_parameters": self.adapter_parameters,
            "shares_with": self.shares_with,
            "weight_bytes": self.weight_bytes,
            "cache_bytes_per_token": self.size.cache_bytes,
        }


@dataclass(frozen=True)
class LogitPlan:
    """A composition that has been checked and has no weights yet. `compose` loads them."""

    config: LogitConfig
    sources: dict[str, Source]
    tokenizers: Tokenizers
    vocabularies: dict[str, VocabularyMap]
    members: dict[str, MemberPlan]
    dtypes: Mapping[str, Any]
    device_map: Any
    trust_remote_code: bool
    use_safetensors: bool | None
    recipe: dict[str, Any] | None
    device: str
    available_bytes: int
    total_bytes: int

    @property
    def weight_bytes(self) -> int:
        return sum(member.weight_bytes for member in self.members.values())

    @property
    def cache_bytes(self) -> int:
        return sum(member.size.cache_bytes for member in self.members.values())

    @property
    def verdict(self) -> str:
        """fits, tight, or impossible."""
        if self.weight_bytes > self.total_bytes:
            return "impossible"
        return "fits" if self.weight_bytes <= self.available_bytes else "tight"

    def check_memory(self) -> None:
        """Refuse what cannot be loaded here.

        Raises:
            ConfigurationError: the weights are more than the machine has, and no device map spreads them.
        """
        if self.verdict == "impossible" and self.device_map is None:
            raise ConfigurationError(
                f"The members' weights take {as_size(self.weight_bytes)}, and the {self.device} has "
                f"{as_size(self.total_bytes)} in all. Use smaller members, dtype: bfloat16, quantization: 4bit, or a "
                "device_map."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **formula_fields(self.config),
            "members": {role: member.to_dict() for role, member in self.members.items()},
            "vocabularies": {role: found.summary(DIFFERENCES) for role, found in self.vocabularies.items()},
            "device": self.device,
            "weight_bytes": self.weight_bytes,
            "cache_bytes_per_token": self.cache_bytes,
            "available_bytes": self.available_bytes,
            "total_bytes": self.total_bytes,
            "verdict": self.verdict,
        }

    def compose(self) -> LogitForCausalLM:
        """Load the members and compose them.

        Raises:
            MemberError: a member's weights cannot be read, or members cannot share a model as they should.
        """
        config = copy.deepcopy(self.config)
        config.provenance = run_record(self.recipe)
        return build(
            config,
            self.sources,
            self.tokenizers,
            self.vocabularies,
            dtypes=self.dtypes,
            device_map=self.device_map,
            trust_remote_code=self.trust_remote_code,
            use_safetensors=self.use_safetensors,
        )


def plan_recipe(path: str | Path) -> tuple[LogitPlan, Path]:
    """The plan of a recipe, and the folder that it names for the result.

    Args:
        path: a YAML file; relative paths in it start from its folder.

    Raises:
        RecipeError, ConfigurationError, MemberError: see `read_recipe` and `plan`.
    """
    recipe, base = read_recipe(path, LogitRecipe), Path(path).resolve().parent
    planned = plan(
        members=recipe.sources(base),
        dtypes=recipe.dtypes(),
        device_map=recipe.device_maps(),
        recipe=recipe.model_dump(exclude_defaults=True),
        **recipe.options(),
    )
    return planned, base / Path(recipe.output).expanduser()


def plan(
    formula: Any,
    members: Mapping[str, Source],
    *,
    dtypes: Mapping[str, Any] | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    use_safetensors: bool | None = True,
    recipe: dict[str, Any] | None = None,
    **options: Any,
) -> LogitPlan:
    """The plan of a composition. No weight is read; tokenizers are.

    Args:
        dtypes: role -> dtype of its weights.
        recipe: what to record as the recipe.
        options: the other arguments of `lmcompose.combine`.

    Raises:
        ConfigurationError: a formula or an option that cannot be.
        MemberError: there is no such member, it is no decoder-only model, or it reads other tokens.
    """
    config = plan_logits(
        formula, members, trust_remote_code=trust_remote_code, use_safetensors=use_safetensors, **options
    )
    references, wanted = config.references(), dict(dtypes or {})
    sources = {role: members[role] for role in references}
    tokenizers = tokenizers_of(sources, references, trust_remote_code)
    owner_of = owners(sources, references)
    for role, owner in owner_of.items():
        if wanted.get(role) not in (None, wanted.get(owner)):
            raise ConfigurationError(
                f"The {owner} and the {role} share the weights of '{references[role].name_or_path}', so they have one "
                f"dtype, and {wanted.get(owner) or 'auto'} and {wanted[role]} are asked for. Give both the same."
            )
    available, total = memory()
    return LogitPlan(
        config=config,
        sources=sources,
        tokenizers=tokenizers,
        vocabularies=map_vocabularies(tokenizers, references, config.min_coverage),
        members={
            role: _member(reference, wanted.get(owner_of[role]), owner_of[role], role, trust_remote_code)
            for role, reference in references.items()
        },
        dtypes=wanted,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
        use_safetensors=use_safetensors,
        recipe=recipe,
        device="GPU" if torch.cuda.is_available() else "CPU",
        available_bytes=available,
        total_bytes=total,
    )


def owners(sources: Mapping[str, Source], references: Mapping[str, MemberReference]) -> dict[str, str]:
    """role -> the first role with the same model, which may be itself."""
    first: dict[Any, str] = {}
    return {role: first.setdefault(played_by(source, references[role]).key, role) for role, source in sources.items()}


def _member(reference: MemberReference, dtype: str | None, owner: str, role: str, trust: bool) -> MemberPlan:
    config = read_model_config(reference.name_or_path, reference.revision, trust)
    return MemberPlan(
        reference=reference,
        dtype=dtype or stored_dtype(config),
        size=size_of(config, reference.name_or_path, dtype, trust, reference.quantization),
        adapter_parameters=adapter_parameters_of(reference),
        shares_with=owner if owner != role else None,
    )


# ---------------------------------------------------------------------------------------------- of a saved composition


def saved_references(config: LogitConfig, saved: str) -> dict[str, MemberReference]:
    """The members of a saved composition by role, with the names of where they are now."""
    return {
        role: dataclasses.replace(
            reference,
            name_or_path=saved_place(reference.name_or_path, saved),
            adapter=saved_place(reference.adapter, saved) if reference.adapter else None,
        )
        for role, reference in config.references().items()
    }


def saved_vocabularies(config: LogitConfig, saved: str) -> dict[str, dict[str, Any]]:
    """How the leader's tokens map to each other member's, of a saved composition, by role.

    Tokenizers are read from where the members are now. Where two vocabularies do not fit, `{"error": ...}` says why.
    """
    references = saved_references(config, saved)
    leader = config.leader
    own = read_tokenizer(saved) or tokenizer_of(references[leader])
    found: dict[str, dict[str, Any]] = {}
    for role, reference in references.items():
        if role == leader:
            continue
        tokenizers = {leader: own, role: tokenizer_of(reference)}
        try:
            maps = map_vocabularies(tokenizers, {leader: references[leader], role: reference}, config.min_coverage)
            found[role] = maps[role].summary(DIFFERENCES)
        except MemberError as error:
            found[role] = {"error": str(error)}
    return found


def formula_fields(config: LogitConfig) -> dict[str, Any]:
    """What a composition computes, as plain values."""
    names = (
        "formula", "parameters", "scores", "temperatures", "plausibility", "missing_tokens", "min_coverage", "drafter",
        "share_passes",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}


def described(reference: MemberReference) -> dict[str, Any]:
    """A member's reference as plain values, without the fingerprint."""
    plain = {name: value for name, value in reference.to_dict().items() if name != "fingerprint"}
    return {"kind": kind_of(reference), **plain}
