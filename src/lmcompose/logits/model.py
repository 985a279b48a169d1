"""Logit composition as one language model: a weighted sum of its members' scores at every position.

Proxy-tuning (arXiv 2401.08565, equation 1) and its relatives are formulas over the same model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Cache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from lmcompose.alignment.vocab_maps import VocabularyMap
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.calls import CallSlot
from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError
from lmcompose.loading import Member, Source, check_roles, for_role, unharmed
from lmcompose.logits.arithmetic import combine, plausible, restrict
from lmcompose.logits.config import LogitConfig
from lmcompose.logits.generation import LogitGenerationMixin
from lmcompose.logits.members import end_tokens, load_roles, map_vocabularies, tokenizers_of
from lmcompose.logits.passes import Call, MemberPassesMixin
from lmcompose.logits.shared import set_in_use
from lmcompose.logits.steps import at_steps, check_values, is_scheduled
from lmcompose.reference import BARE, check_same_base
from lmcompose.saved import ComposedConfig, member_sources


@dataclass
class LogitOutput(CausalLMOutputWithPast):
    """What a forward pass gives, and on request each member's scores [batch, kept, vocabulary] by role."""

    member_scores: dict[str, torch.Tensor] | None = None


class LogitForCausalLM(LogitGenerationMixin, MemberPassesMixin, ComposedModel):
    """Frozen models whose scores are combined by a formula; nothing is trained, and `generate` works as ever.

    Args:
        config: see `LogitConfig`.
        members: the leader first, then the others by role; roles may share one model.
        vocabularies: role -> how the leader's token ids become that member's; none where they are the same.
        adapters: role -> the adapter it runs with, or `reference.BARE`, where roles share a model with adapters.

    Raises:
        ConfigurationError: the configuration cannot be computed.
    """

    config: LogitConfig
    config_class = LogitConfig
    summary = "A logit composition: a weighted sum of its members' scores at every token (arXiv 2401.08565)."

    def __init__(
        self,
        config: LogitConfig,
        members: Mapping[str, Member],
        vocabularies: Mapping[str, VocabularyMap] | None = None,
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        config.check()
        super().__init__(config, members)
        self.tokenizers = {role: member.tokenizer for role, member in members.items()}
        self.vocabularies = dict(vocabularies or {})
        self.adapters = dict(adapters or {})
        self.formula = config.parsed()
        self.mask = config.mask()
        self.scored_roles = {*self.formula.members, *([self.mask.member] if self.mask else [])}
        weights = self.formula.coefficients(at_steps(config.parameters or {}, rows=1, steps=range(1)))
        added = [role for role, weight in weights.items() if float(weight) > 0]
        ends = end_tokens(members, self.vocabularies, added)
        self.generation_config.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
        self._plans = CallSlot()
        self._plan_passes(config.share_passes, self.scored_roles)
        self._finish_init()

    def get_output_embeddings(self) -> nn.Module | None:
        """None: no one matrix makes the composed logits."""
        return None

    # ---- attach and detach ------------------------------------------------------------------------------------

    def attach(self) -> Self:
        """`ComposedModel.attach`; adapters that were put into a model here are there to be switched."""
        if not self.is_attached:
            for role, model in self._adapted_here().items():
                set_in_use(model, next(name for name in self._adapters_of(role) if name != BARE))
        return super().attach()

    def detach(self) -> PreTrainedModel:
        """`ComposedModel.detach`; a model that was loaded for several roles is what the first of them named."""
        if self.is_attached:
            for role, model in self._adapted_here().items():
                set_in_use(model, self.adapters[role])
        return super().detach()

    def _adapted_here(self) -> dict[str, PreTrainedModel]:
        """The shared models that named adapters were put into, by their first roles; live ones stay as they are."""
        references = self.config.references()
        found: dict[int, str] = {}
        for role in self.adapters:
            if any(references[other].adapter for other in self.adapters if self.member(other) is self.member(role)):
                found.setdefault(id(self.member(role)), role)
        return {role: self.member(role) for role in found.values()}

    def _adapters_of(self, role: str) -> list[str]:
        """The adapters, or `BARE`, of all roles that share the model of `role`."""
        return [name for other, name in self.adapters.items() if self.member(other) is self.member(role)]

    # ---- the forward pass -------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        member_input_ids: torch.Tensor | None = None,
        member_attention_mask: torch.Tensor | None = None,
        context_length: int | None = None,
        alpha: Any = None,
        parameters: Mapping[str, Any] | None = None,
        output_member_scores: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> LogitOutput | tuple:
        """One pass of all members over new tokens.

        Args:
            input_ids: [batch, new].
            attention_mask: [batch, all positions so far], 0 at padding; without it nothing is padding.
            position_ids: [batch, new]; worked out from the mask when left out.
            cache: what an earlier pass returned (`past_key_values` in transformers before 5.24; both are taken).
            labels: [batch, new], -100 where no loss is wanted; shifted here.
            logits_to_keep: how many last positions need logits (0 = all), or which.
            member_input_ids, member_attention_mask: [batch, members but the leader, length] other texts for the other
                members, in their own token ids, padded on the left; given at every call, cached or not.
            context_length: how many columns of the leader's text these stand in place of. Before the last of them the
                logits are the leader's alone.
            alpha: the formula's parameter of that name: a number, a tensor [batch], a list or a function of the step.
            parameters: values of this and the other parameters, by name.
            output_member_scores: also return each member's scores where they are composed.

        Returns:
            loss (where labels are given), logits [batch, kept, vocabulary] in float32, and the cache.

        Raises:
            ConfigurationError: `inputs_embeds` were given or hidden states wanted, the composition is detached, a text
                is longer than a member's table of positions, or a parameter has no such value.
            CacheError: the cache is not this composition's, or was filled with other contexts.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ConfigurationError("A composition reads input_ids: its members embed the same tokens differently.")
        if output_hidden_states or output_attentions:
            raise ConfigurationError(
                "A logit composition has neither hidden states nor attentions of its own, so leave out "
                "output_hidden_states and output_attentions, or ask model.member(role) for its own."
            )
        if not self.is_attached:
            raise ConfigurationError("This composition is detached from its members. Call attach() to use it again.")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and labels is None
        values = self.values(alpha, parameters)
        composed = self._composed_cache(cache if cache is not None else past_key_values, use_cache)
        contexts = self.contexts(member_input_ids, member_attention_mask, context_length)
        asks_for_steps = contexts is not None or is_scheduled(values)
        if asks_for_steps and isinstance(logits_to_keep, torch.Tensor):
            raise ConfigurationError("With a schedule or with contexts, logits_to_keep is a number of last positions.")
        past = int(composed.get_seq_length()) if composed is not None and asks_for_steps else 0
        call = Call(input_ids, attention_mask, position_ids, contexts, past, use_cache)
        scores = self.scores(call, composed, logits_to_keep)
        steps = self.steps(call, scores[self.leader_role].shape[1], context_length) if asks_for_steps else None
        logits = self.composed_logits(scores, values, steps)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items_in_batch
            )
        result = LogitOutput(
            loss=loss,
            logits=logits,
            member_scores=scores if output_member_scores else None,
            **cast(Any, {CACHE_ARGUMENT: composed}),
        )
        return result if return_dict is not False else result.to_tuple()

    def values(self, alpha: Any = None, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The formula's parameters: the composition's own, replaced by those of a call.

        Raises:
            ConfigurationError: a name that the formula does not have, or a value that cannot be.
        """
        given = {**(parameters or {}), **({} if alpha is None else {"alpha": alpha})}
        check_values(given, self.formula.parameters)
        return {**(self.config.parameters or {}), **given}

    def steps(self, call: Call, positions: int, context_length: int | None) -> range:
        """The steps of the last `positions` of a call: 0 predicts the first token after the prompt."""
        last = call.columns - (context_length or 1)
        return range(last - positions + 1, last + 1)

    def composed_logits(
        self, scores: Mapping[str, torch.Tensor], values: Mapping[str, Any], steps: range | None = None
    ) -> torch.Tensor:
        """The composition's logits [batch, kept, vocabulary] from its members' scores.

        Positions that only the leader has are the leader's own; they come first.
        """
        leader = scores[self.leader_role]
        if self._disabled or not self.scored_roles <= scores.keys():
            return leader.float()
        composed = min(part.shape[1] for part in scores.values())
        own, aligned = leader[:, : leader.shape[1] - composed], {r: part[:, -composed:] for r, part in scores.items()}
        steps = steps[-composed:] if steps is not None else None
        coefficients = self.formula.coefficients(at_steps(values, leader.shape[0], steps))
        lacking = {role: vocabulary.missing_on(leader.device) for role, vocabulary in self.vocabularies.items()}
        missing = {role: rows for role, rows in lacking.items() if rows is not None}
        logits = combine(
            {role: aligned[role] for role in self.formula.members},
            coefficients, missing, self.leader_role, self.config.missing_tokens,
        )  # fmt: skip
        if self.mask is not None:
            unknown = missing.get(self.mask.member)
            kept = plausible(aligned[self.mask.member], self.mask.kind, self.mask.value, unknown)
            logits = restrict(logits, kept if unknown is None else kept & ~unknown)  # top_k of more than there are
        return logits if own.shape[1] == 0 else torch.cat([own.float(), logits], dim=1)

    def _card_details(self) -> dict[str, dict[str, Any]]:
        names = ("formula", "parameters", "scores", "temperatures", "plausibility", "missing_tokens")
        chosen = {name: value for name in names if (value := getattr(self.config, name))}
        return {"Formula": chosen, **super()._card_details()}

    @classmethod
    def _load(
        cls, config: ComposedConfig, saved: str, replaced: Mapping[str, Source], **options: Any
    ) -> tuple[dict[str, Member], dict[str, Any]]:
        assert isinstance(config, LogitConfig)
        trust, dtype = options.pop("trust_remote_code", False), options.pop("dtype", None)
        quantization, safe = options.pop("quantization", None), options.get("use_safetensors", True)
        sources, plans = member_sources(config, saved, replaced, trust, quantization, safe)
        references = config.references()
        tokenizers = tokenizers_of(sources, plans, trust)
        vocabularies = map_vocabularies(tokenizers, plans, config.min_coverage)
        check_roles("dtype", dtype, references)
        wanted = {role: for_role(dtype, role, references) for role in references}
        dtypes = {
            role: before.dtype if wanted[role] in (None, "auto") else wanted[role]
            for role, before in references.items()
        }
        members, adapters = load_roles(sources, plans, tokenizers, dtypes=dtypes, trust_remote_code=trust, **options)
        with unharmed(members):
            for role, member in members.items():
                check_same_base(references[role], member.reference, role, config.made)
        return members, {"vocabularies": vocabularies, "adapters": adapters}


AutoModelForCausalLM.register(LogitConfig, LogitForCausalLM, exist_ok=True)
