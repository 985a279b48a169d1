"""The plan: exact where it says so, larger for what takes more, and only impossible when it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmcompose import plan_composition
from lmcompose.errors import ConfigurationError
from lmcompose.training.plan import TrainingPlan, plan_training, refuse_impossible, shown
from lmcompose.training.recipe import TrainingRecipe


def plan_of(models: Path, micro_batch: int = 4, training: dict[str, Any] | None = None, **fields: Any) -> TrainingPlan:
    sources = {"anchor": str(models / "anchor"), "augmenting": str(models / "augmenting")}
    recipe = TrainingRecipe.model_validate(
        {
            **sources,
            "data": [{"path": "x.txt"}],
            "training": {"steps": 1, "max_length": 64, **(training or {})},
            "output": "out",
            **fields,
        }
    )
    composition = plan_composition(**sources, connections=fields.get("connections"), projection=recipe.projection)
    return plan_training(recipe, composition, sources, models / "not" / "there", micro_batch)


def test_what_takes_more_memory_is_planned_with_more(models: Path) -> None:
    plan = plan_of(models)
    assert plan_of(models, micro_batch=8).activation_bytes == 2 * plan.activation_bytes
    assert plan_of(models, training={"gradient_checkpointing": True}, connections=[[1, 1]]).activation_bytes < (
        plan_of(models, connections=[[1, 1]]).activation_bytes
    )
    assert (
        plan_of(models, connections=[[3, 3]]).activation_bytes < plan_of(models, connections=[[3, 1]]).activation_bytes
    )
    assert 2 * plan_of(models, dtype="bfloat16").weight_bytes == plan.weight_bytes
    assert plan_of(models, projection="mlp").trained_parameters == plan.trained_parameters + 32 * 32


def test_only_what_cannot_be_is_refused(models: Path) -> None:
    plan = plan_of(models)
    need = plan.certain_bytes
    assert replace(plan, available_bytes=2**40, total_bytes=2**40).verdict == "fits"
    tight = replace(plan, available_bytes=need, total_bytes=need)
    assert tight.verdict == "tight"
    assert "gradient_accumulation up" in tight.describe()
    refuse_impossible(tight)
    with pytest.raises(ConfigurationError, match="--force"):
        refuse_impossible(replace(plan, total_bytes=need - 1))


def test_a_disk_that_is_too_small_is_said(models: Path) -> None:
    plan = replace(plan_of(models), disk_free_bytes=10)
    assert "may run out of disk" in plan.describe()


def test_paths_are_shown_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "here") == "here"
    assert shown("someone/a-hub-id") == "someone/a-hub-id"
