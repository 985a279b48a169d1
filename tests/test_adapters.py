"""A PEFT adapter in a folder or on the hub is a member: its base is found, and what cannot work is refused at once."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmcompose import CalmForCausalLM, combine, compose
from lmcompose.adapters import CONFIG_NAME, WEIGHTS_NAME, AdapterSource, adapter_source, with_adapters
from lmcompose.calm import compose as calm_compose
from lmcompose.errors import MemberError, WrongBaseError
from lmcompose.loading import load_member, plan_member
from lmcompose.logits import compose as logits_compose
from lmcompose.places import read_tokenizer
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

peft = pytest.importorskip("peft")

IDS = random_ids(2, 9)
COMMIT, NEXT_COMMIT = "a" * 40, "b" * 40


def lora(base: str, seed: int = 0, targets: tuple[str, ...] = ("q_proj", "v_proj"), **settings: Any) -> Any:
    """A LoRA on the tiny llama of seed 0, all of it random, that says that it was trained on `base`."""
    config = peft.LoraConfig(r=2, target_modules=list(targets), task_type="CAUSAL_LM", **settings)
    model = peft.get_peft_model(tiny_model("llama"), config)
    model.peft_config["default"].base_model_name_or_path = base
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


def rewrite(adapter: Path, **changes: Any) -> None:
    """Change what the adapter's configuration says."""
    file = adapter / CONFIG_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "base", "llama")


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    """A saved adapter, as PEFT writes it."""
    lora(str(base)).save_pretrained(tmp_path / "tuned")
    assert not (tmp_path / "tuned" / "config.json").exists()
    return tmp_path / "tuned"


def test_an_adapter_is_a_member(adapter: Path, base: Path) -> None:
    member = load_member(adapter)
    tuned, plain = lora(str(base))(IDS).logits, tiny_model("llama")(IDS).logits
    assert torch.equal(member.model(IDS).logits, tuned)
    assert (tuned - plain).abs().max() > 1e-3
    assert not hasattr(member.model, "get_base_model"), "the wrapper of PEFT stayed around the model"
    assert not any(parameter.requires_grad for parameter in member.model.parameters())
    assert member.reference.places == [str(base), str(adapter)]
    assert member.reference.shape == load_member(base).reference.shape
    assert member.reference.fingerprint["adapters"] != load_member(base).reference.fingerprint["adapters"]


def test_what_an_adapter_says(adapter: Path, base: Path) -> None:
    said = AdapterSource(str(base), str(adapter), "LORA", task_type="CAUSAL_LM")
    assert adapter_source(adapter) == adapter_source(str(adapter)) == adapter_source(said) == said
    assert adapter_source(tiny_model("gpt2")) is None
    for no_adapter in (base, str(base), adapter / "nothing", adapter / WEIGHTS_NAME, "nobody/nothing"):
        assert adapter_source(no_adapter) is None
    shutil.copy(base / "config.json", adapter)
    assert adapter_source(adapter) is None, "with a config.json the folder is a model"


