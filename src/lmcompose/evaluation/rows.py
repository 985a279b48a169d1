"""A user's file of JSON lines, or of texts line by line, with the line named where one is not as it should be."""

import json
from pathlib import Path
from typing import Any

from lmcompose.errors import DataError

Row = dict[str, Any]


def read_rows(file: str | Path, holds: str) -> list[tuple[str, Row]]:
    """The JSON objects of a file, each with where it stands ("data.jsonl, line 3").

    Args:
        holds: what a line is, for the message, such as "an instruction with 'instruction'".

    Raises:
        DataError: the file cannot be read, has none, or a line is no object.
    """
    rows = []
    for where, line in read_lines(file, holds):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where} is not JSON ({error}). A line is {holds}, as a JSON object.") from None
        if not isinstance(row, dict):
            raise DataError(f"{where} is no JSON object. A line is {holds}.")
        rows.append((where, row))
    return rows


def read_lines(file: str | Path, holds: str) -> list[tuple[str, str]]:
    """The lines of a UTF-8 file that are not empty, each with where it stands.

    Raises:
        DataError: the file cannot be read, or has none.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{file} is no UTF-8 text. A line of it is {holds}.") from None
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}. Name a file of which a line is {holds}.") from None
    # splitlines would also cut at U+2028, which JSON may hold
    found = [(f"{file}, line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not found:
        raise DataError(f"{file} is empty. A line of it is {holds}.")
    return found


def text_of(row: Row, name: str, where: str) -> str:
    """The text under `name`.

    Raises:
        DataError: there is none.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: '{name}' must be a text that is not empty.")
    return value
