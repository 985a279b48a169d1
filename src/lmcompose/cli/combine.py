"""`lmcompose combine`: a logit composition from a recipe or from a few options, as a saved folder."""

import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lmcompose.cli.generate import Dtype
from lmcompose.cli.options import parse_pairs, parse_parameters
from lmcompose.cli.output import PIPED_WIDTH, quiet_libraries, show_json, show_keys
from lmcompose.cli.saved_model import PickleOption, TrustOption, parse_members
from lmcompose.errors import ConfigurationError

if TYPE_CHECKING:
    from lmcompose.logits.plan import LogitPlan

ROLES = ("base", "expert", "antiexpert")


def _show_keys(wanted: bool) -> None:
    if not wanted:
        return
    from lmcompose.logits.recipe import LogitRecipe

    show_keys(LogitRecipe)
    raise typer.Exit


def combine(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECIPE]", help="A YAML file; start from recipes/proxy.yaml. Or name members by options."
        ),
    ] = None,
    base: Annotated[str | None, typer.Option(help="The strong model: a folder, a hub id, a GGUF file.")] = None,
    expert: Annotated[str | None, typer.Option(help="The small tuned model, or the adapter that tuned it.")] = None,
    antiexpert: Annotated[
        str | None, typer.Option(help="The small model before its tuning. Without it, the expert is simply added.")
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option("--member", metavar="ROLE=MODEL", help="A member of any other role; give it once for each."),
    ] = None,
    formula: Annotated[
        str | None, typer.Option(help="A weighted sum of the members, such as 'base + alpha * (expert - antiexpert)'.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A published method: proxy_tuning, dexperts, contrastive, context_aware, ...")
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="The formula's alpha; a preset has its own by default.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", metavar="NAME=NUMBER", help="Any parameter of the formula.")
    ] = None,
    temperature: Annotated[
        list[str] | None,
        typer.Option("--temperature", metavar="ROLE=NUMBER", help="A member's own: its scores are divided by it."),
    ] = None,
    scores: Annotated[str | None, typer.Option(help="What is added up: logits or logprobs.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Of the members' weights; by default as they are.")] = None,
    quantization: Annotated[
        list[str] | None,
        typer.Option(
            "--quantization", metavar="ROLE=4bit|8bit", help="Read a member's weights so; give it once for each."
        ),
    ] = None,
    trust_remote_code: TrustOption = False,
    no_safetensors: PickleOption = False,
    output: Annotated[Path | None, typer.Option(help="The folder of the composition; a recipe names its own.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show what would be composed, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON; messages go to stderr.")] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="Print every key of a recipe and leave.", callback=_show_keys, is_eager=True)
    ] = False,
) -> None:
    """Combine the scores of frozen models at every token, by a formula, and save that as one model.

    Nothing is trained. The folder is tiny: it names the members and holds the formula.

    Examples:

      lmcompose combine --base models/large --expert models/small-tuned --antiexpert models/small --output runs/proxy
      lmcompose combine --formula "a + 0.5 * b" --member a=models/large --member b=models/small --dry-run
      lmcompose combine --base models/large --quantization base=4bit --expert models/small --dry-run
      lmcompose combine recipes/proxy.yaml --dry-run --json
      lmcompose combine --keys
    """
    quiet_libraries()
    import_module("lmcompose.kinds")  # so that a folder of a composition can be a member
    named = {role: source for role, source in zip(ROLES, (base, expert, antiexpert), strict=True) if source is not None}
    members = _members(named, parse_members(member))
    if recipe is not None:
        options = (formula, preset, alpha, parameter, temperature, scores, dtype, quantization)
        if members or any(option is not None for option in options) or trust_remote_code or no_safetensors:
            raise ConfigurationError("A recipe says all but --output itself. Change it there, or leave the recipe out.")
        from lmcompose.logits.plan import plan_recipe

        plan, folder = plan_recipe(recipe)
        output = output or folder
    else:
        plan = _plan(
            members,
            formula,
            preset,
            parse_parameters(alpha, parameter),
            temperature,
            scores,
            dtype,
            quantization=parse_pairs(quantization, "--quantization", "ROLE=4bit|8bit", "base=4bit") or None,
            trust_remote_code=trust_remote_code,
            use_safetensors=not no_safetensors,
        )
    if output is None and not dry_run:
        raise ConfigurationError("Say where to save the composition: --output FOLDER. Or only look at it: --dry-run.")
    console = Console(stderr=as_json, highlight=False, width=None if os.isatty(2 if as_json else 1) else PIPED_WIDTH)
    _show(plan, console)
    if not dry_run:
        plan.check_memory()
        plan.compose().save_pretrained(str(output))
        console.print(f'Saved in {output}. Try it:  lmcompose generate {shlex.quote(str(output))} "..."', markup=False)
    if as_json:
        what = "plan" if dry_run else "composition"
        show_json({"what": what, "output": None if output is None else str(output), **plan.to_dict()})


def _members(named: dict[str, str], others: dict[str, str]) -> dict[str, str]:
    twice = [role for role in others if role in named]
    if twice:
        raise ConfigurationError(f"--member {twice[0]}=... and --{twice[0]} name one member. Keep one of the two.")
    return {**named, **others}


def _plan(
    members: dict[str, str],
    formula: str | None,
    preset: str | None,
    parameters: dict[str, Any],
    temperature: list[str] | None,
    scores: str | None,
    dtype: Dtype | None,
    **reading: Any,
) -> "LogitPlan":
    """The plan of what the options ask for; `reading` is how the members are to be read."""
    if formula is not None and preset is not None:
        raise ConfigurationError("Give either --formula or --preset, not both.")
    if not members:
        raise ConfigurationError(
            "There is nothing to combine. Give a recipe; or --base, --expert and --antiexpert; or --formula (or "
            "--preset) with --member ROLE=MODEL for each member."
        )
    if formula is None and preset is None:
        preset = "proxy_tuning" if "antiexpert" in members else "expert_only"
    from lmcompose.logits.plan import plan
    from lmcompose.logits.presets import preset_named

    if preset is not None:
        preset_named(preset)
    temperatures = parse_pairs(temperature, "--temperature", "ROLE=NUMBER", "amateur=0.5")
    return plan(
        formula=formula if preset is None else preset,
        members=members,
        parameters=parameters,
        temperatures={role: _number(text, role) for role, text in temperatures.items()},
        scores=scores,
        dtypes=dict.fromkeys(members, dtype.value if dtype else None),
        **reading,
    )


def _number(text: str, role: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"--temperature {role}={text} is no number. Give one, such as {role}=0.5.") from None


def _show(plan: "LogitPlan", console: Console) -> None:
    from lmcompose.cli.combination import formula_lines, members_table, memory_line, vocabularies_table

    described = plan.to_dict()
    console.print(members_table(described["members"], described["temperatures"]))
    for line in formula_lines(described):
        console.print(line)
    if described["vocabularies"]:
        console.print(vocabularies_table(described["vocabularies"], plan.config.leader))
    console.print(memory_line(described))
