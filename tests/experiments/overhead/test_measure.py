"""What is measured: that each method trains what it says, that memory is told, and what is refused beforehand."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, PreTrainedTokenizerFast

from lmcompose.errors import ConfigurationError, DataError, MemberError
from lmcompose.experiments.overhead import jobs, overhead_report
from lmcompose.experiments.overhead import measure as measuring
from lmcompose.experiments.overhead.jobs import Job, in_a_process_of_its_own, measure_decoding, measure_training
from lmcompose.experiments.overhead.steps import tuned
from lmcompose.memory import forget_peak, peak_bytes, used_bytes
from tests.test_adapters import lora
from tests.tiny import save_tiny, tiny_model
from tests.tokenizers import family

TEXT = "w1 w2 user : w3 w4 . " * 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("pair")
    anchor = save_tiny(root / "large", "llama", num_hidden_layers=4)
    return str(anchor), str(save_tiny(root / "small", "gpt2", 1, hidden_size=24))


def counted(pair: tuple[str, str], tokens: float = 1.0) -> dict:
    return overhead_report(*map(AutoConfig.from_pretrained, pair), length=8, augmenting_tokens=tokens)


def job_of(pair: tuple[str, str], report: dict) -> Job:
    reading = measuring.read(*pair, TEXT, batch=2, length=8, prompt=5)
    rank = report["training"]["methods"]["lora"]["rank"]
    return Job(*pair, report["pairs"], rank, reading.rows, reading.prompts, 4, 2, None, "cpu")


@pytest.mark.parametrize("method", ["calm", "lora", "full"])
def test_a_method_trains_what_was_counted(pair: tuple[str, str], method: str) -> None:
    report = counted(pair)
    found = measure_training(method, job_of(pair, report))
    assert found["trained"] == report["training"]["methods"][method]["trained"]
    assert len(found["seconds"]) == 2
    assert min(found["seconds"]) <= found["seconds_per_step"] <= max(found["seconds"])
    assert found["step_bytes"] < found["peak_bytes"]


@pytest.mark.parametrize("name", measuring.MEMBERS)
def test_decoding(pair: tuple[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = []
    real = jobs.decode
    monkeypatch.setattr(jobs, "decode", lambda *given: prompts.append(given[1].tolist()) or real(*given))
    job = job_of(pair, counted(pair))
    job.prompts["augmenting"] = [7, 8, 9]
    found = measure_decoding(name, job)
    assert len(found["seconds"]) == 2 * 3  # of each of two runs, all tokens but the first
    assert all(second > 0 for second in [*found["seconds"], found["first_seconds"]])
    assert prompts == 3 * [[[7, 8, 9] if name == "augmenting" else job.prompts["anchor"]]]


def test_the_clock(pair: tuple[str, str]) -> None:
    job = job_of(pair, counted(pair))
    assert (job.now, dataclasses.replace(job, cpu_time=True).now) == (time.perf_counter, time.process_time)


def test_full_tuning_changes_the_anchor_and_lora_does_not(pair: tuple[str, str]) -> None:
    every = [parameter.requires_grad for parameter in tuned(pair[0], None, None, "cpu").parameters()]
    assert all(every)
    adapted = tuned(pair[0], 2, None, "cpu")
    assert {"lora" in name for name, each in adapted.named_parameters() if each.requires_grad} == {True}


def test_rows_are_the_text_in_the_anchors_tokens(pair: tuple[str, str]) -> None:
    reading = measuring.read(*pair, TEXT, batch=3, length=4, prompt=6)
    ids = PreTrainedTokenizerFast.from_pretrained(pair[0])(TEXT, add_special_tokens=False)["input_ids"]
    assert reading.rows == [ids[:4], ids[4:8], ids[8:12]]
    assert reading.prompts == {"anchor": ids[:6], "augmenting": ids[:6]}
    assert reading.augmenting_tokens == 1
    short = measuring.read(*pair, "w1 w2 w3", batch=2, length=4, prompt=2)
    assert short.rows[0][:3] == short.rows[0][3:] + short.rows[1][:2]  # three tokens, again and again
    with pytest.raises(DataError, match="The text is empty"):
        measuring.read(*pair, " ", 1, 4, 2)


def test_a_tokenizer_of_its_own_is_counted_on_the_text(pair: tuple[str, str], tmp_path: Path) -> None:
    foreign = family("qwen")
    tiny_model("gpt2", 3, vocab_size=len(foreign)).save_pretrained(tmp_path)
    foreign.save_pretrained(tmp_path)
    reading = measuring.read(pair[0], str(tmp_path), TEXT, 2, 8, 5)
    ours = PreTrainedTokenizerFast.from_pretrained(pair[0])
    theirs = [foreign(ours.decode(row), add_special_tokens=False)["input_ids"] for row in reading.rows]
    assert reading.augmenting_tokens == sum(map(len, theirs)) / 16 > 1
    assert reading.prompts["augmenting"] == foreign(TEXT)["input_ids"][:5]


def test_models_without_tokenizers_read_random_tokens(tmp_path: Path) -> None:
    for name in ("large", "small"):
        tiny_model("llama").save_pretrained(tmp_path / name)
    reading = measuring.read(str(tmp_path / "large"), str(tmp_path / "small"), TEXT, 2, 8, 5)
    assert len({*reading.rows[0], *reading.rows[1]}) > 8


def test_what_cannot_fit_is_refused(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    report = counted(pair)
    needed = measuring.needed_bytes(*pair, report, ["calm", "lora", "full"])
    anchor, augmenting = report["anchor"]["parameters"] * 4, report["augmenting"]["parameters"] * 4
    trained = {name: found["trained"] for name, found in report["training"]["methods"].items()}
    assert needed == {
        "calm": anchor + augmenting + 16 * trained["calm"],
        "lora": anchor + 16 * trained["lora"],
        "full": 4 * anchor,
        "decoding": anchor + augmenting,
    }
    largest = max(needed, key=needed.__getitem__)
    monkeypatch.setattr(measuring, "memory", lambda: (needed[largest] - 1, 2**40))
    with pytest.raises(ConfigurationError, match=r"needs .* before its first .* are free: leave it out"):
        measuring.measure(*pair, report, measuring.read(*pair, TEXT, 1, 8, 4))
    others = [name for name in needed if name not in (largest, "decoding")]
    measuring.check_fits(*pair, report, others)
    monkeypatch.setattr(measuring, "memory", lambda: (0, 2**40))
    with pytest.raises(ConfigurationError, match="are free: give smaller models"):
        measuring.check_fits(*pair, report, ["calm"])


def test_an_adapter_and_quantized_weights_are_refused(pair: tuple[str, str], tmp_path: Path) -> None:
    lora(pair[0]).save_pretrained(tmp_path / "tuned")
    with pytest.raises(MemberError, match=r"is an adapter: .* merge_and_unload"):
        measuring.read(str(tmp_path / "tuned"), pair[1], TEXT, 1, 8, 4)
    save_tiny(tmp_path / "packed", "llama")
    config = AutoConfig.from_pretrained(tmp_path / "packed")
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    config.save_pretrained(tmp_path / "packed")
    with pytest.raises(ConfigurationError, match="are quantized, and cannot learn"):
        measuring.needed_bytes(str(tmp_path / "packed"), pair[1], counted(pair), ["full"])


def test_what_no_process_could_do_is_refused(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    reading = measuring.read(*pair, TEXT, batch=1, length=126, prompt=4)
    measuring.check_settings(*pair, reading, ["lora"], 2, "bfloat16")
    with pytest.raises(ConfigurationError, match=r"none of float32, .* Did you mean 'bfloat16'"):
        measuring.check_settings(*pair, reading, ["calm"], 2, "bfloat")
    with pytest.raises(ConfigurationError, match=r"augmenting model\) has positions for 128 tokens, .* about 129"):
        measuring.check_settings(*pair, reading, ["calm"], 125, None)
    monkeypatch.setattr(measuring, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="PEFT, which is not installed"):
        measuring.check_settings(*pair, reading, ["lora"], 2, None)


def test_a_process_that_is_killed_and_one_that_raises() -> None:
    with pytest.raises(ConfigurationError, match=r"measured LoRA was ended .* want of memory"):
        in_a_process_of_its_own("LoRA", os._exit, 137)
    with pytest.raises(ZeroDivisionError):
        in_a_process_of_its_own("LoRA", divmod, 1, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be forgotten")
def test_peak_memory_is_told_and_forgotten() -> None:
    forget_peak()
    before = peak_bytes()
    size = 200 * 2**20
    held = torch.ones(size, dtype=torch.uint8)
    assert used_bytes() > before + 0.9 * size
    del held
    assert peak_bytes() > before + 0.9 * size
    forget_peak()
    assert peak_bytes() < before + 0.5 * size


def test_the_standard_text_is_text() -> None:
    assert len(measuring.standard_text()) > 10_000
