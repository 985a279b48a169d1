"""`lmcompose judge`, `toxicity` and `translate`, and models behind an API in `evaluate`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.cli.conftest import Proxy, Run, Saved, one_line
from tests.evaluation.classifiers import save_classifier
from tests.evaluation.judging.chat_server import ChatServer
from tests.evaluation.samples import write_samples
from tests.logits.remote_server import VLLM, CompletionsServer
from tests.tiny import tiny_tokenizer


def test_judge_two_systems(run: Run, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"instruction": f"w{number}"}) + "\n" for number in range(3)))
    written = tmp_path / "mine.jsonl"
    written.write_text("".join(json.dumps({"id": str(number), "answer": "w1 " * 30}) + "\n" for number in range(3)))
    options = ["--instructions", tasks, "--judge", "big", "--output", tmp_path / "out", "--max-new-tokens", "3"]
    monkeypatch.setenv("A_KEY", "a-secret")
    with ChatServer() as server:
        options += ["--url", server.url, "--key-from", "A_KEY"]
        shown = run("judge", written, saved.folder, *options)
        assert shown.exit_code == 0
        assert "win rate of mine, %" in shown.stdout
        assert server.headers["Authorization"] == "Bearer a-secret"
        result = json.loads(run("judge", written, saved.folder, *options, "--json").stdout)
        assert len(server.bodies) == 6
    assert result["systems"] == ["mine", "composition"]
    assert result["counts"]["wins"] == 3
    refused = run("judge", written, saved.folder, *options[:-1], "NO_KEY")
    assert (refused.exit_code, "'NO_KEY', which is not set" in one_line(refused)) == (2, True)


def test_toxicity_of_two_models(run: Run, saved: Saved, proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("w1 w2\nw3\n")
    classifier = save_classifier(tmp_path / "classifier")
    options = ["--prompts", tmp_path / "prompts.txt", "--classifier", classifier, "--output", tmp_path / "out"]
    options += ["--samples", "2", "--max-new-tokens", "3", "--perplexity-under", saved.anchor]
    shown = run("toxicity", saved.anchor, f"steered={proxy.folder}", *options, "--label", "toxic")
    assert shown.exit_code == 0
    assert all(word in shown.stdout for word in ("expected maximum toxicity", "steered", "distinct-2", "perplexity"))
    refused = run("toxicity", saved.anchor, *options, "--label", "taxic")
    assert (refused.exit_code, "Did you mean 'toxic'" in one_line(refused)) == (2, True)


def test_translate_a_data_set(run: Run, saved: Saved, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "w1 w2", "answer": "3"}\n{"question": "w3", "answer": "4"}\n')
    options = ["--field", "question", "--to", "Somali", "--model", saved.folder, "--output", tmp_path / "out"]
    options += ["--max-new-tokens", "3", "--template", "{source} : {text}\\n{target} :"]
    shown = run("translate", data, *options)
    assert shown.exit_code == 0
    assert "question, from English into Somali and back" in shown.stdout
    result = json.loads(run("translate", data, *options, "--threshold", "0", "--json").stdout)
    assert (result["texts"], result["direction"]["template"]) == (2, "{source} : {text}\n{target} :")
    assert (tmp_path / "out" / "kept.jsonl").exists()


def test_a_model_behind_an_api_beside_others(run: Run, saved: Saved, tmp_path: Path) -> None:
    data = write_samples(tmp_path / "data")
    model = AutoModelForCausalLM.from_pretrained(saved.anchor).eval()
    with CompletionsServer(model, tiny_tokenizer(), VLLM) as server:
        (tmp_path / "far.yaml").write_text(f"url: {server.url}\ntokenizer: {saved.anchor}\n")
        options = ["--tasks", "nq_open", "--data", data, "--shots", "0", "--max-new-tokens", "2"]
        shown = run("evaluate", saved.anchor, tmp_path / "far.yaml", *options, "--output", tmp_path / "out", "--json")
    result = json.loads(shown.stdout)
    assert list(result["models"]) == ["large", "far"]
    found = [
        json.loads((tmp_path / "out" / name / "nq_open.json").read_text())["examples"] for name in ("large", "far")
    ]
    assert [row["responses"] for row in found[0]] == [row["responses"] for row in found[1]]
