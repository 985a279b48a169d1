"""What a tokenizer of its own costs: a composition that aligns two tokenizers over the same one that shares tokens.

    python benchmarks/own_tokens.py --tokenizer FOLDER

Both compositions are made of the same two random models, and both models have the tokenizer in FOLDER; in one of them
the augmenting model reads the text as if it had another one: the anchor's ids are turned into text and that into final
tokens, row by row. So what differs is the alignment alone (the ratio's aim is 1.15), and not how many tokens there
are. Decoding by `generate`, of prompts of one length and, in a batch, of unlike ones, whose padding a mask keeps out in
both; and training steps of forward, loss, backward and AdamW on pieces of a text; all take
turns in one process, and medians are reported. The lag is what alignment costs beside time: how far the augmenting
model trails the text. Run nothing else meanwhile.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import AutoModelForCausalLM, AutoTokenizer

import lmcompose
from lmcompose.alignment.spans import TextAligner, lag
from lmcompose.experiments.decode_times import decode
from lmcompose.experiments.overhead.steps import training_step
from members import DTYPES, add_machine_options, finish, prepare, random_config, record

ARMS = ("shared", "own")
TEXT = Path(__file__).parents[1] / "README.md"


def composition(options: argparse.Namespace, arm: str, dtype: torch.dtype) -> Any:
    """One of the two compositions, W_O not zero."""
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    members = []
    for number, (layers, hidden) in enumerate(zip(options.layers, options.hidden, strict=True)):
        torch.manual_seed(number)
        config = random_config(layers, hidden)
        config.vocab_size = len(tokenizer)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).to(options.device)
        members.append((model, tokenizer))
    model = lmcompose.compose(*members, alignment="ids" if arm == "shared" else "spans", bridge_dtype=dtype)
    torch.manual_seed(2)
    for _, parameter in model.composition_parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    if arm == "own":  # two tokenizers that are one would pass their ids through
        model._aligners = {"augmenting": TextAligner(tokenizer, tokenizer)}
    return model.eval()


def text_rows(options: argparse.Namespace, model: Any, rows: int, length: int) -> torch.Tensor:
    """Rows [rows, length] cut from the text."""
    ids = torch.tensor(model.tokenizer(options.text.read_text(encoding="utf-8"), verbose=False)["input_ids"])
    ids = ids.repeat(-(-rows * length // len(ids)))
    return ids[: rows * length].view(rows, length).to(options.device)


def left_padding(rows: int, length: int, device: str) -> torch.Tensor:
    """The mask [rows, length] of prompts that are from half of `length` to all of it long."""
    longest = torch.linspace(length // 2, length, rows).round()
    return (torch.arange(length) >= length - longest[:, None]).long().to(device)


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder or hub id: the tokenizer of both models")
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 8], metavar=("ANCHOR", "AUGMENTING"))
    parser.add_argument("--hidden", type=int, nargs=2, default=[768, 384], metavar=("ANCHOR", "AUGMENTING"))
    add_machine_options(parser)
    parser.add_argument("--text", type=Path, default=TEXT, help="what is read, and what prompts are cut from")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="batch sizes of decoding (default 1 8)")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--train-batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="tokens in a row of training (default 256)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/own_tokens.json"))
    options = parser.parse_args()
    now = prepare(options)
    models = {arm: composition(options, arm, DTYPES[options.dtype]) for arm in ARMS}

    def decoding(arm: str, batch: int, padded: bool) -> float:
        ids = text_rows(options, models[arm], batch, options.prompt)
        mask = left_padding(batch, options.prompt, options.device) if padded else None
        times = decode(models[arm], ids, options.new_tokens, now, attention_mask=mask)
        return sum(times) / len(times)

    steps = {
        arm: training_step(
            model,
            [each for _, each in model.composition_parameters()],
            text_rows(options, model, options.train_batch, options.length),
        )
        for arm, model in models.items()
    }

    def training(arm: str) -> float:
        start = now()
        steps[arm]()  # ends with reading the loss, which waits for the device
        return now() - start

    jobs: dict[str, Callable[[str], float]] = {}
    for batch in options.batches:
        for padded in (False, True) if batch > 1 else (False,):
            name = f"decoded token, batch {batch}" + (", prompts of unlike lengths" if padded else "")
            jobs[name] = functools.partial(decoding, batch=batch, padded=padded)
    jobs["training step"] = training
    rows = []
    with Progress(transient=True) as progress:
        bar = progress.add_task("measuring", total=len(jobs) * (options.repetitions + 1))
        for name, job in jobs.items():
            seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
            for repetition in range(options.repetitions + 1):
                for arm in ARMS:
                    taken = job(arm)
                    if repetition:  # the first is a warm-up
                        seconds[arm].append(taken)
                progress.advance(bar)
            medians = {arm: statistics.median(each) for arm, each in seconds.items()}
            rows.append({"what": name, "seconds": medians, "ratio": medians["own"] / medians["shared"]})
    trailing = lag(models["own"]._aligners["augmenting"], options.text.read_text(encoding="utf-8"))
    shapes = zip(options.layers, options.hidden, strict=True)
    sizes = ", ".join(f"{layers} layers, width {hidden}" for layers, hidden in shapes)
    result = record(
        "own_tokens_benchmark",
        options,
        members=f"random Llamas: {sizes}; tokenizer of {Path(options.tokenizer).name}",
        dtype=options.dtype,
        repetitions=options.repetitions,
        lag=trailing._asdict(),
        results=rows,
    )
    finish(result, options.output)


if __name__ == "__main__":
    main()
