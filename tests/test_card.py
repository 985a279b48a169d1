"""The card of a saved composition: its example loads what was saved, members without a name included."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose.card import model_card, unnamed
from lmcompose.reference import MemberReference
from tests.compositions import plain_logits
from tests.tiny import random_ids, save_tiny, tiny_config, tiny_model, tiny_tokenizer

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
    code = example(tmp_path / "saved")
    assert 'model = lmcompose.load("saved")' in code
    assert torch.equal(plain_logits(run(code), IDS), plain_logits(model, IDS))
    (same,) = re.findall(r"# the same: (.*)", code)
    code = f"import lmcompose\nfrom transformers import AutoModelForCausalLM\nmodel = {same}"
    assert torch.equal(plain_logits(run(code), IDS), plain_logits(model, IDS))


def test_the_example_asks_for_the_members_that_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = save_tiny(tmp_path / "small", "gpt2", seed=1)
    for augmenting, roles in ((small, ["anchor"]), (tiny_model("gpt2", seed=1), ["anchor", "augmenting"])):
        model = lmcompose.compose((tiny_model("llama"), tiny_tokenizer()), augmenting)
        assert unnamed(model.config.references()) == roles
        with pytest.warns(UserWarning, match=re.escape(f"{roles} came live and have no name")):
            model.save_pretrained(tmp_path / "saved")
        code = example(tmp_path / "saved")
        assert 'model = lmcompose.load("saved", members={' in code
        for role in roles:
            assert f'"{role}": ...' in code
        monkeypatch.chdir(tmp_path)
        save_tiny(tmp_path / "large", "llama")
        code = code.replace('"anchor": ...', '"anchor": "large"').replace('"augmenting": ...', '"augmenting": "small"')
        assert torch.equal(plain_logits(run(code), IDS), plain_logits(model, IDS))


def test_the_example_of_a_logit_composition_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = {"base": (tiny_model("llama"), tiny_tokenizer()), "expert": (tiny_model("llama", seed=1), tiny_tokenizer())}
    model = lmcompose.combine("base + 0.5 * expert", live)
    with pytest.warns(UserWarning, match=r"must pass them, lmcompose\.load\(folder, members="):
        model.save_pretrained(tmp_path / "saved")
    assert "This folder holds\nno weights; the members" in (tmp_path / "saved" / "README.md").read_text()
    code = example(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    for role, seed in (("base", 0), ("expert", 1)):
        save_tiny(tmp_path / role, "llama", seed=seed)
        code = code.replace(f'"{role}": ...', f'"{role}": "{role}"')
    assert torch.equal(plain_logits(run(code), IDS), plain_logits(model, IDS))


def test_a_place_on_the_hub_is_named_once_and_a_relative_path_is_none(tmp_path: Path) -> None:
    places = {"base": "some/base", "expert": "some/base", "other": "../base", "packed": "models/gone.gguf"}
    members = {role: MemberReference.from_config(tiny_config("llama"), place) for role, place in places.items()}
    card = model_card(folder="f", model_type="t", summary="S.", parameters=0, members=members, details={})
    assert "base_model:\n- some/base\n---" in card
