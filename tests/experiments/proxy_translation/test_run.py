"""The whole experiment on two tiny models, and its parts: sentence pairs, tuning, scores, chrF."""

import dataclasses
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lmcompose.errors import DataError, MemberError
from lmcompose.experiments.proxy_translation import measure, pairs, run, tuning
from lmcompose.experiments.proxy_translation.__main__ import write_report
from lmcompose.experiments.proxy_translation.chrf import chrf
from lmcompose.experiments.proxy_translation.profiles import Profile
from lmcompose.experiments.proxy_translation.stages import WRITERS
from lmcompose.reporting.proxy_tables import alphas_grid, losses_grid
from lmcompose.reporting.translation_tables import chrf_grid, translation_grids

sacrebleu = pytest.importorskip("sacrebleu")

ROOT = Path(__file__).parents[3]
TINY = Profile(
    tuned_pairs=24, tested_pairs=8, longest=40, rank=2, lora_alpha=4, learning_rate=2e-2, warmup=1, rows=4,
    alphas=(0.0, 1.0), temperatures=(1.0, 2.0), new_tokens=6, rows_at_once=3,
)  # fmt: skip
WORDS = {"dog": "eey", "cat": "bisad", "house": "guri", "water": "biyo", "man": "nin", "sun": "qorrax"}


