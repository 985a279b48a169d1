"""The card of a saved composition: its example loads what was saved, members without a name included."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose.card import unnamed
from tests.compositions import plain_logits
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

IDS = random_ids(1, 7)


def example(folder: Path) -> str:
    """The Python block of the card in `folder`."""
    (block,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


def run(code: str) -> Any:
    names: dict[str, Any] = {}
    exec(code, names)
    return names["model"]


def test_the_example_loads_members_that_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lmcompose.compose(save_tiny(tmp_path / "large", "llama"), save_tiny(tmp_path / "small", "gpt2", seed=1))
    assert unnamed(model.config.references()) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save_pretrained(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    assert torch.equal(plain_logits(run(example(tmp_path / "saved")), IDS), plain_logits(model, IDS))


def test_the_example_asks_for_the_members_that_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = save_tiny(tmp_path / "small", "gpt2", seed=1)
    for augmenting, roles in ((small, ["anchor"]), (tiny_model("gpt2", seed=1), ["anchor", "augmenting"])):
        model = lmcompose.compose((tiny_model("llama"), tiny_tokenizer()), augmenting)
        assert unnamed(model.config.references()) == roles
        with pytest.warns(UserWarning, match=re.escape(f"{roles} came live and have no name")):
            model.save_pretrained(tmp_path / "saved")
        code = example(tmp_path / "saved")
        for role in roles:
            assert f'"{role}": ...' in code
        monkeypatch.chdir(tmp_path)
        save_tiny(tmp_path / "large", "llama")
        code = code.replace('"anchor": ...', '"anchor": "large"').replace('"augmenting": ...', '"augmenting": "small"')
        assert torch.equal(plain_logits(run(code), IDS), plain_logits(model, IDS))
