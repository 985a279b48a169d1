"""RealTimeQA: its layout, its prompts, and a letter chosen where some scores are only bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmcompose.errors import DataError
from lmcompose.evaluation.bounded import AtMost, Pick, pick
from lmcompose.evaluation.tasks import realtime_qa
from tests.evaluation.samples import REALTIME_QA


def write(folder: Path, rows: list[Any], name: str = "20230106_qa.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([-1.0, -2.0], Pick(0, True, 2)),
        ([-2.0, -1.0, AtMost(-1.5)], Pick(1, True, 2)),
        ([-2.0, -1.0, AtMost(-0.5)], Pick(1, False, 2)),  # a bound is never chosen
        ([AtMost(-0.1), AtMost(-0.2)], Pick(None, False, 0)),
        ([-1.0, -1.0, AtMost(-1.0)], Pick(0, True, 2)),
    ],
)
def test_a_bound_is_no_score(scores: list[float], expected: Pick) -> None:
    assert pick(scores) == expected


def test_a_question_without_any_stated_letter_is_wrong() -> None:
    doc = {"choices": ["a", "b"], "right": [0]}
    assert realtime_qa.chosen(doc, [(AtMost(-1), False), (AtMost(-2), False)]) == {"acc": 0, "proved": 0, "stated": 0}
    half = realtime_qa.chosen(doc, [(-1.0, False), (AtMost(-0.5), False)])
    assert half == {"acc": 1, "proved": 0, "stated": 0.5}


def test_questions_are_read_as_the_repository_has_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "realtime_qa", REALTIME_QA)
    write(folder, REALTIME_QA[:2], "20220617-20220624_qa_nota.jsonl")  # which repeats some of them
    write(folder, ['{"question_id": "1", "search_result": []}'], "20230106_gcs.jsonl")
    docs = realtime_qa.questions(str(tmp_path))["test"]
    assert [doc["id"] for doc in docs] == ["0_nota", "1_nota", "2_nota"]
    first, second, third = docs
    assert realtime_qa.open_prompt(first) == (
        "Evidence: Netflix said that “Squid Game” & more is coming back.\n\n"
        "Question: Which show was green lit?\nA. “Squid Game”\nB. “Friends”\nC. None\nD. “ER”\nAnswer:"
    )
    assert realtime_qa.open_prompt(second) == realtime_qa.closed_prompt(second)  # no evidence
    assert third["evidence"] == "One passage.\nAnother passage."
    assert (realtime_qa.letters(third), realtime_qa.gold(third)) == (["A", "B", "C", "D", "E"], 4)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question_sentence": "x", "choices": ["a", "b"], "answer": ["2"]}, r"indices from 0 to 1.*not \['2'\]"),
        ({"question_sentence": "x", "choices": ["a", "b"], "answer": ["b"]}, "indices from 0 to 1"),
        ({"question_sentence": "x", "choices": ["a", "b"], "answer": []}, "indices from 0 to 1"),
        ({"question_sentence": "x", "choices": ["a"], "answer": [0]}, "list of 2 to 10"),
        ({"question": "x", "choices": ["a", "b"], "answer": [0]}, "line 1: a question is a JSON object with"),
        ("{", "line 1: a question is a JSON object with"),
    ],
)
def test_a_line_that_is_no_question_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        realtime_qa.questions(str(write(tmp_path, [row])))


def test_without_a_folder_or_a_file_it_says_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="realtimeqa_public"):
        realtime_qa.questions(None)
    with pytest.raises(DataError, match="There is no file such as"):
        realtime_qa.questions(str(tmp_path))
