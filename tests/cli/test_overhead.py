"""`lmcompose overhead` prints what `overhead_report` counts."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from lmcompose.experiments.overhead import overhead_report, worked_example
from lmcompose.experiments.overhead.measure import MEMBERS
from tests.cli.conftest import Run, Saved, one_line
from tests.test_adapters import lora, rewrite
from tests.test_gguf import write_gguf
from tests.tiny import tiny_model


@pytest.mark.parametrize("connections", [None, 2])
def test_json(run: Run, saved: Saved, connections: int | None) -> None:
    options = ["-n", connections] if connections else []
    result = run("overhead", saved.augmenting, saved.anchor, "--json", *options)
    assert result.exit_code == 0, result.stderr
    configs = [AutoConfig.from_pretrained(folder) for folder in (saved.anchor, saved.augmenting)]
    assert json.loads(result.stdout) == overhead_report(*configs, n=connections)


def test_a_low_rank(run: Run, saved: Saved) -> None:
    plain, low = (
        json.loads(run("overhead", saved.augmenting, saved.anchor, "-n", 3, "--json", *options).stdout)
        for options in ([], ["--rank", 4])
    )
    assert low["rows"][:-1] == plain["rows"]
    assert low["rows"][-1]["composition"] == 3 * 4 * (24 + 9 * 32)
    assert low["rows"][-1]["anchor"] == plain["rows"][-1]["anchor"]
    assert "exact, rank 4" in run("overhead", saved.augmenting, saved.anchor, "--rank", 4).stdout
    refused = run("overhead", saved.augmenting, saved.anchor, "--rank", 25)
    assert refused.exit_code == 2
    assert "from 1 to 24" in one_line(refused)


def test_the_papers_example(run: Run) -> None:
    assert json.loads(run("overhead", "--example", "--json").stdout) == worked_example()
    text = run("overhead", "--example").stdout
    for figure in ("15 M", "1.5 %", "4.4 %", "5.7 %"):
        assert figure in text


def test_lengths_change_attention_alone(run: Run, saved: Saved) -> None:
    short, long = (
        json.loads(run("overhead", saved.augmenting, saved.anchor, "--json", "--length", length).stdout)
        for length in (8, 16)
    )
    assert short["rows"] == long["rows"]
    # 4 heads of 8, for scores and values, in 3 layers; three times as much with the backward pass
    added = long["training"]["methods"]["full"]["total"] - short["training"]["methods"]["full"]["total"]
    assert added == 3 * (2 * 2 * 32 * 8 * 3)
    assert long["decoding"]["anchor"] - short["decoding"]["anchor"] == added / 3


@pytest.mark.slow
def test_measure(run: Run, saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w1 w2 w3 . " * 50)
    options = ["--length", 16, "--batch", 1, "--new-tokens", 3, "--repetitions", 1, "--text", tmp_path / "text.txt"]
    result = run("overhead", saved.augmenting, saved.anchor, "--measure", "--methods", "full,calm", "--json", *options)
    assert result.exit_code == 0, result.stderr
    assert "Training by CALM" in result.stderr
    report = json.loads(result.stdout)
    plain = json.loads(run("overhead", saved.augmenting, saved.anchor, "--json", "--length", 16).stdout)
    measured = report.pop("measured")
    assert report == plain
    assert list(measured["training"]) == ["calm", "full"]
    for method, found in measured["training"].items():
        assert found["trained"] == plain["training"]["methods"][method]["trained"]
        full = measured["training"]["full"]["seconds_per_step"]
        assert found["over_full"] == pytest.approx(found["seconds_per_step"] / full)
        assert found["peak_bytes"] > 50 * 2**20
    decoding = measured["decoding"]
    anchor, augmenting, both = (decoding[name]["seconds_per_token"] for name in MEMBERS)
    assert decoding["over_anchor"] == pytest.approx(both / anchor)
    assert decoding["over_members"] == pytest.approx(both / (anchor + augmenting))
    assert (measured["text"], measured["batch"], measured["length"]) == ("text.txt", 1, 16)
    assert {"command", "versions", "machine"} <= measured.keys()


def test_adapters_and_gguf_files(run: Run, saved: Saved, tmp_path: Path) -> None:
    adapter = lora(str(saved.anchor))
    adapter.save_pretrained(tmp_path / "tuned")
    file = write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    expected = json.loads(run("overhead", saved.augmenting, saved.anchor, "--json").stdout)["rows"]
    for anchor in (tmp_path / "tuned", file):
        result = run("overhead", saved.augmenting, anchor, "--json")
        assert result.exit_code == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["anchor"]["name"] == str(anchor)
        assert report["rows"] == expected
    rewrite(tmp_path / "tuned", base_model_name_or_path="../gone")
    message = one_line(run("overhead", saved.augmenting, tmp_path / "tuned"))
    assert message.startswith(f"No model configuration at '../gone', the base of the adapter '{tmp_path / 'tuned'}'")


def test_bad_input(run: Run, saved: Saved, tmp_path: Path) -> None:
    pair, missing = (saved.augmenting, saved.anchor), tmp_path / "no.txt"
    for arguments, message in (
        ([], "Name two models"),
        ([saved.anchor], "Name the anchor model as well"),
        ([saved.anchor, saved.anchor, "--example"], "Name two models"),
        (["--example", "--measure"], "The example has no weights to measure"),
        ([*pair, "--methods", "calm,lara"], "--methods: 'lara' is none of calm, lora, full. Did you mean 'lora'"),
        ([*pair, "--methods", ","], "--methods names none"),
        ([*pair, "--measure", "--text", missing], f"--text '{missing}' cannot be read"),
        ([tmp_path, saved.anchor], f"No model configuration at '{tmp_path}' (for the augmenting model)"),
        ([saved.augmenting, saved.folder], f"'{saved.folder}' (for the anchor model) is a saved composition"),
        ([saved.anchor, tmp_path / "no.gguf"], f"No model configuration at '{tmp_path / 'no.gguf'}' (for the anchor"),
    ):
        result = run("overhead", *arguments)
        assert result.exit_code == 2
        assert one_line(result).startswith(message)
