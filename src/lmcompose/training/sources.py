"""Files and datasets of composition data, read record by record.

A record is a dict of the columns that its kind reads, together with where it came from ("facts.jsonl, line 7"), so
that every later complaint can name the place. This file knows nothing of tokens.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lmcompose.errors import DataError, nearest
from lmcompose.training.recipe import COLUMNS, DataSource

Record = tuple[str, dict[str, Any]]

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt")


def check_source(source: DataSource, base: Path) -> None:
    """Refuse what can be refused before any model is loaded: no such file, no record in it, a missing column.

    Raises:
        DataError: one of these; the message names the file and the nearest name.
    """
    if next(read_records(source, base), None) is None:
        raise DataError(f"{source.label} holds no example. Add data to it or take it out of the recipe.")


def read_records(source: DataSource, base: Path) -> Iterator[Record]:
    """The records of one source in their own order, with only the columns of its kind, named as COLUMNS names them.

    Args:
        source: the recipe's entry.
        base: the folder that relative paths start from.

    Raises:
        DataError: the source cannot be read, or a record lacks a column that its kind reads.
    """
    rows = _file_rows(source, base) if source.path is not None else _dataset_rows(source, base)
    for where, row in islice(rows, source.limit):
        yield where, {role: _cell(source, where, row, role) for role in COLUMNS[source.kind]}


def _cell(source: DataSource, where: str, row: dict[str, Any], role: str) -> Any:
    column = source.column(role)
    if column not in row:
        there = ", ".join(str(name) for name in row) or "none"
        raise DataError(
            f"{where}: there is no column '{column}', which kind '{source.kind}' reads (columns: {there})."
            f"{nearest(column, [str(name) for name in row])} Name it in the recipe: columns: {{{role}: <your column>}}."
        )
    cell = row[column]
    if source.kind == "chat":
        return _messages(where, column, cell)
    if not isinstance(cell, str):
        raise DataError(f"{where}: column '{column}' holds {type(cell).__name__}, not text.")
    return cell


def _messages(where: str, column: str, cell: Any) -> list[dict[str, Any]]:
    if isinstance(cell, str):  # CSV has no lists: the conversation is JSON in a cell
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError:
            cell = None
    if not isinstance(cell, list) or not cell or not all(isinstance(m, dict) and "role" in m for m in cell):
        raise DataError(
            f"{where}: column '{column}' is not a conversation. Give a list of messages such as "
            '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}].'
        )
    if not any(message["role"] == "assistant" for message in cell):
        raise DataError(f"{where}: the conversation has no message of the assistant, so there is nothing to learn.")
    return cell


def _file_rows(source: DataSource, base: Path) -> Iterator[Record]:
    assert source.path is not None
    path = base / Path(source.path).expanduser()
    if not path.is_file():
        there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"There is no file {path}.{nearest(path.name, there)} Paths start from the recipe's folder.")
    readers = {
        ".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet
    }  # fmt: skip
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return _txt(path, source)
    if suffix not in readers:
        raise DataError(f"{path}: files of type '{suffix}' are not read. Use one of {', '.join(SUFFIXES)}.")
    return readers[suffix](path)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}). Convert it to UTF-8.") from error


def _jsonl(path: Path) -> Iterator[Record]:
    for number, line in _lines(path):
        where = f"{path.name}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where} is not JSON: {error.msg}. A .jsonl file has one JSON object a line.") from error
        if not isinstance(row, dict):
            raise DataError(f"{where} is a {type(row).__name__}, not a JSON object with columns.")
        yield where, row


def _json(path: Path) -> Iterator[Record]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # of JSON, or of UTF-8
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is not a list of JSON objects.")
    for number, row in enumerate(rows, start=1):
        yield f"{path.name}, record {number}", row


def _csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, delimiter=delimiter), start=1):
                if None in row or None in row.values():
                    raise DataError(f"{path.name}, row {number} has not as many cells as the header has columns.")
                yield f"{path.name}, row {number}", row
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}). Convert it to UTF-8.") from error


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from error
    number = 0
    for batch in file.iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            number += 1
            yield f"{path.name}, row {number}", row


def _txt(path: Path, source: DataSource) -> Iterator[Record]:
    column = source.column("text")
    if source.kind != "text":
        raise DataError(f"{path.name}: a .txt file has no columns, so its kind is 'text', not '{source.kind}'.")
    if source.documents == "file":
        whole = "".join(line for _, line in _lines(path))
        if whole:
            yield path.name, {column: whole}
        return
    for number, line in _lines(path):
        yield f"{path.name}, line {number}", {column: line.rstrip("\r\n")}


def _dataset_rows(source: DataSource, base: Path) -> Iterator[Record]:
    import datasets

    assert source.dataset is not None
    folder = base / Path(source.dataset).expanduser()
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file():
            loaded: Any = datasets.load_from_disk(str(folder))
            if isinstance(loaded, datasets.DatasetDict):
                if source.split not in loaded:
                    hint = nearest(source.split, loaded)
                    raise DataError(
                        f"{source.dataset} has no split '{source.split}' (it has: {', '.join(loaded)}).{hint}"
                    )
                loaded = loaded[source.split]
        else:
            name = str(folder) if folder.is_dir() else source.dataset
            loaded = datasets.load_dataset(name, source.name, split=source.split, revision=source.revision)
    except DataError:
        raise
    except Exception as error:  # what `datasets` raises depends on its storage; the user needs one sentence
        raise DataError(f"The dataset '{source.label}' cannot be read: {type(error).__name__}: {error}") from error
    return _numbered(source.label, loaded)


def _numbered(label: str, rows: Iterable[dict[str, Any]]) -> Iterator[Record]:
    for number, row in enumerate(rows):
        yield f"{label}, row {number}", row
