"""What `generate` and `prepare` do for a logit composition beyond any other: contexts, schedules, early checks."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from lmcompose.architecture import stated_length
from lmcompose.errors import ConfigurationError
from lmcompose.logits.config import check_weights
from lmcompose.logits.contexts import Contexts
from lmcompose.logits.formula import Formula
from lmcompose.logits.prompts import PerRow, Prompt, prepare_prompts
from lmcompose.logits.sample import SpeculativeGenerationMixin
from lmcompose.logits.steps import is_scheduled

CALL_ARGUMENTS = ("alpha", "parameters", "member_input_ids", "member_attention_mask", "context_length")
"""What `forward` takes beyond other models, and what an assistant would not understand."""


class LogitGenerationMixin(SpeculativeGenerationMixin):
    """`generate` and `prepare` of `LogitForCausalLM`."""

    config: Any
    members: nn.ModuleDict
    tokenizers: dict[str, PreTrainedTokenizerBase | None]
    values: Any
    formula: Formula

    def prepare(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        context: Mapping[str, PerRow] | None = None,
        system: Mapping[str, PerRow] | None = None,
        templates: Mapping[str, str] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Prompts as each member is to read them: `model.generate(**model.prepare(...))`.

        Arguments, results and errors are those of `prompts.prepare_prompts`. A member without a tokenizer of its own
        has the leader's.
        """
        leader = next(iter(self.tokenizers.values()))
        if leader is None:
            raise ConfigurationError(
                "The leader has no tokenizer. Compose it with one: base=(model, tokenizer), or give ids to generate()."
            )
        tokenizers = {role: tokenizer or leader for role, tokenizer in self.tokenizers.items()}
        return prepare_prompts(tokenizers, prompts, context=context, system=system, templates=templates)

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, with `alpha`, `parameters` and the tensors of `prepare(...)` besides.

        `speculative=True`, or a `Speculation` that says more, lets one member draft tokens that the others then score
        in one pass: the same text in less time (see `sample.SpeculativeOutput` for what is counted).

        Raises:
            ConfigurationError: an empty prompt, one longer than a member is made for, contexts that do not fit, a
                parameter that the formula does not have, or a way of decoding in which nothing can be drafted; all of
                it before anything is computed.
        """
        speculative = kwargs.pop("speculative", None)
        ids = inputs if inputs is not None else kwargs.get("input_ids")
        values = self.values(kwargs.get("alpha"), kwargs.get("parameters"))
        if isinstance(ids, torch.Tensor) and ids.dim() == 2:
            if kwargs.get("member_input_ids") is not None or is_scheduled(values):
                kwargs.setdefault("context_length", ids.shape[1])
            self._check_prompts(ids, kwargs)
            check_weights(self.formula, values, ids.shape[0])
        rows = ids.shape[0] if isinstance(ids, torch.Tensor) else 1
        with self._speculating(speculative, values, rows, custom=kwargs.get("custom_generate") is not None):
            return cast(Any, super()).generate(inputs, *args, **kwargs)

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Assistants draft with arguments of their own: what a composition is called with is not for them."""
        kwargs["model_kwargs"] = {k: v for k, v in kwargs["model_kwargs"].items() if k not in CALL_ARGUMENTS}
        return cast(Any, super())._get_candidate_generator(*args, **kwargs)

    def _check_prompts(self, ids: torch.Tensor, kwargs: Mapping[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        lengths = {role: ids.shape[1] if mask is None else int(mask.sum(dim=1).max()) for role in self.members}
        empty = [] if mask is None else (mask.sum(dim=1) == 0).nonzero().flatten().tolist()
        if ids.shape[1] == 0 or empty:
            raise ConfigurationError(
                f"The prompt is empty{f' in rows {empty}' if empty else ''}: there is no token to go on from. Give at "
                "least one, such as the beginning-of-text token."
            )
        others = list(self.members)[1:]
        if (member_ids := kwargs.get("member_input_ids")) is not None:
            member_mask = kwargs.get("member_attention_mask")
            if member_mask is None:
                raise ConfigurationError("member_input_ids need member_attention_mask; model.prepare(...) makes both.")
            contexts = Contexts(member_ids, member_mask, kwargs["context_length"])
            contexts.check(ids.shape[0], others)
            if contexts.length > ids.shape[1]:
                raise ConfigurationError(
                    f"context_length = {contexts.length}, and the prompt has {ids.shape[1]} columns. It counts how "
                    "many of them are the leader's own context; leave it out where all are."
                )
            lengths |= {role: int(member_mask[:, index].sum(dim=1).max()) for index, role in enumerate(others)}
        for role, length in lengths.items():
            limit = stated_length(cast(Any, self.members[role]).config)
            if limit is not None and length > limit:
                name = self.config.references()[role].name_or_path
                raise ConfigurationError(
                    f"The prompt has {length} tokens for '{name}' (the {role}), which is made for {limit}. Shorten the "
                    "prompt, or take a member of longer texts."
                )
