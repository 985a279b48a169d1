"""Tasks on code through the whole path: prompts, answers of tiny models, programs in the sandbox, pass@k."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import compose, proxy_tune
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation import execution, harness
from lmcompose.evaluation.code_scores import NO_PROGRAM, program_scores
from lmcompose.evaluation.harness import Settings, evaluate
from lmcompose.evaluation.hflm import ComposedLM
from lmcompose.evaluation.statistics import paired_bootstrap
from lmcompose.evaluation.tasks import find_tasks
from lmcompose.evaluation.tasks.code_data import names_used
from tests.evaluation.code_samples import (
    HUMANEVAL,
    LAST,
    MBPP,
    PAIRS,
    TRIPLE,
    blank,
    taught,
    tokenizer_with_template,
    write_code_samples,
)

PYTHON = "```python\n{}```"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_code_samples(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(execution.ENVIRONMENT, raising=False)


@pytest.fixture(scope="module")
def sandbox() -> None:
    verdict = execution.run_program("pass", allow=True)
    if verdict.status == "refused":
        pytest.skip(verdict.reason)


def chatted(prompt: str) -> str:
    """What a chat model reads for a prompt of HumanEval, by hand."""
    asked = "Complete the following Python function. Answer with the whole function in one code block."
    return f"<user>{asked}\n\n{PYTHON.format(prompt)}</user><assistant>"


@cache
def right_and_wrong() -> Any:
    """A model that solves the first problem and not the second, with a chat template and without."""
    answers = {TRIPLE: "    return 3 * x\n", LAST: "    return one_more(items[0])\n"}
    told = {
        chatted(TRIPLE): "Sure:\n\n```python\ndef triple(x):\n    return x + x + x\n```\nIt adds.",
        chatted(LAST): "```python\ndef last(items):\n    return one_more(items[0])\n```",
    }
    return taught(answers | told)


def rows(output: Path, label: str, task: str) -> list[dict[str, Any]]:
    return json.loads((output / label / f"{task}.json").read_text(encoding="utf-8"))["examples"]


def timeless(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without how long their programs ran."""
    for row in found:
        for program in row["programs"]:
            program.pop("seconds")
    return found


# ------------------------------------------------------------------------------------------------------ whole path


def test_a_right_program_passes_and_a_wrong_one_fails(sandbox: None, data: Path, tmp_path: Path) -> None:
    models = {"none": blank(), "it": right_and_wrong()}
    settings = Settings(max_new_tokens=40)
    result = evaluate(models, ["humaneval"], tmp_path, settings=settings, data=data, allow_code_execution=True)
    found = result["scores"]["humaneval"]["pass@1,code"]
    assert (found["it"]["estimate"], found["none"]["estimate"], found["it"]["unit"]) == (0.5, 0, "share")
    first, second = rows(tmp_path, "it", "humaneval")
    assert (first["name"], first["prompt"], first["target"]) == ("Own/0", TRIPLE, "    return 3 * x\n")
    assert first["responses"] == ["    return 3 * x\n"]
    assert first["programs"][0].items() >= {"source": f"{TRIPLE}    return 3 * x\n", "status": "passed"}.items()
    assert second["programs"][0]["status"] == "failed"
    assert "AssertionError" in second["programs"][0]["reason"]
    assert [row["values"]["pass@1,code"] for row in (first, second)] == [1, 0]
    ours, theirs = ([row["values"]["pass@1,code"] for row in rows(tmp_path, label, "humaneval")] for label in models)
    assert paired_bootstrap(theirs, ours).estimate == 0.5
    assert sorted(file.name for file in (tmp_path / "it").iterdir()) == ["humaneval.json"]


def test_the_data_sets_own_solutions_pass(sandbox: None, data: Path, tmp_path: Path) -> None:
    """As answers of a model, in both tasks."""
    tasks = find_tasks(["mbpp"], str(data))["mbpp"]
    answers = {row["prompt"]: row["canonical_solution"] for row in HUMANEVAL}
    answers |= {tasks.fewshot_context(doc, 0): f"{doc['solution']}\n[DONE]\nYou" for doc in tasks.eval_docs}
    settings = Settings(shots=0, max_new_tokens=60)
    names = ["humaneval", "mbpp"]
    result = evaluate({"it": taught(answers)}, names, tmp_path, settings=settings, data=data, allow_code_execution=True)
    for name in names:
        assert result["scores"][name]["pass@1,code"]["it"]["estimate"] == 1, rows(tmp_path, "it", name)
    assert [row["name"] for row in rows(tmp_path, "it", "mbpp")] == ["MBPP/11", "MBPP/12"]


