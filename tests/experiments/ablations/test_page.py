"""The page of the real pairs shows what was measured, with the recipes that are shipped."""

import json
from pathlib import Path

import pytest

from lmcompose.recipe import read_recipe
from lmcompose.reporting.ablation_tables import ablation_grids
from lmcompose.training.recipe import TrainingRecipe

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "real-pairs.md").read_text(encoding="utf-8")
RESULTS = sorted((ROOT / "results" / "ablations").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_page_shows_the_committed_results(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    for grid in ablation_grids(result):
        assert grid.to_markdown().strip() in PAGE, grid.title
    recipe = read_recipe(ROOT / "recipes" / f"{path.stem}.yaml", TrainingRecipe)
    assert result["recipe"] == json.loads(json.dumps(recipe.model_dump(exclude_defaults=True)))
    assert len(result["seeds"]) == 3
    assert list(result["arms"]) == ["composition", "random"]


def test_every_pair_of_the_page_was_measured() -> None:
    assert [path.stem for path in RESULTS] == ["gemma-python", "smollm-prose"]
