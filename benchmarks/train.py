"""Training cost: one CALM step over one LoRA step with as many trained parameters, on the same anchor.

    python benchmarks/train.py                                    random members
    python benchmarks/train.py --anchor FOLDER --augmenting FOLDER

A step is forward, loss, backward and AdamW over batch x length tokens. The two take turns in one process and medians
are reported. LoRA (peft) adapts every linear layer of the anchor, its rank solved so that the parameters match. Peak
memory is taken in a process of its own for each. CALM also runs the augmenting model, which LoRA does not have; it
saves the backward pass below the first connection, which LoRA does not. Run nothing else meanwhile.
"""

import argparse
import gc
import json
import statistics
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

import lmcompose
from lmcompose.experiments.overhead.steps import Step, training_step
from lmcompose.memory import peak_bytes
from lmcompose.training.lora import matching_rank, with_lora
from members import (
    DTYPES,
    add_member_options,
    finish,
    in_a_process_of_its_own,
    load_pair,
    prepare,
    record,
)

METHODS = ("calm", "lora")


def calm_step(options: argparse.Namespace) -> tuple[Step, dict[str, Any]]:
    """A function that trains the composition by one step and returns its loss, and what there is to say of it."""
    anchor, augmenting = load_pair(options, DTYPES[options.dtype])
    model = lmcompose.compose(anchor=anchor, augmenting=augmenting, every=options.every)
    model.train()
    parameters = [parameter for _, parameter in model.composition_parameters()]
    return _step(model, parameters, anchor.config.vocab_size, options), {"parameters": _size(parameters)}


def lora_step(options: argparse.Namespace) -> tuple[Step, dict[str, Any]]:
    """The same for LoRA on the anchor alone."""
    anchor, augmenting = load_pair(options, DTYPES[options.dtype])
    wanted = lmcompose.compose(anchor=anchor, augmenting=augmenting, every=options.every).num_composition_parameters()
    del augmenting
    rank = matching_rank(anchor, wanted)
    model = with_lora(anchor, rank, seed=0)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    facts = {"parameters": _size(parameters), "rank": rank}
    return _step(model, parameters, anchor.config.vocab_size, options), facts


def _step(model: nn.Module, parameters: list[nn.Parameter], vocabulary: int, options: argparse.Namespace) -> Step:
    torch.manual_seed(0)
    input_ids = torch.randint(3, vocabulary, (options.batch, options.length), device=options.device)
    return training_step(model, parameters, input_ids)


def _size(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


STEPS = {"calm": calm_step, "lora": lora_step}


def measure_memory(options: argparse.Namespace) -> dict[str, int]:
    """Peak bytes of this process (of the GPU, on one) over two steps, and how much of it the steps added."""
    step, _ = STEPS[options.memory_of](options)
    gc.collect()
    if options.device.startswith("cuda"):
        loaded = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        loaded = psutil.Process().memory_info().rss
    for _ in range(2):
        step()
    peak = peak_bytes(options.device)
    return {"peak_bytes": peak, "step_bytes": peak - loaded}


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_member_options(parser)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="tokens in each row (default 256)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the members; adapters are fp32")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/train.json"))
    parser.add_argument("--memory-of", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    now = prepare(options)
    if options.memory_of:
        print(json.dumps(measure_memory(options)))
        return

    results: dict[str, dict[str, Any]] = {method: in_a_process_of_its_own("--memory-of", method) for method in METHODS}
    steps = {}
    for method in METHODS:
        steps[method], facts = STEPS[method](options)
        results[method].update(facts)
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for repetition in range(options.repetitions + 1):
        for method, step in steps.items():
            start = now()
            step()  # ends with reading the loss, which waits for the device
            if repetition:  # the first is a warm-up
                seconds[method].append(now() - start)
    for method in METHODS:
        results[method]["seconds_per_step"] = statistics.median(seconds[method])
    results["ratio"] = {
        key: results["calm"][key] / results["lora"][key] for key in ("seconds_per_step", "peak_bytes", "step_bytes")
    }
    fields = {"batch": options.batch, "length": options.length, "dtype": options.dtype}
    finish(
        record("train_benchmark", options, **fields, repetitions=options.repetitions, results=results), options.output
    )


if __name__ == "__main__":
    main()
