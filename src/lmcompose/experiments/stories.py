"""Does a composition use what its augmenting model knows? stories260K as a member, on real English text.

The anchor m_B is a tiny Llama that is trained here on Python code; the augmenting model m_A is stories260K (260,032
parameters, pretrained on children's stories); the composition learns English prose (documentation of the standard
library, or a file of yours) and is scored on documents that were held out. Any adapter beats the bare anchor on new
text, so that proves nothing: the same composition is trained, with the same data, steps and seeds, with two other
augmenting models of the same shape, one with fresh random weights and one with stories260K's own weights shuffled
within each tensor, which keeps their sizes and loses what they know. What the pretrained one gains over these two
can only come from what it has learnt.

    python -m lmcompose.experiments.stories --stories FOLDER      about 6 minutes of one core

FOLDER holds stories260K, or another small pretrained Llama, in the format of transformers; the environment variable
STORIES names it as well.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

import lmcompose
from lmcompose.card import run_record
from lmcompose.errors import DataError, MemberError
from lmcompose.evaluation.statistics import paired_t_interval
from lmcompose.experiments import standard_library
from lmcompose.experiments.ablations.arms import fresh, shuffled
from lmcompose.experiments.commands import carry_out, conclude, with_stories, write_files
from lmcompose.reporting.tables import grids, markdown
from lmcompose.training.trainer import CalmTrainer

LENGTH = 128
"""Tokens in a row of data."""
BATCH = 16
HELD_OUT = 0.15
"""The share of the documents that no model here is trained on."""

ANCHOR: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}

VARIANTS = {"pretrained": "m_A stories260K", "random": "m_A random", "shuffled": "m_A shuffled"}

Rows = torch.Tensor
"""Token ids [rows, LENGTH]; documents follow each other, closed by the end-of-text token."""


def run_stories(
    stories: str | Path,
    text: str | Path | None = None,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 250,
    anchor_steps: int = 250,
    held_out_rows: int = 320,
    say: Callable[[str], None] = print,
    command: str | None = None,
) -> dict[str, Any]:
    """Run the experiment; returns a result that is ready for JSON and `reporting.tables`.

    Args:
        stories: the folder of stories260K, or of another small pretrained model and its tokenizer.
        text: a file of English prose, one paragraph on a line, in place of Python's documentation.
        seeds: of the composition's parameters, the order of the data and the random augmenting models; at least two.
        steps, anchor_steps: training steps of every composition, and of the anchor before.
        held_out_rows: at most so many rows of held-out text are scored.
        command: what to record as the command.

    Raises:
        MemberError: there is no model at `stories`.
        DataError: `text` is too short to be trained on and held out from.
    """
    if not (Path(stories) / "config.json").exists():
        raise MemberError(
            f"There is no model in '{stories}'. Name the folder of stories260K with --stories FOLDER, or in the "
            "environment variable STORIES."
        )
    stages: list[dict[str, Any]] = []
    tokenizer = AutoTokenizer.from_pretrained(stories)
    train, held_out = _split(_documents(text), tokenizer, held_out_rows)

    with _timed("anchor, on Python code", stages, say):
        anchor = train_anchor(tokenizer, anchor_steps)
    pretrained = AutoModelForCausalLM.from_pretrained(stories)
    plain = {"anchor": loss_on(anchor, held_out), "stories260K": loss_on(pretrained, held_out)}
    results: dict[str, dict[str, Any]] = {
        "anchor": {"title": "m_B alone", "losses": [plain["anchor"]] * len(seeds)},
        "augmenting": {"title": "stories260K alone", "losses": [plain["stories260K"]] * len(seeds)},
    }
    untrained = {
        "anchor": _untrained_loss(anchor, pretrained, held_out),
        "stories260K": _untrained_loss(pretrained, anchor, held_out),
    }
    for variant, title in VARIANTS.items():
        losses = []
        with _timed(f"composition with {title}, {len(seeds)} seeds", stages, say):
            for seed in seeds:
                augmenting = variant_of(pretrained, variant, seed)
                model = lmcompose.compose(anchor=anchor, augmenting=augmenting, every=1, seed=seed)
                fit(CalmTrainer, model, train, steps, seed)
                losses.append(loss_on(model, held_out))
                model.detach()
                say(f"{title}, seed {seed}: held-out loss {losses[-1]:.4f}")
        results[variant] = {"title": title, "losses": losses}
    for variant in ("random", "shuffled"):
        interval = paired_t_interval(results[variant]["losses"], results["pretrained"]["losses"])
        results[variant]["minus_pretrained"] = list(interval)
    return {
        "what": "stories",
        **run_record(command=command),
        "text": Path(text).name if text else "Python's documentation",
        "seeds": list(seeds),
        "steps": steps,
        "connections": model.config.connections,
        "composition_parameters": model.num_composition_parameters(),
        "tokens": {"train": train.numel(), "held_out": held_out.numel()},
        "untrained": {name: {"plain": plain[name], "composed": untrained[name]} for name in plain},
        "results": results,
        "stages": stages,
    }


def _untrained_loss(anchor: PreTrainedModel, augmenting: PreTrainedModel, rows: Rows) -> float:
    model = lmcompose.compose(anchor=anchor, augmenting=augmenting, every=1)
    loss = loss_on(model, rows)
    model.detach()
    return loss


def train_anchor(tokenizer: PreTrainedTokenizerBase, steps: int) -> PreTrainedModel:
    """A tiny Llama trained for one pass over as much code as `steps` take; one serves for every composition."""
    rows = pack(standard_library.code(), tokenizer, at_most=steps * BATCH)
    torch.manual_seed(0)
    config = LlamaConfig(
        **ANCHOR,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    fit(Trainer, model, rows, steps, seed=0)
    return model.eval()


def variant_of(pretrained: PreTrainedModel, variant: str, seed: int) -> PreTrainedModel:
    """An augmenting model of `pretrained`'s shape: itself, freshly initialised, or each tensor shuffled."""
    return {"pretrained": lambda model, _: model, "random": fresh, "shuffled": shuffled}[variant](pretrained, seed)


