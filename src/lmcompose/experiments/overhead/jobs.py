"""What is measured, each in a process of its own: its time, and the most memory that it takes.

A process for each keeps what one method has loaded, or once used, out of the peak of the next.
"""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lmcompose.architecture import hook_head
from lmcompose.errors import ConfigurationError
from lmcompose.experiments.decode_times import decode
from lmcompose.experiments.overhead import steps
from lmcompose.loading import load_member
from lmcompose.memory import forget_peak, peak_bytes, used_bytes


@dataclass(frozen=True)
class Job:
    """What every process needs to know.

    Attributes:
        anchor, augmenting: by name.
        pairs: the connections.
        rank: of LoRA.
        rows: token ids of the anchor [batch, length] to train on.
        prompts: token ids of each model to decode after.
        repetitions: how often each is timed, after once more to warm up.
        dtype: of the members; None keeps what they have.
        cpu_time: count the CPU seconds of the process in place of wall time.
    """

    anchor: str
    augmenting: str
    pairs: Sequence[Sequence[int]]
    rank: int
    rows: list[list[int]]
    prompts: dict[str, list[int]]
    new_tokens: int
    repetitions: int
    dtype: str | None
    device: str
    cpu_time: bool = False

    @property
    def now(self) -> Callable[[], float]:
        """The clock."""
        return time.process_time if self.cpu_time else time.perf_counter


def in_a_process_of_its_own(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns, or raises, in a new process.

    Raises:
        ConfigurationError: the process was ended from outside, as systems do that run out of memory.
    """
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool as error:
        raise ConfigurationError(
            f"The process that measured {what} was ended before it was done, most likely for want of memory. Give a "
            "smaller --batch or --length, or leave the method out with --methods."
        ) from error


def measure_training(method: str, job: Job) -> dict[str, Any]:
    """Seconds and bytes of a training step by "calm", "lora" or "full".

    Returns:
        "trained" (parameters), "seconds" of each step, "seconds_per_step" (their median), "peak_bytes" of the process
        (on a GPU: of what is allocated there), and "step_bytes", by which steps exceed the models at rest.
    """
    _quietly()
    if method == "calm":
        model: Any = steps.composed(job.anchor, job.augmenting, job.pairs, job.dtype, job.device)
    else:
        model = steps.tuned(job.anchor, job.rank if method == "lora" else None, job.dtype, job.device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    step = steps.training_step(model, parameters, torch.tensor(job.rows, device=job.device))
    gc.collect()
    forget_peak(job.device)
    loaded = used_bytes(job.device)
    seconds = []
    for repetition in range(job.repetitions + 1):
        start = job.now()
        step()
        if repetition:  # the first is a warm-up, and makes the optimizer's state
            seconds.append(job.now() - start)
    peak = peak_bytes(job.device)
    return {
        "trained": sum(parameter.numel() for parameter in parameters),
        "seconds": seconds,
        "seconds_per_step": statistics.median(seconds),
        "peak_bytes": peak,
        "step_bytes": peak - loaded,
    }


def measure_decoding(name: str, job: Job) -> dict[str, Any]:
    """Seconds for each decoded token of "anchor", "augmenting" or "composition", the prompt's pass apart.

    Returns:
        "seconds" of every token but the first of each repetition, "seconds_per_token" (their median), "first_seconds"
        (the median of the prompt with the first token) and "peak_bytes".
    """
    _quietly()
    if name == "composition":
        model: Any = steps.composed(job.anchor, job.augmenting, job.pairs, job.dtype, job.device)
        _randomise(model)
    else:
        model = load_member(job.anchor if name == "anchor" else job.augmenting, role=name, dtype=job.dtype).model
        model = model.to(job.device)
        hook_head(model)  # a composition does so too
    model.eval()
    prompt = torch.tensor([job.prompts["augmenting" if name == "augmenting" else "anchor"]], device=job.device)
    forget_peak(job.device)
    runs = [decode(model, prompt, job.new_tokens, job.now) for _ in range(job.repetitions + 1)][1:]
    seconds = [second for run in runs for second in run[1:]]
    return {
        "seconds": seconds,
        "seconds_per_token": statistics.median(seconds),
        "first_seconds": statistics.median(run[0] for run in runs),
        "peak_bytes": peak_bytes(job.device),
    }


def _randomise(model: Any) -> None:
    """Draw all composition parameters, so that W_O is not zero: processors multiply some numbers faster than others."""
    generator = torch.Generator().manual_seed(0)
    for _, parameter in model.composition_parameters():
        values = torch.empty(parameter.shape)
        parameter.data.copy_(nn.init.normal_(values, std=0.02, generator=generator))


def _quietly() -> None:
    """The libraries of a new process know nothing of how quiet its parent is."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
