"""What the benchmarks share: the members that they compose, their options, and the results file that they write.

Members are random by default: speed does not depend on what weights say. Their sizes are such that arithmetic and
memory traffic, not Python, take the time; real models can be given as folders.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from lmcompose.card import run_record
from lmcompose.reporting.tables import grids, markdown

VOCABULARY = 8192
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def add_member_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which models are composed, and on what."""
    parser.add_argument("--anchor", help="a model folder or hub id in place of the random anchor")
    parser.add_argument("--augmenting", help="a model folder or hub id in place of the random augmenting model")
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 8], metavar=("ANCHOR", "AUGMENTING"))
    parser.add_argument("--hidden", type=int, nargs=2, default=[768, 384], metavar=("ANCHOR", "AUGMENTING"))
    parser.add_argument("--every", type=int, default=4, help="connect every so many augmenting layers (default 4)")
    add_machine_options(parser)


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where it runs, and how time is taken."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads for arithmetic (default: as torch chooses)")
    parser.add_argument(
        "--cpu-time", action="store_true", help="count this process's CPU seconds: a rough figure from a busy machine"
    )


def prepare(options: argparse.Namespace) -> Callable[[], float]:
    """Set the threads that were asked for; returns the clock to measure with."""
    if options.threads:
        torch.set_num_threads(options.threads)
    return time.process_time if options.cpu_time else time.perf_counter


def load_pair(options: argparse.Namespace, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The anchor and the augmenting model, frozen, in evaluation mode, on the device."""
    pair = []
    for role, (source, layers, hidden) in enumerate(
        zip((options.anchor, options.augmenting), options.layers, options.hidden, strict=True)
    ):
        if source:
            model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        else:
            torch.manual_seed(role)
            model = AutoModelForCausalLM.from_config(random_config(layers, hidden), dtype=dtype)
        pair.append(model.requires_grad_(False).eval().to(options.device))
    return pair[0], pair[1]


def random_config(layers: int, hidden: int) -> LlamaConfig:
    """A Llama of the usual proportions: heads 64 wide, two query heads to a key head, an MLP 8/3 as wide."""
    heads = hidden // 64
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def in_a_process_of_its_own(option: str, value: str) -> Any:
    """What this script prints as JSON on its last line when it is run with the options of now and one more."""
    child = subprocess.run([sys.executable, *sys.argv, option, value], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(child.stdout.splitlines()[-1])


def describe(options: argparse.Namespace) -> str:
    """The pair in words, for the record."""
    words = []
    for source, layers, hidden in zip(
        (options.anchor, options.augmenting), options.layers, options.hidden, strict=True
    ):
        words.append(Path(source).name if source else f"random Llama of {layers} layers, width {hidden}")
    return f"{words[0]} (anchor) and {words[1]}"


def record(what: str, options: argparse.Namespace, members: str | None = None, **fields: Any) -> dict[str, Any]:
    """A result with all that is needed to make it again; `members` in words, where they are no pair."""
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    return {
        "what": what,
        **run_record(),
        "members": members or describe(options),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "clock": "CPU time of the process" if options.cpu_time else "wall time",
        **fields,
    }


def finish(result: dict[str, Any], output: Path) -> None:
    """Print the tables of `result`; write it to `output`, and its tables beside it in Markdown."""
    console = Console()
    for grid in grids(result):
        console.print(grid.to_rich())
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n")
    output.with_suffix(".md").write_text(markdown(result))
    console.print(f"Written to {output}")
