"""Adding augmenting models to a composition: the old bridges stay as they are, the new ones start at nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainingArguments

import lmcompose
from lmcompose import CalmForCausalLM, compose, extend
from lmcompose.errors import ConfigurationError, MemberError, SavedFolderError, TokenizerMismatchError, WrongBaseError
from lmcompose.training.trainer import CalmTrainer
from tests.compositions import DIFFERENT, plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

IDS = random_ids(2, 10)


@pytest.fixture(autouse=True)
def _no_weights_on_error(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests named *_before_weights fail when any weight of a member is read by `extend`."""
    if request.node.originalname.endswith("before_weights"):
        request.getfixturevalue("saved")

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("weights were read")

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`anchor`, `law` and `medicine` as a user has them, and `composition`, which is random, of the first two."""
    root = tmp_path_factory.mktemp("folders")
    save_tiny(root / "anchor", "llama")
    save_tiny(root / "law", "gpt2", seed=1, hidden_size=24)
    save_tiny(root / "medicine", "mistral", seed=2, hidden_size=48, num_hidden_layers=5)
    first = compose(root / "anchor", {"law": root / "law"}, connections=[(1, 1), (3, 3)], num_heads=2)
    first.generation_config.max_new_tokens = 3
    randomise(first).save_pretrained(root / "composition")
    return root


@pytest.fixture
def saved(folders: Path) -> Path:
    return folders / "composition"


def _live() -> CalmForCausalLM:
    return randomise(compose(tiny_model("llama"), {"law": tiny_model("gpt2", seed=1)}, connections=[(1, 1), (3, 3)]))


def _bridges(model: CalmForCausalLM, name: str) -> dict[str, torch.Tensor]:
    return {
        key: parameter.detach().clone()
        for key, parameter in model.composition_parameters()
        if key.startswith(f"bridges.{name}_")
    }


def _assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in expected)


def _step(model: CalmForCausalLM) -> None:
    """One step of AdamW on all that wants a gradient, with weight decay."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=1e-2, weight_decay=0.1)
    for _ in range(2):  # W_O first, and then what is behind it
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_live_composition_is_extended_and_stays_as_it_is() -> None:
    old = _live()
    expected, before = plain_logits(old, IDS), _bridges(old, "law")
    model = extend(old, {"medicine": tiny_model("mistral", seed=2, hidden_size=48)}, connections=[(2, 1), (3, 3)])
    assert list(model.augmenting) == ["law", "medicine"]
    assert model.anchor is old.anchor
    assert model.config.connections == {"law": [[1, 1], [3, 3]], "medicine": [[2, 1], [3, 3]]}
    assert torch.equal(plain_logits(model, IDS), expected)
    _assert_same(_bridges(model, "law"), before)
    assert all(not parameter.any() for key, parameter in _bridges(model, "medicine").items() if "o_proj" in key)

    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert wanted == _bridges(model, "medicine").keys()
    added = _bridges(model, "medicine")
    _step(model)
    assert all(not torch.equal(parameter, added[key]) for key, parameter in _bridges(model, "medicine").items())
    _assert_same(_bridges(model, "law"), before)
    assert (plain_logits(model, IDS) - expected).abs().max() > DIFFERENT
    with model.without("medicine"):
        assert torch.equal(plain_logits(model, IDS), expected)

    assert old.is_attached
    assert all(parameter.requires_grad for _, parameter in old.composition_parameters())
    assert torch.equal(plain_logits(old, IDS), expected)
    trained = plain_logits(model, IDS)
    _step(old)
    assert (plain_logits(old, IDS) - expected).abs().max() > DIFFERENT
    assert torch.equal(plain_logits(model, IDS), trained)
    old.detach()
    assert torch.equal(plain_logits(model, IDS), trained)
    assert torch.equal(plain_logits(model.detach(), IDS), plain_logits(tiny_model("llama"), IDS))


