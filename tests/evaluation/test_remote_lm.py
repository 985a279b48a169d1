"""A base behind an API under lm-eval: what is stated agrees with the model itself, and what is not is a bound."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import proxy_tune
from lmcompose.errors import ConfigurationError, RecipeError
from lmcompose.evaluation.bounded import AtMost
from lmcompose.evaluation.harness import Settings, evaluate
from lmcompose.evaluation.remote_lm import RemoteLM
from lmcompose.evaluation.remote_system import RemoteSystem, describe_system, read_system
from lmcompose.evaluation.tasks import find_tasks
from lmcompose.logits.remote import RemoteBase
from tests.evaluation.samples import write_samples
from tests.logits.remote_server import LLAMA_CPP, OPENAI, PLAIN, VLLM, CompletionsServer, Manners
from tests.tiny import tiny_model
from tests.tokenizers import family

TOKENIZER = family("qwen")
SIZES = {"vocab_size": len(TOKENIZER), "max_position_embeddings": 1024}
BASE = tiny_model("llama", 0, **SIZES)
EXPERT = tiny_model("llama", 1, hidden_size=24, **SIZES)
ANTIEXPERT = tiny_model("gpt2", 2, hidden_size=24, **SIZES)
PAIR = {"expert": (EXPERT, TOKENIZER), "antiexpert": (ANTIEXPERT, TOKENIZER)}

OPEN = dataclasses.replace(VLLM, max_length=None)
"""vLLM, for prompts of any length."""
SHORT = Settings(shots=0, max_new_tokens=4)
LETTERS = [f" {letter}" for letter in "ABCDE"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"))


@pytest.fixture(params=["vllm", "llama.cpp", "openai", "plain"])
def manners(request: pytest.FixtureRequest) -> Manners:
    return {"vllm": OPEN, "llama.cpp": LLAMA_CPP, "openai": OPENAI, "plain": PLAIN}[request.param]


def serving(manners: Manners) -> CompletionsServer:
    return CompletionsServer(BASE, TOKENIZER, manners)


def remote(server: CompletionsServer, members: Any = None, extra: int = 8) -> RemoteSystem:
    base = RemoteBase(server.url, tokenizer=TOKENIZER, backoff=0.01, timeout=20)
    return RemoteSystem(base, PAIR if members else {}, extra_requests=extra)


def examples(output: Path, label: str, task: str) -> list[dict[str, Any]]:
    return json.loads((output / label / f"{task}.json").read_text(encoding="utf-8"))["examples"]


def positions(data: Path) -> Iterator[str]:
    task = find_tasks(["realtime_qa"], str(data))["realtime_qa"]
    for doc in task.eval_docs:
        yield task.doc_to_text(doc)


@torch.no_grad()
def letters_of(model: Any, prompt: str) -> torch.Tensor:
    """The scores of A to E after the space: log-probabilities of a model, up to a number for a composition."""
    ids = [TOKENIZER(prompt + letter)["input_ids"] for letter in LETTERS]
    logits = model(torch.tensor([ids[0][:-1]])).logits[0, -1]
    return logits.log_softmax(-1)[[row[-1] for row in ids]]


@pytest.mark.parametrize("composed", [False, True], ids=["base", "composition"])
def test_letters_agree_with_the_model_itself(manners: Manners, composed: bool, data: Path) -> None:
    """Stated scores are the model's own; a bound lies above the score that it stands for; a proof is one."""
    whole = proxy_tune((BASE, TOKENIZER), *PAIR.values()) if composed else BASE
    proved = 0
    for extra in (0, 8):
        with serving(manners) as server:
            lm = RemoteLM(remote(server, composed, extra))
            for prompt in positions(data):
                right = letters_of(whole, prompt)
                pairs = [(None, *lm._encode_pair(prompt, letter)) for letter in LETTERS]
                found = [value for value, _ in lm._loglikelihood_tokens(pairs, disable_tqdm=True)]
                known = [index for index, value in enumerate(found) if not isinstance(value, AtMost)]
                shift = found[known[0]] - float(right[known[0]]) if known else 0.0
                assert composed or abs(shift) < 1e-4
                for index, value in enumerate(found):
                    if index in known:
                        assert value == pytest.approx(float(right[index]) + shift, abs=1e-4)
                    elif known:
                        assert value >= float(right[index]) + shift - 1e-4
                best = max((found[index] for index in known), default=-1e9)
                if known and all(value <= best for value in found):
                    proved += 1
                    assert max(known, key=lambda index: found[index]) == int(right.argmax())
                elif extra and manners is OPEN:
                    pytest.fail("a server that states named tokens leaves nothing open")
    assert proved or manners is PLAIN


