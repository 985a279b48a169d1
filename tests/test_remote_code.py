"""A model that comes with code of its own is run when the user says so, at every load anew, and refused otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose import combine, compose, extend, proxy_tune
from lmcompose.errors import MemberError
from lmcompose.loading import load_member, plan_member
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

IDS = random_ids(2, 9)

CODE = """\
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

Path("{marker}").touch()


class OddConfig(LlamaConfig):
    model_type = "odd"


class OddForCausalLM(LlamaForCausalLM):
    config_class = OddConfig
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return save_odd(tmp_path / "odd")


def save_odd(folder: Path) -> Path:
    """A llama under a name that transformers does not know, with the code that knows it."""
    save_tiny(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "modeling_odd.OddConfig", "AutoModelForCausalLM": "modeling_odd.OddForCausalLM"}
    config |= {"model_type": "odd", "architectures": ["OddForCausalLM"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_odd.py").write_text(CODE.format(marker=folder.with_name("ran")))
    return folder


def ran(tmp_path: Path) -> bool:
    return (tmp_path / "ran").exists()


REFUSED = r"comes with code of its own, which is not run unless you say so\. Read that code first; then pass trust_remo"


def test_it_is_refused_before_weights_are_read(odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in odd.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(MemberError, match=f"'{odd}' .for the expert. {REFUSED}"):
        plan_member(odd, "expert")
    for make in (
        lambda: compose(odd, tiny_model("gpt2")),
        lambda: compose(tiny_model("gpt2"), odd),
        lambda: extend(compose(tiny_model("gpt2"), {"old": tiny_model("gpt2")}), {"odd": odd}),
        lambda: proxy_tune(odd, tiny_model("gpt2")),
        lambda: combine("a + b", {"a": tiny_model("gpt2"), "b": odd}),
    ):
        with pytest.raises(MemberError, match=REFUSED):
            make()
    assert not ran(tmp_path)


def test_the_code_of_an_adapters_base_is_refused_too(odd: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    tuned.peft_config["default"].base_model_name_or_path = str(odd)
    tuned.save_pretrained(tmp_path / "tuned")
    with pytest.raises(MemberError, match=REFUSED):
        plan_member(tmp_path / "tuned")
    assert load_member(tmp_path / "tuned", trust_remote_code=True).model.config.model_type == "odd"


@pytest.mark.parametrize("role", ["anchor", "augmenting"])
def test_it_is_a_member_of_a_calm_composition(role: str, odd: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", "gpt2", seed=1)
    members = {"anchor": other, "augmenting": other, role: odd}
    model = randomise(compose(**members, trust_remote_code=True))
    assert ran(tmp_path)
    assert type(model.member(role)).__name__ == "OddForCausalLM"
    twin = tiny_model("llama")
    assert torch.equal(plain_logits(model.member(role), IDS), plain_logits(twin, IDS))
    model(IDS, labels=IDS).loss.backward()
    assert all(parameter.grad is not None for _, parameter in model.composition_parameters())
    _check_that_loading_asks_again(model, tmp_path)


def test_it_is_a_member_of_a_logit_composition(odd: Path, tmp_path: Path) -> None:
    small = save_tiny(tmp_path / "small", "gpt2", seed=1)
    _check_that_loading_asks_again(proxy_tune(odd, small, odd, trust_remote_code=True), tmp_path)


def _check_that_loading_asks_again(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    assert "trust" not in (tmp_path / "saved" / "config.json").read_text()
    assert not list((tmp_path / "saved").glob("*.py"))
    with pytest.raises(MemberError, match=REFUSED):
        lmcompose.load(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved", trust_remote_code=True)
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    # and as a member itself
    with pytest.raises(MemberError, match=REFUSED):
        compose(tmp_path / "saved", tiny_model("gpt2"))
    outer = compose(tmp_path / "saved", (tiny_model("gpt2"), tiny_tokenizer()), trust_remote_code=True)
    assert torch.equal(plain_logits(outer, IDS), plain_logits(model, IDS))
