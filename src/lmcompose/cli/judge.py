"""`lmcompose judge FIRST SECOND`: two systems' answers to the same instructions, judged by a model behind an API."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.evaluate import name_models
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


def judge(
    first: Annotated[
        str,
        typer.Argument(
            metavar="FIRST",
            help="A model, or a .jsonl file of answers that are written already ('id', 'answer'); NAME=... names it.",
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="What it is compared with, as FIRST.")],
    instructions: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON lines with 'instruction', or the self-instruct seed tasks.")
    ],
    url: Annotated[str, typer.Option(help="Of the judge: an OpenAI-compatible chat API.")],
    judge_model: Annotated[str, typer.Option("--judge", metavar="NAME", help="The judge's name there.")],
    key_from: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="The environment variable that has the API's key.")
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where answers and verdicts are kept, and read when a run goes on.")
    ] = Path("runs/judge"),
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many instructions.")] = None,
    chat: ChatOption = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="At most so many for an answer.")] = 256,
    judge_tokens: Annotated[int, typer.Option(min=1, help="At most so many for a reply of the judge.")] = 1024,
    batch_size: BatchOption = 8,
    redo: RedoOption = False,
    as_json: JsonOption = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
) -> None:
    """Ask a judge which of two systems follows instructions better, each pair in both orders.

    The win rate has a 95 % interval; replies that state no verdict are counted and never guessed. A run that was
    stopped goes on where it was when the same command is given again.

    Examples:

      lmcompose judge mine=runs/mine/model models/large --instructions tasks.jsonl --url http://host:8000 --judge big
      lmcompose judge a.jsonl b.jsonl --instructions tasks.jsonl --url https://host/v1 --judge big --key-from API_KEY
    """
    systems = name_models([_named(first), _named(second)])
    quiet_libraries()
    from lmcompose.evaluation.judging import ChatJudge
    from lmcompose.evaluation.judging import judge as run
    from lmcompose.evaluation.judging.instructions import read_instructions
    from lmcompose.evaluation.remote_system import api_key
    from lmcompose.reporting.judging_tables import judging_grids

    result = run(
        systems,
        read_instructions(instructions, limit),
        ChatJudge(url, judge_model, api_key=api_key(key_from, "--key-from"), max_tokens=judge_tokens),
        output,
        chat=chat,
        max_new_tokens=max_new_tokens,
        redo=redo,
        report=to_stderr,
        loading=how_to_load(batch_size, device, dtype, trust_remote_code, no_safetensors),
    )
    show_result(result, judging_grids, output, as_json)


def _named(text: str) -> str:
    """A file of answers is called as it is, without its ending."""
    return f"{Path(text).stem}={text}" if text.endswith(".jsonl") and "=" not in text else text
