"""A recipe that adds an augmenting model to a saved composition: planned, trained, resumed, saved whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import lmcompose
from lmcompose.errors import ConfigurationError, LmcomposeError, RecipeError, SavedFolderError
from lmcompose.training.run import train
from tests.compositions import plain_logits, randomise
from tests.tiny import random_ids

Project = Callable[..., Path]
IDS = random_ids(2, 10)


@pytest.fixture(scope="session")
def law(models: Path) -> Path:
    """A saved composition with one augmenting model, `law`, in bf16."""
    model = lmcompose.compose(
        models / "anchor", {"law": models / "augmenting"}, connections=[(3, 1)], dtype={"law": torch.bfloat16}
    )
    randomise(model).save_pretrained(models / "law")
    return models / "law"


@pytest.fixture
def extension(project: Project, law: Path) -> Callable[..., Path]:
    """`extension((before, after), ...)` writes a recipe that adds `medicine` to `law`; returns it."""

    def make(*replacements: tuple[str, str]) -> Path:
        recipe = project()
        lines = recipe.read_text().splitlines()
        small = lines[1].removeprefix("augmenting: ")
        text = "\n".join([f"extends: {law}", f"augmenting: {{medicine: {small}}}", *lines[2:]]) + "\n"
        for before, after in replacements:
            assert before in text
            text = text.replace(before, after)
        recipe.write_text(text)
        return recipe

    return make


def quiet(recipe: Path, **options: Any) -> dict[str, Any]:
    return train(recipe, say=lambda text: None, progress=False, **options)


def test_only_what_is_added_is_trained_and_all_is_saved(extension: Callable[..., Path], law: Path) -> None:
    recipe = extension()
    said: list[str] = []
    result = train(recipe, say=said.append, progress=False)
    plan = result["results"]["plan"]
    assert [(member["role"], member["dtype"]) for member in plan["members"]] == [
        ("anchor", "float32"), ("law", "bfloat16"), ("medicine", "float32")
    ]  # fmt: skip
    assert (plan["connections"], plan["kept_connections"]) == ({"medicine": 2}, {"law": 1})
    assert plan["trained_parameters"] == result["results"]["trained_parameters"] == 2 * (48 * 32 + 4 * 32 * 32)
    kept = 4 * (48 * 32 + 4 * 32 * 32)
    assert kept <= plan["kept_bytes"] <= kept + 2_000
    text = "\n".join(said)
    assert "connections law: 1\nTrained: " in text
    assert "connections medicine: 2" in text
    assert f"({law}) -> " in text, "the loss before is that of the composition, not of the anchor alone"

    model = lmcompose.load(recipe.parent / "out" / "model")
    assert list(model.augmenting) == ["law", "medicine"]
    before, after = load_file(law / "model.safetensors"), dict(model.composition_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert len(after) == 3 * len(before)
    old = plain_logits(lmcompose.load(law), IDS)
    assert (plain_logits(model, IDS) - old).abs().max() > 1e-3
    with model.without("medicine"):
        assert torch.equal(plain_logits(model, IDS), old)
    made = model.config.provenance
    assert (made["added"], made["to"]["composition"]) == (["medicine"], str(law))
    assert made["recipe"]["extends"] == str(law)


def test_a_resumed_extension_goes_on_as_if_never_stopped(extension: Callable[..., Path], tmp_path: Path) -> None:
    recipe = extension()
    quiet(recipe)
    whole = load_file(recipe.parent / "out" / "model" / "model.safetensors")
    resumed = quiet(recipe, resume=True)
    assert resumed["results"]["resumed_from_step"] == 12
    for step in (12, 10):  # the first checkpoint is of step 5, and two are kept
        checkpoint = recipe.parent / "out" / "checkpoints" / f"checkpoint-{step}"
        if step == 12:
            for file in sorted(checkpoint.rglob("*")):
                file.unlink()
            checkpoint.rmdir()
    assert quiet(recipe, resume=True)["results"]["resumed_from_step"] == 10
    again = load_file(recipe.parent / "out" / "model" / "model.safetensors")
    assert again.keys() == whole.keys()
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_all_bridges_are_trained_where_the_recipe_says_so(extension: Callable[..., Path], law: Path) -> None:
    result = quiet(extension(("output: out", "output: out\ntrainable: all"), ("steps: 12", "steps: 2")))
    plan = result["results"]["plan"]
    assert (plan["connections"], plan["kept_connections"], plan["kept_bytes"]) == ({"law": 1, "medicine": 2}, {}, 0)
    assert plan["trained_parameters"] == result["results"]["trained_parameters"] == 3 * (48 * 32 + 4 * 32 * 32)


@pytest.mark.parametrize(
    ("before", "after", "error", "message"),
    [
        ("{medicine: ", "{law: ", ConfigurationError, "an augmenting model 'law' already"),
        ("/law\n", "/lawn\n", RecipeError, "extends: there is no folder"),
        ("/law\n", "/anchor\n", SavedFolderError, "holds a 'llama' model"),
        ("[[1, 1], [2, 3]]", "[[1, 9]]", ConfigurationError, "the anchor model has no layer 9"),
        ("[[1, 1], [2, 3]]", "{law: [[1, 1]]}", ConfigurationError, r"for \['law'\], but the new"),
    ],
)
def test_what_cannot_be_added_is_refused_before_weights(
    extension: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    error: type[LmcomposeError],
    message: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    recipe = extension((before, after))
    monkeypatch.setattr("lmcompose.training.models.extend", refuse)
    there = sorted(recipe.parent.rglob("*"))
    with pytest.raises(error, match=message):
        quiet(recipe)
    assert sorted(recipe.parent.rglob("*")) == there


def test_a_dry_run_plans_an_extension(extension: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("lmcompose.training.models.extend", refuse)
    planned = quiet(extension(), dry_run=True)
    assert json.dumps(planned)
    assert planned["plan"]["kept_connections"] == {"law": 1}
