"""`lmcompose translate FILE`: a data set in another language, checked by translating it back."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.output import quiet_libraries
from lmcompose.cli.running import (
    BatchOption,
    ChatOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    RedoOption,
    how_to_load,
    show_result,
    to_stderr,
)
from lmcompose.cli.saved_model import PickleOption, TrustOption


def translate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The data set: JSON lines.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="The translator: a saved composition or a plain model.")],
    field: Annotated[str, typer.Option(help="Whose text is translated, such as question.")],
    target: Annotated[str, typer.Option("--to", metavar="LANGUAGE", help="As the prompt calls it: Somali.")],
    source: Annotated[str, typer.Option("--from", metavar="LANGUAGE", help="What it is written in.")] = "English",
    back_model: Annotated[
        str | None, typer.Option("--back", metavar="MODEL", help="Translates back; by default the same model.")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pairs before each text: JSON lines with 'source', 'target'.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The prompt, with {source}, {target} and {text}; \\n is a line end."),
    ] = None,
    threshold: Annotated[float, typer.Option(help="The lowest chrF1 of the way there and back that is kept.")] = 50.0,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where all of it is written, and read when a run goes on.")
    ] = Path("runs/translate"),
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many rows.")] = None,
    chat: ChatOption = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of a translation.")] = 256,
    batch_size: BatchOption = 8,
    redo: RedoOption = False,
    as_json: JsonOption = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
) -> None:
    """Translate a field of a data set, translate it back, and keep the rows that come back well enough.

    kept.jsonl and dropped.jsonl have the rows with the field translated, and the check beside it. Another --threshold
    translates nothing again.

    Examples:

      lmcompose translate gsm8k/test.jsonl --field question --to Somali --model models/large --examples pairs.jsonl
      lmcompose translate gsm8k/test.jsonl --field question --to Somali --model models/large --chat --threshold 40
    """
    quiet_libraries()
    from lmcompose.evaluation.backtranslation import CHAT_TEMPLATE, TEMPLATE, Direction, read_examples, read_texts
    from lmcompose.evaluation.backtranslation import translate as run
    from lmcompose.reporting.judging_tables import translation_check_grids

    written = template.replace("\\n", "\n") if template is not None else CHAT_TEMPLATE if chat else TEMPLATE
    result = run(
        read_texts(file, field, limit),
        field,
        Direction(source, target, written, read_examples(examples) if examples is not None else ()),
        model,
        output,
        back=back_model,
        threshold=threshold,
        chat=chat,
        max_new_tokens=max_new_tokens,
        redo=redo,
        report=to_stderr,
        loading=how_to_load(batch_size, device, dtype, trust_remote_code, no_safetensors),
    )
    show_result(result, translation_check_grids, output, as_json)
