"""Key-value arithmetic from files: `evaluate` counts what the experiment counts, on the demo's own trained members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from lmcompose.errors import DataError
from lmcompose.evaluation.harness import Settings, evaluate
from lmcompose.evaluation.statistics import wilson_interval
from lmcompose.evaluation.tasks.key_values import kv_math, same_words
from lmcompose.experiments.kv_arithmetic.evaluate import right_answers
from lmcompose.experiments.kv_arithmetic.profiles import PROFILES
from lmcompose.experiments.kv_arithmetic.questions import write_questions
from lmcompose.experiments.kv_arithmetic.run import ready_members
from lmcompose.experiments.kv_arithmetic.task import Kind, Task

COUNT = 40
TASK = Task(PROFILES["demo"].keys, PROFILES["demo"].operands)


def member(role: str) -> Any:
    ready = ready_members()
    assert ready is not None
    return AutoModelForCausalLM.from_pretrained(ready / role).eval(), TASK.tokenizer()


def test_the_same_answers_are_right_as_in_the_experiment(tmp_path: Path) -> None:
    write_questions(TASK, tmp_path / "data" / "kv_arithmetic", COUNT)
    models = {"anchor": member("anchor"), "augmenting": member("augmenting")}
    result = evaluate(models, ["kv_arithmetic"], tmp_path / "out", settings=Settings(), data=tmp_path / "data")
    counts = {}
    for label, (model, _) in models.items():
        for kind in Kind:
            right = right_answers(model, TASK, kind, COUNT, TASK.split[1])
            rows = json.loads((tmp_path / "out" / label / f"{kind}.json").read_text())["examples"]
            assert [row["values"]["exact_match,none"] for row in rows] == [float(each) for each in right]
            counts[label, kind] = sum(right)
            found = result["scores"][str(kind)]["exact_match,none"][label]
            assert tuple(found["interval"]) == wilson_interval(sum(right), COUNT)[1:]
    assert counts["anchor", Kind.NUM_MATH] > COUNT / 2 > counts["anchor", Kind.KV_SUBS]  # so that both kinds are there
    assert counts["augmenting", Kind.KV_SUBS] > COUNT / 2 > counts["augmenting", Kind.NUM_MATH]


@pytest.mark.parametrize(
    ("written", "right"),
    [("1 2 3", 1), (" 1  2 3\n", 1), ("1 2 3 4", 0), ("1 2", 0), ("", 0), ("123", 0), ("1 2 3 _", 0)],
)
def test_the_whole_answer_counts(written: str, right: float) -> None:
    assert same_words({"answer": "1 2 3"}, [written]) == {"exact_match": right}


def test_files_that_are_not_there_or_not_right_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"kv_arithmetic\.questions --output FOLDER"):
        kv_math(None)
    with pytest.raises(DataError, match=r"There is no kv_math\.jsonl"):
        kv_math(str(tmp_path))
    file = tmp_path / "kv_math.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n\n{"prompt": "a"}\n')
    with pytest.raises(DataError, match=r"line 3: a question has 'prompt' and 'answer'"):
        kv_math(str(tmp_path))
    file.write_text("\n")
    with pytest.raises(DataError, match="has no question"):
        kv_math(str(tmp_path))
