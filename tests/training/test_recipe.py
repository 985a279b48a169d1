"""A training recipe is refused for every mistake that can be seen in it alone, with its line and the nearest key."""

from pathlib import Path

import pytest
from transformers import Qwen2Config

from lmcompose import plan_composition
from lmcompose.errors import RecipeError
from lmcompose.recipe import read_recipe
from lmcompose.training.arguments import micro_batch
from lmcompose.training.plan import plan_training
from lmcompose.training.recipe import TrainingRecipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SHIPPED = [recipe for recipe in RECIPES if "lmcompose train" in recipe.read_text()]

GOOD = """\
anchor: big
augmenting: small
data:
  - path: facts.jsonl
training:
  steps: 10
output: out
"""


def read(text: str) -> TrainingRecipe:
    return read_recipe(text, TrainingRecipe)


def test_the_shortest_recipe_is_filled_with_the_papers_defaults() -> None:
    recipe = read(GOOD)
    assert (recipe.every, recipe.projection, recipe.bridge_dtype, recipe.dtype) == (4, "linear", "float32", "auto")
    assert recipe.augmenting_sources() == {"augmenting": "small"}
    assert recipe.data[0].kind == "text"


def test_several_augmenting_models_with_connections_of_their_own() -> None:
    several = "augmenting: {code: c, law: l}\nconnections:\n  code: [[1, 2], [0, 0]]\n  law: [[3, 4]]"
    recipe = read(GOOD.replace("augmenting: small", several))
    assert recipe.augmenting_sources() == {"code": "c", "law": "l"}
    assert recipe.connections == {"code": [(1, 2), (0, 0)], "law": [(3, 4)]}


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("anchor: big", "anchr: big", r"line 1: unknown key 'anchr'\. Did you mean 'anchor'\?"),
        ("steps: 10", "stepps: 10", r"line 6: unknown key 'stepps'.*Did you mean 'steps'"),
        ("- path: facts.jsonl", "- pth: facts.jsonl", r"line 4: unknown key 'pth'.*Did you mean 'path'"),
        ("steps: 10", "steps: ten", r"line 6: 'training.steps' must be a valid integer"),
        ("steps: 10", "steps: 0", r"line 6: .*steps"),
        ("steps: 10", "steps: 10\n  epochs: 2", "either 'steps' or 'epochs'"),
        ("steps: 10", "packing: true", "either 'steps' or 'epochs'"),
        ("steps: 10", "steps: 10\n  batch_size: 6\n  gradient_accumulation: 4", "choose a divisor"),
        ("steps: 10", "steps: 10\n  learning_rate: .nan", "learning_rate"),
        ("steps: 10", "steps: 10\n  early_stopping: {patience: 2}", "needs a 'validation' section"),
        ("steps: 10", "steps: 10\n  eval_every: 2", "needs a 'validation' section"),
        ("path: facts.jsonl", "path: facts.jsonl\n    dataset: squad", "either 'path'"),
        ("path: facts.jsonl", "path: facts.jsonl\n    kind: chta", r"Did you mean 'chat'"),
        ("path: facts.jsonl", "path: facts.jsonl\n    columns: {txt: body}", r"Did you mean 'text'"),
        ("path: facts.jsonl", "path: facts.jsonl\n    kind: chat\n    long_examples: split", "cuts an answer"),
        ("path: facts.jsonl", "path: a.txt\n    weight: 2\n  - path: b.txt", "all sources a weight"),
        ("output: out", "output: out\nvalidation: {}", "either 'fraction' or 'data'"),
        ("output: out", "output: out\nrevisions: {anchro: main}", r"Did you mean 'anchor'"),
        ("output: out", "", "missing key 'output'"),
    ],
)
def test_a_mistake_is_named(was: str, becomes: str, message: str) -> None:
    assert was in GOOD
    with pytest.raises(RecipeError, match=message):
        read(GOOD.replace(was, becomes))


EXTENDS = """\
extends: runs/law/model
augmenting:
  medicine: small
data:
  - path: facts.jsonl
training:
  steps: 10
output: out
"""


