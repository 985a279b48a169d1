"""Law 6 for logit compositions: what is saved is the formula and who its members are; what is loaded is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lmcompose import LogitConfig, LogitForCausalLM, combine, compose, parameter, proxy_tune, term
from lmcompose.errors import ConfigurationError, MemberError, SavedFolderError, WrongBaseError
from lmcompose.reference import BARE
from tests.compositions import assert_same_logits, plain_logits, randomise
from tests.logit_compositions import (
    FEW_TRIOS,
    IDS,
    PROXY,
    Trio,
    antiexpert_of,
    base_of,
    composition,
    decode,
    expert_of,
    lora_of,
    trio_params,
)
from tests.test_adapters import COMMIT, NEXT_COMMIT, put_on_hub, rewrite
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer

Folders = dict[str, str]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A base and a small pair, as a user has them: three folders."""
    return {
        "base": str(save_tiny(tmp_path / "large", "llama", num_hidden_layers=4)),
        "expert": str(save_tiny(tmp_path / "tuned", "gpt2", seed=1)),
        "antiexpert": str(save_tiny(tmp_path / "small", "gpt2", seed=2)),
    }


@pytest.fixture
def saved(folders: Folders, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    model = proxy_tune(**folders, alpha=0.7)
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved", plain_logits(model, IDS)


def test_the_folder_holds_no_weights_and_says_what_it_needs(saved: tuple[Path, torch.Tensor], folders: Folders) -> None:
    folder = saved[0]
    assert load_file(folder / "model.safetensors") == {}
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "logit_composition"
    assert config["architectures"] == ["LogitForCausalLM"]
    assert config["formula"] == PROXY
    assert config["parameters"] == {"alpha": 0.7}
    assert {role: member["name_or_path"] for role, member in config["members"].items()} == folders
    assert not (folder / "adapter_config.json").exists()
    card = (folder / "README.md").read_text()
    for told in (PROXY, '"alpha": 0.7', *folders.values(), "AutoModelForCausalLM.from_pretrained", "logit_composition"):
        assert told in card


def test_loaded_equals_saved(saved: tuple[Path, torch.Tensor]) -> None:
    folder, logits = saved
    for model in (AutoModelForCausalLM.from_pretrained(folder), LogitForCausalLM.from_pretrained(str(folder))):
        assert isinstance(model, LogitForCausalLM)
        assert not model.training
        assert torch.equal(plain_logits(model, IDS), logits)
        assert list(model.members) == ["base", "expert", "antiexpert"]
        assert str(model.formula) == PROXY
        assert model.generation_config.eos_token_id == 2
        assert all(tokenizer is not None for tokenizer in model.tokenizers.values())
    assert isinstance(AutoConfig.from_pretrained(folder), LogitConfig)
    assert AutoTokenizer.from_pretrained(folder).chat_template == tiny_tokenizer().chat_template


def test_everything_that_can_be_chosen_comes_back(folders: Folders, tmp_path: Path) -> None:
    """Also an order of roles that is not the alphabet's, and a formula written in Python."""
    members = {"zebra": folders["base"], "expert": folders["expert"], "a": folders["antiexpert"]}
    model = combine(
        term("zebra") + parameter("w") * (term("expert") - parameter("v") / 2 * term("a")),
        members,
        parameters={"w": 0.5, "v": 2},
        temperatures={"a": 2.0, "expert": 0.5},
        scores="logprobs",
        plausibility={"member": "zebra", "kind": "top_k", "value": 20},
        missing_tokens="lowest",
        min_coverage=0.9,
        drafter="expert",
        share_passes=False,
    )
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert list(loaded.members) == ["zebra", "expert", "a"]
    for name in (
        "formula", "parameters", "temperatures", "scores", "plausibility", "missing_tokens", "min_coverage", "drafter",
        "share_passes",
    ):  # fmt: skip
        assert getattr(loaded.config, name) == getattr(model.config, name), name
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "top_k" in card
    assert "logprobs" in card


@pytest.mark.parametrize("trio", trio_params(default=FEW_TRIOS))
def test_live_members_are_given_at_load(trio: Trio, tmp_path: Path) -> None:
    model = composition(trio)
    with pytest.warns(UserWarning, match="came live"):
        model.save_pretrained(tmp_path / "saved")
    with pytest.raises(MemberError, match=r"members=\{'base': \.\.\.\}"):
        LogitForCausalLM.from_pretrained(tmp_path / "saved")
    live: dict[str, Any] = {"base": base_of(trio), "expert": expert_of(trio), "antiexpert": antiexpert_of(trio)}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", members=live)
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert loaded.member("base") is live["base"]


def test_a_member_that_moved(saved: tuple[Path, torch.Tensor], folders: Folders) -> None:
    elsewhere = Path(folders["expert"]).rename(Path(folders["expert"]).parent / "moved")
    with pytest.raises(MemberError, match="If it is elsewhere now") as refused:
        LogitForCausalLM.from_pretrained(saved[0])
    assert folders["expert"] in str(refused.value)
    model = LogitForCausalLM.from_pretrained(saved[0], members={"expert": str(elsewhere)})
    assert torch.equal(plain_logits(model, IDS), saved[1])
    with pytest.raises(ConfigurationError, match=r"no member \['tuned'\].*\['base', 'expert', 'antiexpert'\]"):
        LogitForCausalLM.from_pretrained(saved[0], members={"tuned": str(elsewhere)})


@pytest.mark.parametrize(
    ("what", "arch", "seed", "sizes"),
    [
        ("another shape", "llama", 1, {}),
        ("another shape", "gpt2", 1, {"hidden_size": 48}),
        ("other weights", "gpt2", 5, {}),
    ],
)
def test_a_wrong_member_is_refused_by_both_names(
    what: str,
    arch: str,
    seed: int,
    sizes: dict[str, int],
    saved: tuple[Path, torch.Tensor],
    folders: Folders,
    tmp_path: Path,
) -> None:
    wrong = save_tiny(tmp_path / "wrong", arch, seed=seed, **sizes)
    for source in (str(wrong), AutoModelForCausalLM.from_pretrained(wrong)):
        with pytest.raises(WrongBaseError, match=what) as refused:
            LogitForCausalLM.from_pretrained(saved[0], members={"expert": source})
        assert f"is composed of '{folders['expert']}' as expert, but '{wrong}' is" in str(refused.value)
    assert all(parameter.requires_grad for parameter in source.parameters()), "it stays frozen for nothing"


def test_swapped_members_are_refused(saved: tuple[Path, torch.Tensor], folders: Folders) -> None:
    with pytest.raises(WrongBaseError) as refused:
        LogitForCausalLM.from_pretrained(
            saved[0], members={"expert": folders["antiexpert"], "antiexpert": folders["expert"]}
        )
    assert folders["expert"] in str(refused.value)
    assert folders["antiexpert"] in str(refused.value)


def test_a_damaged_folder_is_refused(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    config = json.loads((saved[0] / "config.json").read_text())

    def refused(match: str, error: type[Exception] = ConfigurationError, **changes: Any) -> None:
        broken = tmp_path / "broken"
        shutil.copytree(saved[0], broken, dirs_exist_ok=True)
        (broken / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(error, match=match):
            AutoModelForCausalLM.from_pretrained(broken)

    refused("Unknown name 'bose'", formula="bose + alpha * (expert - antiexpert)")
    refused("'alpha' has no value|Unknown name 'alpha'", parameters={})
    refused("weights cancel", formula="base - base + alpha * (expert - expert) + 0 * antiexpert")
    refused("scores = 'logit'", scores="logit")
    refused("999", SavedFolderError, format_version=999)
    (saved[0] / "model.safetensors").unlink()
    with pytest.raises(SavedFolderError, match=r"model\.safetensors"):
        LogitForCausalLM.from_pretrained(saved[0])
    calm = randomise(compose(anchor=tiny_model("llama"), augmenting=tiny_model("gpt2", seed=1)))
    calm.save_pretrained(tmp_path / "calm")
    with pytest.raises(SavedFolderError, match="holds a 'calm' model"):
        LogitForCausalLM.from_pretrained(tmp_path / "calm")


def test_another_dtype_is_for_all_members(saved: tuple[Path, torch.Tensor]) -> None:
    model = LogitForCausalLM.from_pretrained(saved[0], dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    logits = plain_logits(model, IDS)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, saved[1], atol=0.3, rtol=0.1)


def test_members_keep_their_own_dtypes(folders: Folders, tmp_path: Path) -> None:
    tiny_model("llama", num_hidden_layers=4).to(torch.bfloat16).save_pretrained(folders["base"])
    model = proxy_tune(**folders)
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert [loaded.member(role).dtype for role in folders] == [torch.bfloat16, torch.float32, torch.float32]
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))


def test_one_quantization_for_all_is_refused(saved: tuple[Path, torch.Tensor]) -> None:
    with pytest.raises(ConfigurationError, match="cannot serve all members"):
        LogitForCausalLM.from_pretrained(saved[0], quantization_config={"load_in_8bit": True})


def test_saving_what_was_loaded_writes_the_same(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(saved[0]).save_pretrained(tmp_path / "again")
    first, second = (json.loads((folder / "config.json").read_text()) for folder in (saved[0], tmp_path / "again"))
    assert first == second
    assert torch.equal(plain_logits(LogitForCausalLM.from_pretrained(tmp_path / "again"), IDS), saved[1])


# ------------------------------------------------------------------------------- shared models and compositions


@pytest.fixture
def pair(tmp_path: Path) -> Folders:
    """A base, a small model and an adapter on it."""
    made = {
        "base": str(save_tiny(tmp_path / "large", "gpt2")),
        "antiexpert": str(save_tiny(tmp_path / "small", "llama", seed=1)),
    }
    adapter = lora_of(tiny_model("llama", seed=1))
    adapter.peft_config["default"].base_model_name_or_path = made["antiexpert"]
    adapter.save_pretrained(tmp_path / "adapter")
    return made | {"expert": str(tmp_path / "adapter")}


def test_an_adapter_pair_is_saved_and_loaded_as_one_model(pair: Folders, tmp_path: Path) -> None:
    model = proxy_tune(**pair)
    assert model.passes == [("base",), ("expert", "antiexpert")]
    model.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert f"{pair['antiexpert']} with the adapter {pair['expert']}" in card
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.passes == model.passes
    assert loaded.member("expert") is loaded.member("antiexpert")
    assert loaded.adapters["antiexpert"] == BARE
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert torch.equal(decode(loaded).sequences, decode(model).sequences)
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert torch.equal(plain_logits(AutoModelForCausalLM.from_pretrained(again), IDS), plain_logits(model, IDS))


def test_a_saved_adapter_pair_is_loaded_with_other_sources(pair: Folders, tmp_path: Path) -> None:
    """Live, apart, or moved: the same weights in any form; other weights are refused."""
    model = proxy_tune(**pair)
    model.save_pretrained(tmp_path / "saved")
    logits = plain_logits(model, IDS)
    tuned = lora_of(tiny_model("llama", seed=1))
    live = LogitForCausalLM.from_pretrained(
        tmp_path / "saved", members={"expert": tuned, "antiexpert": tuned.get_base_model()}
    )
    assert live.member("expert") is tuned.get_base_model()
    assert torch.equal(plain_logits(live, IDS), logits)
    apart = LogitForCausalLM.from_pretrained(
        tmp_path / "saved",
        members={"expert": lora_of(tiny_model("llama", seed=1)), "antiexpert": tiny_model("llama", seed=1)},
    )
    assert len(apart.passes) == 3
    assert_same_logits(plain_logits(apart, IDS), logits)
    moved = Path(pair["expert"]).rename(tmp_path / "moved")
    with pytest.raises(MemberError, match="No adapter could be read"):
        LogitForCausalLM.from_pretrained(tmp_path / "saved")
    again = LogitForCausalLM.from_pretrained(tmp_path / "saved", members={"expert": str(moved)})
    assert torch.equal(plain_logits(again, IDS), logits)
    for wrong in (lora_of(tiny_model("llama", seed=1), seed=5), tiny_model("llama", seed=1)):
        with pytest.raises(WrongBaseError, match="other weights"):
            LogitForCausalLM.from_pretrained(tmp_path / "saved", members={"expert": wrong})


def test_one_model_in_two_contexts_is_loaded_once(folders: Folders, tmp_path: Path) -> None:
    model = combine("context_aware", {"with_context": folders["expert"], "without_context": folders["expert"]})
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.member("with_context") is loaded.member("without_context")
    context = {"member_input_ids": IDS[:, None, -3:], "member_attention_mask": torch.ones_like(IDS[:, None, -3:])}
    arguments: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(loaded.generate(IDS, **context, **arguments), model.generate(IDS, **context, **arguments))


def test_a_saved_calm_composition_is_a_member_by_its_folder(folders: Folders, tmp_path: Path) -> None:
    calm = randomise(compose(anchor=folders["base"], augmenting=folders["expert"]))
    calm.save_pretrained(tmp_path / "calm")
    model = proxy_tune(base=str(tmp_path / "calm"), expert=folders["expert"], antiexpert=folders["antiexpert"])
    assert torch.equal(plain_logits(model, IDS, alpha=0.0), plain_logits(calm, IDS))
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    outer = proxy_tune(base=folders["base"], expert=str(tmp_path / "saved"), antiexpert=folders["base"])
    assert_same_logits(plain_logits(outer, IDS), plain_logits(model, IDS))


def test_members_on_the_hub_are_one_model_where_they_are_one_commit(
    pair: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after saving and loading, when both names have moved on."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    newer = save_tiny(tmp_path / "newer", "llama", seed=7)
    put_on_hub(cache, "someone/small", COMMIT, Path(pair["antiexpert"]))
    put_on_hub(cache, "someone/small", NEXT_COMMIT, newer)
    rewrite(Path(pair["expert"]), base_model_name_or_path="someone/small", revision=COMMIT)
    put_on_hub(cache, "someone/tuned", NEXT_COMMIT, Path(pair["expert"]))
    sources = {"base": pair["base"], "expert": "someone/tuned", "antiexpert": "someone/small"}
    apart = proxy_tune(**sources)
    assert len(apart.passes) == 3, "the bare model is of a newer commit than the adapter's base"
    model = proxy_tune(**sources, revisions={"antiexpert": COMMIT})
    assert model.passes == [("base",), ("expert", "antiexpert")]
    by_hand = plain_logits(tiny_model("gpt2"), IDS) + plain_logits(lora_of(tiny_model("llama", seed=1)), IDS)
    assert_same_logits(plain_logits(model, IDS), by_hand - plain_logits(tiny_model("llama", seed=1), IDS))
    model.save_pretrained(tmp_path / "saved")
    put_on_hub(cache, "someone/tuned", COMMIT, newer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.passes == model.passes
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
