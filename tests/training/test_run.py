"""`train(recipe)`: everything that can be refused is, before weights are read; what is written is whole and loads."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread

import lmcompose
from lmcompose.errors import ConfigurationError, DataError, LmcomposeError, MemberError, RecipeError
from lmcompose.training import run
from lmcompose.training.run import train
from tests.test_adapters import lora
from tests.test_gguf import write_gguf
from tests.tiny import save_tiny, tiny_model
from tests.tokenizers import family

Project = Callable[..., Path]


def quiet(recipe: Path, **options: Any) -> dict[str, Any]:
    return train(recipe, say=lambda text: None, progress=False, **options)


def test_a_recipe_becomes_a_folder_that_a_colleague_can_load(project: Project) -> None:
    recipe = project()
    said: list[str] = []
    result = train(recipe, say=said.append, progress=False, command="lmcompose train recipe.yaml")
    out = recipe.parent / "out"

    assert json.loads((out / "result.json").read_text()) == json.loads(json.dumps(result))
    assert result["command"] == "lmcompose train recipe.yaml"
    assert result["seed"] == 0
    assert {"torch", "transformers", "python"} <= set(result["versions"])
    assert result["recipe"]["training"]["steps"] == 12
    assert result["results"]["steps"] == 12
    assert result["results"]["validation_loss"] < result["results"]["validation_loss_untrained"] - 0.5

    curve = json.loads((out / "loss_curve.json").read_text())
    assert [point["step"] for point in curve["train"]] == list(range(1, 13))
    assert [point["step"] for point in curve["validation"]] == [0, 6, 12]
    assert curve["validation"][-1]["loss"] == pytest.approx(result["results"]["validation_loss"], rel=1e-6)
    assert imread(out / "loss_curve.png").std() > 0.05  # something is drawn on it

    model = lmcompose.load(out / "model")
    assert model.num_composition_parameters() == result["results"]["trained_parameters"]
    assert model.config.provenance["recipe"] == json.loads(json.dumps(result["recipe"]))
    assert max(parameter.abs().max() for name, parameter in model.composition_parameters() if "o_proj" in name) > 0
    assert any(run.shown(out / "model") in text for text in said)


def test_the_plan_is_printed_before_and_counts_what_is_built(project: Project) -> None:
    said: list[str] = []
    planned = train(project(), say=said.append, dry_run=True)
    text = "\n".join(said)
    assert "32 examples to train on, 8 to validate on" in text
    assert "12 steps of 4 rows" in text
    assert "Memory (" in text
    model = _models(project()).compose()
    assert planned["plan"]["trained_parameters"] == model.num_composition_parameters()
    for member, plan in zip(model.members.values(), planned["plan"]["members"], strict=True):
        assert plan["parameters"] == sum(parameter.numel() for parameter in member.parameters())
    assert planned["plan"]["weight_bytes"] == sum(
        parameter.numel() * parameter.element_size() for parameter in model.members.parameters()
    )


def test_bridges_of_a_recipe_have_its_options_and_train_with_muon(project: Project) -> None:
    recipe = project(
        (
            "connections:",
            "gate: true\nnorm: true\nrank: 4\nprojection: mlp\nbridge_initializer_range: 0.2\nconnections:",
        ),
        ("learning_rate: 0.01", "learning_rate: 0.1\n  optimizer: muon"),
    )
    planned = quiet(recipe, dry_run=True)["plan"]["trained_parameters"]
    result = quiet(recipe)["results"]
    assert result["validation_loss"] < result["validation_loss_untrained"] - 0.1
    model = lmcompose.load(recipe.parent / "out" / "model")
    assert (model.config.gate, model.config.norm, model.config.rank, model.config.projection) == (True, True, 4, "mlp")
    assert planned == model.num_composition_parameters() == 2 * (4 * (48 + 11 * 32) + 1)
    assert all(bridge.gate.abs().item() > 0 for bridge in model.bridges.values())


def _models(recipe_path: Path) -> run.RecipeModels:
    return run.RecipeModels.located(run.read_recipe(recipe_path, run.TrainingRecipe), recipe_path.parent)


def _with_members(recipe: Path, **members: Path | str) -> Path:
    """The recipe with other models."""
    lines = recipe.read_text().splitlines()
    for role, source in members.items():
        lines = [f"{role}: {source}" if line.startswith(f"{role}: ") else line for line in lines]
    recipe.write_text("\n".join(lines) + "\n")
    return recipe


def _check_a_run_and_its_plan(recipe: Path) -> Any:
    """Train; the plan counted what was loaded, and the result loads. Returns the loaded composition."""
    result = quiet(recipe)["results"]
    model = lmcompose.load(recipe.parent / "out" / "model")
    for member, plan in zip(model.members.values(), result["plan"]["members"], strict=True):
        parameters = list(member.parameters())
        assert plan["parameters"] == sum(parameter.numel() for parameter in parameters)
        assert plan["weight_bytes"] == sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    assert result["validation_loss"] < result["validation_loss_untrained"]
    return model


@pytest.mark.parametrize("kind", ["calm", "logits"])
@pytest.mark.parametrize("role", ["anchor", "augmenting"])
def test_a_member_can_be_a_saved_composition(project: Project, models: Path, role: str, kind: str) -> None:
    recipe = project()
    inner: Any
    if kind == "calm":
        inner = lmcompose.compose(str(models / "anchor"), str(models / "augmenting"))
    else:
        inner = lmcompose.combine("a + b", {"a": str(models / "anchor"), "b": str(models / "augmenting")})
    inner.save_pretrained(recipe.parent / "inner")
    model = _check_a_run_and_its_plan(_with_members(recipe, **{role: "inner"}))
    assert type(model.members[role]) is type(inner)
    assert model.config.references()[role].name_or_path == str(recipe.parent / "inner")


def test_a_member_can_be_an_adapter(project: Project, models: Path) -> None:
    recipe = project(("output: out", "output: out\ndtype: bfloat16"))
    lora(str(models / "anchor")).save_pretrained(recipe.parent / "tuned")
    model = _check_a_run_and_its_plan(_with_members(recipe, anchor="tuned", augmenting="tuned"))
    assert [reference.adapter for reference in model.config.references().values()] == [str(recipe.parent / "tuned")] * 2


def test_a_member_can_be_a_gguf_file_from_the_recipes_folder(project: Project) -> None:
    recipe = project()
    write_gguf(tiny_model("llama"), recipe.parent / "tiny.gguf")
    write_gguf(tiny_model("llama", seed=1), recipe.parent / "other.gguf")
    model = _check_a_run_and_its_plan(_with_members(recipe, anchor="tiny.gguf", augmenting="./other.gguf"))
    assert model.config.references()["anchor"].name_or_path == str(recipe.parent / "tiny.gguf")
    with pytest.raises(RecipeError, match=r"augmenting: there is no file .*gone\.gguf\. Relative paths start from"):
        quiet(_with_members(recipe, augmenting="./gone.gguf"), resume=True)


def test_hub_ids_stay_as_they_are(project: Project) -> None:
    recipe_path = _with_members(project(), anchor="someone/model", augmenting="someone/models/tiny-Q8_0.gguf")
    assert _models(recipe_path).sources == {"anchor": "someone/model", "augmenting": "someone/models/tiny-Q8_0.gguf"}


def test_a_dry_run_reads_no_weight_and_writes_nothing(project: Project) -> None:
    recipe = project()
    anchor = recipe.parent / "anchor_without_weights"
    save_tiny(anchor, "llama")
    (anchor / "model.safetensors").unlink()
    text = recipe.read_text()
    recipe.write_text("anchor: anchor_without_weights\n" + text[text.index("\n") + 1 :])
    before = sorted(recipe.parent.rglob("*"))
    quiet(recipe, dry_run=True)
    assert sorted(recipe.parent.rglob("*")) == before
    with pytest.raises(MemberError):
        quiet(recipe)


@pytest.mark.parametrize(
    ("before", "after", "error", "message"),
    [
        ("anchor: ", "anchr: ", RecipeError, r"line 1: unknown key 'anchr'\. Did you mean 'anchor'"),
        ("facts.jsonl", "fact.jsonl", DataError, "Did you mean 'facts.jsonl'"),
        ("kind: prompt_completion", "kind: text", DataError, "there is no column 'text'"),
        ("max_length: 16", "max_length: 3", DataError, "nothing of its answer is left"),
        ("[[1, 1], [2, 3]]", "[[1, 9]]", ConfigurationError, "the anchor model has no layer 9"),
        ("[[1, 1], [2, 3]]", "[[1, 1], [1, 1]]", ConfigurationError, r"\(1, 1\) is given twice"),
        ("/augmenting\n", "/nowhere\n", RecipeError, "augmenting: there is no folder"),
        ("output: out", "output: facts.jsonl", RecipeError, "is a file"),
    ],
)
def test_bad_input_is_one_clear_error_before_weights_and_leaves_nothing(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    error: type[LmcomposeError],
    message: str,
) -> None:
    recipe = project((before, after))
    monkeypatch.setattr("lmcompose.training.models.compose", _must_not_load)
    there = sorted(recipe.parent.rglob("*"))
    with pytest.raises(error, match=message):
        quiet(recipe)
    assert sorted(recipe.parent.rglob("*")) == there


def _must_not_load(**_: Any) -> None:
    raise AssertionError("weights were read")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "facts.jsonl holds no example"),
        ('{"prompt": "1 +", "completion": ""}\n', "facts.jsonl, line 1: there is nothing to learn"),
    ],
    ids=["empty dataset", "labels all masked"],
)
def test_data_without_anything_to_learn(project: Project, content: str, message: str) -> None:
    recipe = project()
    (recipe.parent / "facts.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        quiet(recipe)
    assert not (recipe.parent / "out").exists()


LONG_TEXT = ("kind: prompt_completion", "kind: text\n    columns: {text: prompt}")


def _with_a_table(project: Project, positions: int, *replacements: tuple[str, str]) -> Path:
    """The project with an augmenting model that has a table of positions, and texts of 2 to 21 tokens."""
    recipe = project(("/augmenting\n", "/augmenting # replaced\n"), LONG_TEXT, *replacements)
    folder = save_tiny(recipe.parent / "table", "gpt2", n_positions=positions)
    text = recipe.read_text()
    line = next(line for line in text.splitlines() if line.startswith("augmenting: "))
    recipe.write_text(text.replace(line, f"augmenting: {folder.name}"))
    rows = [{"prompt": " ".join(["w1", "w2"] * pairs), "completion": "w3"} for pairs in range(1, 11)]
    (recipe.parent / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return recipe


@pytest.mark.parametrize("dry_run", [True, False])
def test_texts_past_a_members_positions_are_refused_before_weights(
    project: Project, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    recipe = _with_a_table(project, 20, ("max_length: 16", "max_length: 64"))
    monkeypatch.setattr("lmcompose.training.models.compose", _must_not_load)
    message = r"max_length: .*text of 21 tokens.*\(the augmenting\) has positions for 20\. Set training.max_length: 20"
    with pytest.raises(ConfigurationError, match=message):
        quiet(recipe, dry_run=dry_run)
    assert not (recipe.parent / "out").exists()


@pytest.mark.parametrize("packing", ["false", "true"])
def test_a_row_may_be_longer_than_a_members_positions_where_no_text_is(project: Project, packing: str) -> None:
    settings = ("max_length: 16", f"max_length: 64\n  packing: {packing}")
    assert quiet(_with_a_table(project, 21, settings, ("steps: 12", "steps: 2")))["results"]["steps"] == 2


def test_an_encoder_is_refused_as_anchor(project: Project) -> None:
    from transformers import BertConfig

    recipe = project()
    BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=97).save_pretrained(
        recipe.parent / "bert"
    )
    text = recipe.read_text()
    recipe.write_text("anchor: bert\n" + text[text.index("\n") + 1 :])
    with pytest.raises(MemberError, match="an encoder"):
        quiet(recipe)


def test_a_member_that_cannot_be_packed_is_named(project: Project) -> None:
    recipe = project(("max_length: 16", "max_length: 16\n  packing: true"))
    save_tiny(recipe.parent / "opt", "opt")
    text = recipe.read_text()
    recipe.write_text("anchor: opt\n" + text[text.index("\n") + 1 :])
    with pytest.raises(MemberError, match=r"packing: .* in 'anchor' \(opt\)\. Set packing: false"):
        quiet(recipe)
    assert not (recipe.parent / "out").exists()


def test_members_that_read_different_tokens_are_refused(project: Project) -> None:
    recipe = project()
    save_tiny(recipe.parent / "other", "llama")
    tokenizer = recipe.parent / "other" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"w1"', '"w1000"'))
    text = recipe.read_text()
    recipe.write_text("anchor: other\nalignment: ids\n" + text[text.index("\n") + 1 :])
    with pytest.raises(MemberError, match="token"):
        quiet(recipe)
    assert not (recipe.parent / "out").exists()


def test_members_with_tokenizers_of_their_own_are_trained_on_the_same_text(project: Project) -> None:
    recipe = project()
    tokenizer = family("qwen")
    tiny_model("gpt2", 3, vocab_size=len(tokenizer)).save_pretrained(recipe.parent / "foreign")
    tokenizer.save_pretrained(recipe.parent / "foreign")
    text = recipe.read_text()
    at = text.index("augmenting:")
    recipe.write_text(text[:at] + "augmenting: foreign" + text[text.index("\n", at) :])
    result = quiet(recipe)["results"]
    model = lmcompose.load(recipe.parent / "out" / "model")
    assert model.config.alignment == {"augmenting": "spans"}
    assert result["validation_loss"] < result["validation_loss_untrained"] - 0.3


def test_a_plan_that_cannot_be_is_refused_unless_forced(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcompose.training.plan.memory", lambda: (10_000, 20_000))
    with pytest.raises(ConfigurationError, match=r"before its first step.*19\.5 KiB in all.*--force"):
        quiet(project())
    assert quiet(project(), force=True)["results"]["plan"]["verdict"] == "impossible"


def test_a_folder_with_a_run_in_it_is_not_written_over(project: Project) -> None:
    recipe = project(("steps: 12", "steps: 2"))
    quiet(recipe)
    kept = (recipe.parent / "out" / "result.json").read_bytes()
    with pytest.raises(ConfigurationError, match=r"holds a run already.*--resume"):
        quiet(recipe)
    assert (recipe.parent / "out" / "result.json").read_bytes() == kept


def test_there_must_be_something_to_resume(project: Project) -> None:
    with pytest.raises(ConfigurationError, match=r"no checkpoint.*Leave out --resume"):
        quiet(project(), resume=True)


def test_a_changed_recipe_or_changed_data_is_not_resumed(project: Project) -> None:
    recipe = project(("save_every: 5", "save_every: 2"))
    quiet(recipe)
    changed = recipe.read_text()
    recipe.write_text(changed.replace("learning_rate: 0.01", "learning_rate: 0.02"))
    with pytest.raises(RecipeError, match=r"training\.learning_rate"):
        quiet(recipe, resume=True)
    recipe.write_text(changed.replace("max_length: 16", "max_length: 16\n  keep_checkpoints: 4"))
    assert quiet(recipe, resume=True)["results"]["resumed_from_step"] == 12
    data = recipe.parent / "facts.jsonl"
    data.write_text(data.read_text().replace('"completion": "3"', '"completion": "4"'))
    with pytest.raises(DataError, match="data were changed"):
        quiet(recipe, resume=True)


def test_the_batch_does_not_change_with_how_it_is_computed(project: Project, tmp_path: Path) -> None:
    losses = []
    for pieces in (1, 2):
        recipe = project(
            ("batch_size: 4", f"batch_size: 4\n  gradient_accumulation: {pieces}"), folder=tmp_path / str(pieces)
        )
        quiet(recipe)
        curve = json.loads((recipe.parent / "out" / "loss_curve.json").read_text())
        losses.append([point["loss"] for kind in ("train", "validation") for point in curve[kind]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_early_stopping_keeps_the_best(project: Project) -> None:
    recipe = project(
        ("steps: 12", "steps: 60"),
        ("learning_rate: 0.01", "learning_rate: 1.0\n  lr_scheduler: constant\n  early_stopping: {patience: 2}"),
        ("eval_every: 6\n  save_every: 5", "eval_every: 1"),
    )
    results = quiet(recipe)["results"]
    curve = json.loads((recipe.parent / "out" / "loss_curve.json").read_text())
    validation = [point["loss"] for point in curve["validation"]]
    assert results["stopped_early"]
    assert results["steps"] < 60
    assert results["validation_loss"] == pytest.approx(min(validation), rel=1e-6)
    assert curve["validation"][results["best_step"]]["loss"] == min(validation)


def test_packed_several_augmenting_models_and_a_mixture(project: Project) -> None:
    recipe = project(("max_length: 16", "max_length: 16\n  packing: true\n  gradient_checkpointing: true"))
    text = recipe.read_text()
    single = next(line for line in text.splitlines() if line.startswith("augmenting: "))
    folder = single.removeprefix("augmenting: ")
    text = text.replace(single, f"augmenting: {{first: {folder}, second: {folder}}}")
    text = text.replace("connections: [[1, 1], [2, 3]]", "connections: {first: [[1, 1]], second: [[2, 3], [0, 0]]}")
    text = text.replace(
        "    kind: prompt_completion\n",
        "    kind: prompt_completion\n    weight: 1\n"
        "  - path: facts.jsonl\n    columns: {text: prompt}\n    weight: 2\n",
    )
    recipe.write_text(text)
    result = quiet(recipe)
    assert list(lmcompose.load(recipe.parent / "out" / "model").augmenting) == ["first", "second"]
    assert result["results"]["epochs"] > 1


def test_bf16_members_are_read_as_such(project: Project) -> None:
    recipe = project(("output: out", "output: out\ndtype: bfloat16"))
    quiet(recipe)
    model = lmcompose.load(recipe.parent / "out" / "model")
    assert {parameter.dtype for parameter in model.members.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for _, parameter in model.composition_parameters()} == {torch.float32}


def test_paths_start_from_the_recipe_and_not_from_where_one_stands(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = project(("steps: 12", "steps: 1"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    quiet(Path(os.path.relpath(recipe)))
    assert (recipe.parent / "out" / "model" / "config.json").is_file()


def test_the_first_validation_point_is_the_anchor(project: Project) -> None:
    recipe_path = project(("steps: 12", "steps: 1"))
    results = quiet(recipe_path)["results"]
    models = _models(recipe_path)
    anchor = lmcompose.loading.load_member(models.sources["anchor"])
    data = run.prepare_data(models.recipe, anchor.tokenizer, recipe_path.parent)
    batch = run.Collator(0)([data.validation[i] for i in range(len(data.validation))])
    with torch.no_grad():
        alone = float(anchor.model(**batch, use_cache=False).loss)
    assert results["validation_loss_untrained"] == pytest.approx(alone, rel=1e-5)
