"""The laws on weights that mean something: stories260K, a real pretrained TinyStories Llama, as either member."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmcompose import CalmForCausalLM, compose
from tests.compositions import plain_logits, randomise
from tests.tiny import tiny_model

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "models" / "stories260K"
STORIES = Path(os.environ.get("STORIES") or BESIDE)
TEXTS = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.",
    "Tom had a big red ball. One day, he",
    "The cat sat on the mat and looked at the bird in the tree. The bird was very happy.",
]

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not STORIES.exists(), reason="no stories260K: set STORIES to its folder"),
]


@pytest.fixture(scope="module")
def batch() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer(TEXTS, return_tensors="pt", padding=True)


def _as_anchor() -> CalmForCausalLM:
    return compose(anchor=str(STORIES), augmenting=tiny_model("gpt2", seed=1, vocab_size=512, n_positions=512))


def _as_augmenting() -> CalmForCausalLM:
    anchor = tiny_model("gpt2", seed=1, vocab_size=512, n_positions=512)
    return compose(anchor=anchor, augmenting=AutoModelForCausalLM.from_pretrained(STORIES))


def _with_itself() -> CalmForCausalLM:
    return compose(anchor=str(STORIES), augmenting=str(STORIES))


def test_the_loss_is_the_plain_models_before_training(batch: Any) -> None:
    plain = AutoModelForCausalLM.from_pretrained(STORIES)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    with torch.no_grad():
        expected = plain(**inputs, labels=labels).loss
        assert expected < 2.5, "a model of stories predicts a story"
        for model in (_as_anchor(), _with_itself()):
            got = model(**inputs, labels=labels).loss
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
            ids = batch["input_ids"][:1][batch["attention_mask"][:1].bool()][None]
            assert torch.equal(model(ids, labels=ids).loss, plain(ids, labels=ids).loss)


@pytest.mark.parametrize("build", [_as_anchor, _as_augmenting, _with_itself])
def test_generation_agrees_in_every_mode(build: Any, batch: Any) -> None:
    model = randomise(build(), std=0.05)
    settings: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(**batch, use_cache=False, **settings)
    for arguments in ({}, {"prefill_chunk_size": 7}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(**batch, **settings, **arguments), expected)
    beams = model.generate(**batch, use_cache=False, num_beams=3, **settings)
    assert torch.equal(model.generate(**batch, num_beams=3, **settings), beams)
    one = batch["input_ids"][:1][batch["attention_mask"][:1].bool()][None]
    expected = model.generate(one, use_cache=False, **settings)
    assert torch.equal(model.generate(one, prompt_lookup_num_tokens=3, **settings), expected)
    assistant = AutoModelForCausalLM.from_pretrained(STORIES)
    assert torch.equal(model.generate(one, assistant_model=assistant, **settings), expected)


def test_the_untrained_composition_still_tells_stories(batch: Any) -> None:
    plain, model = AutoModelForCausalLM.from_pretrained(STORIES), _with_itself()
    arguments: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False}
    assert torch.equal(model.generate(**batch, **arguments), plain.generate(**batch, **arguments))


def test_the_members_tokenizer_is_the_models_and_is_saved(tmp_path: Path) -> None:
    model = _with_itself()
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer(TEXTS[1], add_special_tokens=False)["input_ids"]).strip() == TEXTS[1]
    randomise(model, std=0.05).save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = AutoTokenizer.from_pretrained(tmp_path / "saved")(TEXTS[0], return_tensors="pt")["input_ids"]
    assert torch.equal(plain_logits(loaded, ids), plain_logits(model, ids))


def test_a_trained_composition_uses_what_the_augmenting_model_knows() -> None:
    """On held-out stories a random anchor gains more from stories260K than from a random m_A of the same shape."""
    stories = AutoModelForCausalLM.from_pretrained(STORIES)
    start = torch.full((96, 1), stories.config.bos_token_id)
    told = stories.generate(start, max_new_tokens=40, do_sample=True, eos_token_id=None, pad_token_id=0)
    losses = {}
    for name, augmenting in (("stories", stories), ("random", AutoModelForCausalLM.from_config(stories.config))):
        anchor = tiny_model("llama", seed=1, vocab_size=512, max_position_embeddings=512, num_hidden_layers=2)
        model = compose(
            anchor=anchor, augmenting=augmenting, connections=[(5, 1), (5, 2)], bridge_initializer_range=0.1
        ).train()
        optimizer = torch.optim.AdamW([parameter for _, parameter in model.composition_parameters()], lr=1e-2)
        for step in range(60):
            ids = told[16 * (step % 5) : 16 * (step % 5) + 16]
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses[name] = model(told[80:], labels=told[80:]).loss.item()
    assert losses["stories"] < losses["random"] - 0.2
