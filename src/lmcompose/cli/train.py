"""`lmcompose train RECIPE`: train the composition parameters that a recipe describes."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.output import quiet_libraries, show_json, show_keys


def _show_keys(wanted: bool) -> None:
    if not wanted:
        return
    from lmcompose.training.recipe import TrainingRecipe

    show_keys(TrainingRecipe)
    raise typer.Exit


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; start from one in recipes/.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, to the same losses as an unbroken run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print what would be loaded and trained, and stop.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if the plan says that memory cannot suffice.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result (of a dry run: the plan) as JSON; messages go to stderr.")
    ] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="Print every key of a recipe and leave.", callback=_show_keys, is_eager=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train a composition: the members stay frozen, only the parameters between them learn.

    The recipe is checked before anything is loaded. Ctrl-C stops after the step under way and keeps a checkpoint;
    --resume goes on from it.

    Examples:

      lmcompose train --keys
      lmcompose train recipes/stories.yaml --dry-run
      lmcompose train recipes/stories.yaml
      lmcompose train recipes/stories.yaml --resume
      accelerate launch --multi_gpu --num_processes 2 -m lmcompose train recipes/stories.yaml
    """
    quiet_libraries()
    from lmcompose.training.run import train as run

    result = run(
        recipe,
        resume=resume,
        dry_run=dry_run,
        force=force,
        say=lambda text: typer.echo(text, err=as_json),
        progress=not quiet,
    )
    if as_json:
        show_json(result)
