"""Which files of a folder are shown, and what is said of the others."""

import json
import os

import pytest

from lmcompose.errors import DataError
from lmcompose.reporting.report.collecting import collect
from tests.reporting.report.found import EVERY, curve_result, evaluation_result, training_result, write, write_all
from tests.reporting.results import kv_result


def test_every_kind_is_shown_once(tmp_path):
    found = collect([write_all(tmp_path), tmp_path / "evaluation.json"])
    assert [each.path.stem for each in found.shown] == sorted(EVERY)
    assert found.broken == found.skipped == []


def test_unknown_files_are_named_with_the_reason(tmp_path):
    write(tmp_path, "run/result", training_result())
    write(tmp_path, "run/other", {"losses": [1, 2]})
    write(tmp_path, "run/list", [1, 2])
    write(tmp_path, "run/later", {"what": "a kind of tomorrow"})
    write(tmp_path, "run/task", {"what": "evaluation task", "examples": []})
    found = collect([tmp_path])
    assert [each.path.name for each in found.shown] == ["result.json"]
    reasons = {each.path.name: each.reason for each in found.skipped}
    assert reasons["later.json"] == "Of a kind that has no section, 'a kind of tomorrow'"
    assert reasons["other.json"] == reasons["list.json"] == "No result of lmcompose: it does not say what it is"
    assert reasons["task.json"].startswith("One model on one task")


def test_models_checkpoints_and_hidden_files_are_not_read(tmp_path):
    write(tmp_path, "run/loss_curve", curve_result())
    for name in ("run/model/config", "run/checkpoints/checkpoint-3/trainer_state", ".cache/x", "run/.x"):
        write(tmp_path, name, {})
    write(tmp_path, "run/model/deeper/result", training_result())
    found = collect([tmp_path])
    assert len(found.shown) == 1
    assert [(each.path.name, each.reason) for each in found.skipped] == [("model", "A saved model")]


def test_a_broken_file_is_named_with_its_fault_and_the_others_are_shown(tmp_path):
    write(tmp_path, "good", training_result())
    (tmp_path / "cut.json").write_text(json.dumps(evaluation_result())[:200])
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{}")
    without = evaluation_result()
    del without["families"]
    write(tmp_path, "without", without)
    wrong = curve_result() | {"train": [{"step": 1, "loss": "many"}]}
    write(tmp_path, "wrong", wrong)
    write(tmp_path, "empty", curve_result() | {"train": [], "validation": []})
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    found = collect([tmp_path])
    assert [each.path.name for each in found.shown] == ["good.json"]
    faults = {each.path.name: each.reason for each in found.broken}
    assert set(faults) == {"bytes.json", "cut.json", "empty.json", "gone.json", "without.json", "wrong.json"}
    assert faults["cut.json"].startswith("It is no JSON that can be read (")
    assert faults["without.json"] == "It says that it is 'evaluation', but: 'families' is missing."
    assert "'loss_curve'" in faults["wrong.json"]
    assert "many" in faults["wrong.json"]


def test_a_figure_that_is_no_number_is_found_out_before_anything_is_drawn(tmp_path):
    result = evaluation_result()
    result["scores"]["gsm8k"]["exact_match,number"]["mine"]["interval"] = ["low", "high"]
    write(tmp_path, "bad", result)
    write(tmp_path, "bad-name", kv_result() | {"stages": [{"name": 3, "seconds": 1.0}]})
    write(tmp_path, "good", training_result())
    assert [each.path.name for each in collect([tmp_path]).broken] == ["bad-name.json", "bad.json"]


def test_nothing_to_show_is_an_error_that_says_what_there_was(tmp_path):
    with pytest.raises(DataError, match=r"No result in '.*' can be shown\. Name a folder"):
        collect([tmp_path])
    write(tmp_path, "other", {"a": 1})
    with pytest.raises(DataError, match=r"Not shown: .*other\.json: No result of lmcompose"):
        collect([tmp_path])
    with pytest.raises(DataError, match="There is no folder"):
        collect([tmp_path / "nowhere"])


def test_a_folder_that_is_reached_twice_is_shown_once(tmp_path):
    write(tmp_path, "runs/a/result", training_result())
    assert len(collect([tmp_path, tmp_path / "runs", os.path.relpath(tmp_path)]).shown) == 1
