"""How `generate` runs a composition: one cache for all members, and one 2-D mask that each makes its own of.

Positions, cache and mask are counted here and nowhere else. This file knows no hooks and no saved folders.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import Cache, GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.generation.configuration_utils import ALL_STATIC_CACHE_IMPLEMENTATIONS, GenerationMode

from lmcompose.architecture import CACHE_ARGUMENT, counts_slots, position_limit, runs_on, stated_length
from lmcompose.cache import ComposedCache, adopt, adopted_cache, has_state, member_cache
from lmcompose.errors import CacheError, ConfigurationError


class ComposedGenerationMixin(GenerationMixin):
    """`GenerationMixin` for a model with `members`. The end of the name is what HF's `can_generate` looks for."""

    config: Any
    members: nn.ModuleDict
    member: Callable[[str], PreTrainedModel]
    _disabled: bool

    def _note_lengths(self) -> None:
        """Look up how long a text may be: what the members say, for `generate` to warn by, and where they fail."""
        models = {role: cast(PreTrainedModel, model) for role, model in self.members.items()}
        ours = [model for role, model in models.items() if not self._has_own_tokens(role)]
        lengths = [length for model in ours if (length := stated_length(model.config)) is not None]
        self.config.max_position_embeddings = min(lengths, default=None)
        self._position_limits = {role: position_limit(model) for role, model in models.items()}

    def _has_own_tokens(self, role: str) -> bool:
        """Whether a member reads the text in tokens of its own, and not in the leader's."""
        return False

    def _check_length(self, inputs: dict[str, Any], cache: Cache | None, roles: Sequence[str] = ()) -> None:
        """Refuse a text that runs past a member's table of positions, which torch would only call an index error.

        Compares shapes, and reads positions only of texts that are longer than the table (packed or padded ones).

        Args:
            inputs: what the members are called with.
            cache: the composition's, or the view of the members that `inputs` are for.
            roles: the members that `inputs` are for; all of them by default.

        Raises:
            ConfigurationError: a member has no position for the last token.
        """
        if torch.compiler.is_compiling():  # a graph cannot raise, and `generate` runs the prompt without one
            return
        leader = next(iter(self.members))
        for role in roles or self._position_limits:
            limit = self._position_limits[role]
            if limit is None or (self._disabled and role != leader):
                continue
            length = inputs["input_ids"].shape[1] + _positions_seen(cache, limit)
            if counts_slots(self.member(role)) and cache is not None and cache.is_compileable:
                length = cache.get_max_length()  # all slots of a static cache are keys
            positions = inputs["position_ids"]
            if length > limit and positions is not None and not counts_slots(self.member(role)):
                length = int(positions.max()) + 1
            if length > limit:
                name = self.config.references()[role].name_or_path
                raise ConfigurationError(
                    f"The text has {length} tokens, and '{name}' (the {role}) has positions for {limit}. Give a "
                    "shorter text or ask for fewer new tokens, or compose with a member of longer texts."
                )

    def _stateful_roles(self) -> list[str]:
        """The members in use that keep a state which cannot be taken back."""
        roles = list(self.members)[:1] if self._disabled else self.members
        return [role for role in roles if runs_on(self.member(role))]

    def _validate_generation_mode(self, generation_mode: Any, generation_config: Any, *rest: Any) -> None:
        """HF's, which would only say that this class is stateful, and not because of whom.

        Raises:
            ConfigurationError: drafts (an assistant, prompt lookup), and a member that cannot take one back.
        """
        for role in self._stateful_roles() if generation_mode == GenerationMode.ASSISTED_GENERATION else ():
            reference = self.config.references()[role]
            raise ConfigurationError(
                f"The {role} '{reference.name_or_path}' ({reference.model_type}) keeps a state that runs on from token "
                "to token and cannot go back to an earlier one, so drafted tokens could not be taken back. Leave out "
                "assistant_model and prompt_lookup_num_tokens."
            )
        cast(Any, super())._validate_generation_mode(generation_mode, generation_config, *rest)

    def new_cache(self, max_cache_len: int | None = None, *, windows: bool = True) -> ComposedCache:
        """An empty cache for all members: growing, or static with `max_cache_len` positions.

        Args:
            windows: whether layers with a sliding window may forget what is out of it.
        """
        return ComposedCache({role: cache_for(model, max_cache_len, windows) for role, model in self.members.items()})

    def _composed_cache(self, cache: Cache | None, use_cache: bool) -> ComposedCache | None:
        """The composed cache behind whatever the caller passed.

        Raises:
            CacheError: a filled cache of another model.
        """
        if cache is None:
            return self.new_cache() if use_cache else None
        if isinstance(cache, ComposedCache):
            return cache
        if not isinstance(cache, Cache):
            raise CacheError(f"{type(cache).__name__} is no transformers Cache. Pass one, or none at all.")
        adopted = adopted_cache(cache)
        if adopted is None:
            length = cache.get_max_length() if cache.is_compileable else -1
            adopted = adopt(cache, self.new_cache(length if length > 0 else None))
        return adopted

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        if model_kwargs.get(CACHE_ARGUMENT) is not None or generation_config.use_cache is False:
            prepare = cast(Any, super())._prepare_cache_for_generation
            return prepare(generation_config, model_kwargs, generation_mode, batch_size, max_cache_length)
        implementation = generation_config.cache_implementation
        if implementation in (None, "dynamic"):
            cache = self.new_cache()
        elif implementation in ALL_STATIC_CACHE_IMPLEMENTATIONS and not implementation.startswith("offloaded"):
            # the longest so far, as HF does: a cache that keeps its shape keeps its compiled graph
            ceiling = getattr(generation_config, "max_cache_len", None) or 0
            self._static_length = max(max_cache_length, ceiling, getattr(self, "_static_length", 0))
            cache = self._new_static_cache(self._static_length, model_kwargs)
        else:
            raise ConfigurationError(
                f"cache_implementation='{implementation}' does not work with a composition. Use 'dynamic' or 'static'."
            )
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs[CACHE_ARGUMENT] = cache
        return True

    @functools.wraps(GenerationMixin.prepare_inputs_for_generation)  # HF reads its signature
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """HF's, without the tokenizer of stop strings, which HF hands on as if it were for `forward`."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(*args, **kwargs)
        inputs.pop("tokenizer", None)
        return inputs

    def _new_static_cache(self, length: int, model_kwargs: dict[str, Any]) -> ComposedCache:
        """An empty static cache for a text of `length` tokens; compositions whose members read other texts differ."""
        return self.new_cache(length)

    @staticmethod
    def create_masks_for_generate(
        config: PreTrainedConfig, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor | None:
        """The 2-D mask as it is, widened to a static cache: members differ in the masks that they make of it.

        Of a prompt (`inputs_embeds` or `input_ids` of several columns) it is not widened where a layer keeps a state:
        those take the mask of new tokens from its end.
        """
        cache = kwargs.get(CACHE_ARGUMENT)
        if attention_mask is None or attention_mask.ndim != 2 or cache is None or not cache.is_compileable:
            return attention_mask
        new = kwargs["input_ids"] if "input_ids" in kwargs else kwargs["inputs_embeds"]
        if new.shape[1] > 1 and has_state(cache):
            return attention_mask
        missing = cache.get_max_length() - attention_mask.shape[1]
        return nn.functional.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask


def _positions_seen(cache: Cache | None, limit: int) -> int:
    """How many positions are in the cache; 0 where it has no room for more than `limit`.

    A static cache counts on its device, and asking would wait for that device.
    """
    if cache is None or (cache.is_compileable and cache.get_max_length() <= limit):
        return 0
    return int(cache.get_seq_length())


def cache_for(model: nn.Module, max_cache_len: int | None, windows: bool = True) -> Cache:
    """An empty cache for one member, which may be a composition itself."""
    if getattr(model, "is_composed", False):
        return cast(ComposedGenerationMixin, model).new_cache(max_cache_len, windows=windows)
    return member_cache(cast(PreTrainedModel, model).config, max_cache_len, windows)


def positions_of(attention_mask: torch.Tensor | None, query_length: int) -> torch.Tensor | None:
    """Position ids [batch, query_length] that pass over padding, from a 2-D mask [batch, all positions so far].

    None where there is no 2-D mask: then positions count from the cache's length, as HF does.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    positions = attention_mask.long().cumsum(dim=-1) - 1
    return positions.clamp(min=0)[:, -query_length:]