def test_new_bridges_have_the_options_of_the_old_ones() -> None:
    options = {"gate": True, "norm": True, "rank": 4, "projection": "mlp"}
    first = compose(tiny_model("llama"), {"law": tiny_model("gpt2", seed=1)}, connections=[(1, 1), (3, 3)], **options)
    old = randomise(first, std=0.4)
    expected = plain_logits(old, IDS)
    model = extend(old, {"medicine": tiny_model("mistral", seed=2, hidden_size=48)}, connections=[(2, 1), (3, 3)])
    assert torch.equal(plain_logits(model, IDS), expected)
    assert {option: getattr(model.config, option) for option in options} == options
    added = _bridges(model, "medicine")
    assert {key.partition("_3.")[2] for key in added if "_3_3." in key} == {
        key.partition("_3.")[2] for key in _bridges(old, "law") if "_3_3." in key
    }
    assert all(parameter.any() != key.endswith("gate") for key, parameter in added.items())
    _step(model)
    assert all(not torch.equal(parameter, added[key]) for key, parameter in _bridges(model, "medicine").items())
    with pytest.raises(ConfigurationError, match="'narrow': the narrower of the two models has a width of 3"):
        extend(old, {"narrow": tiny_model("gpt2", seed=3, hidden_size=3, num_attention_heads=1)})


def test_a_detached_composition_can_be_extended_too() -> None:
    old = _live()
    expected = plain_logits(old, IDS)
    old.detach()
    model = extend(old, {"medicine": tiny_model("opt", seed=2)}, trainable="all")
    assert torch.equal(plain_logits(model, IDS), expected)
    before = _bridges(old, "law")
    _step(model)
    _assert_same(_bridges(old, "law"), before)


def test_all_bridges_can_be_trained_together() -> None:
    model = extend(_live(), {"medicine": tiny_model("opt", seed=2)}, trainable="all")
    before = _bridges(model, "law") | _bridges(model, "medicine")
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == before.keys()
    _step(model)
    after = _bridges(model, "law") | _bridges(model, "medicine")
    assert all(not torch.equal(after[key], before[key]) for key in before)


def test_a_folder_is_extended_saved_and_loaded(folders: Path, saved: Path, tmp_path: Path) -> None:
    old = CalmForCausalLM.from_pretrained(saved)
    model = extend(saved, {"medicine": folders / "medicine"}, dtype={"medicine": torch.bfloat16}, every=2)
    assert torch.equal(plain_logits(model, IDS), plain_logits(old, IDS))
    assert (model.config.num_heads, model.generation_config.max_new_tokens) == (2, 3)
    assert {name: member.dtype for name, member in model.members.items()} == {
        "anchor": torch.float32, "law": torch.float32, "medicine": torch.bfloat16
    }  # fmt: skip
    _step(model)
    model.save_pretrained(tmp_path / "extended")
    loaded = lmcompose.load(tmp_path / "extended")
    assert list(loaded.members) == ["anchor", "law", "medicine"]
    assert loaded.member("medicine").dtype == torch.bfloat16
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    _assert_same(_bridges(loaded, "law"), _bridges(old, "law"))
    with loaded.without("medicine"):
        assert torch.equal(plain_logits(loaded, IDS), plain_logits(old, IDS))
    made = json.loads((tmp_path / "extended" / "config.json").read_text())["provenance"]
    assert made["added"] == ["medicine"]
    assert (made["to"]["composition"], made["to"]["augmenting"]) == (str(saved), ["law"])
    assert made["to"]["provenance"] == old.config.provenance

    twice = extend(tmp_path / "extended", {"more": folders / "law", "most": folders / "law"})
    made = twice.config.provenance
    assert made["added"] == ["more", "most"]
    assert made["to"]["composition"] == str(tmp_path / "extended")
    assert made["to"]["provenance"]["to"]["composition"] == str(saved)
    assert torch.equal(plain_logits(twice, IDS), plain_logits(model, IDS))
    live = extend(twice, {"last": folders / "law"})
    assert live.config.provenance["to"]["composition"] == "a live composition"


def test_a_trainer_keeps_the_old_bridges(folders: Path, saved: Path, tmp_path: Path) -> None:
    model = extend(saved, {"medicine": folders / "medicine"})
    before = _bridges(model, "law"), _bridges(model, "medicine")
    rows = Dataset.from_list([{"input_ids": row.tolist(), "labels": row.tolist()} for row in random_ids(4, 8)])
    arguments = TrainingArguments(tmp_path, max_steps=2, report_to="none", use_cpu=True, learning_rate=1e-2)
    CalmTrainer(model=model, args=arguments, train_dataset=rows).train()
    _assert_same(_bridges(model, "law"), before[0])
    assert all(not torch.equal(parameter, before[1][key]) for key, parameter in _bridges(model, "medicine").items())