def test_a_program_ends_where_a_document_ends(sandbox: None, data: Path, tmp_path: Path) -> None:
    """With the token that pads, as in models whose own end is that of a turn, and which decoding leaves out."""
    tokenizer = tokenizer_with_template()
    tokenizer.add_special_tokens({"pad_token": "<|document|>"})
    model = taught({TRIPLE: "    return 3 * x<|document|>import nothing_there"}, tokenizer)
    settings = Settings(limit=1, max_new_tokens=40)
    evaluate({"it": model}, ["humaneval"], tmp_path, settings=settings, data=data, allow_code_execution=True)
    (row,) = rows(tmp_path, "it", "humaneval")
    assert row["responses"] == ["    return 3 * x"]
    assert row["programs"][0]["status"] == "passed"


def test_chat_templates_of_plain_models_and_compositions(sandbox: None, data: Path, tmp_path: Path) -> None:
    """A CALM composition that is not trained is its anchor; a logit composition at alpha = 1 with base = antiexpert is
    its expert. Both are then asked as the plain model is, and answer as it does."""
    plain = right_and_wrong()
    models = {
        "plain": plain,
        "calm": compose(anchor=plain, augmenting=blank()),
        "logits": proxy_tune(blank(), plain, blank(), alpha=1.0),
    }
    settings = Settings(chat=True, max_new_tokens=60)
    result = evaluate(models, ["humaneval"], tmp_path, settings=settings, data=data, allow_code_execution=True)
    found = {label: timeless(rows(tmp_path, label, "humaneval")) for label in models}
    first = found["plain"][0]
    assert first["prompt"] == chatted(TRIPLE)
    assert first["responses"][0].startswith("Sure:\n\n```python\n")
    assert first["programs"][0]["source"].endswith("def triple(x):\n    return x + x + x\n")
    assert found["calm"] == found["plain"]
    assert [row["responses"] for row in found["logits"]] == [row["responses"] for row in found["plain"]]
    scores = result["scores"]["humaneval"]["pass@1,code"]
    assert {label: scores[label]["estimate"] for label in models} == dict.fromkeys(models, 0.5)


def test_alpha_reaches_generated_and_scored_answers(sandbox: None, data: Path, tmp_path: Path) -> None:
    plain, nothing = right_and_wrong(), blank()
    model = proxy_tune(nothing, plain, blank(), alpha=0.0)
    models = {"plain": plain, "proxy": model}
    estimates = {}
    for alpha in (None, 1.0):
        settings = Settings(max_new_tokens=40, alpha=alpha)
        output = tmp_path / str(alpha)
        result = evaluate(models, ["humaneval"], output, settings=settings, data=data, allow_code_execution=True)
        estimates[alpha] = result["scores"]["humaneval"]["pass@1,code"]["proxy"]["estimate"]
        assert json.loads((output / "plain" / "humaneval.json").read_text())["settings"]["alpha"] is None
        assert json.loads((output / "proxy" / "humaneval.json").read_text())["settings"]["alpha"] == alpha
    assert estimates == {None: 0.0, 1.0: 0.5}
    assert model.config.parameters == {"alpha": 0.0}  # a model that is handed over stays as it is
    request = [(None, *ComposedLM(plain)._encode_pair(TRIPLE, "    return 3 * x"))]
    at_one, expert, base = (
        ComposedLM(each, alpha=alpha)._loglikelihood_tokens(request, True)[0][0]
        for each, alpha in ((model, 1.0), (plain, None), (model, None))
    )
    assert at_one == pytest.approx(expert, abs=1e-3)
    assert base < expert - 1


# ---------------------------------------------------------------------------------------------------------- drawing


def test_programs_that_are_drawn_differ_and_are_drawn_again(data: Path) -> None:
    task = find_tasks(["humaneval"], str(data))["humaneval"]
    harness._configure(task, Settings(samples=3, temperature=0.9, max_new_tokens=12))
    task.build_all_requests()
    assert len(task.instances) == 6

    def answers(batch_size: int = 2) -> list[str]:
        torch.manual_seed(0)
        torch.rand(batch_size)  # what was drawn before does not count
        return ComposedLM(blank(), batch_size=batch_size).generate_until(task.instances, True)

    first = answers()
    assert len(set(first)) == 6
    assert answers() == first
    harness._configure(task, Settings(samples=3, temperature=0.9, max_new_tokens=12, seed=7))
    task.build_all_requests()
    assert not set(answers()) & set(first)


