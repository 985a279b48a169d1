"""Formats that last: the folder that version 1 wrote is read, and answers as it did then.

``tests/data/make_format_v1.py`` made the folder once. When a test here fails, the code has lost the ability to read
what users have on disk: mend the code, and leave the folder as it is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmcompose import CalmForCausalLM
from tests.compositions import plain_logits

FORMAT_V1 = Path(__file__).parent / "data" / "format_v1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy elsewhere, since the members are named by relative paths and the whole may move."""
    return Path(shutil.copytree(FORMAT_V1, tmp_path / "moved"))


def test_version_1_is_read_and_answers_as_it_did(folder: Path) -> None:
    answers = load_file(folder / "answers.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder / "composition")
    assert isinstance(model, CalmForCausalLM)
    logits = plain_logits(model, answers["input_ids"])
    torch.testing.assert_close(logits, answers["logits"], atol=5e-5, rtol=0)  # other versions of torch sum otherwise
    generated = model.generate(answers["input_ids"], max_new_tokens=8, do_sample=False, no_repeat_ngram_size=2)
    assert torch.equal(generated, answers["generated"])
    with torch.no_grad(), model.disable():
        assert (model(answers["input_ids"]).logits - logits).abs().max() > 1e-3


def test_version_1_says_what_it_is(folder: Path) -> None:
    config = json.loads((folder / "composition" / "config.json").read_text())
    assert (config["model_type"], config["format_version"]) == ("calm", 1)
    model = CalmForCausalLM.from_pretrained(folder / "composition")
    assert list(model.members) == ["anchor", "zeta", "alpha"], "in the order in which they were composed"
    assert model.config.pairs("zeta") == [(0, 1), (2, 2)]
    assert (model.config.num_heads, model.config.projection) == (2, "mlp")
    assert not {"gate", "norm", "rank"} & config.keys()
    assert (model.config.gate, model.config.norm, model.config.rank) == (False, False, None), "options that came later"
    assert len(AutoTokenizer.from_pretrained(folder / "composition")) == 97


def test_version_1_is_written_again_with_the_same_tensors(folder: Path, tmp_path: Path) -> None:
    CalmForCausalLM.from_pretrained(folder / "composition").save_pretrained(tmp_path / "again")
    before, after = (
        load_file(folder / "composition" / "model.safetensors"),
        load_file(tmp_path / "again" / "model.safetensors"),
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_fixture_stays_small() -> None:
    assert sum(path.stat().st_size for path in FORMAT_V1.rglob("*") if path.is_file()) < 300_000
