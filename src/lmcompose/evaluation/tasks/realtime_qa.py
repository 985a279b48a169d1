"""RealTimeQA (arXiv 2207.13332): multiple choice about the news, answered with a letter.

The data are in the layout of its repository: one JSON object a line, with `question_sentence`, `choices` and `answer`,
a list of indices that begin at 0; `evidence`, a text or several, is there or not. The letter is one token, so that a
model behind an API answers by the top log-probabilities of one position. lm-eval calls these functions.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from lmcompose.errors import DataError
from lmcompose.evaluation.bounded import pick

LETTERS = "ABCDEFGHIJ"
FOLDERS = ("realtime_qa", "realtimeqa", "RealTimeQA")
NAMES = re.compile(r"(?:.*_qa(?:_nota)?|realtime_?qa.*)\.jsonl")
"""The files with questions, as the repository calls them and as users do; others beside them hold search results."""

_TAG = re.compile(r"<[^<>]*>")


def questions(data: str | None = None, **_: Any) -> dict[str, Dataset]:
    """All questions in the folder `data`, as the split "test"; one that stands in several files counts once.

    Raises:
        DataError: no folder is named, it has no questions, or a line is none.
    """
    source = "https://github.com/realtimeqa/realtimeqa_public, folder 'past'"
    if data is None:
        raise DataError(f"RealTimeQA is read from files. Get them ({source}) and name their folder: --data FOLDER.")
    places = [Path(data), *(Path(data) / name for name in FOLDERS)]
    files = [file for place in places for file in sorted(place.glob("*.jsonl")) if NAMES.fullmatch(file.name)]
    if not files:
        raise DataError(
            f"There is no file such as 20230106_qa.jsonl in {data}, nor in {FOLDERS[0]} inside it ({source})."
        )
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").split("\n"), start=1):
            if line.strip():
                row = _question(line, f"{file}, line {number}")
                found.setdefault(row["id"], row)
    if not found:
        raise DataError(f"There is no question in {', '.join(map(str, files))}.")
    return {"test": Dataset.from_list(list(found.values()))}


def closed_prompt(doc: Mapping[str, Any]) -> str:
    """The question and its choices."""
    choices = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, doc["choices"], strict=False)]
    return "\n".join([f"Question: {doc['question']}", *choices, "Answer:"])


def open_prompt(doc: Mapping[str, Any]) -> str:
    """The evidence, where there is any, before the question and its choices."""
    evidence = f"Evidence: {doc['evidence']}\n\n" if doc["evidence"] else ""
    return evidence + closed_prompt(doc)


def letters(doc: Mapping[str, Any]) -> list[str]:
    """One letter for each choice."""
    return list(LETTERS[: len(doc["choices"])])


def gold(doc: Mapping[str, Any]) -> int:
    """The index of the right choice, the first of several."""
    return int(doc["right"][0])


def chosen(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Whether the right letter is the likeliest, as lm-eval's `process_results`.

    Of a model behind an API some letters have only a bound (see `bounded.pick`). The likeliest of the others counts;
    where there is none, the question counts as wrong. `proved` is 1 where the bounds cannot change the choice, and
    `stated` is the share of the letters that have a number.
    """
    picked = pick([likelihood for likelihood, _ in results])
    return {
        "acc": float(picked.option is not None and picked.option in doc["right"]),
        "proved": float(picked.proved),
        "stated": picked.known / len(results),
    }


def _question(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        asked, choices, answer = row["question_sentence"], row["choices"], row["answer"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: a question is a JSON object with 'question_sentence', 'choices' and 'answer' ({error!r})."
        ) from None
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise DataError(f"{where}: 'choices' must be a list of 2 to {len(LETTERS)} texts.")
    given = answer if isinstance(answer, list) else [answer]
    try:
        right = [int(index) for index in given]
    except (TypeError, ValueError):
        right = []
    if not right or not all(0 <= index < len(choices) for index in right):
        raise DataError(
            f"{where}: 'answer' must be indices from 0 to {len(choices) - 1}, such as [\"2\"], not {answer!r}."
        )
    return {
        "id": str(row.get("question_id", where)),
        "question": _plain(str(asked)),
        "choices": [_plain(str(choice)) for choice in choices],
        "right": right,
        "evidence": _evidence(row.get("evidence")),
    }


def _evidence(given: Any) -> str:
    passages = given if isinstance(given, list) else [given]
    texts = [passage.get("text") if isinstance(passage, dict) else passage for passage in passages]
    return "\n".join(plain for text in texts if isinstance(text, str) and (plain := _plain(text)))


def _plain(text: str) -> str:
    """A text of the web as it is read: without tags, and in one line."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())
