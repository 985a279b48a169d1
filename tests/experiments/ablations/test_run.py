"""A recipe against itself with other augmenting models, small: what is trained, scored, kept and said."""

import ast
import io
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from transformers import AutoModelForCausalLM

import lmcompose
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.experiments import standard_library
from lmcompose.experiments.ablations import run, runs
from lmcompose.experiments.ablations.__main__ import main, write_report
from lmcompose.experiments.ablations.arms import fresh, shuffled
from lmcompose.experiments.ablations.held_out import bits, in_tokens_of, lengths
from lmcompose.recipe import read_recipe
from lmcompose.reporting.ablation_tables import ablation_grids
from lmcompose.training.data import prepare_data
from lmcompose.training.encoding import Example
from lmcompose.training.interrupt import Interrupted
from lmcompose.training.packing import IGNORED
from lmcompose.training.recipe import TrainingRecipe
from tests.experiments.ablations.documents import held_out_documents
from tests.experiments.ablations.stopping import stop_at_the_third_step
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer
from tests.tokenizers import family, plain_ids

RECIPE = """\
anchor: anchor
augmenting: {expert: augmenting}
connections: [[1, 1], [2, 3]]
data:
  - path: train.txt
validation:
  data:
    - path: heldout.txt
training:
  steps: 4
  batch_size: 4
  max_length: 12
  learning_rate: 0.01
  save_every: 2
output: out
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablations")
    save_tiny(folder / "anchor", "llama", seed=0)
    save_tiny(folder / "augmenting", "gpt2", seed=1, hidden_size=48)
    draw = random.Random(0)
    for name, lines in (("train", 40), ("heldout", 6)):
        words = [" ".join(f"w{draw.randrange(40)}" for _ in range(5 + 3 * line % 14)) for line in range(lines)]
        (folder / f"{name}.txt").write_text("\n".join(words) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def run_in(recipe: Path, runs: str = "runs", **changes: object) -> dict:
    settings = {"arms": ("composition", "random", "shuffled"), "seeds": (0, 1), "command": "python -m x"}
    console = Console(file=io.StringIO(), width=200)
    return run(recipe, folder=recipe.parent / runs, console=console, **{**settings, **changes})


@pytest.fixture(scope="module")
def result(recipe: Path) -> dict:
    return run_in(recipe)


def documents_of(recipe: Path) -> tuple[TrainingRecipe, list]:
    read = read_recipe(recipe, TrainingRecipe)
    return read, held_out_documents(read, recipe.parent)


def test_the_result_is_json_and_is_reported(result: dict, tmp_path: Path) -> None:
    places = write_report(result, tmp_path / "recipe.json")
    again = json.loads(places[0].read_text())
    text = places[1].read_text()
    assert all(grid.title in text for grid in ablation_grids(again))
    assert "python -m x" in text
    assert "no difference shown" in text, "two seeds of four steps cannot show one"
    assert again["held_out"]["documents"] == 6


def test_the_anchor_alone_scores_what_the_plain_model_says(recipe: Path, result: dict) -> None:
    """Bits per token by hand, one document after the other."""
    _, documents = documents_of(recipe)
    model = AutoModelForCausalLM.from_pretrained(recipe.parent / "anchor")
    nats, tokens = 0.0, 0
    for document in documents:
        for example in document:
            ids = torch.from_numpy(example.input_ids).long()[None]
            with torch.no_grad():
                scores = model(ids).logits[0, :-1].log_softmax(-1)
            nats -= float(scores.gather(1, ids[0, 1:, None]).sum())
            tokens += ids.shape[1] - 1
    assert result["held_out"]["tokens"] == tokens
    assert result["per_token"]["arms"]["anchor"]["mean"] == pytest.approx(nats / math.log(2) / tokens, rel=1e-5)


def test_an_augmenting_model_alone_is_asked_for_the_same_bytes() -> None:
    """In its own tokens, and not for the first token, which nobody is asked for."""
    anchor, own = family("gpt2"), family("llama2")
    text = "The quick brown fox, and 12 caf\u00e9s."
    ids = np.array([*plain_ids(anchor, text), anchor.eos_token_id], dtype=np.int32)
    ((example,),) = in_tokens_of(own, [[Example(ids, ids)]], anchor)
    learned = example.labels[example.labels != IGNORED].tolist()
    assert learned[-1] == own.eos_token_id
    given = anchor.decode(ids[:1].tolist())
    assert own.decode(learned[:-1]).strip() == text[len(given) :].strip()
    assert example.input_ids[0] == own.bos_token_id
    with_begin = np.array([anchor.bos_token_id, *ids], dtype=np.int32)
    ((whole,),) = in_tokens_of(own, [[Example(with_begin, with_begin)]], anchor)
    assert own.decode(whole.labels[whole.labels != IGNORED].tolist()[:-1]).strip() == text


def test_the_augmenting_model_alone_scores_what_the_plain_model_says(recipe: Path, result: dict) -> None:
    """It shares its tokens with the anchor here, so that every token but the first is asked for."""
    _, documents = documents_of(recipe)
    model = AutoModelForCausalLM.from_pretrained(recipe.parent / "augmenting")
    nats = 0.0
    for document in documents:
        for example in document:
            ids = torch.from_numpy(example.input_ids).long()[None]
            with torch.no_grad():
                nats -= float(model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).sum())
    got = result["per_token"]["arms"]["alone expert"]["mean"] * result["held_out"]["tokens"]
    assert got == pytest.approx(nats / math.log(2), rel=1e-5)


def test_a_trained_arm_scores_what_its_model_says(recipe: Path, result: dict) -> None:
    _, documents = documents_of(recipe)
    for arm in ("composition", "random"):
        model = lmcompose.load(recipe.parent / "runs" / arm / "seed-1" / "training" / "model")
        sizes = lengths(documents, model.tokenizer)
        by_hand = sum(bits(model, documents, rows_at_once=1)) / sum(sizes["tokens"])
        assert result["per_token"]["arms"][arm]["by_seed"][1][0] == pytest.approx(by_hand, rel=1e-5)


def test_differences_are_of_the_first_arm_and_have_both_intervals(result: dict) -> None:
    figures = result["per_byte"]
    assert set(figures["minus"]) == {"anchor", "random", "shuffled", "alone expert"}
    for name, difference in figures["minus"].items():
        expected = figures["arms"]["composition"]["mean"] - figures["arms"][name]["mean"]
        assert difference["mean"] == pytest.approx(expected)
        assert difference["documents"][0] <= difference["mean"] <= difference["documents"][1]
        assert difference["seeds"][0] < difference["mean"] < difference["seeds"][1]
        assert difference["p"] <= difference["adjusted_p"] <= 4 * difference["p"]
        assert (difference["correction"], difference["better"]) == ("holm over 4", "lower")


def test_all_arms_of_a_seed_see_the_same_data_from_other_models(recipe: Path, result: dict) -> None:
    runs = recipe.parent / "runs"
    for seed in (0, 1):
        notes = [json.loads((runs / arm / f"seed-{seed}" / "training" / "run.json").read_text()) for arm in
                 ("composition", "random", "shuffled")]  # fmt: skip
        assert len({note["data_fingerprint"] for note in notes}) == 1
        assert len({note["recipe"]["augmenting"]["expert"] for note in notes}) == 3
    recipes = [yaml.safe_load((runs / "random" / f"seed-{seed}" / "recipe.yaml").read_text()) for seed in (0, 1)]
    assert [each["seed"] for each in recipes] == [0, 1]
    weights = [AutoModelForCausalLM.from_pretrained(each["augmenting"]["expert"]).state_dict() for each in recipes]
    assert not torch.equal(weights[0]["transformer.wte.weight"], weights[1]["transformer.wte.weight"])


def test_a_second_run_takes_everything_from_the_first(recipe: Path, result: dict) -> None:
    runs = recipe.parent / "runs"
    kept = [path for path in runs.rglob("*") if path.suffix in (".safetensors", ".json")]
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    again = run_in(recipe)
    assert {path: path.stat().st_mtime_ns for path in kept} == stamps
    assert again["per_byte"] == result["per_byte"]


def test_a_run_that_was_stopped_in_training_goes_on(
    recipe: Path, result: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = stop_at_the_third_step(monkeypatch)
    with pytest.raises(Interrupted):
        run_in(recipe, "stopped", arms=("composition",), seeds=(0,))
    again = run_in(recipe, "stopped", arms=("composition",), seeds=(0,))
    assert steps == [1, 2, 3, 4]
    expected = result["per_byte"]["arms"]["composition"]["by_seed"][0][0]
    assert again["per_byte"]["arms"]["composition"]["mean"] == pytest.approx(expected, rel=1e-6)


def test_the_command_says_how_to_go_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted("Stopped at step 3 of 4.")

    monkeypatch.setattr("sys.argv", ["ablations", str(recipe), "--seeds", "0", "--runs", str(tmp_path)])
    monkeypatch.setattr(runs, "train", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert f"python -m lmcompose.experiments.ablations {recipe} --seeds 0" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["ablations", str(recipe), "--arms", "nothing"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert "There is no arm 'nothing'" in capsys.readouterr().err


def test_replaced_models_keep_shape_and_dtype_and_lose_what_they_know() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    for replace in (fresh, shuffled):
        new, same, other = replace(model, 3), replace(model, 3), replace(model, 4)
        for (name, weights), old in zip(new.named_parameters(), model.parameters(), strict=True):
            assert (weights.shape, weights.dtype) == (old.shape, old.dtype)
            assert torch.equal(weights, same.get_parameter(name))
        embeddings = [each.get_input_embeddings().weight for each in (model, new, other)]
        assert not torch.equal(embeddings[0], embeddings[1])
        assert not torch.equal(embeddings[1], embeddings[2])
    for weights, old in zip(shuffled(model, 0).parameters(), model.parameters(), strict=True):
        assert torch.equal(weights.flatten().sort().values, old.flatten().sort().values)


def test_held_out_documents_are_those_that_training_validates_on(recipe: Path) -> None:
    for validation in ({"fraction": 0.25}, {"data": [{"path": "heldout.txt"}]}):
        read = read_recipe(recipe, TrainingRecipe)
        read = TrainingRecipe.model_validate({**read.model_dump(exclude_unset=True), "validation": validation})
        rows = prepare_data(read, tiny_tokenizer(), recipe.parent).validation
        assert rows is not None
        joined = [example for document in held_out_documents(read, recipe.parent) for example in document]
        assert [rows[i]["input_ids"].tolist() for i in range(len(rows))] == [e.input_ids.tolist() for e in joined]


def test_bad_input_is_refused_before_anything_is_trained(recipe: Path) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'random'"):
        run_in(recipe, "bad", arms=("composition", "randm"))
    without = recipe.with_name("without.yaml")
    without.write_text(RECIPE.replace("validation:\n  data:\n    - path: heldout.txt\n", ""))
    with pytest.raises(DataError, match="holds nothing out"):
        run_in(without, "bad")
    assert not (recipe.parent / "bad").exists()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return standard_library.write_texts(tmp_path_factory.mktemp("texts"))


def test_the_standard_library_is_split_by_document(texts: list[Path], tmp_path: Path) -> None:
    assert [path.name for path in texts] == [f"{kind}-{part}.jsonl" for kind in ("python", "prose") for part in
                                             ("train", "heldout")]  # fmt: skip
    read = [[json.loads(line) for line in path.read_text().splitlines()] for path in texts]
    for train, held_out in (read[:2], read[2:]):
        assert not {each["document"] for each in train} & {each["document"] for each in held_out}
        assert 0.15 < len(held_out) / (len(train) + len(held_out)) < 0.25
        assert all(standard_library.PASSAGE / 4 < len(each["text"]) <= standard_library.PASSAGE for each in held_out)
    sources = {path.stem: path.read_text(errors="replace") for path in standard_library._paths()}
    assert all(each["text"] in sources[each["document"]] for each in read[1])
    again = standard_library.write_texts(tmp_path)
    assert [path.read_text() for path in again] == [path.read_text() for path in texts]


def test_pairs_of_functions_and_docstrings_are_split_as_the_texts_are(texts: list[Path], tmp_path: Path) -> None:
    paths = standard_library.write_pairs(tmp_path)
    assert [path.name for path in paths] == ["code_to_text-train.jsonl", "code_to_text-heldout.jsonl"]
    train, held_out = ([json.loads(line) for line in path.read_text().splitlines()] for path in paths)
    assert len(train) > 2 * len(held_out) > 200
    for path, pairs in zip(texts, (train, held_out), strict=False):
        documents = {json.loads(line)["document"] for line in path.read_text().splitlines()}
        assert {pair["module"] for pair in pairs} <= documents
    for key in ("code", "docstring"):
        assert not {pair[key] for pair in train} & {pair[key] for pair in held_out}
    for pair in held_out:
        function = ast.parse(pair["code"]).body[0]
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        assert (function.name, ast.get_docstring(function)) == (pair["function"], None)
        assert "\n" not in pair["docstring"]
