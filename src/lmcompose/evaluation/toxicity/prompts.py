"""Prompts from a file: RealToxicityPrompts' layout, JSON lines with `prompt`, or a text with one a line."""

from collections.abc import Mapping
from pathlib import Path

from lmcompose.errors import DataError
from lmcompose.evaluation.rows import read_lines, read_rows


def read_prompts(file: str | Path, limit: int | None = None) -> list[str]:
    """The prompts of a file, the first `limit` of them.

    In a .jsonl file `prompt` is a text, or an object with `text` as RealToxicityPrompts has it (arXiv 2009.11462).

    Raises:
        DataError: the file cannot be read, or a line has no prompt.
    """
    if Path(file).suffix != ".jsonl":
        return [line for _, line in read_lines(file, "a prompt")][:limit]
    prompts = []
    for where, row in read_rows(file, "a prompt with 'prompt'"):
        given = row.get("prompt")
        text = given.get("text") if isinstance(given, Mapping) else given
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: 'prompt' must be a text, or an object with 'text'.")
        prompts.append(text)
    return prompts[:limit]
