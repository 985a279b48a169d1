"""How long each decoded token takes: the arrivals at a streamer of `generate`."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer


class Clock(BaseStreamer):
    """Notes when each token arrives; the first arrival is the prompt's echo, before any model runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each token once it is on the CPU."""
        self.times.append(self.clock())

    def end(self) -> None:
        """Called by `generate` after the last token."""


def decode(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    new_tokens: int,
    now: Callable[[], float] = time.perf_counter,
    **options: Any,
) -> list[float]:
    """Decode greedily; returns the seconds that each token took, the first with the prompt."""
    return decode_tokens(model, input_ids, new_tokens, now, **options)[0]


@torch.inference_mode()
def decode_tokens(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    new_tokens: int,
    now: Callable[[], float] = time.perf_counter,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[list[float], torch.Tensor]:
    """The same with the ids [batch, new]; without a mask nothing is padding; `options` are more of `generate`."""
    clock = Clock(now)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=new_tokens, min_new_tokens=new_tokens, pad_token_id=0, use_cache=True
    )
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    generating: Any = model
    start = now()
    tokens = generating.generate(input_ids, attention_mask=mask, generation_config=settings, streamer=clock, **options)
    assert tokens.shape[1] == input_ids.shape[1] + new_tokens, "generation stopped early"
    arrivals = [start, *clock.times[1:]]
    return [after - before for before, after in itertools.pairwise(arrivals)], tokens[:, input_ids.shape[1] :]
