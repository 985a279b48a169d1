"""`lmcompose trace MODEL PROMPT`: what a composition does with a prompt, token by token."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lmcompose.cli.generate import Dtype
from lmcompose.cli.options import parse_parameters
from lmcompose.cli.output import show, show_json
from lmcompose.cli.saved_model import MemberOption, ModelArgument, PickleOption, TrustOption, load_composition
from lmcompose.errors import ConfigurationError


def trace(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The text to continue; left out or '-', it is read from stdin."),
    ] = None,
    continuation: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Follow this text after the prompt, and generate nothing."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page that needs nothing beside itself.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as JSON.")] = False,
    alpha: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="The formula's alpha, or one for each token with commas between them."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="NAME=NUMBER", help="Another parameter of the formula; as with --alpha."),
    ] = None,
    tuned: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A directly tuned model to stand beside: a folder, an adapter or a hub id."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the members' chat templates, as a user's message.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many tokens (64). With --continuation, also write texts to compare."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token each time; higher samples more freely.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling: the same seed gives the same text.")] = 0,
    member: MemberOption = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Of the members; by default as they were saved.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps; by default a GPU if there is one.")
    ] = None,
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
) -> None:
    """Show for each token what the members and the composition thought of it, and how far the composition moved it.

    The base is the first member of the composition. A page has the same numbers, and the texts that the base alone and
    the composition write, side by side.

    Examples:

      lmcompose trace runs/proxy "Once upon a time"
      lmcompose trace runs/proxy "Once upon a time" --page trace.html --tuned models/large-tuned
      lmcompose trace runs/proxy "Once upon a time" --alpha 0.5 --json > trace.json
      lmcompose trace runs/proxy "Once upon a time" --continuation ", there was a boat."
    """
    written = _read_prompt(prompt)
    if continuation == "":
        raise ConfigurationError("--continuation is empty. Give a text to follow, or leave it out to generate one.")
    parameters = parse_parameters(alpha, parameter)
    composition = load_composition(
        model, member, dtype.value if dtype else None, device, trust_remote_code, no_safetensors
    )
    if composition.tokenizer is None:
        raise ConfigurationError(
            f"'{model}' was saved without a tokenizer. Save it again from a composition whose first member has one: "
            "(model, tokenizer)."
        )
    from lmcompose.evaluation.trace import trace as follow
    from lmcompose.reporting.page import write_page
    from lmcompose.reporting.trace_tables import trace_grids

    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature > 0 else {}
    result = follow(
        composition,
        [{"role": "user", "content": written}] if chat else written,
        continuation,
        max_new_tokens=max_new_tokens,
        parameters=parameters or None,
        tuned=tuned,
        seed=seed,
        **sampling,
    )
    if page is not None:
        write_page(result, page)
    if as_json:
        show_json(result)
        return
    show(*(grid.to_rich() for grid in trace_grids(result)))
    for name, output in result["outputs"].items():
        typer.echo(f"{name}: {output['text']}")
    if page is not None:
        typer.echo(f"Written to {page}")


def _read_prompt(prompt: str | None) -> str:
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            typer.echo("Type a prompt and end it with Ctrl-D.", err=True)
        prompt = sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise ConfigurationError("The prompt is empty. Give a text to continue, as an argument or on stdin.")
    return prompt
