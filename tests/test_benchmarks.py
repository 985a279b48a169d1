"""The benchmarks at a size that takes seconds: that they run whole and that what they report follows from the times."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.logits.remote_server import VLLM, CompletionsServer
from tests.tiny import EOS_ID, save_tiny, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[1]
SMALL = ["--layers", "4", "4", "--hidden", "128", "64", "--threads", "1", "--device", "cpu", "--repetitions", "1"]


def run(script, folder, *options):
    """Run a benchmark as a user does; returns its result and what it printed."""
    output = folder / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / script), *SMALL, *options, "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\n| --- |" in output.with_suffix(".md").read_text()
    return json.loads(output.read_text()), done.stdout


@pytest.mark.slow
def test_decode(tmp_path):
    result, printed = run(
        "decode.py", tmp_path, "--prompts", "5", "9", "--batches", "1", "2", "--new-tokens", "8", "--dtypes", "float32"
    )
    assert [(row["prompt"], row["batch"]) for row in result["results"]] == [(5, 1), (5, 2), (9, 1), (9, 2)]
    for row in result["results"]:
        parts = row["seconds_per_token"]
        assert row["ratio"] == pytest.approx(parts["composition"] / (parts["anchor"] + parts["augmenting"]))
        assert all(seconds > 0 for seconds in parts.values())
    assert (tmp_path / "result.png").stat().st_size > 5000
    assert {"command", "versions", "cores", "threads"} <= set(result)
    assert "Decoding 8 tokens" in printed


@pytest.mark.slow
def test_train(tmp_path):
    result, printed = run("train.py", tmp_path, "--batch", "2", "--length", "16")
    calm, lora = result["results"]["calm"], result["results"]["lora"]
    # 4 augmenting layers make one connection: D_A D_B + 4 D_B^2.
    assert calm["parameters"] == 64 * 128 + 4 * 128**2
    # Per rank: q 256, k 192, v 192, o 256, gate, up and down 128 + 320 each, in 4 layers.
    assert lora["parameters"] == lora["rank"] * 4 * (896 + 3 * 448)
    assert abs(lora["parameters"] / calm["parameters"] - 1) < 0.1
    assert 0 < calm["step_bytes"] < calm["peak_bytes"]
    assert f"LoRA, rank {lora['rank']}" in printed


@pytest.mark.slow
def test_own_tokens(tmp_path):
    tokenizer = save_tiny(tmp_path / "tokenizer", "llama")
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 user : w3 w4 . " * 20)
    result, printed = run(
        "own_tokens.py", tmp_path, "--tokenizer", str(tokenizer), "--text", str(text), "--prompt", "5",
        "--batches", "2", "--new-tokens", "6", "--train-batch", "2", "--length", "16", "--dtype", "float32",
    )  # fmt: skip
    assert [row["what"] for row in result["results"]] == ["decoded token, batch 2", "training step"]
    for row in result["results"]:
        assert row["ratio"] == pytest.approx(row["seconds"]["own"] / row["seconds"]["shared"])
    assert 0 < result["lag"]["tokens"] < result["lag"]["characters"]
    assert "aligned as if they had two" in printed


@pytest.mark.slow
def test_logits(tmp_path):
    result, printed = run(
        "logits.py", tmp_path, "--prompts", "5", "9", "--new-tokens", "8", "--dtypes", "float32", "--batches", "2"
    )
    assert [(row["prompt"], row["batch"]) for row in result["results"]] == [(5, 2), (9, 2)]
    for row in result["results"]:
        seconds = row["seconds_per_token"]
        members = sum(seconds[role] for role in ("base", "expert", "antiexpert"))
        assert row["ratio"] == pytest.approx(seconds["plain"] / members)
        assert row["shared_ratio"] == pytest.approx(seconds["shared"] / members)
        assert "speculative" not in row  # random weights would say nothing
    assert 0 < result["memory"]["shared"]["pair_bytes"] < result["memory"]["shared"]["peak_bytes"]
    assert "Memory of expert and antiexpert" in printed
    assert "With speculation" not in printed


@pytest.mark.slow
def test_logits_of_real_models(tmp_path):
    """Folders, as a user has them; the expert is the base, so that it is often right."""
    folders = {role: save_tiny(tmp_path / role, "llama", seed) for role, seed in
               (("base", 0), ("expert", 0), ("antiexpert", 1))}  # fmt: skip
    given = [part for role, folder in folders.items() for part in (f"--{role}", str(folder))]
    text = tmp_path / "text.txt"
    text.write_text("w1 w5 + w3 . " * 20)
    other = tmp_path / "other.txt"
    other.write_text("w7 w8 w9 w1 w4 . " * 20)
    result, printed = run(
        "logits.py", tmp_path, *given, "--text", str(text), str(other), "--prompts", "5", "--new-tokens", "12",
        "--dtypes", "float32", "--alpha", "0.1",
    )  # fmt: skip
    row, second = result["results"]
    assert (row["text"], second["text"], second["speculative"]["same_text"]) == ("text", "other", 1)
    found, seconds = row["speculative"], row["seconds_per_token"]
    assert found["over_plain"] == pytest.approx(seconds["speculative"] / seconds["plain"])
    assert found["over_base"] == pytest.approx(seconds["speculative"] / seconds["base"])
    assert found["same_text"] == 1
    assert 0 < found["acceptance"] <= 1
    assert "With speculation" in printed
    assert result["members"] == "base (base), expert (expert), antiexpert (antiexpert)"


@pytest.mark.slow
def test_remote(tmp_path):
    """Against a server in this process; the ways differ in what they ask for and not in what they write."""
    folder = save_tiny(tmp_path / "model", "llama", 1)
    with CompletionsServer(tiny_model("llama", seed=1), tiny_tokenizer(), VLLM) as server:
        output = tmp_path / "remote.json"
        command = [
            sys.executable, str(ROOT / "benchmarks" / "remote.py"), "--url", server.url, "--model", str(folder),
            "--prompts", "w1 w2 w3 w9", "w7", "--new-tokens", "8", "--noise", "0.5", "--output", str(output),
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["way"]: row for row in json.loads(output.read_text())["results"]}
    for way in ("token ids", "no drafts", "texts"):
        assert rows[way]["certificate"]["exact"]
        assert all(compared["same"] for compared in rows[way]["compared"])
    alone = rows["the list alone"]
    assert alone["requests"] == alone["certificate"]["tokens"]
    assert rows["no drafts"]["drafted"] == 0 < rows["token ids"]["drafted"]
    assert rows["token ids"]["probe"]["capabilities"]["token_id_prompts"]
    assert not rows["texts"]["probe"]["capabilities"]["token_id_prompts"]
    assert not rows["texts"]["probe"]["capabilities"]["token_ids"]
    assert "| texts | exact |" in output.with_suffix(".md").read_text()


def test_a_certified_token_that_differs_is_wrong_unless_it_ties(monkeypatch):
    import torch

    from lmcompose.logits.remote import RemoteText, RemoteToken

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import remote

    model = tiny_model("llama", seed=1)
    prompt = [5, 6, 7]
    best, second, third = model(torch.tensor([prompt])).logits[0, -1].topk(3).indices.tolist()

    def compared(token, proved=True):
        return remote.compare(model, prompt, [best, EOS_ID], RemoteText(prompt, [
            RemoteToken(token, "", proved, ""), RemoteToken(EOS_ID, "", True, "")
        ]))  # fmt: skip

    assert compared(best) == {"same": True, "alike": 2}
    wrong = compared(third)
    assert (wrong["alike"], wrong["proved"]) == (0, True)
    assert wrong["apart"] > compared(second)["apart"] > remote.TIE
    assert remote.is_wrong(wrong)
    assert not remote.is_wrong(compared(third, proved=False))
    assert not remote.is_wrong({**wrong, "apart": remote.TIE / 2})
    assert not remote.is_wrong(compared(best))
    sys.modules.pop("remote")


@pytest.fixture
def logits(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import logits

    yield logits
    for name in ("logits", "decoding", "members"):
        sys.modules.pop(name, None)


def test_ratios_of_a_logit_composition_by_hand(logits):
    runs = {
        "base": [[0.3, 0.1]] * 3, "expert": [[0.1, 0.1]] * 3, "antiexpert": [[0.1, 0.1]] * 3,
        "plain": [[0.5, 0.3], [9.0, 9.0], [0.5, 0.3]], "shared": [[0.3, 0.3]] * 3, "speculative": [[0.1, 0.1]] * 3,
    }  # fmt: skip
    one = {"accepted": 3, "drafted": 4, "passes": 3, "drafter_passes": 6, "tokens": 6, "positions": 4, "rounds": 2,
           "guessed": 4, "right": 1}  # fmt: skip
    summary = logits.summarise(runs, [one, {**one, "accepted": 1}], [True, False])
    assert summary["ratio"] == pytest.approx(1.0)
    assert summary["shared_ratio"] == pytest.approx(0.75)
    assert summary["speculative"] == pytest.approx(
        {"over_plain": 0.25, "over_base": 0.5, "acceptance": 0.5, "passes_per_token": 0.5,
         "drafter_passes_per_token": 1.0, "guessed_right": 0.25, "draft_length": 2.0, "same_text": 0.5}
    )  # fmt: skip


@pytest.fixture
def decode(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import decode

    yield decode
    for name in ("decode", "decoding", "members"):
        sys.modules.pop(name, None)


def test_medians_ratios_and_growth_by_hand(decode):
    runs = {
        "anchor": [[0.5, 0.1, 0.1, 0.1, 0.1]] * 3,
        "augmenting": [[0.3, 0.1, 0.1, 0.1, 0.1]] * 3,
        # One slow run of three, which medians pass over; steps grow from 0.2 to 0.4.
        "composition": [[0.8, 0.2, 0.2, 0.2, 0.4], [9.0, 9.0, 9.0, 9.0, 9.0], [0.8, 0.2, 0.2, 0.2, 0.4]],
    }
    summary = decode.summarise(runs)
    assert summary["seconds_per_token"] == pytest.approx({"anchor": 0.18, "augmenting": 0.14, "composition": 0.36})
    assert summary["ratio"] == pytest.approx(0.36 / 0.32)
    assert summary["step_ratio"] == pytest.approx(1.0)
    assert summary["growth"] == pytest.approx({"composition": 2.0, "members": 1.0})


def test_the_clock_sees_every_token_and_counts_the_prompt_into_the_first(decode):
    import torch

    options = argparse.Namespace(anchor=None, augmenting=None, layers=[2, 2], hidden=[64, 64], device="cpu")
    anchor, _ = decode.load_pair(options, torch.float32)
    ticks = iter(range(100))
    seconds = decode.decode(anchor, torch.tensor([[5, 6, 7]]), 4, now=lambda: float(next(ticks)))
    assert seconds == [2.0, 1.0, 1.0, 1.0]  # the prompt's echo takes the first tick
