"""`lmcompose overhead A B`: what a composition of two models costs, counted and measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmcompose.cli.output import quiet_libraries, show, show_json
from lmcompose.errors import ConfigurationError, DataError, MemberError, nearest

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
    length: Annotated[
        int, typer.Option(min=1, help="Tokens in a row of training, and in a text that is decoded.")
    ] = 256,
    example: Annotated[
        bool, typer.Option("--example", help="The paper's own example, BERT-small and BERT-large.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the models, and time training steps and decoded tokens too.")
    ] = False,
    methods: Annotated[
        str, typer.Option(help="With --measure: the ways to train that are timed, with commas between them.")
    ] = "calm,lora,full",
    batch: Annotated[int, typer.Option(min=1, help="With --measure: rows in a training step.")] = 2,
    new_tokens: Annotated[int, typer.Option(min=2, help="With --measure: tokens to decode.")] = 16,
    repetitions: Annotated[int, typer.Option(min=1, help="With --measure: how often each is timed.")] = 3,
    dtype: Annotated[
        str | None, typer.Option(help="With --measure: of the models, such as bfloat16.", show_default="as saved")
    ] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="With --measure: CPU seconds, a rough figure from a busy machine.")
    ] = False,
    text: Annotated[
        Path | None, typer.Option(help="With --measure: a text file to read.", show_default="Python's own help")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON; messages go to stderr.")] = False,
) -> None:
    """Count what a composition costs: parameters, by the paper's formulas and exactly, and FLOPs.

    FLOPs are counted for training by CALM, by LoRA with as many parameters, and by full tuning, and for decoding.
    Only configurations are read, so the models can be of any size. Of an adapter, its base is counted.

    With --measure the models are loaded, and times and peak memory stand beside the counts. Run nothing else meanwhile.

    Examples:

      lmcompose overhead models/small models/large
      lmcompose overhead models/small models/large -n 6 --json
      lmcompose overhead models/small models/large --rank 8
      lmcompose overhead models/small models/large --measure --methods calm,lora
      lmcompose overhead --example
    """
    if example == (a is not None):
        raise ConfigurationError("Name two models, A (augmenting) and B (anchor); or give --example and no model.")
    if not example and b is None:
        raise ConfigurationError("Name the anchor model as well: lmcompose overhead A B.")
    if example and measure:
        raise ConfigurationError("The example has no weights to measure. Name two models: lmcompose overhead A B.")
    chosen = _methods(methods)
    quiet_libraries()
    from lmcompose.experiments.overhead import overhead_report, worked_example
    from lmcompose.experiments.overhead.measure import Reading, read
    from lmcompose.experiments.overhead.measure import measure as run
    from lmcompose.reporting.overhead_tables import overhead_grids

    report: dict[str, Any]
    if a is None or b is None:
        report = worked_example()
    else:
        configs = _read_config(b, "anchor"), _read_config(a, "augmenting")
        reading: Reading | None = read(b, a, _text(text), batch, length, min(length, 64)) if measure else None
        tokens = 1.0 if reading is None else reading.augmenting_tokens
        report = overhead_report(*configs, connections, every, rank, length, tokens)
        if reading is not None:
            report["measured"] = run(
                b,
                a,
                report,
                reading,
                methods=chosen,
                new_tokens=new_tokens,
                repetitions=repetitions,
                dtype=dtype,
                cpu_time=cpu_time,
                text="Python's help" if text is None else text.name,
                say=lambda message: typer.echo(message, err=True),
            )
    if as_json:
        show_json(report)
    else:
        show(*(grid.to_rich() for grid in overhead_grids(report)))


def _methods(given: str) -> list[str]:
    """The names in --methods.

    Raises:
        ConfigurationError: one that is none, or none at all.
    """
    known, names = ("calm", "lora", "full"), [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"--methods: '{name}' is none of {', '.join(known)}.{nearest(name, known)}")
    if not names:
        raise ConfigurationError(f"--methods names none: give some of {', '.join(known)}.")
    return [name for name in known if name in names]


def _text(file: Path | None) -> str:
    """What a measurement reads.

    Raises:
        DataError: the file cannot be read as text.
    """
    from lmcompose.experiments.overhead.measure import standard_text

    try:
        return standard_text() if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--text '{file}' cannot be read: {error}. Give a text file in UTF-8.") from error


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
