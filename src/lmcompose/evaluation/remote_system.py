"""A model behind an API as something to evaluate, alone or with local members: what it is made of, from YAML or Python.

    url: http://localhost:8000
    tokenizer: models/large
    members: {expert: models/small-tuned, antiexpert: models/small}
    alpha: 1.0

Without `members` it is the base alone. This file sends no request.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.identity import describe, digest
from lmcompose.loading import Source
from lmcompose.logits.remote.base import RemoteBase
from lmcompose.logits.remote.composition import PROXY_TUNING
from lmcompose.recipe import Strict, read_recipe

BASE = "base"


class RemoteRecipe(Strict):
    """The keys of a YAML file that names a model behind an API."""

    url: str = Field(description="Of an OpenAI-compatible completions API that states log-probabilities.")
    model: str | None = Field(None, description="The model's name there; not needed where there is only one.")
    tokenizer: str = Field(description="The model's own: a folder or a hub id.")
    key_from: str | None = Field(None, description="The environment variable that has the API's key.")
    members: dict[str, str] = Field({}, description="role: model, the members of a composition that are here.")
    formula: str | None = Field(None, description=f"By default {PROXY_TUNING}; without members, the base alone.")
    alpha: float | None = Field(None, description="The formula's alpha.")
    parameters: dict[str, float] = Field({}, description="Its other parameters.")
    top_logprobs: PositiveInt = Field(20, description="How many top log-probabilities a request asks for.")
    extra_requests: int = Field(8, ge=0, description="How many more one answer may cost, until it is proved.")


@dataclass(frozen=True)
class RemoteSystem:
    """A base behind an API and the members that are here.

    Attributes:
        base: the remote base.
        members: by role; none for the base alone.
        formula: over the base, which text calls "base", and the members; None is proxy-tuning, or the base alone.
        alpha, parameters: of the formula.
        extra_requests: how many requests more an answer may cost until it is proved.
    """

    base: RemoteBase
    members: Mapping[str, Source] = field(default_factory=dict)
    formula: str | None = None
    alpha: float | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    extra_requests: int = 8

    @property
    def composed(self) -> str:
        """The formula as text."""
        return self.formula or (PROXY_TUNING if self.members else BASE)

    @property
    def values(self) -> dict[str, float]:
        """The formula's parameters: alpha is 1 where nothing else is said of proxy-tuning."""
        default = {"alpha": 1.0} if self.composed == PROXY_TUNING else {}
        return {**default, **self.parameters, **({} if self.alpha is None else {"alpha": self.alpha})}


def read_system(source: Source | RemoteSystem) -> Source | RemoteSystem:
    """What a YAML file describes; any other source as it is. Places of models in the file are as from where we are.

    Raises:
        RecipeError: the file is not there, or not as it has to be.
        ConfigurationError: there is no such environment variable, or no such tokenizer.
    """
    if not isinstance(source, str | Path) or Path(source).suffix not in (".yaml", ".yml"):
        return source
    recipe = read_recipe(source, RemoteRecipe)
    base = RemoteBase(
        recipe.url,
        recipe.model,
        recipe.tokenizer,
        api_key=api_key(recipe.key_from, f"{source}: key_from"),
        top_logprobs=recipe.top_logprobs,
    )
    return RemoteSystem(base, recipe.members, recipe.formula, recipe.alpha, recipe.parameters, recipe.extra_requests)


def describe_system(
    source: Source | RemoteSystem, trust_remote_code: bool = False, use_safetensors: bool = True
) -> dict[str, Any]:
    """`identity.describe`, of a system behind an API too: its settings, without the key, and its members.

    Raises:
        MemberError, SavedFolderError: a model is not there.
    """
    if not isinstance(source, RemoteSystem):
        return describe(source, trust_remote_code, use_safetensors)
    members = {role: describe(member, trust_remote_code, use_safetensors) for role, member in source.members.items()}
    recipe = {
        "url": source.base.client.url,
        "model": source.base.model,
        "tokenizer": str(source.base.tokenizer.name_or_path),
        "formula": source.composed,
        "parameters": source.values,
        "top_logprobs": source.base.top_logprobs,
        "extra_requests": source.extra_requests,
    }
    told = digest([recipe, {role: member["digest"] for role, member in members.items()}])
    name = f"{source.base.model or 'a model'} at {source.base.client.url}"
    return {"name": name, "digest": told, "members": members, "recipe": recipe}


def api_key(variable: str | None, where: str) -> str | None:
    """The key in an environment variable: keys stand in no command and in no file of ours.

    Raises:
        ConfigurationError: it is not set.
    """
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ConfigurationError(f"{where} names the environment variable '{variable}', which is not set: export it.")
    return os.environ[variable]
