"""The results in folders: which files are shown, which are not and why, and which are broken.

It knows nothing of what a kind of result holds; see kinds.py.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmcompose.errors import DataError
from lmcompose.reporting.report.charts import Section
from lmcompose.reporting.report.kinds import KINDS, PARTS, kind_of

Result = dict[str, Any]

MODEL_FILES = ("config.json", "adapter_config.json")
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)
"""What reading a result raises that lacks what its kind has, or has it in another form."""


@dataclass(frozen=True)
class Shown:
    """A result that is shown: its file, what it holds, and what is made of it."""

    path: Path
    what: str
    result: Result
    section: Section


@dataclass(frozen=True)
class NotShown:
    """A file, or a folder, and why nothing of it is shown."""

    path: Path
    reason: str


@dataclass
class Collection:
    """All that was found, each list in the order of the paths."""

    shown: list[Shown] = field(default_factory=list)
    skipped: list[NotShown] = field(default_factory=list)
    broken: list[NotShown] = field(default_factory=list)


def collect(folders: Sequence[str | os.PathLike[str]]) -> Collection:
    """Read every JSON file in `folders` and below, but those of saved models and checkpoints and hidden ones.

    A file may be named in place of a folder.

    Raises:
        DataError: there is no such folder, or none has a result that can be shown.
    """
    found = Collection()
    seen: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.exists():
            raise DataError(f"There is no folder '{folder}'. Name one that holds results, such as results or runs.")
        for path in _files(folder, found):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                _read(path, found)
    if not found.shown:
        raise DataError(_nothing(folders, found))
    return found


def _files(folder: Path, found: Collection) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        if any(name in files for name in MODEL_FILES):
            folders.clear()
            found.skipped.append(NotShown(here, "A saved model"))
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        yield from (here / name for name in sorted(files) if name.endswith(".json") and not name.startswith("."))


def _read(path: Path, found: Collection) -> None:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        found.broken.append(NotShown(path, f"It is no JSON that can be read ({error})."))
        return
    what = kind_of(result)
    if what in PARTS:
        found.skipped.append(NotShown(path, PARTS[what]))
    elif what in KINDS:
        try:
            section = KINDS[what].build(result)
            section.settle()
        except MALFORMED as error:
            fault = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) and error.args else str(error)
            found.broken.append(NotShown(path, f"It says that it is '{what}', but: {fault or type(error).__name__}."))
        else:
            found.shown.append(Shown(path, what, result, section))
    elif what:
        found.skipped.append(NotShown(path, f"Of a kind that has no section, '{what}'"))
    else:
        found.skipped.append(NotShown(path, "No result of lmcompose: it does not say what it is"))


def _nothing(folders: Sequence[str | os.PathLike[str]], found: Collection) -> str:
    where = ", ".join(f"'{os.fspath(folder)}'" for folder in folders)
    named = [f"{each.path}: {each.reason}" for each in [*found.broken, *found.skipped][:3]]
    but = f" Not shown: {'; '.join(named)}" if named else ""
    return (
        f"No result in {where} can be shown.{but} Name a folder with the JSON files that lmcompose evaluate, train or "
        "an experiment wrote."
    )
