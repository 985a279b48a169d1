"""How verbs print: tables for a person, JSON for a script, and no chatter from the libraries below."""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from pydantic import BaseModel

PIPED_WIDTH = 140


def show(*renderables: RenderableType) -> None:
    """Print on stdout; a pipe gets lines wide enough for the tables."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    for renderable in renderables:
        console.print(renderable)


def show_keys(schema: "type[BaseModel]") -> None:
    """Print every key that a recipe may have, with its default and what it says."""
    from rich.table import Table
    from rich.text import Text

    from lmcompose.recipe import recipe_keys

    table = Table("key", "default", "what it says", box=None)
    for key in recipe_keys(schema):
        table.add_row(*map(Text, key))  # Text: [layer, layer] is no markup
    show(table)


def show_json(value: Any, *, lines: bool = False) -> None:
    """Print a value as JSON on stdout: indented, or as one line."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=None if lines else 2, default=str))


def quiet_libraries() -> None:
    """Keep the progress bars and advice of other libraries out of a verb's output; errors still come through."""
    import logging as python_logging

    python_logging.getLogger("bitsandbytes").setLevel(python_logging.ERROR)  # it speaks while it is imported
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
