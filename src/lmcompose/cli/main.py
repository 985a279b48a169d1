"""The entry point of the `lmcompose` command. Nothing heavy is imported before a verb needs it."""

from typing import Annotated

import typer

from lmcompose.cli.combine import combine
from lmcompose.cli.commands import Commands
from lmcompose.cli.demo import demo
from lmcompose.cli.evaluate import evaluate
from lmcompose.cli.generate import generate
from lmcompose.cli.inspect import inspect
from lmcompose.cli.judge import judge
from lmcompose.cli.overhead import overhead
from lmcompose.cli.report import report
from lmcompose.cli.toxicity import toxicity
from lmcompose.cli.trace import trace
from lmcompose.cli.train import train
from lmcompose.cli.translate import translate

HELP = """
Compose frozen language models into one, train the few parameters between them, and use the result as one model.

Start with the demo, which needs no download; then copy a recipe from recipes/ and name your own models and data in it:

  lmcompose demo
  lmcompose train recipes/my-recipe.yaml
  lmcompose generate runs/my-recipe/model "A prompt"

Exit codes: 0 done, 2 bad input (the message says what to change), 1 another failure, 130 interrupted.
"""

app = typer.Typer(
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from lmcompose import __version__

    typer.echo(f"lmcompose {__version__}")
    raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the verb."""


for verb in (demo, train, combine, generate, evaluate, judge, toxicity, translate, trace, overhead, report, inspect):
    app.command()(verb)


def run() -> None:
    """The console script."""
    app(prog_name="lmcompose")


if __name__ == "__main__":
    run()
