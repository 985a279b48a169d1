"""Make ``tests/data/format_v1``: a composition as version 1 of the saved folder had it, and what it answered.

Run once, when the format was settled; ``tests/test_format.py`` reads the folder with every later version. Never make it
again for a change of the code: a change of the format gets a new number, a new folder and a script of its own.

    python -m tests.data.make_format_v1
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from lmcompose import compose
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny

FOLDER = Path(__file__).parent / "format_v1"


def main() -> None:
    """Write members, composition and answers."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2}
    save_tiny(FOLDER / "anchor", "llama", seed=0, intermediate_size=24, **sizes)
    save_tiny(FOLDER / "zeta", "gpt2", seed=1, n_positions=32, **sizes)
    save_tiny(FOLDER / "alpha", "granite", seed=2, intermediate_size=24, **sizes)
    # Members are named by paths relative to the composition, so that the whole folder can move.
    composition = FOLDER / "composition"
    composition.mkdir()
    os.chdir(composition)
    model = randomise(
        compose(
            anchor="../anchor",
            augmenting={"zeta": "../zeta", "alpha": "../alpha"},
            connections={"zeta": [(0, 1), (2, 2)], "alpha": [(1, 1)]},
            projection="mlp",
            num_heads=2,
        )
    )
    model.save_pretrained(composition)
    ids = random_ids(2, 8, seed=11)
    generated = model.generate(ids, max_new_tokens=8, do_sample=False, no_repeat_ngram_size=2)
    answers = {"input_ids": ids, "logits": plain_logits(model, ids), "generated": generated}
    save_file({name: tensor.contiguous() for name, tensor in answers.items()}, FOLDER / "answers.safetensors")
    assert torch.isfinite(answers["logits"]).all()


if __name__ == "__main__":
    main()
