"""The passes of a logit composition's members: which of them run together, and on what rows, masks and cache.

This file knows neither formulas nor how scores are combined.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import Cache, PreTrainedModel

from lmcompose.alignment.vocab_maps import VocabularyMap
from lmcompose.architecture import CACHE_ARGUMENT, run_with_head
from lmcompose.cache import ComposedCache
from lmcompose.calls import CallSlot
from lmcompose.errors import CacheError, ConfigurationError
from lmcompose.generation import ComposedGenerationMixin, cache_for, positions_of
from lmcompose.logits.arithmetic import as_scores, at_temperature
from lmcompose.logits.contexts import Contexts, full_mask, new_ids
from lmcompose.logits.shared import hook_adapters, mixing_roles, passes_of, row_adapters, switched_to


@dataclass(frozen=True)
class Call:
    """The arguments of one forward pass that say what the members read."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor | None
    contexts: Contexts | None
    past: int
    """Columns that the leader had read before; 0 where nobody needs to know."""
    use_cache: bool

    @property
    def columns(self) -> int:
        """Columns that the leader has read after this call."""
        return self.past + self.input_ids.shape[1]

    def composable(self, keep: int | torch.Tensor) -> int | torch.Tensor:
        """How many last positions of this call are composed, of those that `keep` (0 = all) wants."""
        if self.contexts is None:
            return keep
        assert isinstance(keep, int), "forward() refuses positions to keep where contexts are read"
        count = max(0, self.columns - max(self.past, self.contexts.length - 1))
        return min(count, keep) if keep else count


