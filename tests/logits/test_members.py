"""Members of which several may be one model: each is read once, and every role knows what it is played by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import lmcompose
from lmcompose.errors import MemberError, TokenizerMismatchError
from lmcompose.loading import plan_member
from lmcompose.logits.members import load_roles, map_vocabularies, played_by, tokenizers_of
from lmcompose.reference import BARE
from tests.compositions import plain_logits
from tests.logit_compositions import IDS, lora_of
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

peft = pytest.importorskip("peft")


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """A model and two adapters on it."""
    made = {"small": str(save_tiny(tmp_path / "small", "llama", seed=1))}
    for seed, name in enumerate(("tuned", "other")):
        adapter = lora_of(tiny_model("llama", seed=1), seed)
        adapter.peft_config["default"].base_model_name_or_path = made["small"]
        adapter.save_pretrained(tmp_path / name)
        made[name] = str(tmp_path / name)
    return made


def load(sources: dict[str, Any], **options: Any) -> Any:
    plans = {role: plan_member(source, role) for role, source in sources.items()}
    return load_roles(sources, plans, tokenizers_of(sources, plans), dtypes={}, **options)


def key(source: Any) -> Any:
    return played_by(source, plan_member(source)).key


def test_who_shares_a_model(folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = key(folders["small"])
    for same in (folders["tuned"], Path(folders["small"]), "small", "./small", "other/../small", Path("tuned")):
        assert key(same) == small
    live = tiny_model("llama", seed=1)
    tuned = lora_of(live)
    assert key(live) == key(tuned) == key((live, tiny_tokenizer())) == key((tuned, tiny_tokenizer()))
    assert key(tiny_model("llama", seed=1)) not in (small, key(live))
    assert played_by(tuned, plan_member(tuned)).active == ("default",)
    assert played_by(live, plan_member(live)).active == ()


def test_each_model_is_read_once(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from lmcompose import loading

    read: list[str] = []
    original = loading._read_model

    def counted(reference: Any, *args: Any) -> Any:
        read.append(reference.name_or_path)
        return original(reference, *args)

    monkeypatch.setattr(loading, "_read_model", counted)
    sources = {"a": folders["small"], "b": folders["tuned"], "c": folders["other"], "d": folders["small"]}
    members, adapters = load(sources)
    assert read == [folders["small"]]
    assert len({id(member.model) for member in members.values()}) == 1
    assert adapters == {"a": BARE, "b": "role_b", "c": "role_c", "d": BARE}
    assert not any(parameter.requires_grad for parameter in members["a"].model.parameters())
    assert not any(module.training for module in members["a"].model.modules())
    references = {role: member.reference for role, member in members.items()}
    assert references["b"].places == [folders["small"], folders["tuned"]]
    assert references["a"] == references["d"]
    sums = [references[role].fingerprint["adapters"][1] for role in sources]
    assert sums[0] == sums[3] == 0.0
    assert 0 < sums[1] != sums[2] > 0


def test_alone_nothing_is_shared(folders: dict[str, str]) -> None:
    members, adapters = load({"a": folders["tuned"], "b": tiny_model("gpt2")})
    assert adapters == {}
    assert torch.equal(plain_logits(members["a"].model, IDS), plain_logits(lora_of(tiny_model("llama", seed=1)), IDS))
    members, adapters = load({"a": folders["small"], "b": folders["small"]})
    assert adapters == {}
    assert members["a"].model is members["b"].model


def test_a_live_adapter_in_several_roles_needs_no_switch() -> None:
    tuned = lora_of(tiny_model("llama", seed=1))
    members, adapters = load({"a": tuned, "b": tuned})
    assert adapters == {}
    assert members["a"].model is members["b"].model is tuned.get_base_model()
    _, adapters = load({"a": tuned, "b": tuned.get_base_model()})
    assert adapters == {"a": "default", "b": BARE}


def test_tokenizers(folders: dict[str, str]) -> None:
    own = tiny_tokenizer()
    live = tiny_model("llama")
    tuned = lora_of(live)
    sources = {"a": folders["tuned"], "b": (tuned, own), "c": live, "d": tiny_model("gpt2")}
    plans = {role: plan_member(source, role) for role, source in sources.items()}  # type: ignore[arg-type]
    found = tokenizers_of(sources, plans)  # type: ignore[arg-type]
    assert found["a"] is not None
    assert found["b"] is own
    assert found["c"] is own, "the same live model has one under another role"
    assert found["d"] is None
    members, _ = load({"b": (tuned, own), "c": live})
    assert members["c"].tokenizer is own


def test_vocabularies_are_mapped_from_the_leaders() -> None:
    other = tiny_tokenizer()
    other.add_tokens(["<extra>"])
    sources = {
        "base": (tiny_model("llama", vocab_size=104), other),
        "small": (tiny_model("gpt2"), tiny_tokenizer()),
        "twin": (tiny_model("llama", seed=1, vocab_size=104), other),
    }
    plans = {role: plan_member(source, role) for role, source in sources.items()}  # type: ignore[arg-type]
    tokenizers = tokenizers_of(sources, plans)  # type: ignore[arg-type]
    maps = map_vocabularies(tokenizers, plans, 0.95)
    assert list(maps) == ["small", "twin"]
    assert maps["small"].missing is not None
    assert int(maps["small"].missing.sum()) == 7
    assert maps["twin"].missing is None
    with pytest.raises(TokenizerMismatchError, match="<extra>"):
        map_vocabularies(tokenizers, plans, 1.0)
    with pytest.raises(TokenizerMismatchError, match=r"104.*97|97.*104"):
        map_vocabularies(dict.fromkeys(tokenizers), plans, 0.95)


def test_device_maps_and_dtypes_by_role(folders: dict[str, str]) -> None:
    sources = {"a": folders["small"], "b": str(save_tiny(Path(folders["small"]).parent / "b", "gpt2"))}
    plans = {role: plan_member(source, role) for role, source in sources.items()}
    members, _ = load_roles(
        sources, plans, tokenizers_of(sources, plans), dtypes={"a": torch.bfloat16}, device_map={"b": "meta"}
    )
    assert members["a"].model.dtype == torch.bfloat16
    assert members["b"].model.dtype == torch.float32
    assert members["a"].model.device.type == "cpu"
    assert members["b"].model.device.type == "meta"
    members, _ = load_roles(sources, plans, tokenizers_of(sources, plans), dtypes={}, device_map="meta")
    assert {member.model.device.type for member in members.values()} == {"meta"}


def test_what_fails_gives_live_members_back(folders: dict[str, str], tmp_path: Path) -> None:
    live = tiny_model("gpt2")
    (Path(folders["tuned"]) / "adapter_model.safetensors").write_bytes(b"cut")
    for sources in (
        {"a": live, "b": folders["small"], "c": folders["tuned"]},
        {"a": live, "b": folders["tuned"]},
    ):
        with pytest.raises(MemberError, match="could not be put on") as refused:
            load(sources)
        assert folders["tuned"] in str(refused.value)
        assert all(parameter.requires_grad for parameter in live.parameters())


def ending(seed: int, *ends: int) -> PreTrainedModel:
    model = tiny_model("gpt2", seed)
    model.generation_config.eos_token_id = list(ends)
    return model


def test_a_text_ends_where_the_leader_or_a_member_that_is_added_ends() -> None:
    """An untuned base does not know the token with which its tuned expert ends an answer."""
    members = {"base": ending(0, 2), "expert": ending(1, 5, 2), "antiexpert": ending(2, 9)}
    model = lmcompose.combine("base + alpha * (expert - antiexpert)", members, alpha=1.0)
    assert model.generation_config.eos_token_id == [2, 5]
    assert members["base"].generation_config.eos_token_id == [2]  # a live member's own is left alone
    ids = random_ids(2, 6)
    free = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    model.generation_config.eos_token_id = [2, int(free[0, 8])]
    stopped = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert (stopped[0, 9:] == model.generation_config.pad_token_id).all()
