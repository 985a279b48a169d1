"""The plan of a logit composition says what will be there, and composing it gives what `combine` gives in Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config

from lmcompose import combine, compose, proxy_tune
from lmcompose.errors import ConfigurationError, MemberError, TokenizerMismatchError
from lmcompose.logits.config import LogitConfig
from lmcompose.logits.plan import LogitPlan, plan, plan_recipe, saved_vocabularies
from lmcompose.logits.recipe import LogitRecipe
from lmcompose.recipe import read_recipe
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids, save_tiny, tiny_model, tiny_tokenizer

peft = pytest.importorskip("peft")

IDS = random_ids(2, 9)
SHIPPED = Path(__file__).parents[2] / "recipes" / "proxy.yaml"

RECIPE = """\
members:
  base: large
  expert: tuned
  antiexpert: small
preset: proxy_tuning
alpha: 0.5
output: out
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, an expert, an antiexpert, and an adapter of the antiexpert that names it from its own folder."""
    root = tmp_path_factory.mktemp("plan")
    save_tiny(root / "large", "llama", seed=0, num_hidden_layers=4)
    save_tiny(root / "tuned", "gpt2", seed=1, hidden_size=24)
    small = save_tiny(root / "small", "gpt2", seed=2, hidden_size=24)
    (small / "README.md").write_text("---\nlicense: mit\n---\n")
    model = tiny_model("gpt2", seed=2, hidden_size=24)
    model.name_or_path = "../small"
    lora = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["c_attn"], init_lora_weights=False)
    peft.get_peft_model(model, lora).save_pretrained(root / "adapter")
    return root


def planned(desk: Path, *changes: tuple[str, str]) -> LogitPlan:
    text = RECIPE
    for was, becomes in changes:
        assert was in text
        text = text.replace(was, becomes)
    recipe = desk / "recipe.yaml"
    recipe.write_text(text)
    return plan_recipe(recipe)[0]


def bytes_of(*models: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for model in models for parameter in model.parameters())


def test_a_recipe_gives_what_python_gives(desk: Path) -> None:
    plan = planned(desk)
    model = plan.compose()
    same = proxy_tune(desk / "large", desk / "tuned", desk / "small", alpha=0.5)
    assert torch.equal(plain_logits(model, IDS), plain_logits(same, IDS))
    assert not torch.equal(plain_logits(model, IDS), plain_logits(model.leader, IDS))
    assert model.config.provenance["recipe"]["alpha"] == 0.5
    assert plan.compose() is not model, "a plan can be composed again"


def test_where_the_result_goes(desk: Path) -> None:
    (desk / "recipe.yaml").write_text(RECIPE)
    assert plan_recipe(desk / "recipe.yaml")[1] == desk / "out"


def test_the_memory_of_the_plan_is_the_models(desk: Path) -> None:
    plan = planned(desk)
    model = plan.compose()
    assert plan.weight_bytes == bytes_of(model) == sum(member.weight_bytes for member in plan.members.values())
    # 4 layers, 2 key-value heads of 8 numbers; and twice 3 layers of 24: keys and values, in float32
    assert plan.cache_bytes == 4 * 2 * (4 * 2 * 8 + 2 * 3 * 24)
    assert plan.verdict == "fits"
    half = planned(desk, ("output", "dtype: bfloat16\noutput"))
    assert half.weight_bytes == plan.weight_bytes // 2
    assert half.compose().dtype == torch.bfloat16


def test_what_does_not_fit_is_refused(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcompose.logits.plan.memory", lambda: (1_000, 2_000))
    with pytest.raises(ConfigurationError, match=r"KiB, and the .* has 2\.0 KiB in all\. Use smaller members"):
        planned(desk).check_memory()
    planned(desk, ("output", "device_map: auto\noutput")).check_memory()  # it can be spread
    monkeypatch.setattr("lmcompose.logits.plan.memory", lambda: (1_000, 2**40))
    assert planned(desk).verdict == "tight"
    planned(desk).check_memory()


def test_members_that_share_weights_are_counted_once(desk: Path) -> None:
    plan = planned(desk, ("expert: tuned", "expert: {adapter: adapter}"))
    assert {role: member.shares_with for role, member in plan.members.items()} == {
        "base": None, "expert": None, "antiexpert": "expert",
    }  # fmt: skip
    model = plan.compose()
    assert model.member("expert") is model.member("antiexpert")
    assert plan.weight_bytes == bytes_of(model)
    assert plan.members["expert"].adapter_parameters == 3 * 2 * (24 + 3 * 24)
    assert plan.to_dict()["members"]["antiexpert"]["weight_bytes"] == 0


def test_an_adapter_on_a_base_that_is_named(desk: Path, tmp_path: Path) -> None:
    shutil.copytree(desk / "adapter", tmp_path / "adapter")  # whose base is not beside it here
    shutil.copytree(desk / "small", tmp_path / "moved")
    entry = f"{{adapter: {tmp_path / 'adapter'}, model: {tmp_path / 'moved'}}}"
    found = planned(desk, ("expert: tuned", f"expert: {entry}"), ("antiexpert: small", f"antiexpert: {tmp_path}/moved"))
    there = planned(desk, ("expert: tuned", "expert: adapter"))
    assert torch.equal(plain_logits(found.compose(), IDS), plain_logits(there.compose(), IDS))
    assert found.members["antiexpert"].shares_with == "expert"
    with pytest.raises(MemberError, match=r"no folder|no such folder|could be read"):
        planned(desk, ("expert: tuned", f"expert: {tmp_path / 'adapter'}"))


def test_a_dtype_and_a_temperature_for_each_member(desk: Path) -> None:
    entry = "expert:\n    model: tuned\n    dtype: bfloat16\n    temperature: 2"
    model = planned(desk, ("expert: tuned", entry)).compose()
    assert (model.member("expert").dtype, model.member("antiexpert").dtype) == (torch.bfloat16, torch.float32)
    base, expert, antiexpert = (plain_logits(model.member(role), IDS).float() for role in model.config.members)
    torch.testing.assert_close(plain_logits(model, IDS), base + 0.5 * (expert / 2 - antiexpert), atol=1e-5, rtol=0)
    shared = ("expert: tuned", "expert: {model: small, dtype: bfloat16}")
    with pytest.raises(ConfigurationError, match=r"share the weights of .*small', so they have one dtype.*Give both"):
        planned(desk, shared, ("antiexpert: small", "antiexpert: {model: small, dtype: float16}"))


def test_what_is_wrong_with_a_member_is_said_before_a_weight_is_read(desk: Path, tmp_path: Path) -> None:
    with pytest.raises(MemberError, match=r"No model could be read at 'nobody'.*for the expert"):
        planned(desk, ("expert: tuned", "expert: nobody"))
    other = tmp_path / "other"
    shutil.copytree(desk / "tuned", other)
    (other / "model.safetensors").unlink()
    file = other / "tokenizer.json"
    words = json.loads(file.read_text())
    words["model"]["vocab"] = {word.replace("w", "v"): i for word, i in words["model"]["vocab"].items()}
    file.write_text(json.dumps(words))
    with pytest.raises(TokenizerMismatchError, match=r"of the 97 tokens of .*'w0' \(id 22\) is missing"):
        planned(desk, ("expert: tuned", f"expert: {other}"))


def test_a_composition_is_a_member(desk: Path, tmp_path: Path) -> None:
    randomise(compose(desk / "large", desk / "small")).save_pretrained(tmp_path / "calm")
    combine("a + b", {"a": desk / "tuned", "b": desk / "small"}).save_pretrained(tmp_path / "pair")
    members = {"base": tmp_path / "calm", "expert": tmp_path / "pair", "antiexpert": desk / "small"}
    found = plan("proxy_tuning", {role: str(source) for role, source in members.items()})
    model = found.compose()
    assert found.weight_bytes == bytes_of(model)
    assert plain_logits(model, IDS).isfinite().all()


def test_a_gguf_file_is_a_member(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.test_gguf import write_gguf

    for name, seed in (("a", 0), ("b", 1)):
        write_gguf(tiny_model("llama", seed), tmp_path / f"{name}.gguf")
    (tmp_path / "recipe.yaml").write_text("members: {a: a.gguf, b: b.gguf}\nformula: a + 0.5 * b\noutput: out\n")
    found, _ = plan_recipe(tmp_path / "recipe.yaml")
    model = found.compose()
    assert found.weight_bytes == bytes_of(model)
    a, b = (plain_logits(model.member(role), IDS) for role in "ab")
    torch.testing.assert_close(plain_logits(model, IDS), a + 0.5 * b)


def test_the_vocabularies_of_a_saved_composition(desk: Path, tmp_path: Path) -> None:
    model = planned(desk).compose()
    model.save_pretrained(tmp_path / "saved")
    config = LogitConfig.from_pretrained(tmp_path / "saved")
    found = saved_vocabularies(config, str(tmp_path / "saved"))
    assert list(found) == ["expert", "antiexpert"]
    assert (found["expert"]["coverage"], found["expert"]["identical"], found["expert"]["compared"]) == (1.0, True, True)
    config.members["expert"]["name_or_path"] = str(tmp_path / "gone")
    assert saved_vocabularies(config, str(tmp_path / "saved"))["expert"]["compared"] is False
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"new{i}" for i in range(9)])
    tokenizer.save_pretrained(tmp_path / "saved")
    config.members["base"]["vocab_size"] = 106
    found = saved_vocabularies(config, str(tmp_path / "saved"))
    assert "'new0' (id 97) is missing" in found["antiexpert"]["error"]


def test_the_recipe_that_is_shipped(tmp_path: Path) -> None:
    """It is valid, says what to expect, and the memory that it states is the plan's."""
    text = SHIPPED.read_text(encoding="utf-8")
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    for word in ("lmcompose combine recipes/proxy.yaml", "Time:", "Expect:"):
        assert word in header
    recipe = read_recipe(SHIPPED, LogitRecipe)
    common = {"vocab_size": 151_936, "num_key_value_heads": 2, "tie_word_embeddings": True, "dtype": "bfloat16"}
    sizes = {"1.5B": (1536, 8960, 28, 12), "0.5B": (896, 4864, 24, 14)}
    for name, (width, mlp, layers, heads) in sizes.items():
        shape = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers}
        Qwen2Config(**common, **shape, num_attention_heads=heads).save_pretrained(tmp_path / name)
    (tmp_path / "adapter").mkdir()
    lora = {"base_model_name_or_path": str(tmp_path / "0.5B"), "peft_type": "LORA", "task_type": "CAUSAL_LM"}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(lora))
    save_file({"lora_A": torch.zeros(8, 896)}, tmp_path / "adapter" / "adapter_model.safetensors")
    here = {"base": "1.5B", "expert": "adapter", "antiexpert": "0.5B"}
    assert set(recipe.members) == set(here)
    options = recipe.options()
    found = plan(members={role: str(tmp_path / name) for role, name in here.items()}, dtypes=recipe.dtypes(), **options)
    assert found.members["antiexpert"].shares_with == "expert"
    assert f"about {found.weight_bytes / 2**30:.1f} GiB of weights" in header


def test_the_plan_as_plain_values(desk: Path) -> None:
    report = json.loads(json.dumps(planned(desk).to_dict()))
    assert (report["formula"], report["parameters"]) == ("base + alpha * (expert - antiexpert)", {"alpha": 0.5})
    assert report["members"]["antiexpert"]["license"] == "mit"
    assert report["vocabularies"]["expert"]["coverage"] == 1.0
    assert "fingerprint" not in report["members"]["base"]
