"""Run from the command line: `python -m lmcompose.experiments.tune RECIPE`.

Tunes the anchor of a recipe by itself, whole or by LoRA, on the recipe's data: how a small model is continued on the
texts of a domain before it becomes the augmenting model of another recipe. What the recipe says of augmenting models is
passed over. The tuned model, or its adapter, is `OUTPUT/model`. A run that was stopped goes on where it was;
a finished one is left as it is, if the recipe and the data are still the same.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from lmcompose.experiments.commands import carry_out, command_of
from lmcompose.recipe import read_recipe
from lmcompose.training.checkpoints import goes_on
from lmcompose.training.data import prepare_data
from lmcompose.training.models import RecipeModels
from lmcompose.training.recipe import TrainingRecipe
from lmcompose.training.resume import match_run
from lmcompose.training.tuning import method_of, tune


def tuned(recipe: Path, lora: int | None = None, command: str | None = None) -> dict[str, Any] | None:
    """Tune the anchor of `recipe`, or go on with it; None where that is done already.

    Args:
        lora: see `training.tuning.tune`.

    Raises:
        LmcomposeError: as `tune` raises, and where what is done already was done by another recipe.
    """
    base, read = recipe.resolve().parent, read_recipe(recipe, TrainingRecipe)
    output = base / read.output
    if (output / "result.json").exists():
        data = prepare_data(read, RecipeModels.located(read, base).tokenizer(), base)
        match_run(read, data, output, method_of(lora))
        return None
    return tune(recipe, lora=lora, resume=goes_on(output / "checkpoints"), command=command)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a recipe of `lmcompose train`")
    parser.add_argument(
        "--lora", type=int, metavar="N", help="by LoRA of about N parameters; by default all is trained"
    )
    options = parser.parse_args()
    command = command_of("tune", sys.argv[1:])
    result = carry_out("tune", command, lambda: tuned(options.recipe, options.lora, command))
    if result is None:
        print(f"{options.recipe} was tuned already, and is left as it is.")


if __name__ == "__main__":
    main()
