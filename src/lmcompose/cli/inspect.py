"""`lmcompose inspect MODEL`: what a saved composition is made of."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmcompose.cli.output import quiet_libraries, show, show_json
from lmcompose.cli.saved_model import ModelArgument

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lmcompose.logits.config import LogitConfig


def inspect(
    model: ModelArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the members of a saved composition, how they are combined, and how it was made.

    Of a trained composition these are connections and parameters; of a logit composition, formula, mask and how the
    vocabularies map. Only configurations, tokenizers and the header of the weights are read.

    Examples:

      lmcompose inspect runs/stories/model
      lmcompose inspect runs/stories/model --json | jq '.members.anchor.revision'
      lmcompose inspect runs/proxy --json | jq '.vocabularies.expert.coverage'
    """
    report = describe(model)
    if as_json:
        show_json(report)
        return
    from rich.text import Text

    from lmcompose.cli.combination import members_table

    show(members_table(report["members"], report.get("temperatures")), *_combined(report))
    for line in _additions(report["provenance"]):
        show(Text(line))
    made = report["provenance"].get("versions", {})
    if made:
        show("Saved with " + ", ".join(f"{package} {number}" for package, number in made.items()) + ".")


def _combined(report: dict[str, Any]) -> "list[RenderableType]":
    """How the members are combined, for a person."""
    from rich.table import Table

    from lmcompose.cli.combination import formula_lines, vocabularies_table

    if "formula" in report:
        tables = [vocabularies_table(report["vocabularies"], next(iter(report["members"])))]
        ending = f"No parameters of its own; folder format {report['format_version']}."
        return [*formula_lines(report), *(tables if report["vocabularies"] else []), ending]
    columns = ("augmenting model", "connections (augmenting layer, anchor layer)", "parameters")
    connections = Table(*columns, title="Composition")
    for name in report["members"]:  # in the order in which their contributions add
        if name in report["connections"]:
            pairs = ", ".join(f"({a}, {b})" for a, b in report["connections"][name])
            connections.add_row(name, pairs, f"{report['parameters_of'][name]:,}")
    layers = [f"{role} {', '.join(map(str, numbers))}" for role, numbers in report["unfreeze"].items()]
    once = [name for name, what in report["reads"].items() if what == "prompt"]
    return [
        connections,
        *([f"They read the prompt alone: {', '.join(once)}."] if once else []),
        *([f"Unfrozen layers, with weights of its own: {'; '.join(layers)}."] if layers else []),
        f"{report['parameters']:,} composition parameters, {report['num_heads']} heads, "
        f"{report['projection']} projection{_beyond(report)}; folder format {report['format_version']}.",
    ]


def _beyond(report: dict[str, Any]) -> str:
    """The options of the bridges that are on, for a person."""
    rank = [f"rank {report['rank']}"] if report["rank"] else []
    on = [*(option for option in ("gate", "norm") if report[option]), *rank]
    return f", with {', '.join(on)} (beyond the paper)" if on else ""


def _additions(provenance: dict[str, Any]) -> Iterator[str]:
    """What was added to what, the latest first."""
    while "added" in provenance:
        to = provenance["to"]
        yield f"{', '.join(provenance['added'])} added to {to['composition']} ({', '.join(to['augmenting'])})."
        provenance = to["provenance"]


def describe(model: str) -> dict[str, Any]:
    """Everything about a saved composition that can be read without its weights.

    A member's "parameters" are None where its configuration cannot be read from here.

    Raises:
        SavedFolderError: no composition is saved there, or a file of it is cut short.
    """
    quiet_libraries()
    from lmcompose.calm.config import CalmConfig
    from lmcompose.calm.model import bridge_key
    from lmcompose.kinds import read_composition
    from lmcompose.logits.config import LogitConfig
    from lmcompose.logits.plan import described
    from lmcompose.saved import saved_place

    config = read_composition(model)
    members = {}
    for role, reference in config.references().items():
        parameters = _member_parameters(saved_place(reference.name_or_path, model), reference.revision)
        members[role] = {**described(reference), "parameters": parameters}
    report: dict[str, Any] = {
        "model": model,
        "model_type": config.model_type,
        "format_version": config.format_version,
        "members": members,
        "provenance": config.provenance or {},
    }
    if isinstance(config, LogitConfig):
        return {**report, **_describe_logits(config, model, members)}
    assert isinstance(config, CalmConfig)
    sizes = _composition_parameters(model)
    return {
        **report,
        "connections": config.connections,
        "num_heads": config.num_heads,
        **config.bridge_options(),
        "unfreeze": config.unfreeze or {},
        "reads": {name: "prompt" if config.reads_prompt(name) else "text" for name in config.augmenting_names()},
        "parameters": sum(sizes.values()),
        "parameters_of": {
            name: sum(
                size
                for pair in config.pairs(name)
                for key, size in sizes.items()
                if key.startswith(f"bridges.{bridge_key(name, *pair)}.")
            )
            for name in config.augmenting_names()
        },
    }


def _describe_logits(config: "LogitConfig", model: str, members: dict[str, Any]) -> dict[str, Any]:
    from lmcompose.logits.plan import formula_fields, owners, saved_references, saved_vocabularies
    from lmcompose.saved import read_tensors

    read_tensors(model)  # empty, and the sign that the folder is whole
    references = saved_references(config, model)
    for role, owner in owners({role: found.name_or_path for role, found in references.items()}, references).items():
        members[role]["shares_with"] = owner if owner != role else None
    return {**formula_fields(config), "vocabularies": saved_vocabularies(config, model)}


def _composition_parameters(model: str) -> dict[str, int]:
    """How many numbers each tensor in the weights file has, from its header."""
    from safetensors import SafetensorError, safe_open
    from transformers.utils.hub import cached_file

    from lmcompose.saved import WEIGHTS_NAME, read_tensors

    try:
        with safe_open(cached_file(model, WEIGHTS_NAME), framework="pt") as file:
            return {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {name: tensor.numel() for name, tensor in read_tensors(model).items()}  # raises what tells the user


def _member_parameters(name: str, revision: str | None) -> int | None:
    from lmcompose.errors import ConfigurationError
    from lmcompose.places import read_model_config
    from lmcompose.sizes import size_of

    try:
        return size_of(read_model_config(name, revision), name).parameters
    except (OSError, ValueError, ConfigurationError):
        return None
