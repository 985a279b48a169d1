"""`lmcompose demo`: key-value arithmetic, the CALM paper's section 4.1, run here."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.output import quiet_libraries, show_json


class Profile(StrEnum):
    """How large the experiment is."""

    demo = "demo"
    paper = "paper"


def demo(
    profile: Annotated[
        Profile, typer.Option(help="demo: minutes on two CPU cores. paper: 25,000 keys, up to 90 minutes.")
    ] = Profile.demo,
    from_nothing: Annotated[
        bool, typer.Option("--from-nothing", help="Train the two member models too, instead of the ready ones.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="The folder of the results, the models and the picture.")] = None,
    seed: Annotated[int, typer.Option(help="Of the keys, the data and the initial parameters.")] = 0,
    seeds: Annotated[int, typer.Option(help="Repeat with so many seeds and pool the table.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON; messages go to stderr.")] = False,
) -> None:
    """Compose a model that knows keys with one that knows arithmetic, and test what neither can do alone.

    One frozen model knows the values of secret keys and no arithmetic; the other can calculate and has seen no key.
    The composition learns from expressions over 20 % of the keys and is tested on the other 80 %.

    Examples:

      lmcompose demo
      lmcompose demo --from-nothing --output runs/demo
      lmcompose demo --profile paper
    """
    quiet_libraries()
    from lmcompose.experiments.kv_arithmetic import run

    result = run(
        profile=profile.value,
        from_nothing=from_nothing,
        output=output,
        seeds=range(seed, seed + seeds),
    )
    if as_json:
        show_json(result)