def test_a_base_is_found_from_the_adapters_folder(
    adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(adapter, base_model_name_or_path="../base")
    monkeypatch.chdir(adapter / "..")
    assert plan_member("tuned").places == ["base", "tuned"]
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere" / "deep")
    assert plan_member(adapter).name_or_path == str(base)
    assert torch.equal(load_member("../../tuned").model(IDS).logits, lora(str(base))(IDS).logits)
    save_tiny("../base", "llama", hidden_size=48)  # what the working directory has goes first, as it does in PEFT
    assert plan_member(adapter).name_or_path == "../base"


def test_another_base_can_be_named(adapter: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", "llama", seed=3)
    member = load_member(AdapterSource(str(other), str(adapter), "LORA"))
    assert member.reference.places == [str(other), str(adapter)]
    assert (member.model(IDS).logits - load_member(adapter).model(IDS).logits).abs().max() > 1e-3


def test_the_adapters_tokenizer_goes_before_the_bases(adapter: Path) -> None:
    assert load_member(adapter).tokenizer is not None
    own = tiny_tokenizer()
    own.chat_template = "{{ messages }}"
    own.save_pretrained(adapter)
    assert load_member(adapter).tokenizer.chat_template == own.chat_template  # type: ignore[union-attr]
    assert read_tokenizer(adapter).chat_template == own.chat_template  # type: ignore[union-attr]


def test_a_tokenizer_is_read_from_the_base_by_the_adapters_name(adapter: Path) -> None:
    assert read_tokenizer(adapter).chat_template == tiny_tokenizer().chat_template  # type: ignore[union-attr]


def test_both_licences_are_told(adapter: Path, base: Path) -> None:
    assert plan_member(adapter).license is None
    (adapter / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    assert plan_member(adapter).license == "not stated, adapter: apache-2.0"
    (base / "README.md").write_text("---\nlicense: mit\n---\n")
    assert plan_member(adapter).license == "mit, adapter: apache-2.0"
    (adapter / "README.md").write_text("---\nlicense: mit\n---\n")
    assert plan_member(adapter).license == "mit"


def test_two_adapters_share_one_base(adapter: Path, base: Path, tmp_path: Path) -> None:
    lora(str(base), seed=1).save_pretrained(tmp_path / "second")
    model = with_adapters(load_member(base).model, {"expert": str(adapter), "other": str(tmp_path / "second")})
    assert torch.equal(model(IDS).logits, lora(str(base))(IDS).logits)
    for layer in (module for module in model.modules() if hasattr(module, "base_layer")):
        layer.set_adapter("other")
    assert torch.equal(model(IDS).logits, lora(str(base), seed=1)(IDS).logits)

    tensors = load_file(tmp_path / "second" / WEIGHTS_NAME)
    save_file(dict(list(tensors.items())[1:]), tmp_path / "second" / WEIGHTS_NAME)
    with pytest.raises(ValueError, match=r"Found missing adapter keys in '.*second'"):
        with_adapters(load_member(base).model, {"expert": str(adapter), "other": str(tmp_path / "second")})


# -------------------------------------------------------------------------------------------- saved compositions


@pytest.fixture
def saved(adapter: Path, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A saved composition whose augmenting model has an adapter, and its logits."""
    anchor = save_tiny(tmp_path / "anchor", "gpt2")
    model = randomise(compose(anchor=str(anchor), augmenting=str(adapter)))
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved", plain_logits(model, IDS)


def test_a_saved_composition_loads_its_adapter_again(
    saved: tuple[Path, torch.Tensor], adapter: Path, base: Path
) -> None:
    folder, logits = saved
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(folder), IDS), logits)
    row = next(line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| augmenting"))
    assert f"| {base} with the adapter {adapter} | not versioned, adapter not versioned |" in row
    reference = json.loads((folder / "config.json").read_text())["members"]["augmenting"]
    assert (reference["name_or_path"], reference["adapter"]) == (str(base), str(adapter))


def test_another_adapter_in_the_saved_ones_place_is_refused(
    saved: tuple[Path, torch.Tensor], adapter: Path, base: Path
) -> None:
    lora(str(base), seed=1).save_pretrained(adapter)
    with pytest.raises(WrongBaseError, match="other weights"):
        CalmForCausalLM.from_pretrained(saved[0])
    with pytest.raises(WrongBaseError, match="other weights"):
        CalmForCausalLM.from_pretrained(saved[0], augmenting=str(base))


def test_another_adapter_of_whole_modules_alone_is_refused(tmp_path: Path) -> None:
    """Nothing is added to a layer; the adapter is a head, in a model of more matrices than are sampled."""
    base = save_tiny(tmp_path / "base", "llama", num_hidden_layers=8)

    def write(seed: int) -> None:
        tuned = lora(str(base), targets=("q_proj",), modules_to_save=["lm_head"])
        tuned.peft_config["default"].target_modules = "dummy-target-modules"
        head = torch.randn(tuned.lm_head.original_module.weight.shape, generator=torch.Generator().manual_seed(seed))
        tuned.peft_config["default"].save_pretrained(tmp_path / "head")
        save_file({"base_model.model.lm_head.weight": head}, tmp_path / "head" / WEIGHTS_NAME)

    write(0)
    model = randomise(compose(anchor=tiny_model("gpt2"), augmenting=str(tmp_path / "head")))
    model.save_pretrained(tmp_path / "saved")
    again = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=tiny_model("gpt2"))
    assert torch.equal(plain_logits(again, IDS), plain_logits(model, IDS))
    write(1)
    with pytest.raises(WrongBaseError, match="other weights"):
        CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=tiny_model("gpt2"))


def test_a_saved_composition_whose_adapter_moved(saved: tuple[Path, torch.Tensor], adapter: Path) -> None:
    moved = adapter.rename(adapter.with_name("moved"))
    with pytest.raises(MemberError, match=f"{adapter}.*say where: from_pretrained"):
        CalmForCausalLM.from_pretrained(saved[0])
    model = CalmForCausalLM.from_pretrained(saved[0], augmenting=str(moved))
    assert torch.equal(plain_logits(model, IDS), saved[1])


def test_a_saved_composition_keeps_its_base_whatever_the_adapter_says_later(
    saved: tuple[Path, torch.Tensor], adapter: Path
) -> None:
    rewrite(adapter, base_model_name_or_path="nobody/nothing")
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(saved[0]), IDS), saved[1])


def test_a_saved_composition_whose_base_moved(saved: tuple[Path, torch.Tensor], adapter: Path, base: Path) -> None:
    moved = base.rename(base.with_name("moved"))
    with pytest.raises(MemberError, match=r"correct base_model_name_or_path in the adapter's adapter_config\.json"):
        CalmForCausalLM.from_pretrained(saved[0])
    rewrite(adapter, base_model_name_or_path=str(moved))
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(saved[0]), IDS), saved[1])
    save_tiny(base.with_name("other"), "llama", seed=8)
    rewrite(adapter, base_model_name_or_path="../other")
    with pytest.raises(WrongBaseError, match="other weights"):
        CalmForCausalLM.from_pretrained(saved[0])


def test_names_are_taken_from_the_saved_folder_too(saved: tuple[Path, torch.Tensor]) -> None:
    config = json.loads((saved[0] / "config.json").read_text())
    config["members"]["augmenting"] |= {"name_or_path": "../base", "adapter": "../tuned"}
    (saved[0] / "config.json").write_text(json.dumps(config))
    assert torch.equal(plain_logits(CalmForCausalLM.from_pretrained(saved[0]), IDS), saved[1])


# ------------------------------------------------------------------------------------------------------- the hub


@pytest.fixture
def on_hub(adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with the base at two commits, and an adapter of the older one."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    put_on_hub(cache, "someone/base", COMMIT, base)
    put_on_hub(cache, "someone/base", NEXT_COMMIT, save_tiny(tmp_path / "newer", "llama", seed=7))
    rewrite(adapter, base_model_name_or_path="someone/base", revision=COMMIT)
    put_on_hub(cache, "someone/tuned", NEXT_COMMIT, adapter)
    shutil.rmtree(base)
    shutil.rmtree(adapter)
    return cache


def put_on_hub(cache: Path, name: str, commit: str, folder: Path) -> None:
    """Lay `folder` down as the hub's cache keeps a commit, and make it the newest."""
    repository = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)


def test_an_adapter_on_the_hub_is_a_member(on_hub: Path, tmp_path: Path) -> None:
    member = load_member("someone/tuned")
    assert member.reference.places == ["someone/base", "someone/tuned"]
    assert (member.reference.revision, member.reference.adapter_revision) == (COMMIT, NEXT_COMMIT)
    assert torch.equal(member.model(IDS).logits, lora("")(IDS).logits)
    assert member.tokenizer is not None

    model = randomise(compose(anchor=tiny_model("gpt2"), augmenting=("someone/tuned")))
    model.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "base_model:\n- someone/base\n- someone/tuned\n" in card
    put_on_hub(on_hub, "someone/tuned", COMMIT, save_tiny(tmp_path / "replaced", "llama", seed=9))
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=tiny_model("gpt2"))
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS)), "the saved commits were not taken"


