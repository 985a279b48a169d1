"""The options that the verbs share which run models over data and keep what they have as it comes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmcompose.cli.generate import Dtype
from lmcompose.cli.output import show, show_json

if TYPE_CHECKING:
    from lmcompose.evaluation.opening import Loading
    from lmcompose.reporting.tables import Grid

RedoOption = Annotated[bool, typer.Option("--redo", help="Replace what is there of another run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DtypeOption = Annotated[Dtype | None, typer.Option(help="Of the weights; by default as they were saved.")]
DeviceOption = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, mps; by default a GPU if there is one.")
]
ChatOption = Annotated[bool, typer.Option("--chat", help="Wrap what the models read in their chat templates.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Texts at once.")]


def how_to_load(
    batch_size: int, device: str | None, dtype: Dtype | None, trust_remote_code: bool, no_safetensors: bool
) -> "Loading":
    """What these options say of models."""
    from lmcompose.evaluation.opening import Loading

    return Loading(batch_size, device, dtype.value if dtype else None, trust_remote_code, not no_safetensors)


def to_stderr(text: str) -> None:
    """Say how far a run is, where its result goes to stdout."""
    typer.echo(text, err=True)


def show_result(
    result: dict[str, Any], grids: "Callable[[dict[str, Any]], Iterable[Grid]]", output: Path, as_json: bool
) -> None:
    """Print a result as JSON, or as its tables and where it was written."""
    if as_json:
        show_json(result)
        return
    show(*(grid.to_rich() for grid in grids(result)))
    typer.echo(f"Written to {output}")
