"""Members as users have them, in recipes and on the command line: what is refused, what opens it, what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmcompose
from lmcompose.errors import RecipeError
from lmcompose.recipe import read_recipe
from lmcompose.training.recipe import TrainingRecipe
from tests.cli.conftest import Run, one_line
from tests.test_adapters import lora
from tests.test_gguf import write_gguf
from tests.test_pickles import pickled
from tests.test_remote_code import save_odd
from tests.tiny import save_tiny, tiny_model

TRAINING = """\
anchor: large
augmenting: {domain: small}
data: [{path: data.txt}]
training: {steps: 1, batch_size: 1, max_length: 8}
output: trained
"""
PROXY = """\
members: {base: large, expert: small}
preset: expert_only
output: proxy
"""
RECIPES = (("train", TRAINING, "trained/model"), ("combine", PROXY, "proxy"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, data, and room for recipes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    save_tiny(tmp_path / "large", "llama", hidden_size=64, intermediate_size=64)
    save_tiny(tmp_path / "small", "gpt2", seed=1, hidden_size=64)
    (tmp_path / "data.txt").write_text("w1 w2 w3\nw4 w5 w6\n")
    return tmp_path


def written(desk: Path, text: str, *changes: tuple[str, str]) -> Path:
    for was, becomes in changes:
        assert was in text
        text = text.replace(was, becomes)
    (desk / "recipe.yaml").write_text(text)
    return desk / "recipe.yaml"


@pytest.mark.parametrize("kind", ["code", "pickles"])
def test_what_is_refused_unless_asked_for(kind: str, run: Run, desk: Path) -> None:
    if kind == "code":
        save_odd(desk / "large")
        key, flag = "trust_remote_code: true", "--trust-remote-code"
    else:
        pickled(desk / "large")
        key, flag = "use_safetensors: false", "--no-safetensors"
    for verb, text, saved in RECIPES:
        refused = run(verb, written(desk, text))
        assert refused.exit_code == 2
        assert f"in a recipe, {key}; on the command line, {flag}" in one_line(refused)
        made = run(verb, written(desk, f"{text}{key}\n"))
        assert made.exit_code == 0, made.stderr
        refused = run("generate", desk / saved, "w1", "--max-new-tokens", 2)
        assert refused.exit_code == 2
        assert flag in one_line(refused)
        assert run("generate", desk / saved, "w1", "--max-new-tokens", 2, flag).exit_code == 0
        assert run("inspect", desk / saved).exit_code == 0
    options = ("combine", "--base", desk / "large", "--expert", desk / "small", "--output", desk / "options")
    assert run(*options).exit_code == 2
    assert run(*options, flag).exit_code == 0
    assert run("trace", desk / "options", "w1", "--max-new-tokens", 1, flag).exit_code == 0


def test_quantised_members(run: Run, desk: Path) -> None:
    pytest.importorskip("bitsandbytes")
    for verb, text, saved in RECIPES:
        role = "anchor" if verb == "train" else "base"
        if verb == "train":
            recipe = written(desk, f"{text}quantization: {{anchor: 4bit}}\n")
            plain = json.loads(run(verb, written(desk, text), "--dry-run", "--json").stdout)["plan"]["members"][0]
            recipe = written(desk, f"{text}quantization: {{anchor: 4bit}}\n")
            packed = json.loads(run(verb, recipe, "--dry-run", "--json").stdout)["plan"]["members"][0]
            assert (plain["quantization"], packed["quantization"]) == (None, "4-bit nf4")
            assert packed["weight_bytes"] < plain["weight_bytes"] / 2
            assert "parameters in 4-bit nf4 and float32" in run(verb, recipe, "--dry-run").stdout
        else:
            recipe = written(desk, text, ("base: large", "base: {model: large, quantization: 4bit}"))
        result = run(verb, recipe)
        assert result.exit_code == 0, result.stderr
        model = lmcompose.load(desk / saved)
        assert [getattr(member, "is_loaded_in_4bit", False) for member in model.members.values()] == [True, False]
        report = json.loads(run("inspect", desk / saved, "--json").stdout)["members"]
        assert report[role]["quantization"]["load_in_4bit"] is True
        assert [member["quantization"] is None for member in report.values()] == [False, True]
        assert "4-bit" in run("inspect", desk / saved).stdout
        assert run("generate", desk / saved, "w1", "--max-new-tokens", 2).exit_code == 0
    options = ("combine", "--base", desk / "large", "--expert", desk / "small", "--quantization", "expert=8bit")
    plan = json.loads(run(*options, "--dry-run", "--json").stdout)["members"]
    assert [member["quantization"] is None for member in plan.values()] == [True, False]
    for asked, expected in (("8bit", [True, True]), ("{expert: 8bit}", [False, True])):
        recipe = written(desk, f"{PROXY}quantization: {asked}\n")
        plan = json.loads(run("combine", recipe, "--dry-run", "--json").stdout)["members"]
        assert [bool(member["quantization"]) for member in plan.values()] == expected


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (TRAINING, "quantization: 4bits", "must be '4bit', '8bit' or 'none', not '4bits'. Did you mean '4bit'?"),
        (TRAINING, "quantization: {anchr: 4bit}", "there is no member 'anchr' to load. Did you mean 'anchor'?"),
        (PROXY, "quantization: 4bits", "must be '4bit', '8bit' or 'none', not '4bits'"),
        (PROXY, "quantization: {bse: 4bit}", "there is no member 'bse' to load. Did you mean 'base'?"),
    ],
)
def test_a_wrong_word_is_named_with_its_line(text: str, line: str, message: str, run: Run, desk: Path) -> None:
    result = run("train" if text is TRAINING else "combine", written(desk, f"{text}{line}\n"))
    assert result.exit_code == 2
    said = one_line(result)
    assert message in said
    assert f"line {text.count(chr(10)) + 1}" in said


def test_a_wrong_option(run: Run, desk: Path) -> None:
    options = ("combine", "--base", desk / "large", "--expert", desk / "small", "--dry-run")
    for given, message in (
        ("base=4bits", "Give one of 4bit, 8bit, none"),
        ("bse=4bit", "Did you mean 'base'?"),
        ("4bit", "not of the form ROLE=4bit|8bit"),
    ):
        result = run(*options, "--quantization", given)
        assert result.exit_code == 2
        assert message in one_line(result)


def test_devices_in_recipes(run: Run, desk: Path) -> None:
    for text in (TRAINING, PROXY):
        roles = ("anchor", "domain") if text is TRAINING else ("base", "expert")
        verb = "train" if text is TRAINING else "combine"
        for devices in ("cpu", "auto", f"{{{roles[0]}: cpu, {roles[1]}: auto}}"):
            recipe = written(desk, f"{text}device_map: {devices}\n", ("output: ", f"output: {len(devices)}/"))
            result = run(verb, recipe)
            assert result.exit_code == 0, result.stderr
        wrong = f"device_map: {{{roles[0]}: cpu, {roles[1]}s: cpu}}\n"
        result = run(verb, written(desk, text + wrong, ("output: ", "output: other-")))
        assert result.exit_code == 2
        assert f"device_map: there is no member '{roles[1]}s'. Did you mean '{roles[1]}'?" in one_line(result)


def test_inspect_shows_what_kind_a_member_is(run: Run, desk: Path) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("gguf")
    save_tiny(desk / "base", "llama")
    lora(str(desk / "base")).save_pretrained(desk / "tuned")
    file = write_gguf(tiny_model("llama", seed=3), desk / "tiny.gguf")
    inner = lmcompose.compose(desk / "large", desk / "small")
    inner.save_pretrained(desk / "inner")
    names = {"first": desk / "tuned", "second": file, "third": desk / "inner"}
    model = lmcompose.compose((tiny_model("llama"), inner.tokenizer), names, dtype={"first": "bfloat16"})
    model.save_pretrained(desk / "saved")
    report = json.loads(run("inspect", desk / "saved", "--json").stdout)["members"]
    assert [member["kind"] for member in report.values()] == ["model", "adapter", "GGUF file", "composition"]
    assert [member["dtype"] for member in report.values()] == ["float32", "bfloat16", "float32", "float32"]
    assert all({"revision", "adapter_revision", "quantization"} <= member.keys() for member in report.values())
    text = run("inspect", desk / "saved").stdout
    for word in ("kind", "adapter", "GGUF", "composition", "bfloat16"):
        assert word in text


def test_both_keys_of_a_training_recipe(tmp_path: Path) -> None:
    text = TRAINING + "quantization: {domain: 8bit, anchor: none}\ndevice_map: {anchor: 'cuda:1'}\n"
    recipe = read_recipe(text, TrainingRecipe)
    assert recipe.quantizations() == {"domain": "8bit"}
    assert recipe.device_map == {"anchor": "cuda:1"}
    assert read_recipe(TRAINING, TrainingRecipe).quantizations() is None
    assert read_recipe(TRAINING + "quantization: 4bit\n", TrainingRecipe).quantizations() == {
        "anchor": "4bit",
        "domain": "4bit",
    }
    with pytest.raises(RecipeError, match="quantization"):
        read_recipe(TRAINING + "quantization: yes\n", TrainingRecipe)