def test_what_was_drawn_is_kept_where_programs_cannot_be_run(
    sandbox: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = blank()
    settings = Settings(samples=2, temperature=0.5, max_new_tokens=6)
    options: dict[str, Any] = {"settings": settings, "data": data, "allow_code_execution": True}

    def refused(*arguments: Any, **named: Any) -> Any:
        raise ConfigurationError("refused")

    with monkeypatch.context() as patch, pytest.raises(ConfigurationError, match="refused"):
        patch.setattr(harness, "run_samples", refused)
        evaluate({"it": model}, ["humaneval"], tmp_path, **options)
    generated = type(model[0]).generate
    monkeypatch.setattr(type(model[0]), "generate", refused)
    result = evaluate({"it": model}, ["humaneval"], tmp_path, **options)
    monkeypatch.setattr(type(model[0]), "generate", generated)
    found = rows(tmp_path, "it", "humaneval")
    assert [len(row["responses"]) for row in found] == [2, 2]
    assert {program["reason"] for row in found for program in row["programs"]} == {NO_PROGRAM}
    assert list(result["scores"]["humaneval"]) == ["pass@1,code"]
    monkeypatch.setattr(type(model[0]), "generate", refused)
    again = evaluate({"it": model}, ["humaneval"], tmp_path, **options | {"settings": Settings(
        samples=2, temperature=0.5, max_new_tokens=6, pass_at=(1, 2))})  # fmt: skip
    assert list(again["scores"]["humaneval"]) == ["pass@1,code", "pass@2,code"]
    with pytest.raises(ConfigurationError, match=r"differs in samples 2, now 1, temperature 0\.5, now 0\.0"):
        evaluate({"it": model}, ["humaneval"], tmp_path, **options | {"settings": Settings(max_new_tokens=6)})


def test_pass_at_k_is_the_share_of_sets_with_one_that_passed() -> None:
    statuses = [["passed", "failed", "timeout", "passed"], ["failed"] * 4, ["failed", "passed", "failed", "memory"]]
    found = [
        {"id": number, "programs": [{"status": status} for status in problem]}
        for number, problem in enumerate(statuses)
    ]
    scored = program_scores(found, (1, 2, 3, 4))
    for k in (1, 2, 3, 4):
        shares = []
        for problem, row in zip(statuses, found, strict=True):
            sets = list(itertools.combinations(problem, k))
            shares.append(sum("passed" in members for members in sets) / len(sets))
            assert row["values"][f"pass@{k},code"] == pytest.approx(shares[-1])
        score = scored[f"pass@{k},code"]
        assert score["estimate"] == pytest.approx(sum(shares) / 3)
        low, high = score["interval"]
        assert low <= score["estimate"] <= high


# --------------------------------------------------------------------------------------------------------- refusals


def test_nothing_is_read_or_run_without_leave(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"allow_code_execution=True.*--allow-code-execution"):
        evaluate({"it": "no/such/model"}, ["gsm8k", "mbpp"], tmp_path, data=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("settings", "tasks", "message"),
    [
        (Settings(samples=5), ["mbpp"], "are all the same"),
        (Settings(samples=2, temperature=0.5, pass_at=(1, 3)), ["mbpp"], r"pass@k for k = 1, 3 is not defined for 2"),
        (Settings(pass_at=()), ["mbpp"], "k = none"),
        (Settings(samples=0), ["mbpp"], "1 or more"),
        (Settings(temperature=-1.0), ["mbpp"], "has to be 0"),
        (Settings(temperature=0.5), ["gsm8k"], "none of them is named"),
    ],
)
def test_settings_that_cannot_be(settings: Settings, tasks: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evaluate({"it": "no/such/model"}, tasks, tmp_path, settings=settings, allow_code_execution=True)


def test_alpha_and_chat_that_no_model_has(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"alpha=2 has nothing to act on: of it, none"):
        evaluate({"it": blank()}, ["code_to_text"], tmp_path, settings=Settings(alpha=2.0), data=data)
    model, tokenizer = blank()
    tokenizer.chat_template = None
    with pytest.raises(ConfigurationError, match=r"'it' .* has no chat template"):
        evaluate({"it": (model, tokenizer)}, ["code_to_text"], tmp_path, settings=Settings(chat=True), data=data)


def test_more_shots_than_there_are(data: Path, tmp_path: Path) -> None:
    settings = Settings(shots=11)
    with pytest.raises(ConfigurationError, match=r"code_to_text: 11 examples .* and 10 can be shown"):
        evaluate({"it": blank()}, ["code_to_text"], tmp_path, settings=settings, data=data)


def test_data_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no HumanEval\.jsonl\.gz or HumanEval\.jsonl"):
        find_tasks(["humaneval"], str(tmp_path))
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        find_tasks(["humaneval"], str(tmp_path))
    (tmp_path / "mbpp.jsonl").write_text(json.dumps({"text": "Add."}) + "\n")
    with pytest.raises(DataError, match=r"mbpp\.jsonl, line 1: there is no 'code'"):
        find_tasks(["mbpp"], str(tmp_path))
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(MBPP[0]) + "\n")
    with pytest.raises(DataError, match="MBPP has no task of 11 to 510"):
        find_tasks(["mbpp"], str(tmp_path))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS[:10]))
    with pytest.raises(DataError, match="has 10 functions"):
        find_tasks(["code_to_text"], str(tmp_path))


