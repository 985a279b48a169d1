"""Laws 1 to 6 and 10 for what issues 3 and 4 build on: several augmenting models, and compositions as members."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT
from tests.compositions import DIFFERENT, assert_same_logits, plain_logits, randomise
from tests.tiny import padded, random_ids, save_tiny, tiny_model, valid_rows

ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]
IDS, MASK, POSITIONS = padded(ROWS, "left")


def _several(trained: bool = True) -> CalmForCausalLM:
    """A llama with three augmenting models, two of which write into the same anchor layer."""
    model = compose(
        anchor=tiny_model("llama"),
        augmenting={
            "wide": tiny_model("gpt2", seed=1, hidden_size=48),
            "sliding": tiny_model("gemma3", seed=2),
            "alibi": tiny_model("bloom", seed=3),
        },
        connections={"wide": [(1, 1), (3, 3)], "sliding": [(2, 2), (3, 3)], "alibi": [(0, 0)]},
    )
    return randomise(model) if trained else model


def _composed_anchor(trained: bool = True) -> CalmForCausalLM:
    """A composition whose anchor is a composition."""
    inner = randomise(compose(anchor=tiny_model("llama"), augmenting=tiny_model("gpt2", seed=1)), seed=5)
    model = compose(anchor=inner, augmenting=tiny_model("opt", seed=2), connections=[(1, 1), (3, 3)])
    return randomise(model) if trained else model


def _composed_augmenting(trained: bool = True) -> CalmForCausalLM:
    """A composition whose augmenting model is a composition."""
    inner = randomise(compose(anchor=tiny_model("gpt2"), augmenting=tiny_model("llama", seed=1)), seed=5)
    model = compose(anchor=tiny_model("qwen3", seed=2), augmenting=inner, connections=[(1, 1), (3, 3)])
    return randomise(model) if trained else model


BUILDS = [_several, _composed_anchor, _composed_augmenting]


@pytest.fixture(params=BUILDS, ids=lambda build: build.__name__.strip("_"))
def build(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_untrained_it_is_its_anchor(build: Any) -> None:
    model, anchor = build(trained=False), build(trained=False).detach()
    assert torch.equal(plain_logits(model, IDS[1:2]), plain_logits(anchor, IDS[1:2]))


def test_nothing_later_is_seen(build: Any) -> None:
    length = 10
    ids = random_ids(1, length, seed=2).repeat(length + 1, 1)
    for t in range(length):
        ids[t, t] = (ids[t, t] - 4 + 17) % 93 + 4
    logits = plain_logits(build(), ids)
    changed = (logits[:-1] - logits[-1]).abs().amax(dim=-1)
    assert changed[torch.arange(length)[None, :] < torch.arange(length)[:, None]].max() < 5e-5
    assert changed.diagonal().min() > DIFFERENT


def test_padding_and_cache(build: Any) -> None:
    model = build()
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        logits = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
        for row, got in zip(ROWS, valid_rows(logits, mask), strict=True):
            assert_same_logits(got, plain_logits(model, row[None])[0])
    settings: dict[str, Any] = {
        "max_new_tokens": 8,
        "do_sample": False,
        "eos_token_id": None,
        "no_repeat_ngram_size": 2,
    }
    batch = {"input_ids": IDS, "attention_mask": MASK}
    expected = model.generate(**batch, use_cache=False, **settings)
    for arguments in ({}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(**batch, **settings, **arguments), expected), arguments
    beams = model.generate(**batch, use_cache=False, num_beams=3, **settings)
    assert torch.equal(model.generate(**batch, num_beams=3, **settings), beams)
    one = {"input_ids": IDS[1:2], "attention_mask": MASK[1:2]}
    expected = model.generate(**one, use_cache=False, **settings)
    assert torch.equal(model.generate(**one, prompt_lookup_num_tokens=3, **settings), expected)
    assistant = tiny_model("llama", seed=9)
    assert torch.equal(model.generate(**one, assistant_model=assistant, **settings), expected)


def test_training_changes_only_its_own_parameters_and_copies_work(build: Any) -> None:
    model = build()
    members = {name: tensor.clone() for name, tensor in model.members.state_dict().items()}
    twin, logits = copy.deepcopy(model), plain_logits(model, IDS[1:2])
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in wanted) == model.num_composition_parameters()
    optimizer = torch.optim.AdamW(wanted, lr=1e-2)
    model.train()
    model(IDS[1:2], labels=IDS[1:2]).loss.backward()
    assert min(parameter.grad.norm() for parameter in wanted) > 1e-7
    optimizer.step()
    model.eval()
    assert all(torch.equal(tensor, members[name]) for name, tensor in model.members.state_dict().items())
    assert (plain_logits(model, IDS[1:2]) - logits).abs().max() > DIFFERENT
    assert torch.equal(plain_logits(twin, IDS[1:2]), logits)


def test_disabled_it_is_its_anchor_and_nothing_leaks(build: Any) -> None:
    model = build()
    composed = plain_logits(model, IDS[1:2])
    bare = plain_logits(build().detach(), IDS[1:2])
    with model.disable():
        assert torch.equal(plain_logits(model, IDS[1:2]), bare)
    assert torch.equal(plain_logits(model, IDS[1:2]), composed)
    assert (composed - bare).abs().max() > DIFFERENT
    with torch.no_grad():
        cache = model(IDS[1:2, :8])[CACHE_ARGUMENT]
        rest = model(IDS[1:2, 8:], **{CACHE_ARGUMENT: cache}).logits
    assert_same_logits(rest, composed[:, 8:])


def test_each_of_several_matters_and_has_a_name(tmp_path: Path) -> None:
    model = _several()
    assert list(model.augmenting) == ["wide", "sliding", "alibi"]
    logits = plain_logits(model, IDS[1:2])
    for name in model.augmenting:
        without = _several()
        with torch.no_grad():
            for key, parameter in without.composition_parameters():
                if key.startswith(f"bridges.{name}_") and "o_proj" in key:
                    parameter.zero_()
        assert (plain_logits(without, IDS[1:2]) - logits).abs().max() > DIFFERENT
    model.save_pretrained(tmp_path / "saved")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=model.anchor, augmenting=dict(model.augmenting))
    assert list(loaded.members) == ["anchor", "wide", "sliding", "alibi"], "the anchor leads, and sums keep their order"
    assert loaded.leader is model.anchor
    assert torch.equal(plain_logits(loaded, IDS[1:2]), logits)


def test_a_composition_of_a_saved_composition_is_saved_and_loaded(tmp_path: Path) -> None:
    """The inner composition is a member like any other: it is named by its folder."""
    base, helper, second = (
        save_tiny(tmp_path / "base", "llama"),
        save_tiny(tmp_path / "helper", "gpt2", seed=1),
        save_tiny(tmp_path / "second", "opt", seed=2),
    )
    randomise(compose(anchor=str(base), augmenting=str(helper)), seed=5).save_pretrained(tmp_path / "inner")
    model = randomise(compose(anchor=str(tmp_path / "inner"), augmenting=str(second)))
    model.save_pretrained(tmp_path / "outer")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "outer")
    assert torch.equal(plain_logits(loaded, IDS[1:2]), plain_logits(model, IDS[1:2]))
