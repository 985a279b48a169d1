"""The arguments by which verbs name a saved composition, and loading it."""

from typing import TYPE_CHECKING, Annotated

import typer

from lmcompose.cli.output import quiet_libraries
from lmcompose.errors import ConfigurationError

if TYPE_CHECKING:
    from lmcompose.composed import ComposedModel

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="The folder of a saved composition, or its id on the hub.")
]
MemberOption = Annotated[
    list[str] | None,
    typer.Option(
        "--member",
        metavar="ROLE=MODEL",
        help="Where a member is now, if it has moved: --member anchor=models/large. Give it once for each member.",
    ),
]


def parse_members(given: list[str] | None) -> dict[str, str]:
    """ROLE=MODEL texts as a dict.

    Raises:
        ConfigurationError: a text without '='.
    """
    members = {}
    for text in given or []:
        role, equals, source = text.partition("=")
        if not (role and equals and source):
            raise ConfigurationError(f"--member '{text}' is not of the form ROLE=MODEL, as in anchor=models/large.")
        members[role] = source
    return members


def load_composition(
    model: str, members: list[str] | None, dtype: str | None = None, device: str | None = None
) -> "ComposedModel":
    """The composition in evaluation mode, on `device` (a GPU where there is one, when None)."""
    replaced = parse_members(members)
    import torch

    quiet_libraries()
    from lmcompose.calm.model import CalmForCausalLM

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    placed = {} if device == "cpu" else {"device_map": device}
    return CalmForCausalLM.from_pretrained(model, members=replaced, dtype=dtype, **placed)
