"""The plan: exact where it says so, larger for what takes more, and only impossible when it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from lmcompose import plan_composition
from lmcompose.architecture import counts_slots, position_limit
from lmcompose.errors import ConfigurationError
from lmcompose.loading import plan_member
from lmcompose.training.plan import (
    TrainingPlan,
    _member,
    plan_training,
    refuse_impossible,
    refuse_too_long,
    shown,
)
from lmcompose.training.recipe import TrainingRecipe
from tests.tiny import save_tiny, tiny_model


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
    options = {key: getattr(recipe, key) for key in ("projection", "gate", "norm", "rank")}
    composition = plan_composition(**sources, connections=fields.get("connections"), **options)
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
    assert plan_of(models, gate=True, norm=True).trained_parameters == plan.trained_parameters + 1
    assert plan_of(models, rank=4).trained_parameters == 4 * (48 + 9 * 32)


def test_the_optimizers_state_is_counted_as_it_is_kept(models: Path) -> None:
    trained = plan_of(models).trained_parameters
    for optimizer, numbers in (("adamw_torch", 2), ("rmsprop", 1), ("sgd", 0)):
        plan = plan_of(models, training={"optimizer": optimizer})
        assert plan.training_bytes == 4 * (2 + numbers) * trained
        assert plan.disk_bytes == 4 * (1 + numbers) * trained * 4  # two checkpoints, one being written, the model
    adafactor = plan_of(models, training={"optimizer": "adafactor"}, connections=[[1, 1]], projection="mlp")
    # f_proj takes 48 to 32; its second map, Q, K, V and O take 32 to 32: a number for each row and each column
    assert adafactor.training_bytes == 4 * 2 * adafactor.trained_parameters + 4 * ((32 + 48) + 5 * (32 + 32))


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


def test_positions_are_those_of_the_longest_text_or_of_the_row(models: Path) -> None:
    plan = plan_of(models)
    assert {member.positions for member in plan.members} == {None}, "rotary positions do not end"
    refuse_too_long(plan, document=10_000, row=10_000)
    anchor, augmenting = plan.members
    table = replace(plan, members=[anchor, replace(augmenting, positions=20)])
    refuse_too_long(table, document=20, row=64)
    with pytest.raises(ConfigurationError, match=r"a text of 21 tokens.*\(the augmenting\).*max_length: 20"):
        refuse_too_long(table, document=21, row=64)
    slots = replace(plan, members=[replace(anchor, positions=20, counts_slots=True), augmenting])
    with pytest.raises(ConfigurationError, match=r"a row of 64 tokens.*\(the anchor\)"):
        refuse_too_long(slots, document=20, row=64)


@pytest.mark.parametrize("arch", ["llama", "gpt2", "opt", "gpt_neo", "mpt"])
def test_the_plan_knows_the_positions_that_the_loaded_model_has(models: Path, tmp_path: Path, arch: str) -> None:
    folder = save_tiny(tmp_path / arch, arch)
    (folder / "model.safetensors").unlink()
    recipe = TrainingRecipe.model_validate(
        {"anchor": "a", "augmenting": "b", "data": [{"path": "x"}], "training": {"steps": 1}, "output": "o"}
    )
    reference, config = plan_member(folder), AutoConfig.from_pretrained(folder)
    planned = _member("anchor", str(folder), reference, config, recipe)
    loaded = tiny_model(arch)
    assert (planned.positions, planned.counts_slots) == (position_limit(loaded), counts_slots(loaded))


def test_a_disk_that_is_too_small_is_said(models: Path) -> None:
    plan = replace(plan_of(models), disk_free_bytes=10)
    assert "may run out of disk" in plan.describe()


def test_paths_are_shown_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "here") == "here"
    assert shown("someone/a-hub-id") == "someone/a-hub-id"
