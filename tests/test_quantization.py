"""What may be asked of a member's weights, what is said of it, and what it takes: before anything is read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

import lmcompose
from lmcompose import combine, compose, extend, proxy_tune
from lmcompose.errors import ConfigurationError, LmcomposeError, MemberError, WrongBaseError
from lmcompose.loading import load_member, plan_member
from lmcompose.quantization import asked_for, configuration, in_words, plain
from lmcompose.reference import fingerprint, same_weights
from lmcompose.sizes import size_of
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model

bitsandbytes = pytest.importorskip("bitsandbytes")

IDS = random_ids(2, 9)
SIZES = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("quantised") / "llama", "llama", **SIZES)


@pytest.fixture(scope="module")
def ready(llama: Path) -> Path:
    """The same model as a checkpoint of 4-bit weights."""
    model = AutoModelForCausalLM.from_pretrained(llama, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    model.save_pretrained(llama.with_name("ready"))
    return llama.with_name("ready")


def quantised_layers(model: Any) -> int:
    return sum(isinstance(each, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)) for each in model.modules())


# ------------------------------------------------------------------------------------------------ words and errors


def test_words_and_configurations() -> None:
    four, eight = asked_for("4bit", "anchor"), asked_for("8bit", "anchor")
    assert four is not None
    assert eight is not None
    assert (four["load_in_4bit"], four["bnb_4bit_quant_type"], in_words(four)) == (True, "nf4", "4-bit nf4")
    assert (eight["load_in_8bit"], in_words(eight)) == (True, "8-bit")
    assert asked_for("none", "anchor") is None
    own = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
    saved = json.loads(json.dumps(asked_for(own, "anchor")))
    assert plain(configuration(saved)) == plain(own), "what is saved is what was asked for"
    assert in_words({"quant_method": "gptq", "bits": 3}) == "3-bit gptq"


@pytest.mark.parametrize("asked", ["4-bit", "int8", 4, ["4bit"], {"load_in_4bit": True}], ids=str)
def test_an_unknown_word_is_refused_with_what_there_is(asked: Any, llama: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Give one of 4bit, 8bit, none|no member 'load_in_4bit' to load"):
        compose(llama, tiny_model("llama"), quantization=asked)
    with pytest.raises(ConfigurationError, match="Did you mean '4bit'"):
        plan_member(llama, quantization="4-bit")


def test_a_role_that_is_not_there_is_refused(llama: Path) -> None:
    for make in (
        lambda asked: compose(llama, {"law": llama}, quantization=asked),
        lambda asked: extend(compose(llama, {"old": llama}), {"law": llama}, quantization=asked),
        lambda asked: combine("anchor + law", {"anchor": llama, "law": llama}, quantization=asked),
    ):
        with pytest.raises(ConfigurationError, match=r"no member 'lw' to load\. Did you mean 'law'"):
            make({"lw": "4bit"})


def test_a_live_model_is_not_quantised(llama: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the anchor .* is a live model\. Load it so: .*quantization_config="):
        compose(tiny_model("llama"), llama, quantization={"anchor": "4bit"})
    with pytest.raises(ConfigurationError, match=r"the expert .* is a live model"):
        proxy_tune(llama, tiny_model("llama"), quantization="8bit")


def test_what_is_quantised_already_is_read_as_it_is(ready: Path, llama: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"saved as 4-bit fp4 weights and is read as it is\. Leave out"):
        compose(ready, llama, quantization={"anchor": "8bit"})
    with pytest.raises(ConfigurationError, match="is saved as 4-bit"):
        plan_member(ready, quantization="none")
    model = load_member(ready).model
    assert quantised_layers(model) == 21
    assert plan_member(ready).quantization == load_member(model).reference.quantization


def test_a_gguf_file_and_a_composition_are_not_quantised(llama: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    assert gguf
    from tests.test_gguf import write_gguf

    with pytest.raises(ConfigurationError, match="GGUF file, whose weights are read as plain numbers"):
        compose(write_gguf(tiny_model("llama"), tmp_path / "a.gguf"), llama, quantization={"anchor": "4bit"})
    compose(llama, llama).save_pretrained(tmp_path / "inner")
    with pytest.raises(ConfigurationError, match=r"is a composition\. Compose it of quantised members"):
        compose(tmp_path / "inner", llama, quantization={"anchor": "4bit"})


def test_bitsandbytes_that_is_missing_is_named_before_weights(
    llama: Path, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    message = r"for the anchor\) in 4-bit .* takes bitsandbytes, which is not installed\. pip install 'lmcompose\[quant"
    with pytest.raises(MemberError, match=message):
        plan_member(llama, quantization="4bit")
    with pytest.raises(MemberError, match=message):
        plan_member(ready)
    assert plan_member(llama).quantization is None


def test_a_device_without_kernels_is_named(llama: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"on 'meta', and bitsandbytes has no 4-bit nf4 weights there; it has"):
        compose(llama, llama, quantization={"anchor": "4bit"}, device_map={"anchor": "meta", "augmenting": "cpu"})
    compose(llama, llama, quantization={"anchor": "4bit"}, device_map={"anchor": "auto", "augmenting": "cpu"})


# ------------------------------------------------------------------------------------------------------ fingerprints


@pytest.mark.parametrize("word", ["4bit", "8bit"])
def test_quantised_weights_are_told_apart(word: str, llama: Path, tmp_path: Path) -> None:
    """By what bitsandbytes keeps of them, where the rest of two models is the same."""
    other = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    other.save_pretrained(tmp_path / "other")
    one, twin = (load_member(llama, quantization=word) for _ in range(2))
    assert same_weights(one.reference.fingerprint, twin.reference.fingerprint)
    assert not same_weights(
        one.reference.fingerprint, load_member(tmp_path / "other", quantization=word).reference.fingerprint
    )
    with torch.no_grad():
        one.model(IDS)
    assert fingerprint(one.model) == one.reference.fingerprint, "whether the model has run makes no difference"
    half = load_member(llama, quantization=word, dtype="bfloat16").reference
    assert same_weights(one.reference.fingerprint, half.fingerprint)


def test_a_quantised_model_in_the_place_of_a_plain_one_and_back(llama: Path, tmp_path: Path) -> None:
    randomise(compose(llama, tiny_model("gpt2"))).save_pretrained(tmp_path / "saved")
    live = AutoModelForCausalLM.from_pretrained(llama, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    model = lmcompose.load(tmp_path / "saved", anchor=live, augmenting=tiny_model("gpt2"))
    assert quantised_layers(model.member("anchor")) == 21
    strange = AutoModelForCausalLM.from_pretrained(
        save_tiny(tmp_path / "strange", "llama", seed=5, **SIZES),
        quantization_config=BitsAndBytesConfig(load_in_8bit=True),
    )
    with pytest.raises(WrongBaseError, match="other weights"):
        lmcompose.load(tmp_path / "saved", anchor=strange, augmenting=tiny_model("gpt2"))
    model = lmcompose.load(
        tmp_path / "saved", quantization={"anchor": "4bit"}, members={"augmenting": tiny_model("gpt2")}
    )
    assert quantised_layers(model.member("anchor")) == 21


# -------------------------------------------------------------------------------------------------------------- sizes


def bytes_of(model: Any) -> int:
    """All that the weights take: the parameters, and the scales that bitsandbytes keeps beside them."""
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    for module in model.modules():
        weight = getattr(module, "weight", None)
        state = getattr(weight, "quant_state", None)
        if state is not None:
            total += state.absmax.numel() * state.absmax.element_size()
            if state.nested:
                total += state.state2.absmax.numel() * 4
        if getattr(weight, "SCB", None) is not None:
            total += weight.SCB.numel() * 4
    return total


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("arch", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "asked", ["4bit", "8bit", BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)], ids=str
)
def test_the_bytes_are_counted_before_weights_are_read(asked: Any, arch: str, dtype: str, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", arch, hidden_size=64)
    member = load_member(folder, quantization=asked, dtype=dtype)
    config, found = AutoConfig.from_pretrained(folder), member.reference.quantization
    assert size_of(config, str(folder), dtype, quantization=found).weight_bytes == bytes_of(member.model)
    assert size_of(config, str(folder)).parameters == tiny_model(arch, hidden_size=64).num_parameters()


def test_the_bytes_of_a_checkpoint_that_is_quantised(ready: Path, llama: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(ready)
    size = size_of(config, str(ready))
    assert size.weight_bytes == bytes_of(load_member(ready).model)
    assert size.parameters == size_of(AutoConfig.from_pretrained(llama), str(llama)).parameters
    compose(llama, llama, quantization={"anchor": "4bit"}).save_pretrained(tmp_path / "inner")
    inner = lmcompose.load(tmp_path / "inner")
    expected = bytes_of(inner.members) + 4 * inner.num_composition_parameters()
    assert size_of(inner.config, str(tmp_path / "inner")).weight_bytes == expected


# ---------------------------------------------------------------------------------------------------------- members


def test_an_adapter_on_a_quantised_base(llama: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(llama),
        peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False),
    )
    tuned.peft_config["default"].base_model_name_or_path = str(llama)
    tuned.save_pretrained(tmp_path / "tuned")
    model = randomise(compose(tmp_path / "tuned", tiny_model("gpt2"), quantization={"anchor": "4bit"}))
    assert quantised_layers(model.anchor) == 21
    bare = load_member(llama, quantization="4bit").model
    with model.disable():
        assert (plain_logits(model, IDS) - plain_logits(bare, IDS)).abs().max() > 1e-3
    model(IDS, labels=IDS).loss.backward()
    assert all(parameter.grad is not None for _, parameter in model.composition_parameters())
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved", augmenting=tiny_model("gpt2"))
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))


def test_roles_share_a_model_only_where_they_are_quantised_alike(llama: Path) -> None:
    options = {"members": {"base": llama, "same": llama, "other": llama}, "formula": "base + same - 0.5 * other"}
    model = combine(**options, quantization={"base": "4bit", "same": "4bit"})
    assert model.member("base") is model.member("same")
    assert model.member("other") is not model.member("base")
    assert [quantised_layers(model.member(role)) for role in ("base", "other")] == [21, 0]


@pytest.mark.parametrize("kind", ["calm", "logits"])
def test_a_composition_of_quantised_members_is_a_member(kind: str, llama: Path, tmp_path: Path) -> None:
    inner: Any = compose if kind == "calm" else (lambda a, b, **options: combine("a + b", {"a": a, "b": b}, **options))
    inner = inner(llama, llama, quantization="4bit")
    if kind == "calm":
        randomise(inner)
    inner.save_pretrained(tmp_path / "inner")
    outer = randomise(
        compose(tmp_path / "inner" if kind == "calm" else llama, {"more": tmp_path / "inner"}, connections=[(1, 2)])
    )
    member = outer.member("more")
    assert {quantised_layers(each) for each in member.members.values()} == {21}
    assert torch.equal(plain_logits(member, IDS), plain_logits(inner, IDS))
    outer.save_pretrained(tmp_path / "outer")
    assert torch.equal(plain_logits(lmcompose.load(tmp_path / "outer"), IDS), plain_logits(outer, IDS))


def test_errors_leave_live_members_unharmed(llama: Path) -> None:
    live = tiny_model("llama", **SIZES)
    with pytest.raises(LmcomposeError):
        compose(live, llama, quantization={"augmenting": "4bit"}, device_map={"augmenting": "meta"})
    assert all(parameter.requires_grad for parameter in live.parameters())
