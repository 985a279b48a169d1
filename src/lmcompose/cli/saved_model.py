"""The arguments by which verbs name a saved composition, and loading it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmcompose.cli.options import parse_pairs
from lmcompose.cli.output import quiet_libraries

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
TrustOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with a member. Read it first; it is never saved."),
]
PickleOption = Annotated[
    bool,
    typer.Option("--no-safetensors", help="Also read weights that are pickles, which can run code; never saved."),
]


def parse_members(given: list[str] | None) -> dict[str, str]:
    """ROLE=MODEL texts as a dict.

    Raises:
        ConfigurationError: a text without '='.
    """
    return parse_pairs(given, "--member", "ROLE=MODEL", "anchor=models/large")


def load_composition(
    model: str,
    members: list[str] | None,
    dtype: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    no_safetensors: bool = False,
) -> "ComposedModel":
    """The composition in evaluation mode, of whatever kind, on `device` (a GPU where there is one, when None).

    Raises:
        ConfigurationError, MemberError, SavedFolderError: see `ComposedModel.from_pretrained`.
    """
    replaced = parse_members(members)
    import torch

    quiet_libraries()
    from lmcompose.kinds import load

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    placed: dict[str, Any] = {} if device == "cpu" else {"device_map": device}
    return load(
        model,
        members=replaced,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        use_safetensors=not no_safetensors,
        **placed,
    )
