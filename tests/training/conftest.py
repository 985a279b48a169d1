"""A folder as a user has it: two saved models, a little data, and a recipe beside them."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import save_tiny

RECIPE = """\
anchor: {models}/anchor
augmenting: {models}/augmenting
connections: [[1, 1], [2, 3]]
data:
  - path: facts.jsonl
    kind: prompt_completion
validation: {{fraction: 0.2}}
training:
  steps: 12
  batch_size: 4
  max_length: 16
  learning_rate: 0.01
  log_every: 1
  eval_every: 6
  save_every: 5
output: out
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `anchor` and `augmenting`, saved."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "anchor", "llama", seed=0)
    save_tiny(folder / "augmenting", "llama", seed=1, hidden_size=48)
    return folder


def write_project(folder: Path, models: Path, *replacements: tuple[str, str]) -> Path:
    """Write data and a recipe, with parts of its text replaced; returns the recipe."""
    folder.mkdir(exist_ok=True)
    generator = random.Random(0)
    rows = []
    for _ in range(40):
        a, b = generator.randrange(5), generator.randrange(5)
        rows.append({"prompt": f"{a} + {b} =", "completion": str(a + b)})
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = RECIPE.format(models=models)
    for before, after in replacements:
        assert before in text
        text = text.replace(before, after)
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


@pytest.fixture
def project(tmp_path: Path, models: Path) -> Callable[..., Path]:
    """`project((before, after), ...)` writes data and a recipe in a fresh folder; returns the recipe."""

    def make(*replacements: tuple[str, str], folder: Path = tmp_path) -> Path:
        return write_project(folder, models, *replacements)

    return make
