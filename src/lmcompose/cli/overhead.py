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
        typer.Argument(
            metavar="A", help="The augmenting model, m_A: a folder, a GGUF file or a hub id.", show_default=False
        ),
    ] = None,
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B", help="The anchor model, m_B: a folder, a GGUF file or a hub id.", show_default=False
        ),
    ] = None,
    connections: Annotated[
        int | None, typer.Option("-n", "--connections", min=1, help="How many; by default as many as compose makes.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="One connection for so many augmenting layers.")] = 4,
    rank: Annotated[
        int | None, typer.Option(min=1, help="Count bridges of this low rank as well (beyond the paper).")
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="The paper's own example, BERT-small and BERT-large.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Count the parameters that a composition adds, by the paper's formulas and exactly.

    Only configurations are read: no weights, so the models can be of any size. Of an adapter, its base is counted.

    Examples:

      lmcompose overhead models/small models/large
      lmcompose overhead models/small models/large -n 6 --json
      lmcompose overhead models/small models/large --rank 8
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
        report = overhead_report(_read_config(b, "anchor"), _read_config(a, "augmenting"), connections, every, rank)
    if as_json:
        show_json(report)
    else:
        show(overhead_grid(report).to_rich())


def _read_config(name: str, role: str) -> "PreTrainedConfig":
    """The configuration of a model, or of an adapter's base."""
    from lmcompose.adapters import adapter_source
    from lmcompose.places import PLACES, is_missing_folder, no_connection, read_model_config, reason_of
    from lmcompose.saved import ComposedConfig

    try:
        config = read_model_config(name)
    except Exception as error:  # hub, file-system and GGUF errors have no common base
        adapter = None if is_missing_folder(name) else adapter_source(name, local_files_only=no_connection(error))
        if adapter is None:
            raise MemberError(
                f"No model configuration at '{name}' (for the {role} model): {reason_of(error, name)} Give {PLACES}."
            ) from error
        try:
            config = read_model_config(adapter.base, adapter.base_revision)
        except Exception as missing:
            raise MemberError(
                f"No model configuration at '{adapter.base}', the base of the adapter '{name}' (for the {role} model): "
                f"{reason_of(missing, adapter.base)} Correct base_model_name_or_path in its adapter_config.json."
            ) from missing
    if isinstance(config, ComposedConfig):
        raise MemberError(
            f"'{name}' (for the {role} model) is a saved composition, and the paper's formulas are of plain models. "
            f"Name one of its members: {', '.join(found.full_name for found in config.references().values())}."
        )
    config.name_or_path = name
    return config