def fit(trainer: type[Trainer], model: PreTrainedModel, rows: Rows, steps: int, seed: int) -> None:
    """Train `model` in place: AdamW at 3e-3 with warm-up and a linear fall, every token of every row learned."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-3,
            weight_decay=0.01,
            warmup_steps=steps // 12,
            seed=seed,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),  # without a GPU it only warns
        )
        data = [{"input_ids": row, "labels": row} for row in rows]
        run = trainer(model=model, args=arguments, train_dataset=data)
        run.remove_callback(PrinterCallback)  # what the Trainer prints where there is no progress bar
        run.train()


@torch.no_grad()
def loss_on(model: PreTrainedModel, rows: Rows) -> float:
    """The mean loss in nats per token."""
    model.eval()
    losses = [
        model(input_ids=batch, labels=batch, use_cache=False).loss.double() * len(batch)
        for batch in rows.to(model.device).split(BATCH)
    ]
    return float(sum(losses) / len(rows))


def pack(documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, at_most: int | None = None) -> Rows:
    """Documents as rows of LENGTH tokens, one after the other; what does not fill a last row is dropped."""
    ids: list[int] = []
    for document in documents:
        ids += [*tokenizer(document)["input_ids"], tokenizer.eos_token_id]
        if at_most is not None and len(ids) >= at_most * LENGTH:
            break
    count = len(ids) // LENGTH
    return torch.tensor(ids[: count * LENGTH]).view(count, LENGTH)[:at_most]


def _documents(text: str | Path | None) -> list[str]:
    """Documents of prose; a file's lines count as one document per 20, so that neighbours are held out together."""
    if text is None:
        return standard_library.prose()
    lines = [line for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    return ["\n".join(lines[start : start + 20]) for start in range(0, len(lines), 20)]


def _split(documents: list[str], tokenizer: PreTrainedTokenizerBase, held_out_rows: int) -> tuple[Rows, Rows]:
    """Rows to train on and rows held out, of different documents."""
    random.Random(0).shuffle(documents)
    cut = round(len(documents) * (1 - HELD_OUT))
    train, held_out = pack(documents[:cut], tokenizer), pack(documents[cut:], tokenizer)
    if len(train) < BATCH or not len(held_out):
        raise DataError(
            f"The text fills {len(train)} rows of {LENGTH} tokens to train on and {len(held_out)} to hold out: give a "
            f"longer one (at least {BATCH} and 1)."
        )
    return train, held_out[:held_out_rows]


@contextmanager
def _timed(name: str, stages: list[dict[str, Any]], say: Callable[[str], None]) -> Iterator[None]:
    say(f"{name} ...")
    start = time.perf_counter()
    yield
    stages.append({"name": name, "seconds": time.perf_counter() - start})


def read_arguments(words: Sequence[str]) -> tuple[argparse.Namespace, str]:
    """The options of the command line, and the command to record, with the model that STORIES names written out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", type=Path, help="the folder of stories260K; by default what STORIES names")
    parser.add_argument("--text", type=Path, help="a file of English prose, one paragraph on a line")
    parser.add_argument("--steps", type=int, default=250, help="training steps of each composition (default 250)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("results/stories/stories.json"))
    return with_stories(parser, "stories", words)


def main() -> None:
    """Run from the command line: print the tables, write the JSON."""
    options, command = read_arguments(sys.argv[1:])
    result = carry_out(
        "stories",
        command,
        lambda: run_stories(
            options.stories, options.text, seeds=tuple(options.seeds), steps=options.steps, command=command
        ),
    )
    conclude(grids(result), write_files(result, options.output, markdown(result)))


if __name__ == "__main__":
    main()
