"""`lmcompose overhead A B`: how many parameters a composition of two models adds."""

from typing import TYPE_CHECKING, Annotated

import typer

from lmcompose.cli.output import quiet_libraries, show, show_json
from lmcompose.errors import ConfigurationError, MemberError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def overhead(
    a: Annotated[
        str | None,
        typer.Argument(metavar="A", help="The augmenting model, m_A: a folder or a hub id.", show_default=False),
    ] = None,
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The anchor model, m_B: a folder or a hub id.", show_default=False)
    ] = None,
    connections: Annotated[
        int | None, typer.Option("-n", "--connections", min=1, help="How many; by default as many as compose makes.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="One connection for so many augmenting layers.")] = 4,
    example: Annotated[
        bool, typer.Option("--example", help="The paper's own example, BERT-small and BERT-large.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Count the parameters that a composition adds, by the paper's formulas and exactly.

    Only configurations are read: no weights, so the models can be of any size.

    Examples:

      lmcompose overhead models/small models/large
      lmcompose overhead models/small models/large -n 6 --json
      lmcompose overhead --example
    """
    if example == (a is not None):
        raise ConfigurationError("Name two models, A (augmenting) and B (anchor); or give --example and no model.")
    if not example and b is None:
        raise ConfigurationError("Name the anchor model as well: lmcompose overhead A B.")
    quiet_libraries()
    from lmcompose.experiments.overhead import overhead_report, worked_example
    from lmcompose.reporting.tables import overhead_grid

    if a is None or b is None:
        report = worked_example()
    else:
        report = overhead_report(_read_config(b, "anchor"), _read_config(a, "augmenting"), connections, every)
    if as_json:
        show_json(report)
    else:
        show(overhead_grid(report).to_rich())


def _read_config(name: str, role: str) -> "PreTrainedConfig":
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise MemberError(
            f"No model configuration at '{name}' (for the {role} model): {reason} Give a folder with a config.json, or "
            "the id of a model on the hub."
        ) from error
