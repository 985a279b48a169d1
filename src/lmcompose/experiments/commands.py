"""What every experiment does as a command: how it is recorded, how it fails, and how it ends."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from lmcompose.errors import LmcomposeError
from lmcompose.folders import write_json_atomic, write_text_atomic
from lmcompose.reporting.tables import Grid
from lmcompose.training.interrupt import Interrupted

Made = TypeVar("Made")


def command_of(module: str, words: Sequence[str]) -> str:
    """The command to record: `module` is that of the experiment, below `lmcompose.experiments`."""
    return shlex.join(["python", "-m", f"lmcompose.experiments.{module}", *words])


def with_stories(parser: argparse.ArgumentParser, module: str, words: Sequence[str]) -> tuple[argparse.Namespace, str]:
    """The options, and the command to record, with the folder written out that the variable STORIES names."""
    options, named = parser.parse_args(words), os.environ.get("STORIES")
    if options.stories is None:
        if not named:
            parser.error("name the folder of stories260K with --stories FOLDER, or in the environment variable STORIES")
        options.stories, words = Path(named), ["--stories", named, *words]
    return options, command_of(module, words)


def carry_out(name: str, command: str, run: Callable[[], Made]) -> Made:
    """What `run` returns. The process ends with 2 and one line where something is wrong with what was given, and with
    the shell's own code where a run was stopped."""
    try:
        return run()
    except LmcomposeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as stopped:
        print(f"Stopped, and nothing is lost. The same command goes on from there:\n  {command}", file=sys.stderr)
        sys.exit(stopped.exit_code)


def write_files(
    result: dict[str, Any], path: Path, markdown: str, draw: Callable[[dict[str, Any], Path], Any] | None = None
) -> list[Path]:
    """Write a result to `path` (JSON), and beside it `markdown` and what `draw` makes of it; returns the places."""
    places = [path, path.with_suffix(".md")]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, result)
    write_text_atomic(places[1], markdown)
    if draw is not None:
        places.append(path.with_suffix(".png"))
        draw(result, places[-1])
    return places


def conclude(grids: Iterable[Grid], places: Iterable[Any]) -> None:
    """Print the tables, and where everything was written."""
    console = Console(highlight=False)
    for grid in grids:
        console.print(grid.to_rich())
    console.print(f"Written: {', '.join(map(str, places))}")
