"""`lmcompose.load` reads a folder of any kind, with members in place of the saved ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

import lmcompose
from lmcompose.errors import SavedFolderError, WrongBaseError
from tests.tiny import random_ids, save_tiny, tiny_model

IDS = random_ids(2, 7)


def same_logits(model: PreTrainedModel, other: PreTrainedModel) -> bool:
    with torch.no_grad():
        return torch.equal(model(IDS).logits, other(IDS).logits)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members, a CALM composition and a logit composition of them."""
    root = tmp_path_factory.mktemp("kinds")
    save_tiny(root / "large", "llama", seed=0, num_hidden_layers=4)
    save_tiny(root / "small", "gpt2", seed=1)
    lmcompose.compose(root / "large", root / "small").save_pretrained(root / "calm")
    lmcompose.proxy_tune(root / "large", root / "small", root / "small", alpha=2.0).save_pretrained(root / "logits")
    return root


@pytest.mark.parametrize(
    ("name", "kind"), [("calm", lmcompose.CalmForCausalLM), ("logits", lmcompose.LogitForCausalLM)]
)
def test_a_folder_of_either_kind(folders: Path, name: str, kind: type[PreTrainedModel]) -> None:
    loaded = lmcompose.load(folders / name)
    assert type(loaded) is kind
    assert same_logits(loaded, kind.from_pretrained(folders / name))


@pytest.mark.parametrize(
    "options",
    [{"base": "small"}, {"members": {"base": "small"}}, {"members": {"expert": "small"}, "base": "small"}],
    ids=["by role", "by members", "both"],
)
def test_a_member_in_place_of_the_saved_one(folders: Path, options: dict) -> None:
    """It is really the one that is loaded: a wrong one is refused."""
    replaced = {
        key: {role: folders / model for role, model in value.items()} if isinstance(value, dict) else folders / value
        for key, value in options.items()
    }
    with pytest.raises(WrongBaseError, match="small"):
        lmcompose.load(folders / "logits", **replaced)
    live = tiny_model("llama", 0, num_hidden_layers=4)
    assert lmcompose.load(folders / "logits", base=live).member("base") is live


@pytest.mark.parametrize("given", ["model", "dict"])
def test_calm_takes_its_augmenting_model_in_both_forms(folders: Path, given: str) -> None:
    live = tiny_model("gpt2", 1)
    augmenting = live if given == "model" else {"augmenting": live}
    loaded = lmcompose.load(folders / "calm", augmenting=augmenting)
    assert loaded.member("augmenting") is live


def test_a_plain_model_is_no_composition(folders: Path) -> None:
    with pytest.raises(SavedFolderError, match="llama"):
        lmcompose.load(folders / "large")
