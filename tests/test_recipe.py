"""A recipe that is wrong fails with one clear line; a recipe that is right arrives whole."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from lmcompose.errors import ConfigurationError, RecipeError
from lmcompose.recipe import read_recipe


class TextSource(BaseModel):
    path: str
    weight: float = 1.0


class HubSource(BaseModel):
    dataset: str
    split: str = "train"


class Optimizer(BaseModel):
    learning_rate: float = Field(1e-3, gt=0)
    schedule: Literal["cosine", "constant"] = "cosine"


class Recipe(BaseModel):
    anchor: str
    augmenting: dict[str, str]
    connections: list[tuple[int, int]] | None = None
    data: list[TextSource | HubSource] = []
    optimizer: Optimizer = Optimizer()
    steps: int = 10

    @field_validator("steps")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("give an even number of steps")
        return value


GOOD = """\
# comment
anchor: models/b
augmenting:
  domain: models/a
connections: [[0, 0], [4, 2]]
data:
  - path: a.jsonl
    weight: 2
  - dataset: some/name
optimizer:
  learning_rate: 1e-4
  schedule: constant
steps: 20
"""


def message(text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(text, Recipe)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_right_recipe_arrives_whole(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    for source in (GOOD, file, str(file)):
        recipe = read_recipe(source, Recipe)
        assert recipe.connections == [(0, 0), (4, 2)]
        assert recipe.data == [TextSource(path="a.jsonl", weight=2.0), HubSource(dataset="some/name")]
        # YAML 1.1 reads 1e-4 as a string; a recipe must not care.
        assert recipe.optimizer == Optimizer(learning_rate=1e-4, schedule="constant")


def test_the_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "typo.yaml"
    file.write_text(GOOD.replace("anchor:", "anchr:"))
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(file, Recipe)
    assert str(caught.value) == f"{file}, line 2: unknown key 'anchr'. Did you mean 'anchor'?"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("steps: 20", "steps: ten"), "recipe, line 13: 'steps' must be a valid integer, not 'ten'."),
        (("steps: 20", "steps: 3"), "recipe, line 13: 'steps': give an even number of steps"),
        (("steps: 20", "steps:"), "recipe, line 13: key 'steps' has no value. Give it one, or remove the line."),
        (("anchor: models/b\n", ""), "recipe: missing key 'anchor'."),
        (("1e-4", "-1"), "recipe, line 11: 'optimizer.learning_rate' must be greater than 0, not -1."),
        (
            ("learning_rate", "learning_rat"),
            "recipe, line 11: unknown key 'learning_rat' in 'optimizer'. Did you mean 'learning_rate'?",
        ),
        (
            ("schedule: constant", "frobnicate: 1"),
            "recipe, line 12: unknown key 'frobnicate' in 'optimizer'. Valid keys there: learning_rate, schedule.",
        ),
        (
            ("schedule: constant", "schedule: cosin"),
            "recipe, line 12: 'optimizer.schedule' must be 'cosine' or 'constant', not 'cosin'. Did you mean 'cosine'?",
        ),
        (
            ("    weight: 2", "    wieght: 2"),
            "recipe, line 8: unknown key 'wieght' in 'data[0]'. Did you mean 'weight'?",
        ),
        (
            ("steps: 20", "anchor: twice"),
            "recipe, line 13: key 'anchor' is already given on line 2. Keep",
        ),
        (("[4, 2]", "[4, two]"), "recipe, line 5: 'connections[1][1]' must be a valid integer, not 'two'."),
        (
            ("\n  domain: models/a", " models/a"),
            "recipe, line 3: 'augmenting' must be indented `key: value` lines",
        ),
        (("  domain", "\tdomain"), "recipe, line 4: not valid YAML: found character '\\t' that cannot start any token"),
        (("[4, 2]]", "[4, 2]"), "recipe, line 6: not valid YAML:"),
        (("steps: 20", "? [a, b]\n: 1"), "recipe, line 13: a key must be a word, not a list or a mapping."),
    ],
)
def test_one_clear_line_for_each_mistake(change: tuple[str, str], expected: str) -> None:
    assert change[0] in GOOD
    assert message(GOOD.replace(*change)).startswith(expected)


def test_several_mistakes_give_the_misspelling_first() -> None:
    text = GOOD.replace("anchor:", "anchr:").replace("steps: 20", "steps: ten")
    assert "unknown key 'anchr'" in message(text)


def test_a_merge_key_is_not_a_repeated_key() -> None:
    text = "anchor: b\naugmenting: &base\n  x: y\n  z: one\ndata: []\n"
    assert read_recipe(text, Recipe).augmenting == {"x": "y", "z": "one"}
    merged = "anchor: b\noptimizer: &o {schedule: constant}\naugmenting:\n  <<: *o\n  schedule: mine\n"
    assert read_recipe(merged, Recipe).augmenting == {"schedule": "mine"}


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("")
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "control.yaml").write_text("anchor: \x07bell\n")
    (tmp_path / "two.yaml").write_text("anchor: a\n---\nanchor: b\n")
    expected = {
        "train.yaml": "is empty. It needs at least: anchor, augmenting.",
        "list.yaml": ", line 1: a recipe is a list of `key: value` lines.",
        "binary.yaml": "is not a text file. A recipe is YAML, in UTF-8.",
        "control.yaml": "is not valid YAML:",
        "two.yaml": ", line 2: not valid YAML:",
        "trian.yaml": ": no such file. Did you mean 'train.yaml'?",
        ".": "is a folder. Name the recipe file inside it.",
    }
    for name, ending in expected.items():
        with pytest.raises(RecipeError) as caught:
            read_recipe(tmp_path / name, Recipe)
        assert ending in str(caught.value), name
        assert "\n" not in str(caught.value)


def test_an_alias_that_holds_itself_is_refused() -> None:
    assert "line 3" in message("anchor: a\naugmenting: {a: b}\nconnections: &loop\n- *loop\n")
