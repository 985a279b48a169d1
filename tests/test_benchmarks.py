"""The benchmarks at a size that takes seconds: that they run whole and that what they report follows from the times."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def decode(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import decode

    yield decode
    for name in ("decode", "members"):
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
