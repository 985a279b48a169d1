"""A small model continued on a domain becomes the augmenting model of another recipe."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import lmcompose
from lmcompose.errors import LmcomposeError
from lmcompose.experiments.tune import main, tuned
from tests.tiny import save_tiny
from tests.training.conftest import write_project


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    for number, name in enumerate(("anchor", "augmenting")):
        save_tiny(models / name, "llama", seed=number)
    return write_project(tmp_path / "project", models)


def test_the_tuned_model_is_another_and_can_be_composed(recipe: Path) -> None:
    before = AutoModelForCausalLM.from_pretrained(recipe.parents[1] / "models" / "anchor")
    result = tuned(recipe)
    assert result is not None
    assert result["results"]["validation_loss"] < result["results"]["validation_loss_untrained"]
    folder = recipe.parent / "out" / "model"
    after = AutoModelForCausalLM.from_pretrained(folder)
    assert any(not torch.equal(one, two) for one, two in zip(before.parameters(), after.parameters(), strict=True))
    model = lmcompose.compose(anchor=str(recipe.parents[1] / "models" / "augmenting"), augmenting=str(folder))
    assert torch.isfinite(model(input_ids=torch.tensor([[5, 6, 7]])).logits).all()


def test_a_run_that_is_finished_is_left_as_it_is(recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["tune", str(recipe)])
    main()
    weights = recipe.parent / "out" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    capsys.readouterr()
    main()
    assert "left as it is" in capsys.readouterr().out
    assert weights.stat().st_mtime_ns == written


@pytest.mark.parametrize("change", ["recipe", "data", "method"])
def test_a_run_of_another_recipe_is_not_taken_for_finished(recipe: Path, change: str) -> None:
    tuned(recipe)
    if change == "recipe":
        text = recipe.read_text(encoding="utf-8")
        recipe.write_text(text.replace("learning_rate: ", "learning_rate: 9"), encoding="utf-8")
    elif change == "data":
        facts = recipe.parent / "facts.jsonl"
        facts.write_text(facts.read_text(encoding="utf-8").replace("1 +", "2 +"), encoding="utf-8")
    with pytest.raises(LmcomposeError, match=r"another output|old data back"):
        tuned(recipe, lora=2_000 if change == "method" else None)


def test_lora_leaves_an_adapter_and_a_bad_recipe_one_line(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tuned(recipe, lora=2_000)
    adapter = json.loads((recipe.parent / "out" / "model" / "adapter_config.json").read_text(encoding="utf-8"))
    assert adapter["peft_type"] == "LORA"
    bad = tmp_path / "bad.yaml"
    bad.write_text("anchor: nowhere/at-all\n", encoding="utf-8")
    command = [sys.executable, "-m", "lmcompose.experiments.tune", str(bad)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "tune: " in said.stderr
    assert "Traceback" not in said.stderr
