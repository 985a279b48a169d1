"""`lmcompose inspect` tells what is in a saved folder."""

import json
import shutil
from pathlib import Path

from transformers import AutoModelForCausalLM

from lmcompose import CalmForCausalLM
from tests.cli.conftest import Run, Saved, one_line


def test_json(run: Run, saved: Saved, model: CalmForCausalLM) -> None:
    result = run("inspect", saved.folder, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["connections"] == {"domain": [[1, 2], [3, 3]]}
    assert report["parameters"] == model.num_composition_parameters() == 2 * (24 * 32 + 4 * 32 * 32)
    assert report["format_version"] == 1
    assert list(report["members"]) == ["anchor", "domain"]
    anchor = report["members"]["anchor"]
    assert anchor["name_or_path"] == str(saved.anchor)
    assert anchor["parameters"] == AutoModelForCausalLM.from_pretrained(saved.anchor).num_parameters()
    assert (anchor["revision"], anchor["model_type"]) == (None, "llama")
    assert report["provenance"]["versions"]["transformers"]


def test_text(run: Run, saved: Saved) -> None:
    result = run("inspect", saved.folder)
    assert result.exit_code == 0, result.stderr
    for text in ("anchor", "domain", "(1, 2), (3, 3)", "9,728 composition parameters", "linear projection", "format 1"):
        assert text in result.stdout


def test_members_that_are_not_here(run: Run, saved: Saved, tmp_path: Path) -> None:
    shutil.copytree(saved.folder, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["members"]["domain"]["name_or_path"] = str(tmp_path / "elsewhere")
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    assert json.loads(run("inspect", tmp_path / "copy", "--json").stdout)["members"]["domain"]["parameters"] is None
    assert "not found here" in run("inspect", tmp_path / "copy").stdout


def test_a_folder_that_a_crash_set_aside_is_put_back(run: Run, saved: Saved, tmp_path: Path) -> None:
    """Where folders cannot be exchanged in one step, a crash can leave the old one under another name."""
    shutil.copytree(saved.folder, tmp_path / ".composition.lmcompose-old-0123abcd")
    assert run("inspect", tmp_path / "composition").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["composition"]


def test_what_is_no_composition(run: Run, saved: Saved, tmp_path: Path) -> None:
    result = run("inspect", saved.anchor)
    assert result.exit_code == 1
    assert "compose it with another model" in one_line(result)
    shutil.copytree(saved.folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    result = run("inspect", tmp_path / "cut")
    assert result.exit_code == 1
    assert "is missing or cut short" in one_line(result)
