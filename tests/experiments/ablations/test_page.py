"""The pages of real pairs show what was measured, with the recipes that are shipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmcompose.recipe import read_recipe
from lmcompose.reporting.ablation_tables import ablation_grids
from lmcompose.training.recipe import TrainingRecipe

ROOT = Path(__file__).parents[3]
RESULTS = sorted((ROOT / "results" / "ablations").glob("*.json"))
PAIRS = {
    "gemma-python": ("real-pairs.md", ["composition", "random"], 3),
    "smollm-prose": ("real-pairs.md", ["composition", "random"], 3),
    "code": ("code.md", ["composition", "random", "lora", "routing"], 2),
}
"""Recipe -> the page, the arms and the number of seeds."""


def with_names(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with its models by their names alone: a folder and the hub's id are one model."""
    named = {role: Path(recipe[role]).name.lower() for role in ("anchor", "augmenting")}
    return json.loads(json.dumps({**recipe, **named}))  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_page_shows_the_committed_results(path: Path) -> None:
    page, arms, seeds = PAIRS[path.stem]
    result = json.loads(path.read_text(encoding="utf-8"))
    shown = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for grid in ablation_grids(result):
        assert grid.to_markdown().strip() in shown, grid.title
    recipe = read_recipe(ROOT / "recipes" / f"{path.stem}.yaml", TrainingRecipe)
    assert with_names(result["recipe"]) == with_names(recipe.model_dump(exclude_defaults=True))
    assert len(result["seeds"]) == seeds
    assert list(result["arms"]) == arms


def test_every_pair_of_the_pages_was_measured() -> None:
    assert {path.stem for path in RESULTS} == set(PAIRS)