def test_members_that_moved_and_devices_by_role(folders: Path, saved: Path) -> None:
    anchor = AutoModelForCausalLM.from_pretrained(folders / "anchor")
    devices = {"law": "cpu", "medicine": "cpu"}
    model = extend(saved, {"medicine": folders / "medicine"}, members={"anchor": anchor}, device_map=devices)
    assert model.anchor is anchor
    assert torch.equal(plain_logits(model, IDS), plain_logits(CalmForCausalLM.from_pretrained(saved), IDS))
    with pytest.raises(WrongBaseError, match="law"):
        extend(saved, {"medicine": folders / "medicine"}, members={"anchor": folders / "law"})
    with pytest.raises(ConfigurationError, match="leave out `members`"):
        extend(_live(), {"medicine": tiny_model("opt")}, members={"anchor": anchor})


def test_dtypes_by_role_when_composing_and_loading(folders: Path, saved: Path) -> None:
    by_role = {"anchor": torch.float32, "law": torch.bfloat16}
    for model in (
        compose(folders / "anchor", {"law": folders / "law"}, dtype=by_role),
        lmcompose.load(saved, dtype=by_role),
    ):
        assert {role: member.dtype for role, member in model.members.items()} == by_role
    for call in (
        lambda **_: compose(folders / "anchor", {"law": folders / "law"}, **_),
        lambda **_: lmcompose.load(saved, **_),
    ):
        with pytest.raises(
            ConfigurationError, match=r"dtype: there is no member 'lawn' to load\. Did you mean 'law'\?"
        ):
            call(dtype={"lawn": torch.bfloat16})


def test_what_cannot_be_added_before_weights(folders: Path, saved: Path, tmp_path: Path) -> None:
    medicine: dict[str, Any] = {"medicine": folders / "medicine"}
    for arguments, message in (
        ({"augmenting": {"law": folders / "medicine"}}, r"an augmenting model 'law' already.*another name"),
        ({"augmenting": folders / "medicine"}, r"augmenting=\{'name': model\}"),
        ({"augmenting": {}}, "at least one"),
        ({"augmenting": {"anchor": folders / "medicine"}}, "cannot name"),
        ({"augmenting": medicine, "connections": [(9, 1)]}, "no layer 9"),
        ({"augmenting": medicine, "connections": {"law": [(1, 1)]}}, r"for \['law'\], but the new .* \['medicine'\]"),
        ({"augmenting": medicine, "trainable": "al"}, "Did you mean 'all'"),
        ({"augmenting": medicine, "revisions": {"medicin": "main"}}, "revisions: .*Did you mean 'medicine'"),
        ({"augmenting": medicine, "dtype": {"law": torch.float32}}, "dtype: there is no member 'law'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            extend(saved, **arguments)
    with pytest.raises(MemberError, match=r"nowhere.*for the medicine"):
        extend(saved, {"medicine": tmp_path / "nowhere"})
    with pytest.raises(SavedFolderError, match="holds a 'llama' model"):
        extend(folders / "anchor", medicine)
    with pytest.raises(ConfigurationError, match=r"LlamaForCausalLM is no CALM composition.*anchor=model"):
        extend(tiny_model("llama"), medicine)  # type: ignore[arg-type]


def test_another_tokenizer_before_weights(folders: Path, saved: Path, tmp_path: Path) -> None:
    tiny_model("opt").config.save_pretrained(tmp_path / "other")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(TokenizerMismatchError, match="'extra' is missing"):
        extend(saved, {"other": tmp_path / "other"}, alignment="ids")


def test_a_failure_leaves_live_members_unharmed(saved: Path, tmp_path: Path) -> None:
    """The weights of the new member are cut short; the anchor was given live and could be trained before."""
    old = _live()
    broken = save_tiny(tmp_path / "broken", "opt")
    (broken / "model.safetensors").write_bytes(b"")
    expected = plain_logits(old, IDS)
    with pytest.raises(MemberError, match="could not be read"):
        extend(old, {"broken": broken})
    assert torch.equal(plain_logits(old, IDS), expected)
    anchor = tiny_model("llama").requires_grad_(True)
    with pytest.raises(MemberError, match="could not be read"):
        extend(saved, {"broken": broken}, members={"anchor": anchor})
    assert all(parameter.requires_grad for parameter in anchor.parameters())
