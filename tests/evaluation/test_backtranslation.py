"""Data sets translated there and back: chrF is sacrebleu's, copies are found out, and a run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sacrebleu.metrics import CHRF

from lmcompose import proxy_tune
from lmcompose.errors import ConfigurationError, DataError, MemberError
from lmcompose.evaluation import backtranslation
from lmcompose.evaluation.backtranslation import CHAT_TEMPLATE, Direction, check, read_examples, read_texts, translate
from lmcompose.evaluation.opening import Loading
from lmcompose.reporting.report.kinds import KINDS
from lmcompose.reporting.tables import Grid
from tests.tiny import tiny_model, tiny_tokenizer

SOMALI = Direction("English", "Somali")


def test_chrf_of_the_way_back_is_sacrebleus() -> None:
    text, back = "The cat sleeps in the house.", "A cat sleeps in a house."
    for beta in (1, 2):
        found = check(text, "Bisadda way hurudda.", back, 50, beta)
        assert found.chrf == CHRF(beta=beta).sentence_score(back, [text]).score
        assert found.copied == CHRF(beta=beta).sentence_score("Bisadda way hurudda.", [text]).score
        assert check(text, "Bisadda", back, found.chrf, beta).reason is None
        assert check(text, "Bisadda", back, found.chrf + 0.1, beta).reason == "chrf"


@pytest.mark.parametrize(
    ("translation", "back", "reason"),
    [
        ("Bisadda way hurudda.", "The cat sleeps.", None),
        ("Bisadda way hurudda.", "Dogs.", "chrf"),
        ("Bisadda way hurudda.", "", "chrf"),
        ("", "The cat sleeps.", "empty"),
        (" \n", "", "empty"),
        ("the  cat sleeps.", "The cat sleeps.", "copied"),  # which comes back perfect
    ],
)
def test_why_a_translation_is_dropped(translation: str, back: str, reason: str | None) -> None:
    assert check("The cat sleeps.", translation, back, 50).reason == reason


def test_prompts_both_ways() -> None:
    way = Direction("English", "Somali", examples=(("Good\nday.", "Maalin wanaagsan."),))
    assert way.prompt("A cat.\n It sleeps.") == (
        "English: Good day.\nSomali: Maalin wanaagsan.\n\nEnglish: A cat. It sleeps.\nSomali:"
    )
    assert way.back.prompt("Bisad.") == "Somali: Maalin wanaagsan.\nEnglish: Good day.\n\nSomali: Bisad.\nEnglish:"
    assert Direction("English", "Somali", CHAT_TEMPLATE).prompt("{target}").endswith("\n\n{target}")
    with pytest.raises(ConfigurationError, match=r"lacks \{text\}"):
        Direction("English", "Somali", "{source} into {target}:")
    with pytest.raises(ConfigurationError, match=r"lacks \{source\} and \{target\}"):
        Direction("English", "Somali", "{text}")


class Dictionary:
    """Stands in for a model that writes: a real rule, word by word, for what a tiny random model cannot do."""

    WORDS: ClassVar = {"cat": "bisad", "dog": "ey", "sleeps": "hurudaa", "runs": "ordaa", "the": "the"}

    def __init__(self, *_: Any) -> None:
        pass

    def write(self, prompts: Sequence[tuple[int, str]], how: Any) -> Iterator[tuple[int, list[str]]]:
        back = {somali: english for english, somali in self.WORDS.items()}
        for number, prompt in prompts:
            asked, language = prompt.rsplit("\n", 2)[-2:]
            words = asked.split(": ", 1)[1].split()
            table = self.WORDS if language == "Somali:" else back
            yield number, [" " + " ".join(table.get(word, "?") for word in words)]


def test_rows_are_kept_or_dropped_with_the_check_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtranslation, "Writer", Dictionary)
    rows = [
        {"question": "the cat sleeps", "answer": "1"},
        {"question": "unknown words in here", "answer": "2"},
        {"question": "the", "answer": "3"},
    ]
    model: Any = (tiny_model("llama", 0), tiny_tokenizer())
    result = translate(rows, "question", SOMALI, model, tmp_path, threshold=60)
    kept, dropped = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("kept", "dropped")
    )
    told = {"text": "the cat sleeps", "back": "the cat sleeps", "chrf": 100.0, "copied": kept[0]["lmcompose"]["copied"]}
    assert kept == [{"question": "the bisad hurudaa", "answer": "1", "lmcompose": told}]
    assert [(row["question"], row["answer"], row["lmcompose"]["reason"]) for row in dropped] == [
        ("? ? ? ?", "2", "chrf"),
        ("the", "3", "copied"),
    ]
    assert (result["kept"], result["dropped"]) == (1, {"chrf": 1, "copied": 1})
    assert result["kept_at"]["70"] == 1
    assert json.loads((tmp_path / "results.json").read_text()) == result
    section = KINDS[result["what"]].build(result)
    assert section.headline == "1 of 3 translations were kept."
    assert [grid.title for grid in section.blocks if isinstance(grid, Grid)][1] == "Kept at other thresholds"


def test_real_models_translate_and_a_run_goes_on(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    base = (tiny_model("llama", 0), tokenizer)
    steered = proxy_tune(base, (tiny_model("llama", 1), tokenizer), (tiny_model("llama", 2), tokenizer))
    rows = [{"text": f"w{number} w{number + 1}"} for number in range(5)]
    options: Any = {"back": base, "max_new_tokens": 4, "loading": Loading(batch_size=2)}
    whole = translate(rows, "text", SOMALI, steered, tmp_path / "whole", threshold=0, **options)
    assert whole["kept"] + sum(whole["dropped"].values()) == 5
    lines = (tmp_path / "whole" / "forth.jsonl").read_text().splitlines()
    ids = tokenizer(SOMALI.prompt("w0 w1"), return_tensors="pt")["input_ids"]
    output = steered.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    expected = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()
    assert json.loads(lines[1])["text"] == expected
    part = tmp_path / "part"
    part.mkdir()
    (part / "forth.jsonl").write_text("\n".join(lines[:3]) + "\n")
    told: list[str] = []
    again = translate(rows, "text", SOMALI, steered, part, threshold=0, report=told.append, **options)
    assert told[0] == "forth: 3 texts from English into Somali"
    same = ("kept", "dropped", "chrf", "copied", "kept_at")
    assert [again[name] for name in same] == [whole[name] for name in same]
    told.clear()
    stricter = translate(rows, "text", SOMALI, steered, part, threshold=100, report=told.append, **options)
    assert (told, stricter["kept"]) == ([], 0)  # another threshold translates nothing again
    with pytest.raises(ConfigurationError, match="differs in direction"):
        translate(rows, "text", Direction("English", "Oromo"), steered, part, **options)


def test_files_that_are_not_right_are_named(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"question": "a"}\n{"question": 1}\n')
    with pytest.raises(DataError, match="line 2: 'question' must be a text"):
        read_texts(file, "question")
    file.write_text('{"question": "a", "lmcompose": {}}\n')
    with pytest.raises(DataError, match="name the original data set"):
        read_texts(file, "question")
    file.write_text('{"source": "a", "target": "b"}\n["a", "b"]\n')
    with pytest.raises(DataError, match="line 2 is no JSON object"):
        read_examples(file)


def test_a_second_model_that_is_missing_is_said_before_the_first_translates(tmp_path: Path) -> None:
    model, told = (tiny_model("llama", 0), tiny_tokenizer()), list[str]()
    with pytest.raises(MemberError):
        translate([{"text": "w0"}], "text", SOMALI, model, tmp_path / "out", back=tmp_path / "none", report=told.append)
    assert told == []