class MemberPassesMixin(ComposedGenerationMixin):
    """The members of `LogitForCausalLM`, and how they are run."""

    vocabularies: dict[str, VocabularyMap]
    adapters: dict[str, str]
    device: torch.device

    def _plan_passes(self, share: bool, scored: Collection[str]) -> None:
        """Decide which members run together; once, when all of them are there.

        Args:
            share: whether members of one model may.
            scored: the roles whose scores are composed; a pass without any of them is left to who asks for it.
        """
        models = {role: self.member(role) for role in self.members}
        mixing = mixing_roles(models, self.adapters)
        self.passes = passes_of(models, self.adapters, mixing, self.leader_role, share)
        self.scored_passes = [roles for roles in self.passes if any(role in scored for role in roles)]
        self._slots = {roles[0]: CallSlot() for roles in self.passes if roles[0] in mixing}
        self._twins = {
            role: next(other for other in roles if self._read_alike(other, role))
            for roles in self.passes
            for role in roles
        }

    def _read_alike(self, left: str, right: str) -> bool:
        """Whether two roles of one pass are played by the very same model, unless they have contexts of their own."""
        ours, theirs = self.vocabularies.get(left), self.vocabularies.get(right)
        if ours is not None and theirs is not None and ours is not theirs:
            same = ours.stand_in == theirs.stand_in and torch.equal(ours.to_member, theirs.to_member)
        else:
            same = ours is theirs
        return same and self.adapters.get(left) == self.adapters.get(right)

    @property
    def leader_role(self) -> str:
        """The role whose tokens are the composition's."""
        return next(iter(self.members))

    @property
    def other_roles(self) -> list[str]:
        """The roles but the leader's, in order: the members of `member_input_ids`."""
        return list(self.members)[1:]

    def _hook_members(self) -> list[Any]:
        return [handle for role, slot in self._slots.items() for handle in hook_adapters(self.member(role), slot)]

    # ---- the cache --------------------------------------------------------------------------------------------

    def new_cache(
        self, max_cache_len: int | None = None, contexts: Contexts | None = None, *, windows: bool = True
    ) -> ComposedCache:
        """An empty cache with a view per pass, under its first role; members that share a pass share a view."""
        views = {roles[0]: self._pass_cache(roles, max_cache_len, contexts, windows) for roles in self.passes}
        return ComposedCache(views, max_cache_len=max_cache_len)

    def _pass_cache(
        self, roles: Sequence[str], length: int | None, contexts: Contexts | None, windows: bool = True
    ) -> Cache:
        if length is not None and contexts is not None and roles[0] != self.leader_role:
            length += contexts.extra_length(self.context_rows(roles))
        return cache_for(self.member(roles[0]), length, windows)

    def _new_static_cache(self, length: int, model_kwargs: dict[str, Any]) -> ComposedCache:
        names = ("member_input_ids", "member_attention_mask", "context_length")
        return self.new_cache(length, self.contexts(**{name: model_kwargs.get(name) for name in names}))

    def context_rows(self, roles: Sequence[str]) -> tuple[int, ...]:
        """Where the contexts of `roles` stand in `member_input_ids`."""
        return tuple(self.other_roles.index(role) for role in roles)

    def contexts(
        self,
        member_input_ids: torch.Tensor | None = None,
        member_attention_mask: torch.Tensor | None = None,
        context_length: int | None = None,
    ) -> Contexts | None:
        """The contexts of the members but the leader, where a call has them and the composition is not disabled.

        Raises:
            ConfigurationError: one of the three arguments is missing, or no length.
        """
        if member_input_ids is None or self._disabled:
            return None
        if member_attention_mask is None or context_length is None:
            raise ConfigurationError(
                "member_input_ids need member_attention_mask and context_length, the columns of the leader's text that "
                "they stand in place of. model.prepare(...) makes them, and generate() knows the length."
            )
        return Contexts(member_input_ids, member_attention_mask, context_length)

    # ---- the passes -------------------------------------------------------------------------------------------

    def scores(self, call: Call, cache: ComposedCache | None, keep: int | torch.Tensor = 0) -> dict[str, torch.Tensor]:
        """Run the members; returns the scores [batch, kept, vocabulary] by role, all of them in the leader's ids.

        The others have only the last positions where contexts are read, and none at all before.
        """
        if call.contexts is not None and call.past < call.contexts.length:
            call.contexts.check(call.input_ids.shape[0], self.other_roles)
        composable = call.composable(keep)
        passes = self.scored_passes
        if self._disabled or (call.contexts is not None and composable == 0):
            passes = self.passes[:1]  # the leader's, which comes first
        elif cache is not None and not cache.is_compileable:
            self._check_in_step(call, cache)
        scores: dict[str, torch.Tensor] = {}
        for roles in passes:  # members on several devices overlap, since nothing here waits for a result
            scores |= self.run_pass(roles, call, cache, keep if roles[0] == self.leader_role else composable)
        return scores

    def _check_in_step(self, call: Call, cache: ComposedCache) -> None:
        lengths = {roles[0]: cache.members[roles[0]].get_seq_length() for roles in self.scored_passes}
        wanted = dict.fromkeys(lengths, lengths[self.leader_role])
        if call.contexts is not None:
            for roles in self.scored_passes[1:]:
                extra = call.contexts.extra_length(self.context_rows(roles))
                wanted[roles[0]] = call.past + extra if call.past >= call.contexts.length else 0
        late = {role: lengths[role] for role in wanted if lengths[role] != wanted[role]}
        if late:
            due = {role: wanted[role] for role in late}
            raise CacheError(
                f"The cache holds {late} positions where {due} were to be: it was filled with other contexts (pass the "
                "same member_input_ids at every call), while the composition was disabled, or by one member alone. "
                "Start again from an empty cache."
            )

    def run_pass(
        self, roles: Sequence[str], call: Call, cache: ComposedCache | None, keep: int | torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Run the members of one pass; returns their scores by role."""
        model = self.member(roles[0])
        view = {CACHE_ARGUMENT: cache.members[roles[0]]} if cache is not None else {}
        readers = list(roles) if call.contexts else self.readers(roles)
        if cache is not None:
            cache.copies[roles[0]] = len(readers)
        inputs = self._inputs(readers, call, view.get(CACHE_ARGUMENT))
        self._check_length(inputs, view.get(CACHE_ARGUMENT), roles[:1])
        moved = {
            key: value.to(model.device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()
        }
        with self._adapted(model, readers, moved["input_ids"].shape[0]):
            output = run_with_head(model, **moved, **view, logits_to_keep=keep)
        parts = dict(zip(readers, cast(torch.Tensor, output.logits).chunk(len(readers)), strict=True))
        read_by = {role: role if role in parts else self._twins[role] for role in roles}
        return {role: self._scores_of(role, parts[reader]) for role, reader in read_by.items()}

    def readers(self, roles: Sequence[str]) -> list[str]:
        """The members of one pass that have rows of their own, where all read the same texts."""
        return list(dict.fromkeys(self._twins[role] for role in roles))

    def _inputs(self, roles: Sequence[str], call: Call, view: Cache | None) -> dict[str, Any]:
        """What the members of one pass are called with: rows member by member, in their own ids."""
        leader, contexts = roles[0] == self.leader_role, call.contexts
        ids = call.input_ids if leader else torch.cat([self._member_ids(role, call.input_ids) for role in roles])
        mask, positions = (_repeated(part, len(roles)) for part in (call.attention_mask, call.position_ids))
        if contexts is not None and not leader:
            context, context_mask = (part.to(ids.device) for part in contexts.of(self.context_rows(roles)))
            ids = new_ids(context, ids, call.past, contexts.length)
            mask = full_mask(context_mask, mask, call.columns, contexts.length)
            columns = call.columns + context.shape[1] - contexts.length
            positions = positions_of(mask[:, :columns], ids.shape[1])  # a static cache's mask is wider
            mask = self.create_masks_for_generate(self.config, mask, input_ids=ids, **{CACHE_ARGUMENT: view})
        elif positions is None:
            positions = positions_of(mask, ids.shape[1])
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": call.use_cache}

    def _member_ids(self, role: str, ids: torch.Tensor) -> torch.Tensor:
        return self.vocabularies[role].member_ids(ids) if role in self.vocabularies else ids

    @contextmanager
    def _adapted(self, model: PreTrainedModel, roles: Sequence[str], rows: int) -> Iterator[None]:
        if roles[0] in self._slots:
            with self._slots[roles[0]].during(row_adapters(roles, self.adapters, rows)):
                yield
        elif roles[0] in self.adapters:
            with switched_to(model, self.adapters[roles[0]]):
                yield
        else:
            yield

    def _scores_of(self, role: str, logits: torch.Tensor) -> torch.Tensor:
        if self._disabled:
            return logits
        temperature = (self.config.temperatures or {}).get(role, 1.0)
        scores = as_scores(at_temperature(logits, temperature), self.config.scores)
        if role in self.vocabularies:
            scores = self.vocabularies[role].member_scores(scores)
        return scores.to(self.device, non_blocking=True)


def _repeated(part: torch.Tensor | None, copies: int) -> torch.Tensor | None:
    return part if part is None or copies == 1 else torch.cat([part] * copies)
