"""Where `generate` turns to speculation: after the prompt was read, in place of its own loop over single tokens.

Everything around that loop is transformers' own: processors, stopping criteria, streamers, the form of the result.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import distributed
from transformers import Cache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMode
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.cache import ComposedCache
from lmcompose.calls import CallSlot
from lmcompose.decoding.counts import Statistics
from lmcompose.decoding.speculative import LOOKUP, POSITION_COST, Speculation, speculate
from lmcompose.decoding.texts import Texts
from lmcompose.errors import ConfigurationError
from lmcompose.logits.speculation import DraftedPasses, as_speculation, choose_drafter, drafting_cost, pass_of

COUNTING_PROCESSORS = (UnbatchedClassifierFreeGuidanceLogitsProcessor, SynthIDTextWatermarkLogitsProcessor)
"""Processors that count their calls, and so cannot be asked about tokens that are then thrown away."""


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `generate(speculative=..., return_dict_in_generate=True)` returns.

    Attributes:
        speculation: the drafter's role, or "lookup"; the counts of `decoding.counts.Statistics` with acceptance, passes
            of the other members per token, and mean draft length; and "fallback", why it was decoded plainly, or None.
    """

    speculation: dict[str, Any] | None = None


class Plan(NamedTuple):
    """What one call of `generate` speculates with."""

    speculation: Speculation
    drafter: str


class SpeculativeGenerationMixin:
    """The part of `generate` that speculates, for `LogitForCausalLM`."""

    _plans: CallSlot
    _disabled: bool
    device: torch.device

    @contextmanager
    def _speculating(self, given: Any, values: Mapping[str, Any], rows: int, custom: bool = False) -> Iterator[None]:
        """Within the block, `generate` speculates as `given` says.

        A slot carries it, since whatever `generate` does not know itself it would hand to the members.
        """
        speculation = as_speculation(given)
        if speculation is None:
            yield
            return
        if self._disabled:
            raise ConfigurationError(
                "The composition is disabled: its first member decodes alone, and no other one drafts. Leave out "
                "speculative=..., or generate outside of disable()."
            )
        if custom:
            raise ConfigurationError("custom_generate decodes its own way, without speculation. Leave out one of them.")
        speculation.statistics = None
        with self._plans.during(Plan(speculation, choose_drafter(self, speculation, values, rows))):
            yield

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: Any
    ) -> None:
        if self._plans.current is not None:
            if generation_mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
                raise ConfigurationError(
                    f"Speculation decodes greedily or by sampling, not by {generation_mode.value.replace('_', ' ')}. "
                    "Leave out speculative=..., or what asks for the other (num_beams, assistant_model, ...)."
                )
            if generation_config.use_cache is False:
                raise ConfigurationError("Speculation needs a cache. Leave out use_cache=False.")
        cast(Any, super())._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        plan: Plan | None = self._plans.current
        cache = model_kwargs.get(CACHE_ARGUMENT)
        static = plan is not None and cache is not None and cache.is_compileable
        if plan is None or static:
            if static:
                _warn("its cache is static")
            output = cast(Any, super())._sample(
                input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer, **model_kwargs
            )
            return output if plan is None else _reported(output, plan, None, "its cache is static")
        _check_processors(logits_processor)
        wants = generation_config.return_dict_in_generate
        texts = Texts(
            input_ids, stopping_criteria, cast(Any, generation_config)._pad_token_tensor, streamer,
            keep_scores=bool(wants and generation_config.output_scores),
            keep_logits=bool(wants and generation_config.output_logits),
        )  # fmt: skip
        model: Any = self
        outputs = model._prefill(
            input_ids, generation_config, model_kwargs, is_first_iteration=not generation_config.is_assistant
        )
        composed: ComposedCache = outputs[CACHE_ARGUMENT]
        drafter = plan.drafter if plan.drafter in model.members else None  # tokens are looked up in the text
        passes = (*model.scored_passes, *([pass_of(model, drafter)] if drafter else []))
        reason = uncroppable(composed, dict.fromkeys(roles[0] for roles in passes))
        if drafter is None and synced_gpus:
            reason = "several processes run the same passes, and each would find other tokens in its texts"
        if reason is not None:
            _warn(reason)
        target = DraftedPasses(self, drafter if reason is None else None, composed, input_ids, model_kwargs)
        lengths = lookup = None
        if reason is None:
            cost = POSITION_COST if drafter is None else drafting_cost(self, target.draft_pass)
            lengths = plan.speculation.pace(cost, target.bonus, synced=synced_gpus)
            lookup = plan.speculation.lookup(drafter or LOOKUP, synced=synced_gpus)
        with model._optimize_model_for_decode(), _recording(composed, reason is None):
            statistics = speculate(
                target, texts, outputs.logits[:, -1],
                process=cast(Any, logits_processor),
                lengths=lengths,
                lookup=lookup,
                do_sample=bool(generation_config.do_sample),
                unfinished=lambda done: model._has_unfinished_sequences(done, synced_gpus, device=input_ids.device),
                shortest=self._shortest if synced_gpus else None,
            )  # fmt: skip
        if streamer is not None:
            streamer.end()
        result: Any = texts.ids
        if wants:
            parts = {"sequences": texts.ids, "scores": texts.scores, "logits": texts.logits, CACHE_ARGUMENT: composed}
            result = GenerateDecoderOnlyOutput(**cast(Any, parts))
        return _reported(result, plan, statistics, reason)

    def _shortest(self, length: int) -> int:
        """The shortest of the lengths that all processes want, so that they run the same passes."""
        lengths = torch.tensor(length, device=self.device)
        distributed.all_reduce(lengths, op=distributed.ReduceOp.MIN)
        return int(lengths)


def uncroppable(cache: ComposedCache, names: Collection[str]) -> str | None:
    """Why the views `names` of this cache, filled, cannot forget tokens that were read in vain; None where they can."""
    for name in names:
        for layer in cache.members[name].layers:
            if not layer.is_croppable:
                return f"the cache of its member '{name}' ({type(layer).__name__}) cannot be cropped"
    return None


def _warn(reason: str) -> None:
    warnings.warn(
        f"This composition cannot speculate, because {reason}. It decodes plainly: the text is the same, and takes "
        "longer.",
        stacklevel=2,
    )


def _check_processors(processors: LogitsProcessorList) -> None:
    counting = [type(processor).__name__ for processor in processors if isinstance(processor, COUNTING_PROCESSORS)]
    if counting:
        raise ConfigurationError(
            f"{', '.join(counting)} must see every token just once, and speculation tries tokens out. Leave out "
            "speculative=..., or the option that asks for it (guidance_scale, watermarking_config)."
        )


def _reported(result: Any, plan: Plan, statistics: Statistics | None, fallback: str | None) -> Any:
    plan.speculation.statistics = statistics if fallback is None else None
    if not isinstance(result, GenerateDecoderOnlyOutput):
        return result
    counts = (statistics or Statistics()).to_dict()
    return SpeculativeOutput(
        **cast(Any, dict(result.items())),
        speculation={"drafter": plan.drafter, **counts, "fallback": fallback},
    )


@contextmanager
def _recording(cache: Cache, wanted: bool) -> Iterator[None]:
    """Within the block, sliding windows keep what left them until they are cropped."""
    layers = [layer for layer in cache.layers if getattr(layer, "record_past", None) is False] if wanted else []
    if wanted:
        cache.activate_past_recording()
    try:
        yield
    finally:
        for layer in layers:
            cast(Any, layer).record_past = False