# ------------------------------------------------------------------------------------------------------------ prompts


def test_the_prompt_of_mbpp_is_the_papers(data: Path) -> None:
    task = find_tasks(["mbpp"], str(data))["mbpp"]
    assert task.get_config("num_fewshot") == 3
    prompt = task.fewshot_context(task.eval_docs[0], 3)
    shots = prompt.split("\n\nYou are")
    assert prompt.startswith(
        "You are an expert Python programmer, and here is your task: Write a function to add 2 to a number. Your code "
        "should pass these tests:\n\nassert add_2(0) == 2\nassert add_2(1) == 3\n[BEGIN]\ndef add_2(x):\n    return "
        "x + 2\n[DONE]\n\n"
    )
    assert prompt.endswith("assert add_11(0) == 11\nassert add_11(1) == 12\n[BEGIN]\n")
    assert [f"add_{number}(0)" in shot for number, shot in zip((2, 3, 4, 11), shots, strict=True)] == [True] * 4


def test_shots_of_mbpp_are_turns_in_a_chat(data: Path) -> None:
    task = find_tasks(["mbpp"], str(data), chat=True)["mbpp"]
    tokenizer = tokenizer_with_template()

    def template(messages: Any, add_generation_prompt: bool = True) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)

    prompt = task.fewshot_context(
        task.eval_docs[0], 1, apply_chat_template=True, fewshot_as_multiturn=True, chat_template=template
    )
    assert f"</user><assistant>{PYTHON.format(MBPP[0]['code'].replace(chr(13), '') + chr(10))}</assistant>" in prompt
    assert prompt.endswith("assert add_11(1) == 12</user><assistant>")


def test_the_names_that_tests_use() -> None:
    tests = "from math import isclose\nassert isclose(sum([half(x) for x in range(3)]), 1.5)"
    assert names_used(tests, "", "def half(x): return x / 2") == ["half"]
    assert sorted(names_used(tests, "", "def half(x): return x / 2\ndef sum(x): return 1")) == ["half", "sum"]
    assert names_used("assert f(root) == 1", "root = 3", "f = lambda x: 1") == ["f"]


def test_code_to_text_shows_other_functions_and_scores_the_first_paragraph(data: Path, tmp_path: Path) -> None:
    task = find_tasks(["code_to_text"], str(data))["code_to_text"]
    assert len(task.eval_docs) == 4
    task.set_fewshot_seed(1)
    prompt = task.fewshot_context(task.eval_docs[0], 3)
    assert prompt.endswith("\n\nFunction:\ndef add_10(x):\n    return x + 10\nDocstring:")
    shown = [shot for shot in prompt.split("Function:\n") if "Docstring: Add " in shot]
    assert len(shown) == 3
    assert "More" not in prompt
    answers = {task.fewshot_context(doc, 0): f" {doc['docstring']}\n\nIt is" for doc in task.eval_docs}
    settings = Settings(shots=0, max_new_tokens=24)
    found = evaluate({"it": taught(answers)}, ["code_to_text"], tmp_path, settings=settings, data=data)["scores"]
    scores = found["code_to_text"]
    assert scores["chrf1,docstring"]["it"]["estimate"] == pytest.approx(100)
    assert scores["chrf2,docstring"]["it"]["unit"] == "chrF"
    (tmp_path / "train.jsonl").write_text(json.dumps(PAIRS[0]) + "\n")
    whole = PAIRS[1]["code"].replace("\n", f'\n    """{PAIRS[1]["docstring"]}"""\n', 1)
    (tmp_path / "test.jsonl").write_text(json.dumps({"code": whole, "docstring": PAIRS[1]["docstring"]}) + "\n")
    layout = find_tasks(["code_to_text"], str(tmp_path))["code_to_text"]
    assert list(layout.eval_docs) == [{"code": PAIRS[1]["code"], "docstring": "Add 1 to a number."}]
