"""Judging pairwise, against a server that answers by a rule: both orders, awkward replies, a run that was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import proxy_tune
from lmcompose.errors import ConfigurationError, DataError, MemberError, RemoteError
from lmcompose.evaluation.judging import ChatJudge, judge
from lmcompose.evaluation.judging.instructions import Instruction, read_answers, read_instructions
from lmcompose.evaluation.opening import Loading
from tests.evaluation.judging.chat_server import ChatServer, longer
from tests.tiny import tiny_model, tiny_tokenizer

TASKS = [Instruction(str(number), f"w{number} w{number + 1}", "w9" if number % 2 else "") for number in range(6)]
LENGTHS = [3, 1, 2, 5, 1, 4], [2, 1, 3, 1, 2, 2]
"""Words in the answers of the first and the second system."""


def answers(folder: Path, lengths: tuple[list[int], list[int]] = LENGTHS) -> dict[str, Any]:
    systems = {}
    for name, words in zip(("one", "two"), lengths, strict=True):
        rows = [{"id": task.id, "answer": " ".join(["yes"] * count)} for task, count in zip(TASKS, words, strict=True)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        systems[name] = str(folder / f"{name}.jsonl")
    return systems


def asking(server: ChatServer, **options: Any) -> ChatJudge:
    return ChatJudge(server.url, "judge-1", backoff=0.01, timeout=5, **options)


def test_the_verdict_follows_the_answers_in_both_orders(tmp_path: Path) -> None:
    with ChatServer() as server:
        result = judge(answers(tmp_path), TASKS, asking(server, api_key="a-secret"), tmp_path / "out")
        assert server.headers["Authorization"] == "Bearer a-secret"
        assert len(server.bodies) == 12
        assert {(body["model"], body["temperature"]) for body in server.bodies} == {("judge-1", 0.0)}
    assert result["counts"] == {"wins": 3, "losses": 2, "ties": 1, "half": 0, "flipped": 0, "unreadable": 0}
    assert result["win_rate"]["estimate"] == pytest.approx(3.5 / 6)
    assert result["position"]["estimate"] == 0.5
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result
    assert "a-secret" not in "".join(file.read_text() for file in (tmp_path / "out").iterdir())


def test_a_biased_judge_is_found_out(tmp_path: Path) -> None:
    with ChatServer(lambda task, a, b: "Verdict: A") as server:
        result = judge(answers(tmp_path), TASKS, asking(server), tmp_path / "out")
    assert result["counts"]["flipped"] == 6
    assert (result["win_rate"]["estimate"], result["position"]["estimate"]) == (0.5, 1.0)


def test_awkward_replies_are_counted_and_never_guessed(tmp_path: Path) -> None:
    said = {
        TASKS[0].task: "Answer A is much better.",
        TASKS[1].task: {"role": "assistant", "content": None},
        TASKS[2].task: {"role": "assistant", "content": [{"type": "text", "text": "Verdict: tie"}]},
    }
    with ChatServer(lambda task, a, b: said.get(task) or longer(task, a, b)) as server:
        result = judge(answers(tmp_path), TASKS, asking(server), tmp_path / "out")
    assert result["verdicts"] == {"all": 12, "unreadable": 4}
    assert result["counts"] == {"wins": 2, "losses": 1, "ties": 1, "half": 0, "flipped": 0, "unreadable": 2}
    assert result["win_rate"]["count"] == 4
    assert result["at_least"] < result["win_rate"]["estimate"] < result["at_most"]


def test_a_question_that_is_refused_is_unreadable_unless_it_is_the_first(tmp_path: Path) -> None:
    with ChatServer() as server:
        server.troubles = [None, 400]
        result = judge(answers(tmp_path), TASKS, asking(server), tmp_path / "out")
        assert result["verdicts"]["unreadable"] == 1
        server.troubles = [400]
        with pytest.raises(RemoteError, match="status 400"):
            judge(answers(tmp_path), TASKS, asking(server), tmp_path / "other")


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    systems = answers(tmp_path)
    with ChatServer() as server:
        whole = judge(systems, TASKS, asking(server), tmp_path / "whole")
        server.bodies.clear()
        server.troubles = [None, None, 503, None, None, {"choices": []}]
        with pytest.raises(RemoteError, match="kept"):
            judge(systems, TASKS, asking(server), tmp_path / "out")
        assert len(server.bodies) == 6  # a repeat after the 503, and four verdicts
        with (tmp_path / "out" / "verdicts.jsonl").open("a") as file:
            file.write('{"key": "2 fi')  # a kill in the middle of a line
        told: list[str] = []
        again = judge(systems, TASKS, asking(server), tmp_path / "out", report=told.append)
        assert "4 of 12 verdicts are there already" in told
        assert len(server.bodies) == 6 + 8
        assert again["win_rate"] == whole["win_rate"]
        judge(systems, TASKS, asking(server), tmp_path / "out")
        assert len(server.bodies) == 6 + 8
        with pytest.raises(ConfigurationError, match="differs in judge"):
            judge(systems, TASKS, asking(server, max_tokens=5), tmp_path / "out")
        changed = answers(tmp_path, (LENGTHS[1], LENGTHS[0]))
        with pytest.raises(ConfigurationError, match="differs in answers"):
            judge(changed, TASKS, asking(server), tmp_path / "out")
        turned = judge(changed, TASKS, asking(server), tmp_path / "out", redo=True)
        assert turned["win_rate"]["estimate"] == pytest.approx(1 - whole["win_rate"]["estimate"])


def test_models_write_their_answers(tmp_path: Path) -> None:
    """A model's answers are its greedy ones, one by one, and they are written once."""
    tokenizer = tiny_tokenizer()
    base = (tiny_model("llama", 0), tokenizer)
    steered = proxy_tune(base, (tiny_model("llama", 1), tokenizer), (tiny_model("llama", 2), tokenizer))
    with ChatServer() as server:
        options: Any = {"max_new_tokens": 5, "loading": Loading(batch_size=4)}
        systems: Any = {"base": base, "steered": steered}
        result = judge(systems, TASKS, asking(server), tmp_path, **options)
        assert set(result["models"]) == {"base", "steered"}
        for name, model in (("base", base[0]), ("steered", steered)):
            lines = (tmp_path / "answers" / f"{name}.jsonl").read_text().splitlines()[1:]
            for task, line in zip(TASKS, lines, strict=True):
                inputs = tokenizer(task.prompt(False), return_tensors="pt")
                ids, mask = inputs["input_ids"], inputs["attention_mask"]
                output = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
                text = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
                assert json.loads(line)["answer"] == text.strip()
        told: list[str] = []
        judge(systems, TASKS, asking(server), tmp_path, report=told.append, **options)
        assert told == []
        with torch.no_grad():
            base[0].get_output_embeddings().weight.mul_(-1)
        with pytest.raises(ConfigurationError, match="differs in model"):
            judge(systems, TASKS, asking(server), tmp_path, **options)


