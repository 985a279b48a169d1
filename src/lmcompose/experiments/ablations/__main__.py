"""Run from the command line: `python -m lmcompose.experiments.ablations RECIPE`.

Trains the composition of a recipe, and whatever it is to be compared with: the same with another augmenting model, the
anchor tuned by itself, models joined without training. All see the same data in the same order, with several seeds, and
are scored on what the recipe holds out and on what the anchor could do before; the differences are printed with their
intervals. Runs are kept in a folder of their own, so that a comparison that was stopped goes on where it was.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from lmcompose.experiments.ablations.arms import ARMS
from lmcompose.experiments.ablations.options import add_options, options_given
from lmcompose.experiments.ablations.run import run
from lmcompose.experiments.commands import carry_out, command_of, conclude, write_files
from lmcompose.recipe import read_recipe
from lmcompose.reporting.ablation_tables import ablation_grids, ablation_markdown
from lmcompose.training.recipe import TrainingRecipe


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recipe", type=Path, help="a recipe of `lmcompose train`, with a validation section")
    options.add_argument(
        "--arms", nargs="+", default=["composition", "random"], metavar="ARM", help=f"{', '.join(ARMS)}; or all"
    )
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    options.add_argument("--runs", type=Path, help="where the runs are kept (default: runs/ablations/<recipe>)")
    options.add_argument("--output", type=Path, help="default: results/ablations/<recipe>.json")
    add_options(options)
    return options


def write_report(result: dict[str, Any], path: Path) -> list[Path]:
    """Write `path` (JSON), and beside it the same as Markdown."""
    return write_files(result, path, ablation_markdown(result))


def main() -> None:
    """Run from the command line."""
    options = parser().parse_args()
    name = options.recipe.stem
    command = command_of("ablations", sys.argv[1:])
    result = carry_out(
        "ablations",
        command,
        lambda: run(
            options.recipe,
            options=options_given(options, read_recipe(options.recipe, TrainingRecipe).ablations),
            arms=options.arms,
            seeds=options.seeds,
            folder=options.runs or Path("runs/ablations") / name,
            command=command,
        ),
    )
    path = options.output or Path("results/ablations") / f"{name}.json"
    conclude(ablation_grids(result), write_report(result, path))


if __name__ == "__main__":
    main()
