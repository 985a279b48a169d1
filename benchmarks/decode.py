"""Decoding speed: a composition's seconds per token over the sum of its two members', each decoded alone.

    python benchmarks/decode.py                                   random members
    python benchmarks/decode.py --anchor FOLDER --augmenting FOLDER --dtypes bfloat16

Greedy decoding by `generate`, in one process, the three models taking turns in every repetition; medians are
reported. A composition runs both members once per token, so 1.00 would mean that the bridges cost nothing; the aim
is 1.10. The time of every step is taken as well: growth over the text compares the last quarter of the steps with the
first (a composition that recomputed its past would grow with every token). Run nothing else meanwhile.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import PreTrainedModel

import lmcompose
from lmcompose.experiments.decode_times import decode
from lmcompose.reporting.plots import benchmark_figure
from members import DTYPES, add_member_options, finish, load_pair, prepare, record

NAMES = ("anchor", "augmenting", "composition")


def summarise(runs: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Medians over repetitions of each model's runs (each a list of seconds per token)."""
    per_token = {name: statistics.median(sum(run) / len(run) for run in runs[name]) for name in NAMES}
    # The time of step t is its median over the repetitions: one slow moment of the machine does not show.
    steps = {name: [statistics.median(times) for times in zip(*runs[name], strict=True)][1:] for name in NAMES}
    quarter = max(1, len(steps["composition"]) // 4)
    first = {name: statistics.median(steps[name][:quarter]) for name in NAMES}
    last = {name: statistics.median(steps[name][-quarter:]) for name in NAMES}
    typical = {name: statistics.median(steps[name]) for name in NAMES}
    members = ("anchor", "augmenting")
    return {
        "seconds_per_token": per_token,
        "ratio": per_token["composition"] / sum(per_token[name] for name in members),
        "seconds_per_step": typical,
        "step_ratio": typical["composition"] / sum(typical[name] for name in members),
        "growth": {
            "composition": last["composition"] / first["composition"],
            "members": sum(last[name] for name in members) / sum(first[name] for name in members),
        },
    }


def main() -> None:
    """Measure every combination asked for, print the table, write the JSON and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_member_options(parser)
    parser.add_argument("--prompts", type=int, nargs="+", default=[64, 512], help="prompt lengths (default 64 512)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="batch sizes (default 1 8)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16", "float32"], help="of the members")
    parser.add_argument("--bridge-dtype", choices=DTYPES, help="of the bridges (default: the members')")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/decode.json"))
    options = parser.parse_args()
    now = prepare(options)

    rows = []
    shapes = [(prompt, batch) for prompt in options.prompts for batch in options.batches]
    with Progress(transient=True) as progress:
        bar = progress.add_task("decoding", total=len(options.dtypes) * len(shapes) * (options.repetitions + 1))
        for dtype in options.dtypes:
            anchor, augmenting = load_pair(options, DTYPES[dtype])
            composition = compose_with_random_bridges(
                anchor, augmenting, options.every, DTYPES[options.bridge_dtype or dtype]
            )
            models = dict(zip(NAMES, (anchor, augmenting, composition), strict=True))
            vocabulary = min(anchor.config.vocab_size, augmenting.config.vocab_size)
            for prompt, batch in shapes:
                torch.manual_seed(0)
                input_ids = torch.randint(3, vocabulary, (batch, prompt), device=options.device)
                runs: dict[str, list[list[float]]] = {name: [] for name in NAMES}
                for repetition in range(options.repetitions + 1):
                    for name, model in models.items():
                        times = decode(model, input_ids, options.new_tokens, now)
                        if repetition:  # the first is a warm-up
                            runs[name].append(times)
                    progress.advance(bar)
                rows.append({"dtype": dtype, "prompt": prompt, "batch": batch, **summarise(runs)})
            del anchor, augmenting, composition, models

    result = record(
        "decode_benchmark",
        options,
        new_tokens=options.new_tokens,
        repetitions=options.repetitions,
        bridge_dtype=options.bridge_dtype or "the members'",
        results=rows,
    )
    finish(result, options.output)
    benchmark_figure(result, options.output.with_suffix(".png"))


def compose_with_random_bridges(
    anchor: PreTrainedModel, augmenting: PreTrainedModel, every: int, dtype: torch.dtype
) -> PreTrainedModel:
    """A composition whose W_O is not zero, as after training."""
    model = lmcompose.compose(anchor=anchor, augmenting=augmenting, every=every, bridge_dtype=dtype)
    torch.manual_seed(2)
    for _, parameter in model.composition_parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


if __name__ == "__main__":
    main()
