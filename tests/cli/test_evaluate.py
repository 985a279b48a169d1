"""`lmcompose evaluate`: tables and JSON of several models, what is there already, and what cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lmcompose.cli.evaluate import name_models
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.execution import ENVIRONMENT
from tests.cli.conftest import Proxy, Run, Saved, one_line
from tests.evaluation.code_samples import write_code_samples
from tests.evaluation.samples import write_samples


def test_several_models_in_one_table(run: Run, saved: Saved, proxy: Proxy, tmp_path: Path) -> None:
    data, output = write_samples(tmp_path / "data"), tmp_path / "out"
    models = [saved.anchor, saved.folder, f"steered={proxy.folder}"]
    options = ["--tasks", "truthfulqa_mc2, mgsm_sw", "--data", data, "--output", output, "--limit", "2"]
    options += ["--max-new-tokens", "2", "--shots", "0", "--batch-size", "2", "--dtype", "float32"]
    shown = run("evaluate", *models, *options)
    assert shown.exit_code == 0
    assert all(word in shown.stdout for word in ("large", "composition", "steered", "truthfulqa_mc2: acc, %"))
    assert "#(> large)" in shown.stdout
    assert "composition: mgsm_sw, task 2 of 2" in shown.stderr
    again = run("evaluate", *models, *options, "--json")
    assert "steered: 2 of 2 tasks are there already" in again.stderr
    assert "task 1 of" not in again.stderr
    result = json.loads(again.stdout)
    by_model = result["scores"]["truthfulqa_mc2"]["acc,none"]
    assert list(by_model) == ["large", "composition", "steered"]
    assert len({found["estimate"] for found in by_model.values()}) == 3
    assert set(result["models"]["composition"]["members"]) == {"anchor", "domain"}
    refused = run("evaluate", *models, *options, "--chat")
    assert refused.exit_code == 2
    assert "differs in chat False, now True" in refused.stderr


def test_programs_chat_templates_and_alpha(
    run: Run, saved: Saved, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    data = write_code_samples(tmp_path / "data")
    models = [f"base={proxy.base}", f"calm={saved.folder}", f"proxy={proxy.folder}"]
    options = ["--tasks", "humaneval", "--data", data, "--max-new-tokens", "4", "--dtype", "float32", "--chat"]
    refused = one_line(run("evaluate", "no/such/model", *options))
    assert "--allow-code-execution" in refused
    assert "are all the same" in one_line(run("evaluate", *models, *options, "--samples", "2", "--pass-at", "1,2"))
    assert "--pass-at 'x' is not one number" in one_line(run("evaluate", *models, *options, "--pass-at", "x"))
    allowed = [*models, *options, "--allow-code-execution", "--json"]
    written = {}
    for alpha in ("0", "1"):
        output = tmp_path / alpha
        result = run("evaluate", *allowed, "--alpha", alpha, "--output", output)
        if result.exit_code and "Programs cannot be run here" in result.stderr:
            pytest.skip(result.stderr)
        found = json.loads(result.stdout)
        assert list(found["scores"]["humaneval"]["pass@1,code"]) == ["base", "calm", "proxy"]
        for label in ("base", "calm", "proxy"):
            of_one = json.loads((output / label / "humaneval.json").read_text())
            assert of_one["prompt"].startswith("user : Complete the following Python function.")
            assert of_one["prompt"].endswith("``` </s> assistant : ")
            written[label, alpha] = [row["responses"] for row in of_one["examples"]]
    assert written["proxy", "0"] == written["base", "0"] == written["base", "1"]
    assert written["proxy", "1"] != written["proxy", "0"]
    assert written["calm", "1"] == written["calm", "0"]
    assert "has nothing to act on" in one_line(run("evaluate", *models[:2], *options[2:], "--tasks", "code_to_text",
                                                   "--alpha", "2", "--output", tmp_path / "none"))  # fmt: skip


def test_without_lm_eval_the_error_says_how_to_get_it(
    run: Run, saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("lmcompose.evaluation.harness")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.evaluator", None)
    result = run("evaluate", saved.anchor, "--tasks", "gsm8k", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "pip install 'lmcompose[eval]'" in one_line(result)


def test_unknown_data_and_no_task_are_one_line(run: Run, saved: Saved, tmp_path: Path) -> None:
    nothing = run("evaluate", saved.anchor, "--tasks", " ,")
    assert (nothing.exit_code, "--tasks is empty" in one_line(nothing)) == (2, True)
    absent = run("evaluate", saved.anchor, "--tasks", "ntrex", "--data", tmp_path, "--output", tmp_path / "out")
    assert "There is no newstest2019-src.eng.txt in" in one_line(absent)


def test_models_are_called_as_their_folders_are(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "model"
    folder.mkdir(parents=True)
    named = name_models(["owner/small", str(folder), "it=models/large"])
    assert named == {"small": "owner/small", "mine": str(folder), "it": "models/large"}
    with pytest.raises(ConfigurationError, match="Two models are called 'small'"):
        name_models(["owner/small", "other/small"])
    with pytest.raises(ConfigurationError, match="not of the form NAME=MODEL"):
        name_models(["=models/large"])