@pytest.mark.parametrize("composed", [False, True], ids=["base", "composition"])
def test_remote_and_local_stand_side_by_side(composed: bool, data: Path, tmp_path: Path) -> None:
    """The same questions are right, the same texts are written, through the same command."""
    local: Any = proxy_tune((BASE, TOKENIZER), *PAIR.values()) if composed else (BASE, TOKENIZER)
    tasks = ["realtime_qa", "realtime_qa_evidence", "nq_open"]
    with serving(OPEN) as server:
        models = {"local": local, "remote": remote(server, composed)}
        result = evaluate(models, tasks, tmp_path, settings=SHORT, data=data)
        asked = len(server.bodies)
        evaluate(models, tasks, tmp_path, settings=SHORT, data=data)
        assert len(server.bodies) == asked  # all of it is there already
    for task in ("realtime_qa", "realtime_qa_evidence"):
        assert result["scores"][task]["proved,none"]["remote"]["estimate"] == 1
        ours, theirs = (examples(tmp_path, label, task) for label in models)
        assert [row["values"]["acc,none"] for row in ours] == [row["values"]["acc,none"] for row in theirs]
    ours, theirs = (examples(tmp_path, label, "nq_open") for label in models)
    assert [row["responses"] for row in ours] == [row["responses"] for row in theirs]
    assert "api" not in json.dumps(result["models"]["remote"]).lower()


def test_bounds_are_told_from_scores_in_the_record(data: Path, tmp_path: Path) -> None:
    with serving(PLAIN) as server:
        system = remote(server, extra=0)
        result = evaluate({"remote": system}, ["realtime_qa"], tmp_path, settings=SHORT, data=data)
    rows = examples(tmp_path, "remote", "realtime_qa")
    bounds = [score for row in rows for score, _ in row["responses"] if isinstance(score, dict)]
    assert bounds
    assert all(list(bound) == ["at_most"] and bound["at_most"] < 0 for bound in bounds)
    total = sum(len(row["responses"]) for row in rows)
    stated = [row["values"]["stated,none"] * len(row["responses"]) for row in rows]
    assert sum(stated) == pytest.approx(total - len(bounds))
    assert result["scores"]["realtime_qa"]["proved,none"]["remote"]["estimate"] < 1


@torch.no_grad()
def test_a_lone_choice_counts_whole() -> None:
    """Texts that are compared across contexts, one after each, leave nothing out that their scores share."""
    ids = TOKENIZER("one two three four five six")["input_ids"]
    context, whole = ids[:2], ids[2:]
    right = BASE(torch.tensor([ids])).logits[0, 1:-1].log_softmax(-1)
    with serving(OPEN) as server:
        ((score, greedy),) = RemoteLM(remote(server))._loglikelihood_tokens([(None, context, whole)], disable_tqdm=True)
        assert score == pytest.approx(float(right.gather(1, torch.tensor([whole]).T).sum()), abs=1e-3)
        assert greedy == (right.argmax(-1).tolist() == whole)
        composition = RemoteLM(remote(server, members=True))
        for length in (1, 3):
            with pytest.raises(ConfigurationError, match="differ in one token"):
                composition._loglikelihood_tokens([(None, context, whole[:length])], disable_tqdm=True)


def test_long_choices_need_a_base_alone_that_states_prompts(data: Path, tmp_path: Path) -> None:
    with serving(OPEN) as server:
        models: Any = {"local": (BASE, TOKENIZER), "remote": remote(server)}
        evaluate(models, ["truthfulqa_mc2"], tmp_path / "a", settings=SHORT, data=data)
        ours, theirs = (examples(tmp_path / "a", label, "truthfulqa_mc2") for label in models)
        for one, other in zip(ours, theirs, strict=True):
            for (left, _), (right, _) in zip(one["responses"], other["responses"], strict=True):
                assert left == pytest.approx(right, abs=1e-3)
        with pytest.raises(ConfigurationError, match="differ in several"):
            evaluate({"it": remote(server, True)}, ["truthfulqa_mc2"], tmp_path / "b", settings=SHORT, data=data)
    with serving(LLAMA_CPP) as server, pytest.raises(ConfigurationError, match="no log-probabilities of prompts"):
        evaluate({"it": remote(server)}, ["truthfulqa_mc2"], tmp_path / "c", settings=SHORT, data=data)


def test_a_yaml_file_describes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TOKENIZER.save_pretrained(tmp_path / "large")
    file = tmp_path / "remote.yaml"
    text = f"url: http://localhost:1\ntokenizer: {tmp_path / 'large'}\nkey_from: SOME_KEY\nextra_requests: 2\n"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="'SOME_KEY', which is not set"):
        read_system(file)
    monkeypatch.setenv("SOME_KEY", "a-secret")
    system = read_system(file)
    assert isinstance(system, RemoteSystem)
    assert (system.composed, system.values, system.extra_requests) == ("base", {}, 2)
    assert "a-secret" not in json.dumps(describe_system(system))
    file.write_text(text + "alpa: 1\n")
    with pytest.raises(RecipeError, match=r"line 5.*Did you mean 'alpha'"):
        read_system(file)
    tuned = RemoteSystem(system.base, PAIR)
    assert tuned.values == {"alpha": 1.0}
    assert describe_system(tuned)["digest"] != describe_system(dataclasses.replace(tuned, alpha=0.5))["digest"]
    assert describe_system(tuned)["digest"] != describe_system(system)["digest"]
