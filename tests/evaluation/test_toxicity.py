"""Toxicity of continuations: the measures by hand, a tiny classifier of random weights, and runs that were stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import proxy_tune
from lmcompose.errors import ConfigurationError, DataError, MemberError
from lmcompose.evaluation.losses import Losses
from lmcompose.evaluation.opening import Loading
from lmcompose.evaluation.statistics import wilson_interval
from lmcompose.evaluation.toxicity import Classifier, measures, toxicity
from lmcompose.evaluation.toxicity.prompts import read_prompts
from lmcompose.evaluation.writing import Writer, Writing
from lmcompose.reporting.report.charts import Rows
from lmcompose.reporting.report.kinds import KINDS
from tests.evaluation.classifiers import save_classifier
from tests.tiny import tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPTS = ["w1 w2", "w3", "w4 w5 w6", "w7 w8"]
HOW = Writing(max_new_tokens=6, samples=3, temperature=1.0, top_p=0.9, seed=5)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return Classifier(save_classifier(tmp_path_factory.mktemp("classifier")), "toxic", Loading(device="cpu"))


def models() -> dict[str, Any]:
    base = (tiny_model("llama", 0), TOKENIZER)
    return {
        "base": base,
        "steered": proxy_tune(base, (tiny_model("llama", 1), TOKENIZER), (tiny_model("llama", 2), TOKENIZER)),
    }


# ------------------------------------------------------------------------------------------------------------ measures


def test_the_measures_by_hand() -> None:
    scores = [[0.1, 0.9], [0.4, 0.2], [0.5, 0.0]]
    assert measures.expected_maximum(scores)["estimate"] == pytest.approx((0.9 + 0.4 + 0.5) / 3)
    found = measures.probability(scores)
    assert (found["estimate"], found["interval"]) == (pytest.approx(2 / 3), list(wilson_interval(2, 3)[1:]))
    assert measures.probability(scores, 0.6)["estimate"] == pytest.approx(1 / 3)
    assert measures.expected_maximum([[0.3]]) == {"estimate": 0.3, "interval": None, "count": 1}
    assert measures.distinct(["a b a", "a b"], 1) == 2 / 5
    assert measures.distinct(["a b a", "a b"], 2) == 2 / 3  # a pair does not reach from one text into the next
    assert measures.distinct(["a b", ""], 3) is None
    assert measures.diversity([["a"], ["a b"]])["distinct-2"]["count"] == 1
    assert measures.diversity([["a"]])["distinct-3"] is None
    assert measures.perplexity([2.0, 4.0], [1, 2])["estimate"] == pytest.approx(math.e**2)  # type: ignore[index]
    assert measures.perplexity([0.0], [0]) is None


# ---------------------------------------------------------------------------------------------------------- classifier


def test_scores_are_the_models_own_in_a_batch_as_alone(classifier: Classifier) -> None:
    texts = ["w1", "w2 w3 w4", " ", "w5 w6", " ".join(["w7"] * 40)]
    found = classifier.scores(texts)
    for text, score in zip(texts, found, strict=True):
        if not text.strip():
            assert score == 0
            continue
        ids = torch.tensor([TOKENIZER(text)["input_ids"][:16]])
        with torch.no_grad():
            expected = classifier.model(ids).logits.softmax(-1)[0, 1]
        assert score == pytest.approx(float(expected), abs=1e-5)
    assert len({round(score, 3) for score in found}) == 5


def test_labels_that_do_not_exclude_each_other_have_a_sigmoid(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, problem_type="multi_label_classification")
    several = Classifier(folder, "1", Loading(device="cpu"))
    assert several.label == "toxic"
    with torch.no_grad():
        logits = several.model(torch.tensor([TOKENIZER("w1 w2")["input_ids"]])).logits
    assert several.scores(["w1 w2"])[0] == pytest.approx(float(logits.sigmoid()[0, 1]), abs=1e-5)


def test_a_label_or_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "good")
    (folder / "model.safetensors").unlink()  # the label is checked before weights are read
    with pytest.raises(ConfigurationError, match=r"it has neutral, toxic, odd\. Did you mean 'toxic'"):
        Classifier(folder, "toxik")
    with pytest.raises(MemberError, match="cannot be read as a text classifier"):
        Classifier(folder, "toxic")


# ----------------------------------------------------------------------------------------------------------- whole runs


def test_models_side_by_side_and_a_run_that_goes_on(classifier: Classifier, tmp_path: Path) -> None:
    named = models()
    options: Any = {"how": HOW, "loading": Loading(batch_size=2), "perplexity_under": named["base"]}
    whole = toxicity(named, PROMPTS, classifier, tmp_path / "whole", **options)
    kept = (tmp_path / "whole" / "steered.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in kept[1:]]
    assert [row["prompt"] for row in rows] == PROMPTS
    assert all(len(row["texts"]) == 3 for row in rows)
    assert len({text for row in rows for text in row["texts"]}) > 6  # samples differ
    for row in rows:
        assert row["scores"] == pytest.approx(classifier.scores(row["texts"]))
    expected = sum(max(row["scores"]) for row in rows) / len(rows)
    assert whole["scores"]["expected_maximum"]["steered"]["estimate"] == pytest.approx(expected)
    assert whole["comparisons"]["steered"]["better"] == "lower"
    assert whole["scores"]["perplexity"]["base"]["estimate"] > 1
    # Stopped after two prompts of the second model: the rest comes out the same.
    part = tmp_path / "part"
    part.mkdir()
    (part / "base.jsonl").write_text((tmp_path / "whole" / "base.jsonl").read_text())
    (part / "steered.jsonl").write_text("\n".join(kept[:3]) + '\n{"key": "2", "pro')
    told: list[str] = []
    again = toxicity(named, PROMPTS, classifier, part, report=told.append, **options)
    assert "steered: 2 of 4 prompts are there already" in told
    assert again["scores"] == whole["scores"]
    section = KINDS[whole["what"]].build(whole)
    assert section.headline == f"steered beside base: {whole['comparisons']['steered']['verdict']}."
    chart = next(block for block in section.blocks if isinstance(block, Rows))
    assert [mark.estimate.value for mark in chart.rows[0].marks] == [
        each["estimate"] for each in whole["scores"]["expected_maximum"].values()
    ]
    with pytest.raises(ConfigurationError, match="differs in top_p"):
        toxicity(named, PROMPTS, classifier, part, **{**options, "how": Writing(6, 3, 1.0, 0.8, seed=5)})


def test_what_cannot_be_is_said(classifier: Classifier, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="all samples are the same"):
        Writing(samples=2)
    with pytest.raises(ConfigurationError, match="threshold = 2"):
        toxicity(models(), PROMPTS, classifier, tmp_path, how=HOW, threshold=2)
    short = (tiny_model("gpt2", 0, max_position_embeddings=8), TOKENIZER)
    with pytest.raises(DataError, match="Prompt 2 has 3 tokens, and with 6 new ones that is more than the 8"):
        toxicity({"it": short}, PROMPTS, classifier, tmp_path, how=HOW)


def test_prompts_from_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": {"text": "one two", "toxicity": 0.1}}\n{"prompt": "three"}\n')
    assert read_prompts(file) == ["one two", "three"]
    assert read_prompts(file, 1) == ["one two"]
    file.write_text('{"prompt": {"toxicity": 1}}')
    with pytest.raises(DataError, match="line 1: 'prompt' must be a text"):
        read_prompts(file)
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    assert read_prompts(tmp_path / "prompts.txt") == ["one", "two"]
    with pytest.raises(DataError, match="No such file"):
        read_prompts(tmp_path / "none.txt")


# ---------------------------------------------------------------------------------------------------- writing, reading


def test_a_sample_depends_on_its_prompt_and_number_alone() -> None:
    writer = Writer((tiny_model("llama", 0), TOKENIZER), Loading(batch_size=2))
    numbered = list(enumerate(PROMPTS))
    whole = dict(writer.write(numbered, HOW))
    assert dict(writer.write(numbered[2:], HOW)) == {number: whole[number] for number in (2, 3)}
    assert dict(writer.write(numbered, Writing(6, 3, 1.0, 0.9, seed=6))) != whole


def test_a_text_ends_before_a_stop_text() -> None:
    writer = Writer((tiny_model("llama", 0), TOKENIZER), Loading(batch_size=3))
    greedy = dict(writer.write(list(enumerate(PROMPTS)), Writing(12)))
    word = greedy[0][0].split()[3]
    stopped = dict(writer.write(list(enumerate(PROMPTS)), Writing(12, stop=(word,))))
    for number, (text,) in greedy.items():
        assert stopped[number][0] == text.split(word)[0]
    assert stopped[0] != greedy[0]


def test_the_loss_of_texts_is_that_of_their_tokens() -> None:
    model = tiny_model("llama", 0)
    nats, tokens = Losses((model, TOKENIZER)).of("w1 w2", [" w3 w4", "", " w5"])
    expected = 0.0
    for text in ("w3 w4", "w5"):
        ids = torch.tensor([TOKENIZER(f"w1 w2 {text}")["input_ids"]])
        with torch.no_grad():
            scores = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        expected -= float(scores[1:].sum())
    assert (nats, tokens) == (pytest.approx(expected, abs=1e-4), 3)


def test_a_model_for_perplexity_that_is_missing_is_said_before_any_writes(
    classifier: Classifier, tmp_path: Path
) -> None:
    told: list[str] = []
    with pytest.raises(MemberError):
        toxicity(
            models(),
            ["w0"],
            classifier,
            tmp_path,
            how=Writing(2),
            perplexity_under=tmp_path / "none",
            report=told.append,
        )
    assert told == []
    assert list(tmp_path.iterdir()) == []
