"""Every kind of member in every place: composed, saved, loaded, and inside another composition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose import combine, compose, extend, proxy_tune
from lmcompose.loading import load_member
from tests.compositions import plain_logits, randomise
from tests.test_adapters import lora
from tests.test_gguf import write_gguf
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

pytest.importorskip("peft")
pytest.importorskip("gguf")

IDS = random_ids(2, 9)

PLACES: dict[str, Callable[[Any, Path], Any]] = {
    "anchor": lambda member, other: compose(member, {"more": other}),
    "augmenting": lambda member, other: compose(other, {"augmenting": member}),
    "added": lambda member, other: extend(compose(other, {"old": other}), {"added": member}),
    "base": lambda member, other: proxy_tune(member, other),
    "expert": lambda member, other: proxy_tune(other, member, other),
    "term": lambda member, other: combine("other + 0.5 * term", {"other": other, "term": member}),
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One member of each kind by name; `other` is a plain folder."""
    root = tmp_path_factory.mktemp("members")
    base = save_tiny(root / "base", "llama")
    lora(str(base)).save_pretrained(root / "adapter")
    write_gguf(tiny_model("llama", seed=3), root / "packed.gguf", quantised=True, tokenizer=False)
    inner = randomise(compose(save_tiny(root / "inside", "llama", seed=4), {"more": base}))
    inner.save_pretrained(root / "calm")
    combine("a - 0.5 * b", {"a": root / "inside", "b": root / "adapter"}).save_pretrained(root / "logits")
    other = save_tiny(root / "other", "gpt2", seed=1)
    names = {"gguf": "packed.gguf"} | {kind: kind for kind in ("adapter", "calm", "logits")}
    return {kind: root / name for kind, name in names.items()} | {"other": other}


FIRST = {"anchor", "augmenting", "base", "expert"}
EVERY = [
    pytest.param(kind, place, marks=() if kind in ("adapter", "gguf") and place in FIRST else pytest.mark.slow)
    for kind in ("adapter", "gguf", "calm", "logits")
    for place in PLACES
]


@pytest.mark.parametrize(("kind", "place"), EVERY)
def test_every_kind_in_every_place(kind: str, place: str, members: dict[str, Path], tmp_path: Path) -> None:
    alone = plain_logits(load_member(members[kind]).model, IDS)
    model = PLACES[place](members[kind], members["other"])
    assert torch.equal(plain_logits(model.member(place), IDS), alone), "it is not the model that it is by itself"
    if place in ("anchor", "augmenting", "added"):
        leader = plain_logits(model.leader, IDS)
        assert torch.equal(plain_logits(model, IDS), leader)
        randomise(model)
        model(IDS, labels=IDS).loss.backward()
        assert all(
            parameter.grad is not None for _, parameter in model.composition_parameters() if parameter.requires_grad
        )
    logits = plain_logits(model, IDS)
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved")
    assert torch.equal(plain_logits(loaded, IDS), logits)
    outer = compose(tmp_path / "saved", {"more": (tiny_model("gpt2", seed=6), tiny_tokenizer())})
    assert torch.equal(plain_logits(outer, IDS), logits)
    generated = loaded.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, outer.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0))
