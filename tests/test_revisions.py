"""What is saved names the commit of every member on the hub, and that commit is what is loaded, whatever moves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import lmcompose
from lmcompose import combine, compose, extend, proxy_tune
from lmcompose.errors import MemberError
from lmcompose.loading import plan_member
from lmcompose.logits.plan import plan_recipe
from lmcompose.training.run import train
from tests.compositions import plain_logits, randomise
from tests.test_adapters import COMMIT, NEXT_COMMIT, put_on_hub
from tests.tiny import random_ids, save_tiny, tiny_model

IDS = random_ids(2, 9)
MOVED = "c" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with two models, each at two commits of other weights; `main` is at the second."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    for name, arch, seeds in (("large", "llama", (0, 1)), ("small", "gpt2", (2, 3))):
        for seed, commit in zip(seeds, (COMMIT, NEXT_COMMIT), strict=True):
            folder = save_tiny(tmp_path / f"{name}-{seed}", arch, seed=seed)
            put_on_hub(cache, f"someone/{name}", commit, folder)
            shutil.rmtree(folder)
    return cache


def move(cache: Path, tmp_path: Path) -> None:
    """Somebody uploads other weights to both."""
    for name, arch in (("large", "llama"), ("small", "gpt2")):
        put_on_hub(cache, f"someone/{name}", MOVED, save_tiny(tmp_path / f"moved-{name}", arch, seed=9))


def check(model: Any, commits: list[str], cache: Path, tmp_path: Path) -> None:
    """Saved, the commits are written down; loaded, they are read, after the branch moved too."""
    logits = plain_logits(model, IDS)
    model.save_pretrained(tmp_path / "saved")
    members = json.loads((tmp_path / "saved" / "config.json").read_text())["members"].values()
    assert [member["revision"] for member in sorted(members, key=lambda member: member["order"])] == commits
    assert all(commit in (tmp_path / "saved" / "README.md").read_text() for commit in commits)
    move(cache, tmp_path)
    assert plan_member("someone/large").revision == MOVED
    loaded = lmcompose.load(tmp_path / "saved")
    assert torch.equal(plain_logits(loaded, IDS), logits)
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "saved" / "config.json").read_text()


@pytest.mark.parametrize("pinned", [None, COMMIT, "main"])
def test_calm(pinned: str | None, hub: Path, tmp_path: Path) -> None:
    revisions = None if pinned is None else {"anchor": pinned}
    model = randomise(compose("someone/large", "someone/small", revisions=revisions))
    seed, commit = (0, COMMIT) if pinned == COMMIT else (1, NEXT_COMMIT)
    assert torch.equal(plain_logits(model.anchor, IDS), plain_logits(tiny_model("llama", seed=seed), IDS))
    check(model, [commit, NEXT_COMMIT], hub, tmp_path)


def test_logits(hub: Path, tmp_path: Path) -> None:
    model = proxy_tune("someone/large", "someone/small", "someone/small", revisions={"antiexpert": COMMIT})
    assert model.member("expert") is not model.member("antiexpert"), "two commits are two models"
    check(model, [NEXT_COMMIT, NEXT_COMMIT, COMMIT], hub, tmp_path)


def test_what_is_added_later(hub: Path, tmp_path: Path) -> None:
    first = compose("someone/large", {"old": "someone/small"}, revisions={"anchor": COMMIT, "old": COMMIT})
    randomise(first).save_pretrained(tmp_path / "first")
    model = extend(tmp_path / "first", {"new": "someone/small"})
    check(model, [COMMIT, COMMIT, NEXT_COMMIT], hub, tmp_path)


def test_a_live_model_from_the_hub(hub: Path, tmp_path: Path) -> None:
    live = AutoModelForCausalLM.from_pretrained("someone/large", revision=COMMIT)
    assert plan_member(live).revision == COMMIT
    check(randomise(compose(live, "someone/small")), [COMMIT, NEXT_COMMIT], hub, tmp_path)


def test_a_live_model_whose_commit_cannot_be_told(hub: Path, tmp_path: Path) -> None:
    model = tiny_model("llama", seed=8)
    model.name_or_path = "someone/large"
    assert plan_member(model).revision is None, "two commits were downloaded, and neither has its weights"
    model.name_or_path = "someone/nowhere"
    assert plan_member(model).revision is None
    model.name_or_path = str(save_tiny(tmp_path / "here", "llama"))
    assert plan_member(model).revision is None
    shutil.rmtree(hub / "models--someone--small" / "snapshots" / COMMIT)
    assert plan_member(AutoModelForCausalLM.from_pretrained("someone/small")).revision == NEXT_COMMIT


def test_a_composition_on_the_hub_and_inside_another(hub: Path, tmp_path: Path) -> None:
    inner = randomise(compose("someone/large", "someone/small", revisions={"anchor": COMMIT}))
    inner.save_pretrained(tmp_path / "inner")
    put_on_hub(hub, "someone/inner", COMMIT, tmp_path / "inner")
    check(
        combine("inner + small", {"inner": "someone/inner", "small": "someone/small"}),
        [COMMIT, NEXT_COMMIT],
        hub,
        tmp_path,
    )
    logits = plain_logits(inner, IDS)
    put_on_hub(hub, "someone/inner", MOVED, save_tiny(tmp_path / "no-composition", "llama"))
    assert torch.equal(plain_logits(lmcompose.load("someone/inner", revision=COMMIT), IDS), logits)


def test_recipes(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("w1 w2 w3\nw4 w5 w6\n")
    (tmp_path / "recipe.yaml").write_text(
        "anchor: someone/large\naugmenting: someone/small\nrevisions: {augmenting: "
        f"{COMMIT}}}\ndata: [{{path: data.txt}}]\ntraining: {{steps: 1, batch_size: 1, max_length: 8}}\noutput: out\n"
    )
    train(tmp_path / "recipe.yaml", say=lambda _: None, progress=False)
    model = lmcompose.load(tmp_path / "out" / "model")
    assert [member.revision for member in model.config.references().values()] == [NEXT_COMMIT, COMMIT]
    (tmp_path / "recipe.yaml").write_text(
        f"members: {{base: someone/large, expert: {{model: someone/small, revision: {COMMIT}}}}}\n"
        "preset: expert_only\noutput: out\n"
    )
    references = plan_recipe(tmp_path / "recipe.yaml")[0].compose().config.references()
    assert [member.revision for member in references.values()] == [NEXT_COMMIT, COMMIT]


def test_a_commit_that_is_gone_is_said(hub: Path, tmp_path: Path) -> None:
    compose("someone/large", "someone/small").save_pretrained(tmp_path / "saved")
    move(hub, tmp_path)
    shutil.rmtree(hub / "models--someone--large" / "snapshots" / NEXT_COMMIT)
    with pytest.raises(MemberError, match=r"'someone/large' \(for the anchor\).*say where: from_pretrained"):
        lmcompose.load(tmp_path / "saved")
