"""What a composition, its members and a tuned model say at each position of one text, as log-probabilities.

This file runs models; what is made of their answers is the business of its callers.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmcompose.alignment.vocab_maps import VocabularyMap, map_vocabulary
from lmcompose.architecture import run_with_head, text_config
from lmcompose.composed import ComposedModel
from lmcompose.errors import ConfigurationError
from lmcompose.loading import Source, load_member, source_name
from lmcompose.logits.arithmetic import RULED_OUT
from lmcompose.logits.model import LogitForCausalLM

POSITIONS_AT_ONCE = 64
"""How many positions are worked on together: a vocabulary of 150,000 in float32 takes 0.6 MB at each."""


@dataclass(frozen=True)
class Scores:
    """Scores [positions, vocabulary] in the leader's token ids, as they enter the composition, or log-probabilities.

    Attributes:
        members: by role, the leader (the base) first.
        composition: the composition's own.
        tuned: those of a directly tuned model, where there is one.
    """

    members: dict[str, Tensor]
    composition: Tensor
    tuned: Tensor | None = None

    @property
    def base(self) -> Tensor:
        """The leader's: what the composition is without the others."""
        return next(iter(self.members.values()))

    def log_probabilities(self) -> Iterator[tuple[slice, "Scores"]]:
        """The log-probabilities, in float32, of a few positions at a time: which positions, and theirs."""
        for start in range(0, len(self.composition), POSITIONS_AT_ONCE):
            rows = slice(start, min(start + POSITIONS_AT_ONCE, len(self.composition)))
            tuned = None if self.tuned is None else log_probabilities(self.tuned[rows])
            members = {role: log_probabilities(scores[rows]) for role, scores in self.members.items()}
            yield rows, Scores(members, log_probabilities(self.composition[rows]), tuned)


@dataclass(frozen=True)
class Tuned:
    """A directly tuned model to compare with, and how the composition's token ids become its own."""

    name: str
    model: PreTrainedModel
    vocabulary: VocabularyMap

    def scores(self, inputs: Mapping[str, Tensor], keep: int) -> Tensor:
        """Its scores [keep, vocabulary] at the last positions, in the composition's ids."""
        with evaluating(self.model):
            output = run_with_head(self.model, **self.inputs(inputs), logits_to_keep=keep, use_cache=False)
        return self.vocabulary.member_scores(cast(Tensor, output.logits)[0])

    def inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The leader's `input_ids` and `attention_mask` on its device and in its own ids."""
        device = self.model.device
        return {
            "input_ids": self.vocabulary.member_ids(inputs["input_ids"]).to(device),
            "attention_mask": inputs["attention_mask"].to(device),
        }


def tuned_model(source: Source, model: ComposedModel, trust_remote_code: bool = False) -> Tuned:
    """The model at `source`, to stand beside `model`; a live one is used as it is.

    Raises:
        MemberError: it cannot be read, or reads other tokens than the composition.
    """
    live: Any = source[0] if isinstance(source, tuple) else source
    tokenizer: PreTrainedTokenizerBase | None = source[1] if isinstance(source, tuple) else None
    if isinstance(live, nn.Module):
        name = str(getattr(live, "name_or_path", "") or f"a live {type(live).__name__}")
    else:
        placed: dict[str, Any] = {} if model.device.type == "cpu" else {"device_map": str(model.device)}
        member = load_member(live, role="tuned model", trust_remote_code=trust_remote_code, **placed)
        live, tokenizer, name = member.model, member.tokenizer, source_name(live)
    vocabulary = map_vocabulary(
        model.tokenizer,
        tokenizer,
        cast(int, model.config.vocab_size),
        text_config(live.config).vocab_size,
        leader_name=source_name(model.leader),
        member_name=name,
    )
    return Tuned(name, live, vocabulary)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block, no dropout and no gradient; a model that was training trains on afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def composed_scores(
    model: ComposedModel,
    inputs: Mapping[str, Any],
    keep: int,
    *,
    alpha: Any = None,
    parameters: Mapping[str, Any] | None = None,
) -> Scores:
    """The scores of a composition and its members at the last `keep` positions of one text, in one pass.

    Of a composition that is no sum of scores, the members are the leader alone, in a second pass.

    Args:
        inputs: `input_ids` and `attention_mask` [1, length]; of a logit composition, also what else its forward takes.
        alpha, parameters: of a logit composition's formula.

    Raises:
        ConfigurationError: parameters that the composition does not have.
    """
    given = parameters_given(model, alpha, parameters)
    call: Any = model
    with torch.no_grad():
        if isinstance(model, LogitForCausalLM):
            output = call(**inputs, **given, logits_to_keep=keep, output_member_scores=True, use_cache=False)
            return Scores({role: scores[0] for role, scores in output.member_scores.items()}, output.logits[0])
        if getattr(model, "reads_prompts", False):  # the last position of the prompt predicts the first token scored
            given = {"prompt_length": inputs["input_ids"].shape[1] - keep + 1}
        with model.disable():
            base = call(**inputs, logits_to_keep=keep, use_cache=False).logits[0]
        whole = call(**inputs, **given, logits_to_keep=keep, use_cache=False).logits[0]
        return Scores({leader_role(model): base}, whole)


def parameters_given(model: ComposedModel, alpha: Any, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """`alpha` and `parameters` as a call takes them: only those that were given.

    Raises:
        ConfigurationError: the composition has no such parameter.
    """
    given = {name: value for name, value in (("alpha", alpha), ("parameters", parameters)) if value is not None}
    if isinstance(model, LogitForCausalLM):
        model.values(alpha, parameters)
    elif given:
        raise ConfigurationError(
            f"Only a logit composition has parameters such as alpha, and this is a '{model.config.model_type}' "
            "composition. Leave them out."
        )
    return given


def leader_role(model: ComposedModel) -> str:
    """The role of the member that gives the tokens: the base."""
    return next(iter(model.members))


# ---------------------------------------------------------------------------------------------------------- the maths


def log_probabilities(scores: Tensor) -> Tensor:
    """log softmax [..., vocabulary] in float32; what a model rules out is at -inf."""
    scores = scores.float()
    return scores.masked_fill(scores <= RULED_OUT, -torch.inf).log_softmax(dim=-1)


def divergence(left: Tensor, right: Tensor) -> Tensor:
    """KL(left || right) [...] in nats, of log-probabilities [..., vocabulary].

    It is infinite where `right` rules out what `left` does not.
    """
    probabilities = left.exp()
    terms = torch.where(probabilities > 0, probabilities * (left - right), 0.0)
    return terms.sum(dim=-1).clamp(min=0)  # rounding may leave a hair below


def common(left: Tensor, right: Tensor, missing: Tensor | None) -> tuple[Tensor, Tensor]:
    """Two members' log-probabilities over the tokens that both of them have: all but `missing`, bool [vocabulary]."""
    if missing is None:
        return left, right
    return (
        left.masked_fill(missing, -torch.inf).log_softmax(dim=-1),
        right.masked_fill(missing, -torch.inf).log_softmax(dim=-1),
    )


def standing(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and rank [positions] of `tokens` [positions]; rank 1 is the likeliest, and equals share a rank.

    Args:
        scores: log-probabilities [positions, vocabulary].
    """
    chosen = scores.gather(-1, tokens.to(scores.device)[:, None])
    return chosen[:, 0], 1 + (scores > chosen).sum(dim=-1)


def finite(number: float) -> float | None:
    """The number, or None where it is infinite or none: JSON has no infinity."""
    return number if math.isfinite(number) else None