def test_an_adapter_on_the_hub_in_place_of_a_saved_folder(
    adapter: Path, base: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = randomise(compose(anchor=tiny_model("gpt2"), augmenting=str(adapter)))
    model.save_pretrained(tmp_path / "saved")
    request.getfixturevalue("on_hub")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=tiny_model("gpt2"), augmenting="someone/tuned")
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))


@pytest.mark.parametrize("kind", ["calm", "logits"])
def test_what_was_planned_is_loaded_whatever_is_uploaded_meanwhile(
    kind: str, on_hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model, and the base of an adapter, that nobody pinned."""
    tuned = on_hub / "models--someone--tuned" / "snapshots" / NEXT_COMMIT
    rewrite(tuned, revision=None)
    newest = save_tiny(tmp_path / "newest", "llama", seed=11)
    # the last step before weights are read
    module, step = (calm_compose, "align_members") if kind == "calm" else (logits_compose, "map_vocabularies")
    original = getattr(module, step)

    def while_somebody_uploads(*args: Any) -> Any:
        put_on_hub(on_hub, "someone/base", "c" * 40, newest)
        return original(*args)

    monkeypatch.setattr(module, step, while_somebody_uploads)
    model: Any
    if kind == "calm":
        model = compose("someone/base", {"tuned": "someone/tuned"})
        assert torch.equal(model.anchor(IDS).logits, tiny_model("llama", seed=7)(IDS).logits)
    else:
        model = combine("base + tuned", {"base": tiny_model("llama"), "tuned": "someone/tuned"})
    assert plan_member("someone/base").revision == "c" * 40
    planned = with_adapters(tiny_model("llama", seed=7), {"default": str(tuned)})
    assert torch.equal(model.member("tuned")(IDS).logits, planned(IDS).logits)
    assert model.config.references()["tuned"].revision == NEXT_COMMIT


# ------------------------------------------------------------------------------------------------------ refusals


def refused(source: Any, pattern: str) -> None:
    with pytest.raises(MemberError, match=pattern):
        plan_member(source, "expert")


def test_prompt_learning_is_refused_before_weights_are_read(base: Path, tmp_path: Path) -> None:
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny_model("llama"), config)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(tmp_path / "prompt")
    for file in base.glob("*.safetensors"):
        file.unlink()
    refused(tmp_path / "prompt", r"cannot be the expert.*PROMPT_TUNING.*such as LoRA")


def test_peft_that_is_missing_is_named(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    refused(adapter, r"PEFT is not installed\. pip install 'lmcompose\[peft\]'")


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"task_type": "SEQ_CLS"}, "trained for SEQ_CLS"),
        ({"peft_type": "TELEPATHY"}, "knows no TELEPATHY.*pip install --upgrade peft"),
        ({"base_model_name_or_path": None}, "does not say what it is.*base_model_name_or_path is None"),
        ({"base_model_name_or_path": "../gone"}, r"No model could be read at '\.\./gone'.*correct base_model_name"),
        ({"base_model_name_or_path": "."}, r"No model could be read at '\.'.*correct base_model_name"),
    ],
)
def test_an_adapter_that_cannot_be_a_member_is_refused(
    changes: dict[str, Any], pattern: str, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(adapter)
    rewrite(adapter, **changes)
    refused(adapter, pattern)


def test_an_adapter_of_an_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    lora(str(adapter)).save_pretrained(tmp_path / "second")
    refused(tmp_path / "second", f"No model could be read at '{adapter}'.*The adapter '{tmp_path}/second' is made for")


def test_a_configuration_that_does_not_parse_is_refused(adapter: Path) -> None:
    (adapter / CONFIG_NAME).write_text("{")
    refused(adapter, "does not say what it is: its adapter_config.json must name")


def test_pickled_weights_are_refused(adapter: Path) -> None:
    torch.save(load_file(adapter / WEIGHTS_NAME), adapter / "adapter_model.bin")
    (adapter / WEIGHTS_NAME).unlink()
    refused(adapter, "there is no adapter_model.safetensors.*only safetensors are read")


def test_an_adapter_that_does_not_fit_its_base_is_refused(adapter: Path, tmp_path: Path) -> None:
    """PEFT only warns of a missing part, and the model would be the base there."""
    wide = save_tiny(tmp_path / "wide", "llama", hidden_size=48)
    with pytest.raises(MemberError, match=f"could not be put on '{wide}'.*merge_and_unload"):
        load_member(AdapterSource(str(wide), str(adapter), "LORA"))
    deep = save_tiny(tmp_path / "deep", "llama", num_hidden_layers=4)
    with pytest.raises(MemberError, match=f"could not be put on '{deep}': Found missing adapter keys"):
        load_member(AdapterSource(str(deep), str(adapter), "LORA"))
    tensors = load_file(adapter / WEIGHTS_NAME)
    save_file(dict(list(tensors.items())[1:]), adapter / WEIGHTS_NAME)
    with pytest.raises(MemberError, match="Found missing adapter keys"):
        load_member(adapter)
    (adapter / WEIGHTS_NAME).write_bytes((adapter / WEIGHTS_NAME).read_bytes()[:100])
    with pytest.raises(MemberError, match="could not be put on"):
        load_member(adapter)