def sentences(count: int, seed: int) -> list[pairs.Pair]:
    generator = np.random.default_rng(seed)
    chosen = [generator.choice(list(WORDS), 4) for _ in range(count)]
    return [(" ".join(row) + f" {seed}{n}", " ".join(WORDS[word] for word in row)) for n, row in enumerate(chosen)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one byte-level tokenizer, HornMT and NTREX, all made up."""
    place = tmp_path_factory.mktemp("translation")
    alphabet = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    for number, (name, width) in enumerate((("large", 32), ("small", 16))):
        torch.manual_seed(number)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=width, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1,
        )  # fmt: skip
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    for name, files, count in (
        ("hornmt", ("eng.txt", "som.txt"), 30),
        ("ntrex", (pairs.NTREX_ENGLISH, pairs.NTREX.format(language="som")), 12),
    ):
        (place / name).mkdir()
        for side, file in zip(zip(*sentences(count, len(name)), strict=True), files, strict=True):
            (place / name / file).write_text("\n".join(side) + "\n", encoding="utf-8")
    return place


def run_in(folder: Path, runs: str = "runs", **changes: object) -> dict:
    settings = {"hornmt": folder / "hornmt", "ntrex": folder / "ntrex", "profile": TINY, "command": "python -m x"}
    console = Console(file=io.StringIO(), width=120)
    return run(folder / "large", folder / "small", folder=folder / runs, console=console, **{**settings, **changes})


@pytest.fixture(scope="module")
def result(folder: Path) -> dict:
    return run_in(folder)


def test_the_result_is_json_and_is_reported(result: dict, tmp_path: Path) -> None:
    places = write_report(result, tmp_path / "som.json")
    assert all(place.stat().st_size > 0 for place in places)
    again = json.loads(places[0].read_text())
    text = places[1].read_text()
    assert again["command"] == "python -m x"
    assert "python -m x" in text
    assert all(grid.title in text for grid in translation_grids(again))
    assert "Somali" in text


def test_the_sweep_at_the_ends_is_what_the_models_say(result: dict) -> None:
    """Law 7 on the figures: alpha 0 is the base, and alpha 1 the proxy-tuned base."""
    zero, one = result["alpha"]["proxy"]
    assert zero["loss"]["mean"] == result["models"]["base"]["loss"]["mean"]
    assert one["loss"]["mean"] == result["models"]["proxy"]["loss"]["mean"]
    assert result["alpha"]["expert_only"][0]["loss"]["mean"] == result["models"]["base"]["loss"]["mean"]


def test_tuning_lowers_the_loss_on_sentences_of_the_same_kind(result: dict) -> None:
    losses = {name: model["loss"]["mean"] for name, model in result["models"].items()}
    assert losses["tuned"] < losses["base"] - 0.05
    assert losses["expert"] < losses["antiexpert"] - 0.05


def test_the_base_alone_scores_what_the_result_says(folder: Path, result: dict) -> None:
    """Bits per character by hand, from the plain model."""
    unseen = pairs.without(pairs.ntrex(folder / "ntrex", "som"), pairs.hornmt(folder / "hornmt", "som"))
    test = pairs.choose(unseen, TINY.tested_pairs, TINY.longest, 0)
    model = AutoModelForCausalLM.from_pretrained(folder / "large", dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder / "large")
    bits, characters = 0.0, 0
    for english, translation in test:
        before = tokenizer(pairs.prompt(english, "som"))["input_ids"]
        after = tokenizer(pairs.answer(translation))["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1].float()
        bits -= float(logits.log_softmax(-1).gather(1, torch.tensor(after)[:, None]).sum()) / np.log(2)
        characters += len(pairs.answer(translation))
    assert result["characters"] == characters
    assert result["models"]["base"]["loss"]["mean"] == pytest.approx(bits / characters, rel=1e-4)


def test_a_second_run_takes_everything_from_the_first(folder: Path, result: dict) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    again = run_in(folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()} == stamps
    assert again["models"] == result["models"]
    assert again["chrf"] == result["chrf"]


def test_an_adapter_that_is_gone_is_made_again(folder: Path, result: dict) -> None:
    shutil.copytree(folder / "runs", folder / "copy")
    shutil.rmtree(folder / "copy" / "som" / "expert")
    assert run_in(folder, "copy")["models"] == result["models"]
    assert (folder / "copy" / "som" / "expert" / "adapter_config.json").exists()


def test_tuning_goes_on_after_a_stop(
    folder: Path, result: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "SAVED_EVERY", 2)
    train = pairs.choose(pairs.hornmt(folder / "hornmt", "som"), TINY.tuned_pairs, TINY.longest, 0)

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    arguments = (folder / "small", train, "som", TINY, tmp_path / "expert", 0)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(*arguments, stop)
    assert not (tmp_path / "expert").exists()
    seen: list[int] = []
    notes = tuning.tune(*arguments, lambda step, steps, loss: seen.append(step))
    assert seen == [3, 4, 5, 6]
    assert notes["curve"][-1]["loss"] == pytest.approx(result["adapters"]["expert"]["curve"][-1]["loss"], abs=2e-2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expert"]


def test_only_the_answer_has_labels(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "small")
    row = tuning.Answers([("a dog", "eey")], "som", tokenizer)[0]
    labelled = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label >= 0]
    assert tokenizer.decode(labelled) == " eey\n"
    assert tokenizer.decode(row["input_ids"]) == pairs.prompt("a dog", "som") + " eey\n"


def test_translations_are_the_same_one_by_one(folder: Path, result: dict) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "large", dtype=torch.float32)
    tokenizer, test = AutoTokenizer.from_pretrained(folder / "large"), sentences(5, 1)
    together, alone = (measure.translate(model, tokenizer, test, "som", 6, rows, lambda done: None) for rows in (5, 1))
    assert together == alone
    assert len(together) == 5


def test_chrf_is_sacrebleus() -> None:
    references = ["waa maalin wanaagsan", "bisad iyo eey", "guri weyn", "biyo qabow"]
    written = {
        "base": ["a good day", "cat", "", "water"],
        "proxy": ["waa maalin", "bisad eey", "guri", "biyo"],
        "tuned": references,
    }
    found = chrf(written, references, resamples=50)
    for name, lines in written.items():
        for metric, beta in (("chrf1", 1), ("chrf2", 2)):
            theirs = sacrebleu.corpus_chrf(lines, [references], beta=beta).score
            assert found["models"][name][metric][0] == pytest.approx(theirs, abs=1e-9)
    estimate, low, high = found["gap_closed"]["proxy"]
    assert low <= estimate <= high
    assert 0 < estimate < 1
    assert found["models"]["base"]["empty"] == 0.25
    assert set(found["gap_closed"]) == {"proxy"}


def test_every_model_has_written_every_sentence(result: dict) -> None:
    assert list(result["chrf"]["models"]) == list(WRITERS)
    assert all(set(WRITERS) <= sample.keys() for sample in result["samples"])


def test_the_documentation_shows_the_committed_result() -> None:
    committed = json.loads((ROOT / "results" / "proxy_translation" / "som.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "proxy-translation.md").read_text(encoding="utf-8")
    task = {committed["language"]: committed}
    for grid in (losses_grid(committed, "bits per character"), chrf_grid(committed), alphas_grid(task)):
        assert grid.to_markdown() in page
    assert committed["documents"] >= 300
    assert committed["recipe"]["profile"] == json.loads(json.dumps(dataclasses.asdict(Profile())))


# ------------------------------------------------------------------------------------------------------ sentence pairs


def test_a_sentence_that_was_tuned_on_is_not_tested_on() -> None:
    seen = [("A dog, runs!", "eey ordaya")]
    test = [("a dog runs", "x"), ("y", "Eey  Ordaya."), ("a cat", "bisad")]
    assert pairs.without(test, seen) == [("a cat", "bisad")]


def test_the_choice_keeps_the_order_and_is_the_seeds() -> None:
    every = [(f"{n:02d}", "x") for n in range(50)]
    chosen = pairs.choose(every, 10, 5, seed=1)
    assert chosen == sorted(chosen)
    assert chosen == pairs.choose(every, 10, 5, seed=1)
    assert chosen != pairs.choose(every, 10, 5, seed=2)


@pytest.mark.parametrize(
    ("written", "line"), [(" eey\nmore", "eey"), ("\n\n bisad \n", "bisad"), ("", ""), ("no end", "no end")]
)
def test_the_translation_is_the_first_line(written: str, line: str) -> None:
    assert pairs.first_line(written) == line


def test_what_cannot_be_run_is_refused_before_a_model_is_loaded(folder: Path, tmp_path: Path) -> None:
    for changes, words in (
        ({"hornmt": tmp_path}, r"eng\.txt.* cannot be read"),
        ({"language": "fra"}, "no language 'fra'"),
        ({"profile": dataclasses.replace(TINY, longest=3)}, "Only 0 of 30"),
        ({"profile": dataclasses.replace(TINY, tested_pairs=13)}, "Only 12 of 12"),
    ):
        with pytest.raises(DataError, match=words):
            run_in(folder, "refused", **changes)
    with pytest.raises(MemberError, match="nowhere"):
        run(tmp_path / "nowhere", folder / "small", hornmt=folder / "hornmt", ntrex=folder / "ntrex", profile=TINY)
    assert not (folder / "refused").exists()


def test_files_that_are_not_line_by_line_are_refused(tmp_path: Path) -> None:
    (tmp_path / "eng.txt").write_text("one\ntwo\n")
    (tmp_path / "som.txt").write_text("mid\n")
    with pytest.raises(DataError, match=r"2 lines .* 1"):
        pairs.hornmt(tmp_path, "som")
