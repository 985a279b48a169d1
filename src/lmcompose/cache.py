"""One flat cache for a whole composition: every member's layers, then one layer per bridge.

`generate` sees an ordinary `Cache` and reorders, repeats, crops and resets it as a whole; each member gets a view, a
cache of its own class that holds the very same layer objects. This file knows no model, only configurations.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel, StaticCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

from lmcompose.errors import CacheError
from lmcompose.growing import GrowingLayer, moved_up


class OwnTexts(Protocol):
    """What a member with a tokenizer of its own has read of every text, kept in step with the cache."""

    @property
    def columns(self) -> int:
        """How many of the leader's positions were read."""

    @property
    def lengths(self) -> list[int]:
        """How many tokens of its own each text has."""

    def select(self, indices: torch.Tensor) -> None:
        """Keep some of the texts, in the order given."""

    def repeat(self, repeats: int) -> None:
        """Every text several times, one after the other."""

    def drop(self, count: int) -> list[int]:
        """Forget the leader's last positions; returns how many own tokens went with them, by text."""

    def reset(self) -> None:
        """Forget everything."""


class ComposedCache(Cache):
    """The cache of a composition.

    Args:
        members: each member's own cache, by name; the leader (whose length is the length of the text) comes first.
            A member that is itself a composition brings a `ComposedCache`.
        bridges: how many layers to add for the bridges, in one view per name.
        max_cache_len: the number of positions of a static cache, and of its bridge layers; None means that they grow.
        copies: members whose cache holds every text several times, copy by copy, and how many times: models that
            read one batch in several roles. May be set later: whoever runs them knows.
        texts: members that read the text in tokens of their own, and what they have read; all texts end at the last
            column of their layers, and of their bridges', which need not be as many as the leader's.
        prompt_readers: members that read the prompt and nothing after it: their layers, and their bridges', hold no
            more than that.
    """

    def __init__(
        self,
        members: Mapping[str, Cache],
        bridges: Mapping[str, int] | None = None,
        max_cache_len: int | None = None,
        copies: Mapping[str, int] | None = None,
        texts: Mapping[str, OwnTexts] | None = None,
        prompt_readers: Sequence[str] = (),
    ) -> None:
        self.members = dict(members)
        self.copies = dict(copies or {})
        self.texts = dict(texts or {})
        self.prompt_readers = tuple(prompt_readers)
        self.prompt_length: int | None = None
        self.prompt_read = 0
        self._text_length = max_cache_len
        self._missed: set[str] = set()
        self.bridges = {
            name: Cache(layers=[_bridge_layer(max_cache_len) for _ in range(count)])
            for name, count in (bridges or {}).items()
        }
        views = [*self.members.values(), *self.bridges.values()]
        super().__init__(layers=[layer for view in views for layer in view.layers])

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Put the texts into another order, for beam search."""
        self._select("reorder_cache", beam_idx, len(beam_idx))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some of the texts."""
        keys = (getattr(layer, "keys", None) for layer in self.members[self.leader].layers)
        rows = next((part.shape[0] for part in keys if part is not None), 0)
        self._select("batch_select_indices", indices, rows // self.copies.get(self.leader, 1))

    def _select(self, method: str, indices: torch.Tensor, texts: int) -> None:
        """Call `method` of every view, with the rows of the chosen ones of `texts` texts."""
        for own in self.texts.values():
            if own.columns:
                own.select(indices)
        for name, view in self.views():
            copies, rows = self.copies.get(name, 1), indices
            if copies > 1:  # [copies * texts, ...], and repeating texts for beams keeps that order
                rows = torch.cat([indices + texts * copy for copy in range(copies)])
            getattr(view, method)(rows)
        for name, own in self.texts.items():
            if own.columns:  # the longest text may be gone
                realign(self, name, [0] * len(own.lengths), max(own.lengths))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from every layer that was filled: a disabled composition fills its leader's layers alone."""
        prompt_removed = self._crop_prompt(tokens_to_remove)
        for name, view in self.views():
            if name not in self.texts:
                _crop(view, prompt_removed if name in self.prompt_readers else tokens_to_remove)
        for name, own in self.texts.items():
            if own.columns:
                realign(self, name, own.drop(abs(tokens_to_remove)), max(own.lengths))

    def begin_prompt(self, length: int | None, new: int) -> int:
        """How many columns the prompt has: `length`, or else the `new` ones of the first pass.

        Raises:
            CacheError: the cache was begun with a prompt of another length.
        """
        if self.prompt_length is None:
            self.prompt_length = new if length is None else length
        if length is not None and length != self.prompt_length:
            raise CacheError(
                f"The cache holds a prompt of {self.prompt_length} tokens and its answer, and now the prompt has "
                f"{length}. {list(self.prompt_readers)} read a prompt once: start again from an empty cache."
            )
        return self.prompt_length

    def _crop_prompt(self, tokens_to_remove: int) -> int:
        """How many columns of the prompt go, as a number for `crop`: none, but where more than the answer goes."""
        if not self.prompt_read:
            return 0
        left = int(self.members[self.leader].get_seq_length()) - abs(tokens_to_remove)
        removed = max(0, self.prompt_read - left)
        self.prompt_read -= removed
        return -removed

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every text several times, one after the other."""
        super().batch_repeat_interleave(repeats)
        for own in self.texts.values():
            own.repeat(repeats)

    def reset(self) -> None:
        """Empty the cache."""
        super().reset()
        self.prompt_length, self.prompt_read = None, 0
        for own in self.texts.values():
            own.reset()

    @property
    def is_croppable(self) -> bool:
        """Whether all that was filled can forget its last tokens; a state that is empty does not say that it can."""
        return all(layer.is_croppable for layer in self.layers if _is_filled(layer))

    def views(self) -> list[tuple[str, Cache]]:
        """Every member's part of the cache, and every part of the bridges, by the member's name."""
        return [*self.members.items(), *self.bridges.items()]

    def crop_member(self, name: str, tokens_to_remove: int) -> None:
        """Remove tokens from the layers of one member."""
        _crop(self.members[name], tokens_to_remove)

    @property
    def leader(self) -> str:
        """The name of the member whose length counts."""
        return next(iter(self.members))

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """How many positions a layer holds; without one, those of the text: members that read others hold others."""
        if layer_idx is None and self._text_length is not None:
            return self._text_length
        return super().get_max_length(layer_idx)

    def lengths(self) -> dict[str, int]:
        """How many positions of the text each member has seen, in the leader's tokens."""
        return {
            name: self.texts[name].columns if name in self.texts else member.get_seq_length()
            for name, member in self.members.items()
        }

    def begin_pass(self, names: Sequence[str]) -> None:
        """Note that a pass runs the leader and `names`, and refuse one that goes on from a text they did not see.

        A static cache counts on its device, and asking waits for that device: so it is asked only after a pass that
        some of them were left out of, and never in a compiled pass.

        Raises:
            CacheError: see `check_in_step`.
        """
        if not self.is_compileable:
            self.check_in_step(names)
        elif not torch.compiler.is_compiling():
            if not self._missed.isdisjoint(names):
                self.check_in_step(names)
            self._missed = {name for name in self.members if name != self.leader and name not in names}

    def check_in_step(self, names: Sequence[str]) -> None:
        """Refuse to go on with a cache in which some of the members `names` did not see the text.

        Raises:
            CacheError: a member's length differs from the leader's.
        """
        lengths = self.lengths()
        read = lengths[self.leader] if self.prompt_length is None else self.prompt_read
        expected = {name: read if name in self.prompt_readers else lengths[self.leader] for name in names}
        late = {name: int(lengths[name]) for name in names if lengths[name] != expected[name]}
        if late:
            raise CacheError(
                f"The cache holds {int(lengths[self.leader])} positions of '{self.leader}' but {late}: it was filled "
                "while these were left out, or the composition disabled. Start again from an empty cache."
            )


def has_state(cache: Cache) -> bool:
    """Whether a layer keeps a state that runs on from token to token, with or without keys and values."""
    return any(hasattr(layer, "recurrent_states") for layer in cache.layers)


def _is_filled(layer: Any) -> bool:
    if hasattr(layer, "is_initialized"):
        return bool(layer.is_initialized)
    return any(layer.has_previous_state.values())  # of a state, several are possible


def _crop(cache: Cache, tokens_to_remove: int) -> None:
    for layer in cache.layers:
        if _is_filled(layer):
            layer.crop(tokens_to_remove)  # type: ignore[union-attr]


def realign(cache: ComposedCache, name: str, dropped: Sequence[int], kept: int) -> None:
    """Drop the last columns of a member's layers and bridges, of each text as many as are named, and move the rest up.

    Args:
        dropped: how many, by text.
        kept: how many columns are left: those before the dropped ones. What stands in them before a text's first token
            is never looked at.

    Raises:
        CacheError: a layer holds a state in place of keys and values.
    """
    layers: list[Any] = [*cache.members[name].layers, *cache.bridges[name].layers]
    for layer in layers:
        if not getattr(layer, "is_initialized", True):
            continue
        if not any(dropped):
            keys = getattr(layer, "keys", None)
            if keys is None or keys.shape[-2] == kept:  # a state has no columns
                continue
        # what is derived from a layer of keys and values holds more than these: a state, or an index of its own
        if not _moves(layer, dropped):
            raise CacheError(
                f"'{name}' keeps a {type(layer).__name__}, which cannot forget its last tokens, and it reads the text "
                "in tokens of its own. Give it one text at a time, without beams or drafts."
            )
        layer.keys, layer.values = (moved_up(part, dropped, kept) for part in (layer.keys, layer.values))


def _moves(layer: Any, dropped: Sequence[int]) -> bool:
    """Whether moving a layer's keys and values is all that there is to do."""
    if type(layer) in (DynamicLayer, GrowingLayer):
        return True
    # a state stays as it is where nothing is dropped
    return isinstance(layer, DynamicLayer) and hasattr(layer, "recurrent_states") and not any(dropped)


def _bridge_layer(max_cache_len: int | None) -> DynamicLayer | StaticLayer:
    return GrowingLayer() if max_cache_len is None else StaticLayer(max_cache_len=max_cache_len)


def member_cache(config: PreTrainedConfig, max_cache_len: int | None = None, windows: bool = True) -> Cache:
    """An empty cache for one model: growing, or static with `max_cache_len` positions.

    Args:
        windows: whether layers with a sliding window may forget what is out of it; the window itself always holds.
    """
    if max_cache_len is None:
        cache = DynamicCache(config=config)
        growing = (DynamicLayer,) if windows else (DynamicLayer, DynamicSlidingWindowLayer)
        cache.layers = [GrowingLayer() if type(layer) in growing else layer for layer in cache.layers]
        return cache
    return StaticCache(config=config, max_cache_len=max_cache_len)


def growing_cache(model: PreTrainedModel) -> Cache | None:
    """An empty cache for `generate` of a plain model, whose layers grow in place as a composition's do.

    None where the model keeps more than keys and values, or where a cache of another kind is set for it.
    """
    if getattr(model, "_is_stateful", False) or model.generation_config.cache_implementation is not None:
        return None
    cache = member_cache(model.config.get_text_config(decoder=True))
    return cache if all(type(layer) in (GrowingLayer, DynamicSlidingWindowLayer) for layer in cache.layers) else None


def adopt(cache: Cache, composed: ComposedCache) -> ComposedCache:
    """Make an empty cache that the caller built hold the layers of `composed`, so that the caller's handle fills up.

    Raises:
        CacheError: `cache` is not empty, so it belongs to another model.
    """
    if cache.get_seq_length() > 0:
        raise CacheError(
            f"A {type(cache).__name__} that already holds {cache.get_seq_length()} positions cannot be used: it was "
            "not filled by this composition. Pass the cache that the composition returned, or none at all."
        )
    cache.layers = composed.layers
    cache.layer_class_to_replicate = None
    cache.composed = composed  # type: ignore[attr-defined]
    return composed


def adopted_cache(cache: Cache) -> ComposedCache | None:
    """The composed cache whose layers `cache` was made to hold, if it was."""
    return getattr(cache, "composed", None)
