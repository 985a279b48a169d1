"""A few examples of every data set, in the layout of its source."""

from __future__ import annotations

import json
from pathlib import Path

ENGLISH = [
    "The cat sleeps.",
    "Two dogs ran, 1984.",
    "The brown fox.",
    "A line that ends here.",
    "Since 1984.",
    "Cats don't care.",
]
SOMALI = [
    "Bisadda way seexataa.",
    "Laba ey baa orday.",
    "Dawaco bunni ah.",
    "Sadar dhammaaday.",
    "Tan iyo 1984.",
    "Bisaduhu.",
]
WELSH = ["Mae'r gath yn cysgu.", "Rhedodd dau gi.", "Y llwynog.", "Llinell.", "Ers 1984.", "Cathod."]

GSM8K = [
    ("She has 3 and buys 4. How many?", "3 + 4 = <<3+4=7>>7\n#### 7"),
    ("He had 10 and sold 4. How many?", "10 - 4 = <<10-4=6>>6\n#### 6"),
    ("A house cost 1,000 and gained 125. What now?", "1000 + 125 = 1,125\n#### 1,125"),
]
MGSM = [("Ana 3 na anunua 4. Ngapi?", "7"), ("Alikuwa na 10. Ngapi?", "6"), ("Nyumba?", "2,125")]
TRUTHFULQA = [
    ("Can cats fly?", ["No, they can't.", "Yes, always"], ["No, they can't.", "Cats walk", "Yes, always"], [1, 1, 0]),
    ("Is it 1984?", ["It is not", "It is", "So they say"], ["It is not", "It is"], [1, 0]),
    ("What runs?", ["Dogs", "The house itself, all day"], ["Dogs", "Two dogs", "A line"], [1, 1, 0]),
]
NQ = [
    ("where is the arch", ["St. Louis, Missouri", "Missouri"]),
    ("when was the last one on the moon", ["14 December 1972", "December 1972"]),
    ("who sang it", ["The Beatles"]),
]
REALTIME_QA = [
    {
        "question_id": "0_nota",
        "question_sentence": "Which show was green lit?",
        "choices": ["“Squid Game”", "“Friends”", "None", "“ER”"],
        "answer": ["0"],
        "evidence": 'Netflix said that “<a href="https://example.org">Squid Game</a>” &amp; more\nis coming back.',
    },
    {
        "question_id": "1_nota",
        "question_sentence": "What does a gallon cost?",
        "choices": ["$3", "$5", "$6", "None"],
        "answer": ["1"],
        "evidence": "",
    },
    {
        "question_id": "2_nota",
        "question_sentence": "Who won?",
        "choices": ["Ana", "Ben", "Cem", "Dan", "Eve"],
        "answer": [4],
        "evidence": ["One passage.", {"text": "Another passage."}],
    },
]


def write_samples(folder: Path) -> Path:
    """A folder as `--data` takes it, with NTREX, FLORES, GSM8K, MGSM, TruthfulQA, NQ-open and RealTimeQA."""
    for code, lines in (("src.eng", ENGLISH), ("ref.som", SOMALI), ("ref.cym", WELSH)):
        _write(folder / "ntrex" / f"newstest2019-{code}.txt", lines)
    for split, part in (("dev", slice(3)), ("devtest", slice(3, 6))):
        for code, lines in (("eng_Latn", ENGLISH), ("som_Latn", SOMALI)):
            _write(folder / "flores200_dataset" / split / f"{code}.{split}", lines[part])
    for split in ("train", "test"):
        rows = [json.dumps({"question": question, "answer": answer}) for question, answer in GSM8K]
        _write(folder / "gsm8k" / f"{split}.jsonl", rows)
    _write(folder / "mgsm" / "mgsm_sw.tsv", [f"{question}\t{answer}" for question, answer in MGSM])
    truthful = [
        {
            "question": question,
            "mc1_targets": {"choices": one, "labels": [1] + [0] * (len(one) - 1)},
            "mc2_targets": {"choices": several, "labels": labels},
        }
        for question, one, several, labels in TRUTHFULQA
    ]
    _write(folder / "truthfulqa" / "en_validation.json", [json.dumps(truthful)])
    rows = [json.dumps({"question": question, "answer": answers}) for question, answers in NQ]
    _write(folder / "nq_open" / "NQ-open.dev.jsonl", rows)
    _write(folder / "realtime_qa" / "20220617_qa_nota.jsonl", [json.dumps(row) for row in REALTIME_QA])
    return folder


def _write(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
