"""Recipes that unfreeze layers: planned, trained at a rate of their own, resumed exactly, on two processes too."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import lmcompose
from lmcompose.errors import ConfigurationError, RecipeError
from lmcompose.training.run import train
from tests.compositions import random_composition
from tests.tiny import PAIRS
from tests.training.test_processes import ENVIRONMENT
from tests.training.test_trainer import Kill, logged, trainer_of

Project = Callable[..., Path]

UNFREEZE = ("output: out", "unfreeze: {anchor: [3], augmenting: [1]}\noutput: out")
LAYERS = {"anchor": 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32}
"""Q and O, K and V of half the heads, the MLP, two norms: of the tiny llama of width 32."""
LAYERS["augmenting"] = 48 * 48 * 2 + 2 * 48 * 24 + 3 * 48 * 48 + 2 * 48


def quiet(recipe: Path, **options: Any) -> dict[str, Any]:
    return train(recipe, say=lambda text: None, progress=False, **options)


def test_a_recipe_trains_copies_of_the_layers_and_saves_them(project: Project, models: Path) -> None:
    before = {role: load_file(models / role / "model.safetensors") for role in ("anchor", "augmenting")}
    recipe = project(UNFREEZE, ("log_every: 1", "log_every: 1\n  unfrozen_learning_rate: 0.001"))
    said: list[str] = []
    result = train(recipe, say=said.append, progress=False)
    plan = result["results"]["plan"]
    bridges = 2 * (48 * 32 + 4 * 32 * 32)
    assert plan["trained_parameters"] == result["results"]["trained_parameters"] == bridges + sum(LAYERS.values())
    assert plan["training_bytes"] == 4 * 4 * plan["trained_parameters"]
    assert "connections augmenting: 2; copies of layers [3] of anchor; copies of layers [1] of augmenting" in said[0]
    model = lmcompose.load(recipe.parent / "out" / "model")
    assert model.config.unfreeze == {"anchor": [3], "augmenting": [1]}
    for role, layer in (("anchor", 3), ("augmenting", 1)):
        for name, parameter in model.unfrozen[f"{role}_{layer}"].named_parameters():
            assert not torch.equal(parameter, before[role][f"model.layers.{layer - 1}.{name}"]), name
        for name, tensor in load_file(models / role / "model.safetensors").items():
            assert torch.equal(tensor, before[role][name])


def test_more_is_planned_where_a_graph_goes_further(project: Project) -> None:
    def activations(*replacements: tuple[str, str], folder: Path) -> int:
        recipe = project(("[[1, 1], [2, 3]]", "[[2, 3]]"), *replacements, folder=folder)
        return int(quiet(recipe, dry_run=True)["plan"]["activation_bytes"])

    folder = project().parent
    bare = activations(folder=folder / "1")
    high = activations(("output", "unfreeze: {anchor: [3]}\noutput"), folder=folder / "2")
    low = activations(("output", "unfreeze: {anchor: [1, 3]}\noutput"), folder=folder / "3")
    augmenting = activations(("output", "unfreeze: {augmenting: [1]}\noutput"), folder=folder / "4")
    assert bare < high < low
    assert low - high == 2 * (high - bare), "three layers keep something, and not one"
    assert augmenting > bare


def test_a_recipe_that_extends_trains_what_it_unfreezes_and_keeps_the_rest(project: Project) -> None:
    first = project(UNFREEZE, ("steps: 12", "steps: 2"))
    quiet(first)
    lines = first.read_text().splitlines()
    small = lines[1].removeprefix("augmenting: ")
    second = project(folder=first.parent / "second")
    second.write_text("\n".join([f"extends: {first.parent}/out/model", f"augmenting: {{more: {small}}}", *lines[2:]]))
    text = second.read_text().replace("{anchor: [3], augmenting: [1]}", "{anchor: [2], more: [2]}")
    second.write_text(text)
    result = quiet(second)["results"]
    bridges = 2 * (48 * 32 + 4 * 32 * 32)
    assert result["plan"]["unfrozen"] == {"anchor": [2], "more": [2]}
    assert result["plan"]["trained_parameters"] == result["trained_parameters"] == bridges + sum(LAYERS.values())
    before, after = (load_file(each.parent / "out" / "model" / "model.safetensors") for each in (first, second))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {name.split(".")[1] for name in after.keys() - before.keys()} == {
        "anchor_2", "more_2", "more_1_1", "more_2_3"
    }  # fmt: skip


def test_bf16_members_keep_fp32_copies(project: Project) -> None:
    recipe = project(UNFREEZE, ("output", "dtype: bfloat16\noutput"), ("steps: 12", "steps: 2"))
    plan = quiet(recipe)["results"]["plan"]
    assert plan["training_bytes"] == 4 * 4 * plan["trained_parameters"]
    saved = load_file(recipe.parent / "out" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("replacements", "error", "message"),
    [
        ([("output", "unfreeze: {anchor: [9]}\noutput")], ConfigurationError, "'anchor' has no layer 9"),
        ([("output", "unfreeze: {anchor: [0]}\noutput")], ConfigurationError, "is its embeddings"),
        ([("output", "unfreeze: {anchor: [x]}\noutput")], RecipeError, "unfreeze"),
        ([("log_every", "unfrozen_learning_rate: 0.1\n  log_every")], RecipeError, "it goes with 'unfreeze'"),
        ([UNFREEZE, ("log_every", "optimizer: muon\n  log_every")], ConfigurationError, "muon trains matrices only"),
    ],
)
def test_what_cannot_be_is_said(project: Project, replacements: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        quiet(project(*replacements))


def test_unfrozen_layers_have_a_learning_rate_of_their_own_and_their_vectors_no_decay(tmp_path: Path) -> None:
    model = random_composition(PAIRS["llama+gpt2"], unfreeze={"anchor": [2], "augmenting": [1]})
    trainer = trainer_of(model, tmp_path, max_steps=4, weight_decay=0.1, unfrozen_learning_rate=1e-4)
    trainer.create_optimizer_and_scheduler(4)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {}
    for group in trainer.optimizer.param_groups:
        found.update({names[parameter]: (group["initial_lr"], group["weight_decay"]) for parameter in group["params"]})
    assert found.keys() == {name for name, _ in model.composition_parameters()}
    for name, parameter in model.composition_parameters():
        rate = 1e-4 if name.startswith("unfrozen.") else 1e-2
        assert found[name] == (rate, 0.1 if parameter.ndim > 1 else 0.0), name
    trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0, "the schedule ends at nothing"
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.0}


def test_a_resumed_run_repeats_the_uninterrupted_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"count": 64, "max_steps": 8, "save_strategy": "steps", "save_steps": 3}
    settings |= {"logging_steps": 2, "unfrozen_learning_rate": 1e-3}

    def fresh(seed: int = 0) -> Any:
        return random_composition(PAIRS["llama+gpt2"], seed=seed, unfreeze={"anchor": [2], "augmenting": [1]})

    whole = trainer_of(fresh(), tmp_path / "whole", **settings)
    whole.train()
    broken = trainer_of(fresh(), tmp_path / "broken", callbacks=[Kill(4)], **settings)
    with pytest.raises(ZeroDivisionError):
        broken.train()
    resumed = trainer_of(fresh(seed=9), tmp_path / "broken", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert logged(resumed, "loss") == logged(whole, "loss")
    theirs = dict(whole.model.composition_parameters())
    for name, parameter in resumed.model.composition_parameters():
        assert torch.equal(parameter, theirs[name]), name


def test_two_processes_give_the_losses_of_one(project: Project, tmp_path: Path) -> None:
    curves = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        recipe = project(UNFREEZE, ("steps: 12", "steps: 6"), ("save_every: 5", "save_every: 6"), folder=folder)
        if processes == 1:
            quiet(recipe)
        else:
            launch = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
            settings = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
            command = [sys.executable, "-m", *launch, *settings, "-m", "lmcompose", "train", str(recipe), "--quiet"]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
        curves.append(json.loads((folder / "out" / "loss_curve.json").read_text())["train"])
    assert [point["loss"] for point in curves[0]] == pytest.approx([point["loss"] for point in curves[1]], rel=1e-4)


def test_a_recipe_lets_the_augmenting_model_read_the_prompt_alone(project: Project) -> None:
    """The same losses packed and not, other ones than those of a model that reads every token."""
    losses = {}
    for name, replacements in {
        "prompt": [("output: out", "reads: prompt\noutput: out")],
        "text": [],
        "packed": [("output: out", "reads: prompt\noutput: out"), ("batch_size: 4", "batch_size: 4\n  packing: true")],
    }.items():
        recipe = project(*replacements, ("steps: 12", "steps: 6"), folder=project().parent / name)
        result = quiet(recipe)["results"]
        losses[name] = (result["validation_loss_untrained"], result["validation_loss"])
        model = lmcompose.load(recipe.parent / "out" / "model")
        assert model.config.prompt_readers() == ([] if name == "text" else ["augmenting"])
    assert losses["prompt"][0] == pytest.approx(losses["text"][0], rel=1e-6), "untrained, both are the anchor"
    assert losses["packed"][0] == pytest.approx(losses["text"][0], rel=1e-5)
    assert abs(losses["prompt"][1] - losses["text"][1]) > 1e-5
