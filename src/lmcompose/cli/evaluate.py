"""`lmcompose evaluate MODEL... --tasks ...`: models on the papers' tasks and on lm-eval's, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.cli.generate import Dtype
from lmcompose.cli.output import quiet_libraries
from lmcompose.cli.running import show_result, to_stderr
from lmcompose.cli.saved_model import PickleOption, TrustOption
from lmcompose.errors import ConfigurationError


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Saved compositions and plain models, as folders or hub ids, and .yaml files that describe one "
            "behind an API; NAME=MODEL gives one a name in the results. The others are compared with the first.",
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            metavar="TASKS",
            help="With commas between them: ntrex, flores, mgsm (or one language of these, as in ntrex_som), gsm8k, "
            "truthfulqa, nq_open, realtime_qa, kv_arithmetic, code_to_text, humaneval, mbpp, and all that lm-eval has.",
        ),
    ],
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the results are written, and read when a run goes on.")
    ] = Path("runs/evaluate"),
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The data sets' own files; by default they are read from the hub."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many examples of each task.")] = None,
    shots: Annotated[
        int | None, typer.Option(min=0, help="Examples before each question; by default what the task is known with.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the models' chat templates.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at once.")] = 8,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="At most so many for an answer; by default the task's own number.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Draws the shots, and programs; the same seed gives the same prompts.")
    ] = 1234,
    alpha: Annotated[
        float | None, typer.Option(help="Of the logit compositions among the models; by default as they were saved.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Programs for each problem, of humaneval and mbpp; more than 1 are drawn.")
    ] = 1,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="At which these are drawn; 0 takes the likeliest token each time.")
    ] = 0.0,
    pass_at: Annotated[
        str, typer.Option("--pass-at", metavar="K", help="Each k of pass@k with commas between: 1,10.")
    ] = "1",
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution",
            help="Run programs that the models wrote, in a sandbox; humaneval and mbpp need it.",
        ),
    ] = False,
    redo: Annotated[
        bool, typer.Option("--redo", help="Run again, and replace, what is there with other settings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    dtype: Annotated[Dtype | None, typer.Option(help="Of the weights; by default as they were saved.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps; by default a GPU if there is one.")
    ] = None,
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
) -> None:
    """Score models on tasks, with 95 % intervals, as a table and as files that hold every example.

    A run that was stopped goes on where it was when the same command is given again.

    Examples:

      lmcompose evaluate models/large runs/mine/model --tasks ntrex,gsm8k --data data
      lmcompose evaluate anchor=models/large mine=runs/mine/model --tasks truthfulqa --data data --limit 100
      lmcompose evaluate models/large runs/proxy --tasks gsm8k --data data --alpha 0.5 --output runs/half
      lmcompose evaluate models/coder --tasks humaneval,mbpp --data data --chat --allow-code-execution
      lmcompose evaluate models/large --tasks hellaswag --output runs/hellaswag
    """
    named = name_models(models)
    wanted = [task.strip() for task in tasks.split(",") if task.strip()]
    if not wanted:
        raise ConfigurationError("--tasks is empty. Name tasks with commas between them, such as --tasks ntrex,gsm8k.")
    each = _parse_numbers(pass_at)
    quiet_libraries()
    from lmcompose.evaluation.harness import Settings, quiet
    from lmcompose.evaluation.harness import evaluate as run
    from lmcompose.reporting.evaluation_tables import evaluation_grids

    quiet()
    result = run(
        named,
        wanted,
        output,
        settings=Settings(
            shots=shots,
            limit=limit,
            chat=chat,
            max_new_tokens=max_new_tokens,
            seed=seed,
            dtype=dtype.value if dtype else None,
            alpha=alpha,
            samples=samples,
            temperature=temperature,
            pass_at=each,
        ),
        data=data,
        batch_size=batch_size,
        device=device,
        trust_remote_code=trust_remote_code,
        use_safetensors=not no_safetensors,
        redo=redo,
        allow_code_execution=allow_code_execution,
        report=to_stderr,
    )
    show_result(result, evaluation_grids, output, as_json)


def _parse_numbers(given: str) -> list[int]:
    """The numbers of --pass-at.

    Raises:
        ConfigurationError: they are none.
    """
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"--pass-at '{given}' is not one number, or numbers with commas between, such as 1,10."
        ) from None


def name_models(given: list[str]) -> dict[str, str]:
    """MODEL and NAME=MODEL texts as models by name; a model without one is called as its folder is.

    Raises:
        ConfigurationError: two of one name.
    """
    named: dict[str, str] = {}
    for text in given:
        name, equals, model = text.partition("=")
        if not equals:
            path = Path(text).resolve() if Path(text).exists() else Path(text)
            name, model = path.parent.name if path.name == "model" else path.name, text
            name = path.stem if path.suffix in (".yaml", ".yml") else name
        if not name or not model:
            raise ConfigurationError(f"'{text}' is not of the form NAME=MODEL, as in tuned=runs/tuned/model.")
        if name in named:
            raise ConfigurationError(
                f"Two models are called '{name}' in the results. Name one of them: NAME=MODEL, as in {name}-2={model}."
            )
        named[name] = model
    return named