def test_an_answer_that_holds_a_placeholder_stays_what_it_is() -> None:
    seen: list[tuple[str, str, str]] = []

    def note(task: str, a: str, b: str) -> str:
        seen.append((task, a, b))
        return "Verdict: tie"

    with ChatServer(note) as server:
        asking(server).ask("{a}", "{b} {task}", "\\1 {a}")
    assert seen == [("{a}", "{b} {task}", "\\1 {a}")]


def test_instructions_and_answers_from_files(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    seed = {
        "id": "seed_task_0",
        "instruction": "Add.",
        "instances": [{"input": "1 and 2", "output": "3"}, {"input": "x"}],
    }
    plain = {"instruction": "Name a colour.", "input": ""}
    file.write_text(json.dumps(seed) + "\n\n" + json.dumps(plain) + "\n")
    first, second = read_instructions(file)
    assert (first.id, first.task, second.id, second.task) == ("seed_task_0", "Add.\n\n1 and 2", "1", "Name a colour.")
    assert first.prompt(False) == "Instruction: Add.\nInput: 1 and 2\nAnswer:"
    assert second.prompt(False) == "Instruction: Name a colour.\nAnswer:"
    assert first.prompt(True) == first.task
    assert len(read_instructions(file, limit=1)) == 1
    file.write_text(json.dumps({**plain, "id": 1}) + "\n" + json.dumps({**plain, "id": "1"}))
    with pytest.raises(DataError, match="line 2: there are two instructions with the id '1'"):
        read_instructions(file)
    file.write_text('{"input": "x"}')
    with pytest.raises(DataError, match="line 1: 'instruction' must be a text"):
        read_instructions(file)
    file.write_text('{"id": "0", "answer": ""}\n')
    assert read_answers(file, TASKS[:1]) == {"0": ""}
    with pytest.raises(DataError, match="no answer to 5 of 6 instructions, the first '1'"):
        read_answers(file, TASKS)


def test_what_is_missing_is_said_before_a_model_writes(tmp_path: Path) -> None:
    model = (tiny_model("llama", 0), tiny_tokenizer())
    told: list[str] = []
    (tmp_path / "half.jsonl").write_text('{"id": "0", "answer": "yes"}')
    with ChatServer() as server:
        for second, error in ((tmp_path / "half.jsonl", DataError), (tmp_path / "none", MemberError)):
            with pytest.raises(error):
                judge({"a": model, "b": second}, TASKS, asking(server), tmp_path / "out", report=told.append)
    assert told == []
