"""`lmcompose inspect MODEL`: what a saved composition is made of."""

import math
from typing import Annotated, Any

import typer

from lmcompose.cli.output import quiet_libraries, show, show_json
from lmcompose.cli.saved_model import ModelArgument


def inspect(
    model: ModelArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the members, connections, parameters and origin of a saved composition.

    Only configurations and the header of the weights are read.

    Examples:

      lmcompose inspect runs/stories/model
      lmcompose inspect runs/stories/model --json | jq '.members.anchor.revision'
    """
    report = describe(model)
    if as_json:
        show_json(report)
        return
    from rich.table import Table

    members = Table("role", "model", "revision", "shape", "parameters", "licence", title="Members (frozen)")
    for role, member in report["members"].items():
        parameters = member["parameters"]
        members.add_row(
            role,
            member["name_or_path"],
            member["revision"] or "-",
            f"{member['model_type']}, {member['num_hidden_layers']} x {member['hidden_size']}",
            f"{parameters:,}" if parameters is not None else "not found here",
            member["license"] or "not stated",
        )
    connections = Table("augmenting model", "connections (augmenting layer, anchor layer)", title="Composition")
    for name, pairs in report["connections"].items():
        connections.add_row(name, ", ".join(f"({a}, {b})" for a, b in pairs))
    show(
        members,
        connections,
        f"{report['parameters']:,} composition parameters, {report['num_heads']} heads, "
        f"{report['projection']} projection; folder format {report['format_version']}.",
    )
    made = report["provenance"].get("versions", {})
    if made:
        show("Saved with " + ", ".join(f"{package} {number}" for package, number in made.items()) + ".")


def describe(model: str) -> dict[str, Any]:
    """Everything about a saved composition that can be read without its weights.

    A member's "parameters" are None where its configuration cannot be read from here.

    Raises:
        SavedFolderError: no composition is saved there, or a file of it is cut short.
    """
    quiet_libraries()
    from lmcompose.calm.config import CalmConfig
    from lmcompose.saved import check_format, read_config, saved_source

    config = read_config(CalmConfig, model)
    assert isinstance(config, CalmConfig)
    check_format(config, model)
    members = {}
    for role, reference in config.references().items():
        described = reference.to_dict()
        described.pop("fingerprint")
        parameters = _member_parameters(saved_source(reference, model), reference.revision)
        members[role] = {**described, "parameters": parameters}
    return {
        "model": model,
        "model_type": config.model_type,
        "format_version": config.format_version,
        "members": members,
        "connections": config.connections,
        "num_heads": config.num_heads,
        "projection": config.projection,
        "parameters": _composition_parameters(model),
        "provenance": config.provenance or {},
    }


def _composition_parameters(model: str) -> int:
    """The numbers in the weights file, from its header."""
    from safetensors import SafetensorError, safe_open
    from transformers.utils.hub import cached_file

    from lmcompose.saved import WEIGHTS_NAME, read_tensors

    try:
        with safe_open(cached_file(model, WEIGHTS_NAME), framework="pt") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return sum(tensor.numel() for tensor in read_tensors(model).values())  # raises what tells the user


def _member_parameters(name: str, revision: str | None) -> int | None:
    from transformers import AutoConfig

    from lmcompose.architecture import exact_parameters
    from lmcompose.errors import ConfigurationError

    try:
        return exact_parameters(AutoConfig.from_pretrained(name, revision=revision))
    except (OSError, ValueError, ConfigurationError):
        return None
