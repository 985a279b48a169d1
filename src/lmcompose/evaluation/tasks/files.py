"""Finding and reading the data sets' own files in a folder of the user's, and data sets on the hub.

Files are looked for in the folder itself and in the folders inside it that bear a name of the data set, so that one
folder can hold all of them.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from lmcompose.errors import DataError

Splits = dict[str, Dataset]

ADVICE = "Give the folder that has the data set's own files; docs/evaluate.md shows their names."


def find_files(folder: Path, inside: Sequence[str], names: Sequence[str]) -> list[Path]:
    """Every file of one of these names (or patterns) in `folder` or in one of these folders inside it."""
    places = [folder, *(folder / name for name in inside)]
    return [file for place in places for name in names for file in sorted(place.glob(name)) if file.is_file()]


def find_file(folder: Path, inside: Sequence[str], name: str) -> Path:
    """The one file of this name (or pattern) that is found first.

    Raises:
        DataError: there is none.
    """
    found = find_files(folder, inside, (name,))
    if not found:
        raise DataError(f"There is no {either(name)} in {folder}, nor in {either(*inside)} inside it. {ADVICE}")
    return found[0]


def find_any(folder: Path, inside: Sequence[str], names: Sequence[str]) -> Path:
    """The first file that has one of these names.

    Raises:
        DataError: there is none.
    """
    found = find_files(folder, inside, names)
    if not found:
        raise DataError(f"There is no {either(*names)} in {folder}. {ADVICE}")
    return found[0]


def either(*names: str) -> str:
    """Names in words: "a or b"."""
    return " or ".join(names)


def read_lines(file: Path) -> list[str]:
    """The lines of a text file, which may be compressed (.gz).

    Raises:
        DataError: it is not there, or cannot be read.
    """
    if not file.is_file():
        raise DataError(f"There is no {file}. {ADVICE}")
    try:
        if file.suffix == ".gz":
            with gzip.open(file, "rt", encoding="utf-8-sig", newline="") as opened:
                text = opened.read()
        else:
            text = file.read_text(encoding="utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}). Get the file again.") from error
    return text.removesuffix("\n").replace("\r\n", "\n").split("\n")  # splitlines would also cut at U+2028


def read_rows(file: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines.

    Args:
        needed: the fields that every row must have.

    Raises:
        DataError: a line is no JSON object, or lacks a field.
    """
    rows: list[dict[str, Any]] = []
    for line, text in enumerate(read_lines(file), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise DataError(f"{file}, line {line}: this is no JSON ({error}). Get the file again.") from error
        lacking = [name for name in needed if not isinstance(row, dict) or name not in row]
        if lacking:
            raise DataError(f"{file}, line {line}: there is no '{lacking[0]}'. A row has {', '.join(needed)}. {ADVICE}")
        rows.append(row)
    return rows


def from_hub(name: str, configuration: str | None) -> Splits:
    """All splits of a data set on the hub.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return dict(load_dataset(name, configuration))
    except Exception as error:  # the hub, the network and the format have no common error
        raise DataError(
            f"'{name}' could not be read from the hub: {str(error).partition(chr(10))[0]} Without a network, name a "
            "folder with its files: --data FOLDER."
        ) from error
