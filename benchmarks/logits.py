"""Proxy-tuning's cost: a composition of three models over its members, and with speculation over its base alone.

    python benchmarks/logits.py                                                   random members
    python benchmarks/logits.py --base FOLDER --expert FOLDER --antiexpert FOLDER --dtypes bfloat16

Greedy decoding by `generate`, in one process, all taking turns in every repetition; medians are reported.

- plain: seconds per token of the composition over the sum of its three members', each decoded alone. The aim is 1.05.
  Where expert and antiexpert are one model with and without an adapter, they run as one pass: `shared`.
- speculative: the same composition with its expert as drafter, over plain, and over the base alone (the aim is 1.0 for
  a base three times the size of the expert). How many drafts are kept hangs on what the models know, so it is measured
  with real models only. An expert may be the folder of a LoRA adapter of the antiexpert.
- memory: of two small models, and of one with a LoRA adapter, each beside the base in a process of its own.

Run nothing else meanwhile.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import LoraConfig, get_peft_model
from rich.progress import Progress
from transformers import AutoModelForCausalLM, PreTrainedModel

import lmcompose
from lmcompose.experiments.decode_times import decode_tokens
from lmcompose.logits.shared import switched_to
from lmcompose.memory import peak_bytes
from members import (
    DTYPES,
    add_machine_options,
    finish,
    in_a_process_of_its_own,
    prepare,
    random_config,
    record,
)

ROLES = ("base", "expert", "antiexpert")
PAIRS = ("separate", "shared")
RANK = 16
TEXT = Path(__file__).parents[1] / "README.md"


def is_real(options: argparse.Namespace) -> bool:
    """Whether folders are given.

    Raises:
        SystemExit: some are given, and others are not.
    """
    given = [getattr(options, role) is not None for role in ROLES]
    if any(given) and not all(given):
        raise SystemExit("Give all three of --base, --expert and --antiexpert, or none of them for random models.")
    return all(given)


def load(options: argparse.Namespace, role: str, dtype: torch.dtype) -> PreTrainedModel:
    """The model of one role: from its folder, or random."""
    if is_real(options):
        model = AutoModelForCausalLM.from_pretrained(getattr(options, role), dtype=dtype)
    else:
        torch.manual_seed(ROLES.index(role))
        size = int(role != "base")
        model = AutoModelForCausalLM.from_config(random_config(options.layers[size], options.hidden[size]), dtype=dtype)
    return model.requires_grad_(False).eval().to(options.device)


def pair(options: argparse.Namespace, kind: str, dtype: torch.dtype) -> dict[str, Any]:
    """Expert and antiexpert: two models, or the antiexpert with and without an adapter that changes nothing."""
    antiexpert = load(options, "antiexpert", dtype)
    if kind == "separate":
        return {"expert": load(options, "antiexpert", dtype), "antiexpert": antiexpert}
    expert = get_peft_model(antiexpert, LoraConfig(r=RANK, target_modules="all-linear")).to(dtype).eval()
    return {"expert": expert, "antiexpert": expert.get_base_model()}


def compositions(options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    """The compositions to be timed; made-up ones share their base."""
    if is_real(options):
        members = {role: getattr(options, role) for role in ROLES}
        return {"plain": lmcompose.proxy_tune(**members, alpha=options.alpha, dtype=dtype).to(options.device)}
    base = load(options, "base", dtype)
    names = dict(zip(("plain", "shared"), PAIRS, strict=True))
    return {name: lmcompose.proxy_tune(base, **pair(options, kind, dtype)) for name, kind in names.items()}


@contextmanager
def alone(composition: Any, role: str) -> Iterator[PreTrainedModel]:
    """A member by itself, with its own adapter or without any."""
    model = composition.member(role)
    adapter = composition.adapters.get(role)
    with nullcontext() if adapter is None else switched_to(model, adapter):
        yield model


def prompts(
    options: argparse.Namespace, composition: Any, batch: int, length: int, text: Path
) -> Iterator[torch.Tensor]:
    """Prompts [batch, length] without end: pieces of a text where models are real, and else random tokens."""
    torch.manual_seed(0)
    if not is_real(options):
        while True:
            yield torch.randint(3, composition.member("base").config.vocab_size, (batch, length), device=options.device)
    ids = torch.tensor(composition.tokenizer(text.read_text())["input_ids"], device=options.device)
    if len(ids) < length:
        raise SystemExit(f"{text} has {len(ids)} tokens, and prompts of {length} were asked for: --text FILE.")
    start = 0
    while True:
        rows = []
        for _ in range(batch):
            start = start if start + length <= len(ids) else 0
            rows.append(ids[start : start + length])
            start += length
        yield torch.stack(rows)


def summarise(runs: dict[str, list[list[float]]], speculated: list[dict[str, Any]], same: list[bool]) -> dict[str, Any]:
    """Medians over repetitions of each model's runs (each a list of seconds per token), and their ratios.

    Args:
        runs: by name.
        speculated: what was counted in each run with speculation.
        same: whether it wrote what plain decoding wrote.
    """
    seconds = {name: statistics.median(sum(run) / len(run) for run in times) for name, times in runs.items()}
    members = sum(seconds[role] for role in ROLES)
    summary = {"seconds_per_token": seconds, "ratio": seconds["plain"] / members}
    if "shared" in seconds:
        summary["shared_ratio"] = seconds["shared"] / members
    if speculated:
        totals = {key: sum(one[key] for one in speculated) for key in
                  ("accepted", "drafted", "passes", "drafter_passes", "tokens", "positions", "rounds", "guessed",
                   "right")}  # fmt: skip
        summary["speculative"] = {
            "over_plain": seconds["speculative"] / seconds["plain"],
            "over_base": seconds["speculative"] / seconds["base"],
            "acceptance": totals["accepted"] / max(1, totals["drafted"]),
            "passes_per_token": totals["passes"] / totals["tokens"],
            "drafter_passes_per_token": totals["drafter_passes"] / totals["tokens"],
            "guessed_right": totals["right"] / max(1, totals["guessed"]),
            "draft_length": totals["positions"] / max(1, totals["rounds"]),
            "same_text": sum(same) / len(same),
        }
    return summary


def measure(
    options: argparse.Namespace, models: dict[str, Any], prompt: int, batch: int, text: Path, now: Any
) -> dict[str, Any]:
    """All models in turns, after a warm-up."""
    speculation = None
    if is_real(options):
        speculation = lmcompose.Speculation(
            options.drafter, options.draft_length, prompt_lookup_num_tokens=options.lookup
        )
    names = [*ROLES, *models, *(["speculative"] if speculation else [])]
    runs: dict[str, list[list[float]]] = {name: [] for name in names}
    speculated, same = [], []
    source = prompts(options, models["plain"], batch, prompt, text)
    for repetition in range(options.repetitions + 1):
        ids = next(source)
        written = {}
        for name in names:
            context = alone(models["plain"], name) if name in ROLES else nullcontext(models.get(name, models["plain"]))
            given = {"speculative": speculation} if name == "speculative" else {}
            with context as model:
                times, written[name] = decode_tokens(model, ids, options.new_tokens, now, **given)
            if repetition:  # the first is a warm-up
                runs[name].append(times)
        if repetition and speculation:
            speculated.append(speculation.statistics.to_dict())
            same.append(torch.equal(written["speculative"], written["plain"]))
    return summarise(runs, speculated, same)


def measure_memory(options: argparse.Namespace) -> dict[str, int]:
    """Peak bytes of this process (of the GPU, on one), and how much of them the pair added to the base."""
    dtype = DTYPES[options.dtypes[0]]
    base = load(options, "base", dtype)
    ids = torch.randint(3, base.config.vocab_size, (1, options.prompts[0]), device=options.device)
    decode_tokens(base, ids, 2)  # its pages are in memory then
    gc.collect()
    cuda = options.device.startswith("cuda")
    loaded = torch.cuda.memory_allocated() if cuda else psutil.Process().memory_info().rss
    model = lmcompose.proxy_tune(base, **pair(options, options.memory_of, dtype))
    decode_tokens(model, ids, 8)
    peak = peak_bytes(options.device)
    return {"peak_bytes": peak, "pair_bytes": peak - loaded}


def describe(options: argparse.Namespace) -> str:
    """The members in words, for the record."""
    if is_real(options):
        return ", ".join(f"{Path(getattr(options, role)).name} ({role})" for role in ROLES)
    sizes = [f"{layers} layers, width {hidden}" for layers, hidden in zip(options.layers, options.hidden, strict=True)]
    return f"random Llamas: the base of {sizes[0]}, the pair of {sizes[1]}"


def main() -> None:
    """Measure every combination asked for, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in ROLES:
        parser.add_argument(f"--{role}", help="a model folder or hub id in place of a random one; all three or none")
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 8], metavar=("BASE", "SMALL"))
    parser.add_argument("--hidden", type=int, nargs=2, default=[1024, 512], metavar=("BASE", "SMALL"))
    add_machine_options(parser)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--drafter", help="the member that drafts (default: the expert), or lookup")
    parser.add_argument(
        "--lookup", type=int, help="tokens to look up at a time, at most (default: as the draft length)"
    )
    parser.add_argument("--draft-length", type=int, default=8, help="tokens to draft at a time, at most (default 8)")
    parser.add_argument("--text", type=Path, nargs="+", default=[TEXT], help="what prompts of real models are cut from")
    parser.add_argument("--prompts", type=int, nargs="+", default=[64, 512], help="prompt lengths (default 64 512)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1], help="batch sizes (default 1)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"], help="of the members")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/logits.json"))
    parser.add_argument("--memory-of", choices=PAIRS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    now = prepare(options)
    if options.memory_of:
        print(json.dumps(measure_memory(options)))
        return

    is_real(options)  # before minutes are spent on memory
    memory = {kind: in_a_process_of_its_own("--memory-of", kind) for kind in PAIRS}
    memory["ratio"] = {key: memory["shared"][key] / memory["separate"][key] for key in ("peak_bytes", "pair_bytes")}
    rows = []
    texts = options.text if is_real(options) else options.text[:1]
    shapes = [(text, prompt, batch) for text in texts for prompt in options.prompts for batch in options.batches]
    with Progress(transient=True) as progress:
        bar = progress.add_task("decoding", total=len(options.dtypes) * len(shapes))
        for dtype in options.dtypes:
            models = compositions(options, DTYPES[dtype])
            for text, prompt, batch in shapes:
                rows.append({"dtype": dtype, "prompt": prompt, "batch": batch, "text": text.stem,
                             **measure(options, models, prompt, batch, text, now)})  # fmt: skip
                progress.advance(bar)
            del models
    fields = {"new_tokens": options.new_tokens, "repetitions": options.repetitions, "results": rows, "memory": memory}
    finish(record("logits_benchmark", options, members=describe(options), **fields), options.output)


if __name__ == "__main__":
    main()
