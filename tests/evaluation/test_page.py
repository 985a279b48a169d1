"""The page on code shows what was measured by `lmcompose evaluate`, and the harness finds what is published."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmcompose.reporting.evaluation_tables import evaluation_grids

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results" / "evaluation").glob("*.json"))
PAGE = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
PUBLISHED = {"qwen2.5-coder-0.5b": 0.616, "qwen2.5-coder-1.5b": 0.707}
"""HumanEval, pass@1 (Qwen2.5-Coder, arXiv 2409.12186, the instruction-tuned models)."""


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_page_shows_the_committed_scores(path: Path) -> None:
    for grid in evaluation_grids(read(path)):
        assert grid.to_markdown().strip() in PAGE, grid.title


def test_the_published_figures_lie_in_the_measured_intervals() -> None:
    found = read(ROOT / "results" / "evaluation" / "humaneval.json")["scores"]["humaneval"]["pass@1,code"]
    for name, published in PUBLISHED.items():
        low, high = found[name]["interval"]
        assert found[name]["examples"] == 164
        assert low < published < high
        assert f"{100 * published:.1f}" in PAGE
