"""Key-value arithmetic (CALM, section 4.1) from files: prompts, and the answers that are right when spelt the same.

The experiment writes the files (`python -m lmcompose.experiments.kv_arithmetic.questions`), or anybody does: one JSON
object a line, with `prompt` and `answer`. lm-eval calls these functions; they know nothing of keys.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from lmcompose.errors import DataError


def kv_subs(data: str | None = None, **_: Any) -> dict[str, Dataset]:
    """Keys by their values."""
    return _questions(data, "kv_subs")


def num_math(data: str | None = None, **_: Any) -> dict[str, Dataset]:
    """Arithmetic on numbers."""
    return _questions(data, "num_math")


def kv_math(data: str | None = None, **_: Any) -> dict[str, Dataset]:
    """Arithmetic on keys: what neither of the two models can do."""
    return _questions(data, "kv_math")


def same_words(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Exact match but for white space, as lm-eval's `process_results`."""
    return {"exact_match": float(results[0].split() == doc["answer"].split())}


def _questions(data: str | None, kind: str) -> dict[str, Dataset]:
    makes = "`python -m lmcompose.experiments.kv_arithmetic.questions --output FOLDER` writes them"
    if data is None:
        raise DataError(f"The questions of {kind} are read from files; {makes}. Name their folder: --data FOLDER.")
    places = [Path(data) / f"{kind}.jsonl", Path(data) / "kv_arithmetic" / f"{kind}.jsonl"]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise DataError(f"There is no {kind}.jsonl in {data}, nor in kv_arithmetic inside it; {makes}.")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append({"prompt": str(row["prompt"]), "answer": str(row["answer"])})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}, line {number}: a question has 'prompt' and 'answer' ({error!r}).") from None
    if not rows:
        raise DataError(f"{file} has no question; {makes}.")
    return {"test": Dataset.from_list(rows)}
