"""Weights are safetensors unless the user says otherwise: a pickle can run whatever code somebody put in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import lmcompose
from lmcompose import combine, compose, extend, proxy_tune
from lmcompose.errors import MemberError
from lmcompose.loading import load_member, plan_member
from tests.compositions import plain_logits, randomise
from tests.test_adapters import COMMIT, lora, put_on_hub
from tests.tiny import random_ids, save_tiny, tiny_model

IDS = random_ids(2, 9)
REFUSED = (
    r"are pickles\. Only safetensors are read, since a pickle can run code\. Save the model again .* use_safetensors="
)


def pickled(folder: Path, name: str = "model.safetensors", becomes: str = "pytorch_model.bin") -> Path:
    """The folder with its weights as they were kept before there were safetensors."""
    torch.save(load_file(folder / name), folder / becomes)
    (folder / name).unlink()
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return pickled(save_tiny(tmp_path / "old", "llama"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "new", "gpt2", seed=1)


def test_pickles_are_refused_before_weights_are_read(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    with pytest.raises(MemberError, match=f"'{old}' .for the expert. {REFUSED}"):
        plan_member(old, "expert")
    for make in (
        lambda: compose(old, new),
        lambda: compose(new, old),
        lambda: extend(compose(new, {"first": new}), {"second": old}),
        lambda: proxy_tune(old, new),
        lambda: combine("a + b", {"a": new, "b": old}),
    ):
        with pytest.raises(MemberError, match=REFUSED):
            make()


def test_safetensors_go_before_a_pickle_beside_them(old: Path) -> None:
    save_tiny(old, "llama", seed=7)
    for use_safetensors in (True, False):
        model = load_member(old, use_safetensors=use_safetensors).model
        assert torch.equal(plain_logits(model, IDS), plain_logits(tiny_model("llama", seed=7), IDS))


@pytest.mark.parametrize("kind", ["anchor", "augmenting", "base", "expert"])
def test_who_asks_for_pickles_gets_them_and_is_asked_again(kind: str, old: Path, new: Path, tmp_path: Path) -> None:
    make: Any = compose if kind in ("anchor", "augmenting") else proxy_tune
    model = make(*((old, new) if kind in ("anchor", "base") else (new, old)), use_safetensors=False)
    assert torch.equal(plain_logits(model.member(kind), IDS), plain_logits(tiny_model("llama"), IDS))
    if make is compose:
        randomise(model)
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(MemberError, match=REFUSED):
        lmcompose.load(tmp_path / "saved")
    with pytest.raises(MemberError, match=REFUSED):
        compose(tmp_path / "saved", new)
    loaded = lmcompose.load(tmp_path / "saved", use_safetensors=False)
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    outer = compose(tmp_path / "saved", new, use_safetensors=False)
    assert torch.equal(plain_logits(outer, IDS), plain_logits(model, IDS))


def test_a_model_on_the_hub(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    put_on_hub(tmp_path / "hub", "someone/old", COMMIT, old)
    shutil.rmtree(old)
    with pytest.raises(MemberError, match="Only safetensors are read, since a pickle can run code"):
        load_member("someone/old")
    member = load_member("someone/old", use_safetensors=False)
    assert torch.equal(plain_logits(member.model, IDS), plain_logits(tiny_model("llama"), IDS))


def test_adapters(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = save_tiny(tmp_path / "base", "llama")
    lora(str(base)).save_pretrained(tmp_path / "tuned")
    adapter = pickled(tmp_path / "tuned", "adapter_model.safetensors", "adapter_model.bin")
    with pytest.raises(MemberError, match=r"only safetensors are read.*use_safetensors=False"):
        load_member(adapter)
    expected = plain_logits(lora(str(base)), IDS)
    assert torch.equal(plain_logits(load_member(adapter, use_safetensors=False).model, IDS), expected)
    model = combine("tuned - base", {"tuned": adapter, "base": base}, use_safetensors=False)  # on one model
    assert model.member("tuned") is model.member("base")
    difference = expected - plain_logits(tiny_model("llama"), IDS)
    torch.testing.assert_close(plain_logits(model, IDS), difference, atol=1e-4, rtol=0)
