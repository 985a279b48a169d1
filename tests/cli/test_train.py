"""`lmcompose train` checks first, trains, and leaves a composition that `generate` and `inspect` read."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, one_line


def test_the_keys_of_a_recipe(run: Run) -> None:
    lines = {line.split()[0]: line for line in run("train", "--keys").stdout.splitlines()}
    assert "required" in lines["output:"]
    assert "Give this or extends" in lines["anchor:"]
    assert "512" in lines["max_length:"]
    assert "Tokens per row" in lines["max_length:"]
    assert "[augmenting layer, anchor layer] pairs" in lines["connections:"]
    assert "A hint: {answer} ... " in lines["template:"]
    assert lines["pipeline:"].split()[1] == "How"  # its default is told by its own keys


def test_a_dry_run_writes_nothing(run: Run, recipe: Path) -> None:
    result = run("train", recipe, "--dry-run")
    assert result.exit_code == 0, result.stderr
    for text in ("Loaded and kept frozen", "anchor", "domain", "Trained:", "Memory", "3 steps"):
        assert text in result.stdout
    assert sorted(path.name for path in recipe.parent.iterdir()) == ["data.txt", "recipe.yaml"]


def test_train_then_inspect_then_generate(run: Run, recipe: Path) -> None:
    result = run("train", recipe, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["results"]["steps"] == 3
    assert "Loaded and kept frozen" in result.stderr
    folder = recipe.parent / "out" / "model"
    report = json.loads(run("inspect", folder, "--json").stdout)
    assert report["parameters"] == 24 * 32 + 4 * 32 * 32
    assert report["provenance"]["recipe"]["training"]["steps"] == 3
    assert run("generate", folder, "w1 w2", "--max-new-tokens", 3).exit_code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("anchor:", "anchr:"), ", line 1: unknown key 'anchr'. Did you mean 'anchor'?"),
        (("steps: 3", "steps: many"), ", line 8: 'training.steps' must be a valid integer, not 'many'."),
        (("[[1, 2]]", "[[1, 9]]"), "9"),
        (("data.txt", "dat.txt"), "dat.txt"),
    ],
)
def test_a_wrong_recipe(run: Run, recipe: Path, change: tuple[str, str], message: str) -> None:
    recipe.write_text(recipe.read_text().replace(*change))
    result = run("train", recipe)
    assert result.exit_code == 2
    assert message in one_line(result)
    assert not (recipe.parent / "out").exists()
