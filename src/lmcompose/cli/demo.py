"""`lmcompose demo`: key-value arithmetic, the CALM paper's section 4.1, run here."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.output import quiet_libraries, show_json


def demo(
    profile: Annotated[
        str, typer.Option(help="demo: minutes on two CPU cores. paper: the paper's 25,000 keys, up to 90 minutes.")
    ] = "demo",
    from_nothing: Annotated[
        bool, typer.Option("--from-nothing", help="Train the two member models too, instead of taking the ready ones.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="The folder of the models and results.", show_default="runs/kv_arithmetic/PROFILE"),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Of keys, data and parameters. Give it several times to pool seeds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON; all else goes to stderr.")] = False,
) -> None:
    """Compose a model that knows keys with one that knows arithmetic, and test what neither can do alone.

    One frozen model knows the values of secret keys and no arithmetic; the other can calculate and has seen no key.
    The composition learns from expressions over 20 % of the keys and is tested on the other 80 %. A run that was
    stopped goes on from the stages that it finished.

    Examples:

      lmcompose demo
      lmcompose demo --from-nothing --output runs/my-demo --seed 1
      lmcompose demo --profile paper
    """
    quiet_libraries()
    from rich.console import Console

    from lmcompose.experiments.kv_arithmetic import run

    console = Console(stderr=as_json, highlight=False)
    result = run(profile, from_nothing=from_nothing, output=output, seeds=seed or [0], console=console)
    if as_json:
        show_json(result)
