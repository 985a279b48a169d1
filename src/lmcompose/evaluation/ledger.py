"""Records that are kept as they come, so that a run that was stopped loses none: a file of JSON lines.

The first line says what the records depend on; records of other settings are refused, not mixed in. This file knows
nothing of what is recorded.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmcompose.errors import ConfigurationError

Record = dict[str, Any]


def check_label(label: str) -> None:
    """Refuse a name that no file can have.

    Raises:
        ConfigurationError: it is such a one.
    """
    if not label or "/" in label or "\\" in label or label.startswith("."):
        raise ConfigurationError(
            f"'{label}' cannot be the name of a model in the results: it is a file's. Give one, such as "
            "tuned=runs/tuned/model."
        )


class Ledger:
    """The records of one file by key.

    Args:
        file: is made where it is not there.
        made_of: plain values that the records depend on.
        redo: begin again where the file is of other settings, in place of refusing it.

    Attributes:
        records: by key, in the order in which they came.

    Raises:
        ConfigurationError: the file is of other settings, or none of these.
    """

    def __init__(self, file: Path, made_of: Mapping[str, Any], redo: bool = False) -> None:
        self.file = file
        self.records: dict[str, Record] = {}
        self._header = {"made_of": json.loads(json.dumps(made_of))}
        if file.is_file() and not self._read(redo):
            file.unlink()
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            self._append(self._header)

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def __getitem__(self, key: str) -> Record:
        return self.records[key]

    def keep(self, key: str, record: Mapping[str, Any]) -> None:
        """Write one record; it is there when this returns, whatever happens afterwards."""
        self._append({"key": key, **record})
        self.records[key] = dict(record)

    def _append(self, value: Mapping[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(value, ensure_ascii=False) + "\n")
            opened.flush()
            os.fsync(opened.fileno())

    def _read(self, redo: bool) -> bool:
        """Whether what is there can be gone on from."""
        content = self.file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # a kill may have left half of a line
        try:
            rows = [json.loads(line) for line in whole.decode().split("\n") if line]
            found = {row["key"]: {name: row[name] for name in row if name != "key"} for row in rows[1:]}
            made_of = rows[0]["made_of"] if rows else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.file} is no file of this command ({error!r}). Remove it, or name another --output."
            ) from None
        if made_of is None:
            return False
        if made_of != self._header["made_of"]:
            if redo:
                return False
            wanted = self._header["made_of"]
            differing = [name for name in {**made_of, **wanted} if made_of.get(name) != wanted.get(name)]
            raise ConfigurationError(
                f"{self.file} is of another run, which differs in {', '.join(differing)}. Name another folder with "
                "--output, or pass --redo to begin again and replace it."
            )
        if len(whole) < len(content):
            os.truncate(self.file, len(whole))
        self.records = found
        return True
