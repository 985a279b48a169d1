"""Speculative decoding of a logit composition: one member drafts, the others score the draft in one pass.

Here are the choice of the drafter and what `decoding.speculative` asks of a target; the rules of acceptance are there.
A drafter that is in the formula scores its own draft while it writes: it reads no token twice.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lmcompose.architecture import count_parameters, counts_slots, position_limit
from lmcompose.cache import ComposedCache
from lmcompose.decoding.speculative import LOOKUP, POSITION_COST, Speculation
from lmcompose.errors import CacheError, ConfigurationError, nearest
from lmcompose.logits.contexts import Contexts
from lmcompose.logits.passes import Call
from lmcompose.logits.steps import at_steps, is_scheduled

READER_COST = 0.25
"""What one more member in a pass costs, relative to a pass of one: half a billion parameters on two CPU cores, with an
adapter (bfloat16)."""


def as_speculation(given: Any) -> Speculation | None:
    """What `generate(speculative=...)` was given, or None for plain decoding.

    Raises:
        ConfigurationError: neither a `Speculation` nor True or False.
    """
    if given is None or given is False:
        return None
    if given is True:
        return Speculation()
    if not isinstance(given, Speculation):
        raise ConfigurationError(
            f"speculative = {given!r}: give True, or Speculation(drafter=..., draft_length=...) from lmcompose."
        )
    return given


def choose_drafter(model: Any, speculation: Speculation, values: Mapping[str, Any], rows: int) -> str:
    """The role that drafts: the one named in the call, the composition's own, or the one with the largest weight.

    Or `LOOKUP`, where that is named and no member has this name.

    Args:
        model: the composition.
        values: the formula's parameters in this call. Where they leave no member but the leader a positive weight, the
            composition's own values decide.
        rows: texts in the batch.

    Raises:
        ConfigurationError: no such member, none to choose, or one without which no member is left to score the draft.
    """
    name = speculation.drafter or model.config.drafter
    if name is None:
        name = next(
            (role for given in (values, model.values()) if (role := _heaviest(model, given, rows)) is not None), None
        )
    if name is None:
        raise ConfigurationError(
            f"No member but '{model.leader_role}' has a positive weight in '{model.formula}', so none is taken as the "
            f"drafter. Name one: speculative=Speculation(drafter={list(model.members)[-1]!r}), or 'lookup'."
        )
    if name == LOOKUP and name not in model.members:
        return name
    if name not in model.members:
        raise ConfigurationError(
            f"There is no member '{name}' to draft; the members are {list(model.members)}, and 'lookup' drafts without "
            f"any.{nearest(name, [*model.members, LOOKUP])}"
        )
    if all(name in roles for roles in model.scored_passes):
        raise ConfigurationError(
            f"'{name}' cannot draft for itself: no other member is left to score its draft. Add a smaller model as "
            "drafter=..., or decode without speculation."
        )
    return name


def _heaviest(model: Any, values: Mapping[str, Any], rows: int) -> str | None:
    """The role with the largest positive weight, the leader aside; a weight that varies counts by its first mean."""
    weights = model.formula.coefficients(at_steps(values, rows, range(1)))
    means = {role: float(torch.as_tensor(weight).float().mean()) for role, weight in weights.items()}
    means.pop(model.leader_role, None)
    best = max(means, key=lambda role: means[role], default=None)
    return best if best is not None and means[best] > 0 else None


def drafting_cost(model: Any, draft_pass: tuple[str, ...]) -> float:
    """What one drafted token costs relative to a pass of all other members over one: by the weights that are read, and
    by how many members read them at once."""
    sizes = {
        roles: count_parameters(model.member(roles[0])) * (1 + READER_COST * (len(model.readers(roles)) - 1))
        for roles in {*model.scored_passes, draft_pass}
    }
    drafter = sizes.pop(draft_pass)
    return drafter / max(1, sum(sizes.values())) + POSITION_COST


class DraftedPasses:
    """The passes of a composition over one batch of texts, of which one may be ahead of the others.

    A `decoding.speculative.Target`. Columns are those of the ids it is given; the cache may hold `before` columns more,
    of a text that a caller goes on with.

    Args:
        model: the composition.
        drafter: the role that drafts, with which members run that share its pass; None where no member drafts.
        cache: which all scored members filled with the prompts.
        ids: [B, n] the prompts.
        model_kwargs: what `generate` calls the composition with: the mask, positions, contexts and parameters.

    Raises:
        CacheError: the drafter did not read a text that the cache goes on with.
    """

    def __init__(
        self, model: Any, drafter: str | None, cache: ComposedCache, ids: torch.Tensor, model_kwargs: Mapping[str, Any]
    ) -> None:
        self.model, self.cache, self.drafter = model, cache, drafter
        self.draft_pass: tuple[str, ...] = () if drafter is None else pass_of(model, drafter)
        self.drafts = drafter is not None
        self.bonus = self.draft_pass not in model.scored_passes
        outside = self.drafts and self.bonus
        self.passes = [*model.scored_passes, *([self.draft_pass] if outside else [])]
        self.contexts: Contexts | None = model.contexts(
            *(model_kwargs.get(name) for name in ("member_input_ids", "member_attention_mask", "context_length"))
        )
        self.context_length = model_kwargs.get("context_length")
        self.values = model.values(model_kwargs.get("alpha"), model_kwargs.get("parameters"))
        self.mask, self.positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
        self.prompt = int(cache.get_seq_length())  # columns
        self.before = self.prompt - ids.shape[1]
        self._read = dict.fromkeys((roles[0] for roles in self.passes), self.prompt)
        if outside:
            self._read[self.draft_pass[0]] = self._read_by_drafter()
        self._limits = [limit - self.before for roles in self.passes for limit in self._column_limits(roles)]
        self._kept: dict[str, torch.Tensor] = {}
        self._ahead: dict[str, torch.Tensor] = {}

    @property
    def takes_guesses(self) -> bool:
        """Not where layers let go of the past whenever they are cropped: that may be done between drafts alone."""
        layers = self.cache.members[self.draft_pass[0]].layers if self.drafts else []
        return not any(hasattr(layer, "record_past") for layer in layers)

    def _read_by_drafter(self) -> int:
        """The columns that a drafter outside of the formula has read: none before it is asked for the first time."""
        length = int(self.cache.members[self.draft_pass[0]].get_seq_length())
        read = length - self._extra(self.draft_pass) if length else 0
        if not self.before <= read <= self.prompt:
            raise CacheError(
                f"The drafter '{self.drafter}' has read {read} of the {self.prompt} columns that the cache holds, and "
                f"cannot catch up: {self.before} of them are not in input_ids. Pass the whole text, or decode without "
                "speculation."
            )
        return read

    def _extra(self, roles: tuple[str, ...]) -> int:
        """Positions that a pass has in the cache beyond the leader's: its context may be longer, or shorter."""
        if self.contexts is None or roles[0] == self.model.leader_role:
            return 0
        return self.contexts.extra_length(self.model.context_rows(roles))

    def _column_limits(self, roles: tuple[str, ...]) -> list[int]:
        """After how many columns the members of a pass run out of positions."""
        limits = []
        for limit, slots in position_limits(self.model.member(roles[0])):
            if slots:  # padding uses positions up too
                used = self.prompt + self._extra(roles)
            elif self.contexts is not None and roles[0] != self.model.leader_role:
                context = self.contexts.of(self.model.context_rows(roles))[1]
                used = int(context.sum(dim=1).max()) + self.prompt - self.contexts.length
            else:
                used = self.prompt if self.positions is None else int(self.positions.max()) + 1
            limits.append(limit - used + self.prompt)
        return limits

    # ---- what speculation asks for ----------------------------------------------------------------------------

    def draft_scores(self, ids: torch.Tensor, count: int = 1) -> torch.Tensor:
        """[B, count, V] the drafter's scores after each of the last `count` columns of `ids` [B, n]."""
        assert self.drafter is not None, "nothing is drafted without a drafter"
        scores = self._run(self.draft_pass, ids, count)
        if not self.bonus:
            for role, part in scores.items():
                self._kept[role] = torch.cat([self._kept[role], part], dim=1) if role in self._kept else part
        return scores[self.drafter]

    def crop_draft(self, columns: int) -> None:
        """Let the drafter forget what it read after so many columns, in vain."""
        role = self.draft_pass[0]
        vain = self._read[role] - self.before - columns
        if vain > 0:
            self.cache.crop_member(role, -vain)
            self._read[role] -= vain
            self._kept = {name: part[:, : part.shape[1] - vain] for name, part in self._kept.items()}

    def final_logits(self, ids: torch.Tensor, count: int, ahead: bool = False) -> torch.Tensor:
        """[B, count, V] the composition's logits after each of the last `count` columns of `ids` [B, n]; with `ahead`,
        of those before the last one, which the drafter has not read."""
        scores: dict[str, torch.Tensor] = {}
        for roles in self.model.scored_passes:
            if roles != self.draft_pass or not self._kept:
                scores |= self._run(roles, ids, count + ahead)
        if ahead:
            self._ahead = {role: part[:, -1:] for role, part in scores.items()}
            scores = {role: part[:, :-1] for role, part in scores.items()}
        scores |= {role: part[:, -count:] for role, part in self._kept.items()}  # as they were drafted
        return self._composed(scores, ids[:, : ids.shape[1] - ahead], count)

    def logits_ahead(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, 1, V] the composition's logits after `ids` [B, n], of which the drafter has not read the last column."""
        return self._composed(self._ahead | self._run(self.draft_pass, ids, 1), ids, 1)

    def _composed(self, scores: dict[str, torch.Tensor], ids: torch.Tensor, count: int) -> torch.Tensor:
        steps = None
        if self.contexts is not None or is_scheduled(self.values):
            steps = self.model.steps(self._call(ids, 0), count, self.context_length)
        logits: torch.Tensor = self.model.composed_logits(scores, self.values, steps)
        return logits

    def crop(self, columns: int) -> None:
        """Forget what was read after so many columns, be it nothing: sliding windows let go of the past only here."""
        for roles in self.passes:
            kept = min(self._read[roles[0]], columns + self.before)
            self.cache.crop_member(roles[0], kept - self._read[roles[0]])
            self._read[roles[0]] = kept
        self._kept, self._ahead = {}, {}

    def room(self, columns: int) -> int | None:
        """How many columns more than `columns` all members have positions for; None where positions never end."""
        return min((limit - columns for limit in self._limits), default=None)

    # ---- passes -----------------------------------------------------------------------------------------------

    def _new(self, roles: tuple[str, ...], ids: torch.Tensor) -> int:
        """How many columns of `ids` a pass has not read."""
        return self.before + ids.shape[1] - self._read[roles[0]]

    def _run(self, roles: tuple[str, ...], ids: torch.Tensor, count: int) -> dict[str, torch.Tensor]:
        """Let one pass read what is new to it; the scores [B, count, V] of the last columns by role."""
        new = self._new(roles, ids)
        scores: dict[str, torch.Tensor] = self.model.run_pass(roles, self._call(ids, new), self.cache, count)
        self._read[roles[0]] += new
        return scores

    def _call(self, ids: torch.Tensor, new: int) -> Call:
        """A call with the last `new` columns of `ids`; what was written after the prompt is no padding."""
        columns = self.before + ids.shape[1]
        mask, positions = self.mask, self.positions
        if mask is not None:
            mask = nn.functional.pad(mask, (0, columns - mask.shape[1]), value=1)
        if positions is not None:
            later = torch.arange(1, columns - self.prompt + 1, device=positions.device)
            positions = torch.cat([positions, positions[:, -1:] + later], dim=1)
            positions = positions[:, positions.shape[1] - new :]
        return Call(ids[:, ids.shape[1] - new :], mask, positions, self.contexts, columns - new, True)


def pass_of(model: Any, role: str) -> tuple[str, ...]:
    """The roles that run together with `role`."""
    return next(roles for roles in model.passes if role in roles)


def position_limits(model: Any) -> list[tuple[int, bool]]:
    """How many positions a member has, where they end, and whether padding uses them up; of a composition, for each
    of its own members."""
    if getattr(model, "is_composed", False):
        return [limit for member in model.members.values() for limit in position_limits(member)]
    limit = position_limit(model)
    return [] if limit is None else [(limit, counts_slots(model))]
