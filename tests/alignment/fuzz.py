"""Random Unicode through every pair of tokenizers, many more rows than the tests have time for.

    python -m tests.alignment.fuzz --rows 20 --output results/alignment/fuzz.json

For each pair of families, and of the real tokenizers in the folders that LMCOMPOSE_REAL_MODELS names: the laws of
alignment on random rows (chunks, finality, causality: `test_spans.check_row`), the refusal of lone surrogates, and for
pairs of families also greedy generation from random texts by a tiny composition, cached against recomputed. Whatever
fails is written down with the seed that brings it back.
"""

import argparse
import copy
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import lmcompose
from lmcompose.alignment.spans import TextAligner, lag
from lmcompose.card import run_record
from lmcompose.errors import DataError
from lmcompose.folders import write_json_atomic
from tests.alignment.test_spans import between, check_row, real_folders, special_of
from tests.compositions import DIFFERENT, assert_same_logits, draw, plain_logits
from tests.tiny import padded, tiny_model
from tests.tokenizers import FAMILIES, family, plain_ids, random_rows, random_text

NEW = 12
"""Tokens that are generated from every text."""


def check_alignment(
    made: TextAligner, anchor: PreTrainedTokenizerFast, augmenting: PreTrainedTokenizerFast, seed: str, rows: int
) -> int:
    """Every law on `rows` random rows; returns how many tokens of the anchor they had."""
    generator, tokens = random.Random(seed), 0
    for row in random_rows(anchor, generator, special_of(anchor), rows):
        check_row(made, augmenting, row, generator)
        tokens += len(row)
    for text in ("\ud800", "a\udfffb"):
        try:
            lag(made, text)
        except DataError:
            continue
        raise AssertionError(f"the lone surrogate in {text!r} was not refused")
    return tokens


def check_generation(anchor: str, augmenting: str, seed: str, rows: int = 3) -> int:
    """A batch of random texts, left-padded: what the cache makes of every token is what recomputation does.

    Of a text of which nothing became visible, all that can be asked is that the composition says what its anchor says.
    """
    generator = random.Random(seed)
    members = [
        (tiny_model("llama", number, vocab_size=len(family(name))), family(name))
        for number, name in enumerate((anchor, augmenting))
    ]
    model = lmcompose.compose(*members, every=2, alignment="spans")
    draw(model)
    texts = [plain_ids(members[0][1], random_text(generator))[:30] or [5] for _ in range(rows)]
    ids, mask, _ = padded([torch.tensor(text) for text in texts], "left")
    written = model.generate(
        ids, attention_mask=mask, max_new_tokens=NEW, do_sample=True, eos_token_id=None, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    for row, text in enumerate(texts):
        whole = torch.cat([torch.tensor(text), written.sequences[row, ids.shape[1] :]])
        expected = plain_logits(model, whole[None, :-1])[0, len(text) - 1 :]
        assert_same_logits(torch.stack(written.logits)[:, row], expected)
        with model.disable():
            bare = plain_logits(model, whole[None, :-1])[0]
        differs = (plain_logits(model, whole[None, :-1])[0] - bare).abs().amax(-1) > DIFFERENT
        own, visible = model._aligners["augmenting"].align(whole[:-1])
        blank = model.member("augmenting").config.pad_token_id  # its embedding is zero, and so is all that comes of it
        speaks = [any(token != blank for token in own[:count]) for count in visible]
        assert differs.tolist() == speaks, "the bridges do not show where they should"
    return sum(map(len, texts)) + rows * NEW


def checks(rows: int, seed: int) -> Iterator[tuple[str, str, Any]]:
    """(what, pair, a function of no argument that returns how many tokens it checked) of everything there is to do."""
    for one in FAMILIES:
        for other in FAMILIES:
            name = f"{one} {other}"
            yield (
                "alignment",
                name,
                lambda one=one, other=other, name=name: check_alignment(
                    between(one, other), family(one), family(other), f"{seed} {name}", rows
                ),
            )
            if one != other:
                yield (
                    "generation",
                    name,
                    lambda one=one, other=other, name=name: check_generation(one, other, f"{seed} {name}"),
                )
    real = {folder.name: AutoTokenizer.from_pretrained(folder) for folder in real_folders()}
    parts = {name: TextAligner(tokenizer, tokenizer, name, name) for name, tokenizer in real.items()}
    for one in real:
        for other in real:
            made = copy.copy(parts[one])
            made.final = parts[other].final
            name = f"{one} {other}"
            yield (
                "alignment of real tokenizers",
                name,
                lambda made=made, one=one, other=other, name=name: check_alignment(
                    made, real[one], real[other], f"{seed} {name}", rows
                ),
            )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20, help="random rows for each pair (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/alignment/fuzz.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    started = time.perf_counter()
    counts: dict[str, dict[str, int]] = {}
    failures: list[dict[str, str]] = []
    todo = list(checks(options.rows, options.seed))
    with Progress(transient=True) as progress:
        for what, pair, check in progress.track(todo, description="pairs"):
            count = counts.setdefault(what, {"pairs": 0, "tokens": 0})
            count["pairs"] += 1
            try:
                count["tokens"] += check()
            except Exception as error:  # whatever went wrong belongs in the record
                failures.append({"what": what, "pair": pair, "error": f"{type(error).__name__}: {error}"[:500]})
    result = {
        "what": "alignment_fuzz",
        **run_record(seed=options.seed, command=" ".join(["python -m tests.alignment.fuzz", *sys.argv[1:]])),
        "rows": options.rows,
        "checked": counts,
        "failures": failures,
        "seconds": round(time.perf_counter() - started),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(options.output, result)
    print(json.dumps({key: result[key] for key in ("checked", "failures", "seconds")}, indent=2))
    print(f"Written to {options.output}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
