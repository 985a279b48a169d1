"""The rows of a run are decided before it starts, and the same for every way of getting through it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmcompose.errors import DataError
from lmcompose.training.data import CompositionData, check_sources, prepare_data
from lmcompose.training.packing import IGNORED
from lmcompose.training.recipe import TrainingRecipe
from tests.tiny import tiny_tokenizer


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.jsonl", [{"text": f"w{i} w{i + 1} w{i + 2}"} for i in range(40)])
    write(tmp_path / "b.jsonl", [{"prompt": f"{i % 10} + 1 =", "completion": f"w{i}"} for i in range(20)])
    return tmp_path


def recipe(training: dict[str, Any], **rest: Any) -> TrainingRecipe:
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl", "kind": "prompt_completion"}]
    return TrainingRecipe.model_validate(
        {
            "anchor": "x",
            "augmenting": "y",
            "data": sources,
            "training": {"batch_size": 4, "max_length": 16, **training},
            "output": "out",
            **rest,
        }
    )


def prepared(folder: Path, training: dict[str, Any], **rest: Any) -> CompositionData:
    return prepare_data(recipe(training, **rest), tiny_tokenizer(), folder)


def test_steps_give_exactly_that_many_batches(folder: Path) -> None:
    data = prepared(folder, {"steps": 33})
    assert (data.steps, len(data.train)) == (33, 132)
    assert data.epochs == pytest.approx(132 / 60)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 15), (2, 30), (0.5, 8), (1.5, 23)])
def test_epochs_are_passes_over_the_data_in_whole_batches(folder: Path, epochs: float, steps: int) -> None:
    data = prepared(folder, {"epochs": epochs})
    assert data.steps == steps
    assert len(data.train) == steps * 4


def test_one_epoch_shows_every_example_once(folder: Path) -> None:
    data = prepared(folder, {"epochs": 1})
    assert sorted(one for (one,) in data.train.rows) == [(0, i) for i in range(40)] + [(1, i) for i in range(20)]


def test_the_run_is_a_function_of_its_seed(folder: Path) -> None:
    first, again, other = (prepared(folder, {"steps": 20}, seed=seed) for seed in (1, 1, 2))
    assert first.train.rows == again.train.rows
    assert first.fingerprint == again.fingerprint
    assert first.train.rows != other.train.rows
    longer = prepared(folder, {"steps": 30}, seed=1)
    assert longer.train.rows[:80] == first.train.rows


def test_the_fingerprint_sees_a_changed_word(folder: Path) -> None:
    before = prepared(folder, {"steps": 5}).fingerprint
    text = (folder / "a.jsonl").read_text()
    (folder / "a.jsonl").write_text(text.replace("w7 w8 w9", "w7 w8 w8"))
    assert prepared(folder, {"steps": 5}).fingerprint != before


def test_weights_are_honoured_through_the_run(folder: Path) -> None:
    sources = [{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl", "kind": "prompt_completion", "weight": 3}]
    data = prepared(folder, {"steps": 100}, data=sources)
    for start in (0, 100, 200, 300):
        share = np.mean([source for ((source, _),) in data.train.rows[start : start + 100]])
        assert share == pytest.approx(0.75, abs=0.03)


def test_held_out_examples_are_never_trained_on(folder: Path) -> None:
    data = prepared(folder, {"epochs": 3}, validation={"fraction": 0.25})
    assert data.validation is not None
    assert [source["train_examples"] for source in data.summary] == [30, 15]
    assert [source["validation_examples"] for source in data.summary] == [10, 5]
    trained = {tuple(row["input_ids"].tolist()) for row in (data.train[i] for i in range(len(data.train)))}
    validated = {tuple(data.validation[i]["input_ids"].tolist()) for i in range(len(data.validation))}
    assert len(validated) == 15
    assert not trained & validated


def test_a_long_document_is_held_out_whole(folder: Path) -> None:
    write(folder / "a.jsonl", [{"text": " ".join(f"w{i}" for _ in range(12))} for i in range(8)])
    data = prepared(folder, {"epochs": 1, "max_length": 4}, data=[{"path": "a.jsonl"}], validation={"fraction": 0.5})
    assert data.validation is not None
    words = [{int(rows[i]["input_ids"][0]) for i in range(len(rows))} for rows in (data.train, data.validation)]
    assert [len(kind) for kind in words] == [4, 4]
    assert not words[0] & words[1]


def test_validation_can_have_data_of_its_own(folder: Path) -> None:
    data = prepared(folder, {"epochs": 1}, validation={"data": [{"path": "a.jsonl", "limit": 3}]})
    assert data.validation is not None
    assert (len(data.train), len(data.validation)) == (60, 3)


@pytest.mark.parametrize("held_out", [{"fraction": 0.25}, {"data": [{"path": "a.jsonl"}]}])
def test_a_limit_shortens_what_training_looks_at_and_no_more(folder: Path, held_out: dict[str, Any]) -> None:
    whole = prepared(folder, {"epochs": 1}, validation=held_out)
    limited = prepared(folder, {"epochs": 1}, validation={**held_out, "limit": 3})
    assert whole.validation is not None
    assert limited.validation is not None
    assert len(limited.validation) == 3 * sum(source["validation_examples"] > 0 for source in whole.summary)
    assert len(limited.validation) < len(whole.validation)
    assert limited.fingerprint == whole.fingerprint


def test_packed_rows_hold_whole_documents_and_all_of_them(folder: Path) -> None:
    data = prepared(folder, {"epochs": 1, "packing": True}, validation={"fraction": 0.1})
    assert data.validation is not None
    rows = [data.train[i] for i in range(len(data.train))]
    assert all(len(row["input_ids"]) <= 16 for row in rows)
    assert all((row["labels"][row["position_ids"] == 0] == IGNORED).all() for row in rows)
    documents = [one for row in data.train.rows for one in row]
    assert {*documents} == {(0, i) for i in range(36)} | {(1, i) for i in range(18)}
    assert len(data.train) < 54 / 2


@pytest.mark.parametrize("packing", [False, True])
def test_the_longest_text_and_row_are_those_that_are_seen(folder: Path, packing: bool) -> None:
    data = prepared(folder, {"epochs": 1, "packing": packing}, validation={"fraction": 0.2})
    rows = [split[i] for split in (data.train, data.validation) if split is not None for i in range(len(split))]
    texts = [int(row["position_ids"].max()) + 1 if packing else len(row["input_ids"]) for row in rows]
    assert data.longest() == (max(texts), max(len(row["input_ids"]) for row in rows))
    assert (data.longest()[0] < data.longest()[1]) == packing


def test_the_summary_counts_what_is_learned(folder: Path) -> None:
    first, second = prepared(folder, {"steps": 1}).summary
    assert (first["tokens"], first["learned_tokens"]) == (160, 120)  # of w w w </s>, all but the first word
    assert (second["tokens"], second["learned_tokens"]) == (120, 40)  # of d + 1 = w </s>, the last two


def test_skipped_examples_are_counted_and_all_of_them_are_an_error(folder: Path) -> None:
    write(folder / "b.jsonl", [{"prompt": "1", "completion": "2"}, {"prompt": "1 " * 30, "completion": "2"}])
    source = {"path": "b.jsonl", "kind": "prompt_completion", "long_examples": "skip"}
    assert prepared(folder, {"steps": 1}, data=[source]).summary[0]["skipped"] == 1
    with pytest.raises(DataError, match=r"b.jsonl: all 2 examples are longer than max_length 2"):
        prepared(folder, {"steps": 1, "max_length": 2}, data=[source])


def test_one_example_cannot_be_held_out(folder: Path) -> None:
    with pytest.raises(DataError, match="has one example"):
        prepared(folder, {"steps": 1}, data=[{"path": "a.jsonl", "limit": 1}], validation={"fraction": 0.5})


def test_all_sources_are_looked_at_before_anything_is_loaded(folder: Path) -> None:
    check_sources(recipe({"steps": 1}), folder)
    with pytest.raises(DataError, match="no file"):
        check_sources(recipe({"steps": 1}, validation={"data": [{"path": "none.jsonl"}]}), folder)