def test_a_recipe_can_add_to_a_saved_composition() -> None:
    recipe = read(EXTENDS)
    assert (recipe.anchor, recipe.extends, recipe.trains_all) == (None, "runs/law/model", False)
    assert recipe.augmenting_sources() == {"medicine": "small"}
    assert read(EXTENDS + "trainable: all\n").trains_all
    assert read(GOOD).trains_all


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("extends:", "extend:", r"line 1: unknown key 'extend'\. Did you mean 'extends'\?"),
        ("extends: runs/law/model\n", "", r"missing key 'anchor' \(or 'extends', to add to a saved composition\)"),
        ("output: out", "output: out\nanchor: big", r"line 9: 'anchor': leave out 'anchor'.*has its own"),
        ("augmenting:\n  medicine: small", "augmenting: small", r"line 2: 'augmenting': give what is added a name"),
        ("output: out", "num_heads: 4\noutput: out", r"line 8: 'num_heads': .*built like those of 'extends'"),
        ("output: out", "output: out\nprojection: linear", r"line 9: 'projection': leave out"),
        ("output: out", "output: out\nrank: 4", r"line 9: 'rank': leave out"),
        ("output: out", "output: out\ngate: true", r"line 9: 'gate': leave out"),
        ("output: out", "output: out\ntrainable: nwe", r"line 9: 'trainable' must be .*Did you mean 'new'"),
        ("output: out", "output: out\nrevisions: {anchor: main}", r"line 9: 'revisions.anchor': there is no member"),
        ("output: out", "output: out\nrevisions:\n  medicin: main", r"line 10: .*Did you mean 'medicine'"),
    ],
)
def test_a_mistake_in_an_extension_is_named_with_its_line(was: str, becomes: str, message: str) -> None:
    assert was in EXTENDS
    with pytest.raises(RecipeError, match=message):
        read(EXTENDS.replace(was, becomes))


def test_trainable_goes_with_extends() -> None:
    with pytest.raises(RecipeError, match=r"line 8: 'trainable': it goes with 'extends'"):
        read(GOOD + "trainable: new\n")


def test_early_stopping_needs_checkpoints_that_were_evaluated() -> None:
    text = GOOD.replace("steps: 10", "steps: 10\n  early_stopping: {}\n  eval_every: 4\n  save_every: 6")
    with pytest.raises(RecipeError, match="multiple of eval_every"):
        read(text + "validation: {fraction: 0.1}\n")


def test_the_memory_that_the_header_of_answers_states_is_the_plans(tmp_path: Path) -> None:
    recipe_path = next(path for path in SHIPPED if path.name == "answers.yaml")
    recipe = read_recipe(recipe_path, TrainingRecipe)
    common = {"vocab_size": 151_936, "num_key_value_heads": 2, "tie_word_embeddings": True, "dtype": "bfloat16"}
    sizes = {"anchor": (1536, 8960, 28, 12), "augmenting": (896, 4864, 24, 14)}  # Qwen2.5-Coder 1.5B and 0.5B
    sources = {}
    for role, (width, mlp, layers, heads) in sizes.items():
        shape = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers}
        Qwen2Config(**common, **shape, num_attention_heads=heads).save_pretrained(tmp_path / role)
        sources[role] = str(tmp_path / role)
    plan = plan_training(recipe, plan_composition(**sources), sources, tmp_path, micro_batch(recipe.training))
    text = " ".join(recipe_path.read_text(encoding="utf-8").replace("#", "").split())
    share = 100 * plan.trained_parameters / sum(member.parameters for member in plan.members)
    assert (
        f"about {plan.expected_bytes / 2**30:.1f} GiB by the plan that --dry-run prints, for "
        f"{plan.trained_parameters / 1e6:.1f} M trained parameters, {share:.1f} % of the frozen ones"
    ) in text


def test_the_shipped_recipes_are_found() -> None:
    assert {"answers.yaml", "stories.yaml"} <= {path.name for path in SHIPPED}


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda path: path.name)
def test_every_recipe_that_is_shipped_is_valid_and_says_what_to_expect(recipe: Path) -> None:
    header = "".join(line for line in recipe.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert f"lmcompose train recipes/{recipe.name}" in header
    assert "Time:" in header
    assert "Expect:" in header
    read_recipe(recipe, TrainingRecipe)
