"""Muon by name in a recipe: it trains, resumes exactly, and has a state for composition parameters only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers.training_args import OptimizerNames

from lmcompose.errors import ConfigurationError
from lmcompose.training.optimizers import (
    _BEYOND_A_RECIPE,
    MOMENTS,
    STANDARD,
    check_optimizer,
    optimizer_arguments,
    required_package,
    state_bytes,
)
from lmcompose.training.packing import Collator
from lmcompose.training.recipe import Optimization
from lmcompose.training.run import train
from lmcompose.training.trainer import CalmTrainer
from tests.compositions import random_composition
from tests.tiny import PAIRS
from tests.training.test_trainer import Documents, arguments

MUON = Optimization(steps=3, optimizer="muon", learning_rate=0.01, weight_decay=0.1)


def quiet(recipe: Path, **options: Any) -> dict[str, Any]:
    return train(recipe, say=lambda text: None, progress=False, **options)


def test_only_composition_parameters_are_trained_and_get_a_state(tmp_path: Path) -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = CalmTrainer(
        model=model,
        args=arguments(tmp_path, weight_decay=MUON.weight_decay),
        train_dataset=Documents(24),
        data_collator=Collator(0),
        **optimizer_arguments(MUON, model),
    )
    trainer.train()
    optimizer = trainer.optimizer.optimizer
    own = dict(model.composition_parameters())
    assert isinstance(optimizer, torch.optim.Muon)
    assert {id(parameter) for parameter in optimizer.state} == {id(parameter) for parameter in own.values()}
    (group,) = (group for group in optimizer.param_groups if group["params"])
    assert (group["initial_lr"], group["weight_decay"]) == (0.01, 0.1)
    assert group["adjust_lr_fn"] == "match_rms_adamw"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in own), name


def test_a_recipe_trains_with_it_and_resumes_exactly(project: Callable[..., Path]) -> None:
    recipe = project(
        ("learning_rate: 0.01", "learning_rate: 0.1\n  optimizer: muon"),
        ("save_every: 5", "save_every: 5\n  keep_checkpoints: 9"),
    )
    results = quiet(recipe)["results"]
    assert results["validation_loss"] < results["validation_loss_untrained"] - 0.5
    out = recipe.parent / "out"
    curve, tensors = json.loads((out / "loss_curve.json").read_text()), load_file(out / "model" / "model.safetensors")
    state = torch.load(out / "checkpoints" / "checkpoint-5" / "optimizer.pt")["state"]
    assert sorted(tuple(one["momentum_buffer"].shape) for one in state.values()) == sorted(
        tuple(tensor.shape) for tensor in tensors.values()
    )
    assert all(len(one) == MOMENTS["muon"] for one in state.values())
    for later in ("10", "12"):
        shutil.rmtree(out / "checkpoints" / f"checkpoint-{later}")
    assert quiet(recipe, resume=True)["results"]["resumed_from_step"] == 5
    assert json.loads((out / "loss_curve.json").read_text()) == curve
    again = load_file(out / "model" / "model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_the_optimizer_is_muon_and_not_adamw(project: Callable[..., Path], tmp_path: Path) -> None:
    losses = {}
    for name in ("muon", "adamw_torch"):
        recipe = project(
            ("steps: 12", "steps: 3"),
            ("learning_rate: 0.01", f"learning_rate: 0.01\n  optimizer: {name}"),
            folder=tmp_path / name,
        )
        result = quiet(recipe)
        losses[name] = result["results"]["validation_loss"]
        copies = 2 + MOMENTS[name]
        plan = result["results"]["plan"]
        assert plan["training_bytes"] == 4 * copies * plan["trained_parameters"]
    assert losses["muon"] != losses["adamw_torch"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", STANDARD)
def test_the_state_of_every_standard_optimizer_is_as_large_as_planned(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    settings = Optimization(steps=2, optimizer=name)
    model = random_composition(PAIRS["llama+gpt2"], bridge_dtype=dtype)
    own = [parameter for _, parameter in model.composition_parameters()]
    before = [parameter.clone() for parameter in own]
    trainer = CalmTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=2, optim="adamw_torch" if name == "muon" else name),
        train_dataset=Documents(24),
        data_collator=Collator(0),
        **optimizer_arguments(settings, model),
    )
    trainer.train()
    assert any(not torch.equal(new, old) for new, old in zip(own, before, strict=True))
    states = trainer.optimizer.state.values()
    kept = sum(value.nbytes for state in states for value in state.values() if torch.is_tensor(value) and value.ndim)
    assert kept == state_bytes(settings, [parameter.shape for parameter in own], dtype.itemsize)


def test_a_parameter_that_is_no_matrix_is_named() -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    key = next(iter(model.bridges))
    model.bridges[key].gain = nn.Parameter(torch.ones(3))
    with pytest.raises(ConfigurationError, match=rf"bridges\.{key}\.gain.*adamw_torch"):
        optimizer_arguments(MUON, model)
    assert optimizer_arguments(Optimization(steps=1), model) == {}


def test_a_torch_without_muon_is_said_before_anything_is_read(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    check_optimizer(Optimization(steps=1))
    recipe = project(("learning_rate: 0.01", "optimizer: muon"), ("facts.jsonl", "not-there.jsonl"))
    with pytest.raises(ConfigurationError, match=r"has no Muon\. Install torch 2\.9"):
        quiet(recipe)


def test_every_other_optimizer_has_its_package_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcompose.training.optimizers.find_spec", lambda package: None)
    for name in OptimizerNames:
        settings = Optimization(steps=1, optimizer=name.value)
        if name.value in STANDARD:
            check_optimizer(settings)
        elif name.value.startswith(_BEYOND_A_RECIPE):
            with pytest.raises(ConfigurationError, match="which layers to project"):
                check_optimizer(settings)
        else:
            package = required_package(name.value)
            with pytest.raises(ConfigurationError, match=f"comes from the package {package}, which is not installed"):
                check_optimizer(settings)
    monkeypatch.undo()
    monkeypatch.setattr("lmcompose.training.optimizers.find_spec", lambda package: object())
    check_optimizer(Optimization(steps=1, optimizer="adamw_8bit"))


def test_a_missing_package_is_said_before_anything_is_read(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcompose.training.optimizers.find_spec", lambda package: None)
    recipe = project(("learning_rate: 0.01", "optimizer: adamw_8bit"), ("facts.jsonl", "not-there.jsonl"))
    with pytest.raises(ConfigurationError, match="package bitsandbytes"):
        quiet(recipe)


def test_an_unknown_optimizer_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"'adamw_trch' is unknown\. Did you mean 'adamw_torch"):
        check_optimizer(Optimization(steps=1, optimizer="adamw_trch"))
    with pytest.raises(ConfigurationError, match="Did you mean 'muon'"):
        check_optimizer(Optimization(steps=1, optimizer="muom"))
