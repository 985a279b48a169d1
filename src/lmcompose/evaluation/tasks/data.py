"""The papers' data as lm-eval's tasks read it: from a folder of the user's, in the layout of its source, or the hub.

Every reader takes the folder as `data` (None for the hub) and gives the splits by name. lm-eval calls these functions
with all that a task's `metadata` has, which is why they take more than they read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from lmcompose.errors import DataError
from lmcompose.evaluation.extraction import number
from lmcompose.evaluation.tasks.files import (
    ADVICE,
    Splits,
    either,
    find_any,
    find_file,
    find_files,
    from_hub,
    read_lines,
    read_rows,
)
from lmcompose.evaluation.tasks.languages import language_name

NTREX = ("ntrex", "NTREX-128", "NTREX/NTREX-128")
FLORES = ("flores", "flores200_dataset", "flores101_dataset", "floresp-v2.0-rc.3")
ENGLISH = ("eng", "eng_Latn")


def ntrex_languages(data: str | None) -> list[str]:
    """The codes of the languages with a file in NTREX's layout, newstest2019-ref.CODE.txt, English aside.

    Raises:
        DataError: no folder is named, or it has no such file.
    """
    source = find_file(_folder(data, "NTREX", "https://github.com/MicrosoftTranslator/NTREX"), NTREX, _NTREX_ENGLISH)
    codes = sorted(file.name.split(".")[1] for file in source.parent.glob("newstest2019-ref.*.txt"))
    return [code for code in codes if not code.startswith("eng")]


def flores_languages(data: str | None) -> list[str]:
    """The codes of the languages with files in FLORES' layout, devtest/CODE.devtest and dev/CODE.dev, English aside.

    Raises:
        DataError: no folder is named, or it has no such file.
    """
    folder = _folder(data, "FLORES", "https://github.com/facebookresearch/flores")
    english = _flores_file(folder, "devtest", ENGLISH)
    return sorted(file.stem for file in english.parent.glob("*.devtest") if file.stem not in ENGLISH)


def ntrex(data: str | None = None, language: str = "", **_: Any) -> Splits:
    """NTREX, sentence by sentence: the translation into `language` and the English original, as the split "test"."""
    folder = _folder(data, "NTREX", "https://github.com/MicrosoftTranslator/NTREX")
    english = find_file(folder, NTREX, _NTREX_ENGLISH)
    return {"test": _pairs(english.with_name(f"newstest2019-ref.{language}.txt"), english, language)}


def flores(data: str | None = None, language: str = "", **_: Any) -> Splits:
    """FLORES-101 or -200, sentence by sentence: the splits "dev", for shots, and "devtest"."""
    folder = _folder(data, "FLORES", "https://github.com/facebookresearch/flores")
    splits = {}
    for split in ("dev", "devtest"):
        english = _flores_file(folder, split, ENGLISH)
        splits[split] = _pairs(english.with_name(f"{language}.{split}"), english, language)
    return splits


def gsm8k(data: str | None = None, **_: Any) -> Splits:
    """GSM8K: train.jsonl, for shots, and test.jsonl."""
    if data is None:
        return from_hub("openai/gsm8k", "main")
    files = {split: find_file(Path(data), ("gsm8k",), f"{split}.jsonl") for split in ("train", "test")}
    return {split: Dataset.from_list(read_rows(file)) for split, file in files.items()}


def mgsm_languages(data: str | None) -> list[str]:
    """The languages with a file mgsm_CODE.tsv; without a folder, all that MGSM has."""
    if data is None:
        return ["bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh"]
    first = find_file(Path(data), ("mgsm",), "mgsm_*.tsv")
    return sorted(file.stem.removeprefix("mgsm_") for file in first.parent.glob("mgsm_*.tsv"))


def mgsm(data: str | None = None, language: str = "", **_: Any) -> Splits:
    """MGSM's 250 questions in `language` with the number that answers them, as the split "test".

    A line of its files is a question, a tab and a number.
    """
    if data is None:
        rows = from_hub("juletxara/mgsm", language)["test"]
        found = [(row["question"], str(row["answer_number"])) for row in rows]
    else:
        file = find_file(Path(data), ("mgsm",), f"mgsm_{language}.tsv")
        found = []
        for line, text in enumerate(read_lines(file), start=1):
            question, tab, answer = text.rpartition("\t")
            if not tab or number(answer) is None:
                raise DataError(f"{file}, line {line}: a line is a question, a tab and a number; this one is not.")
            found.append((question, answer))
    return {"test": Dataset.from_list([{"question": asked, "answer": number(answer)} for asked, answer in found])}


def truthfulqa(data: str | None = None, **_: Any) -> Splits:
    """TruthfulQA's multiple choices: `mc1_targets` and `mc2_targets`, each with `choices` and `labels`."""
    if data is None:
        return from_hub("truthfulqa/truthful_qa", "multiple_choice")
    names = ("mc_task.json", "en_validation.json", "truthfulqa.json", "validation.json")
    file = find_any(Path(data), ("truthfulqa", "TruthfulQA/data", "data"), names)
    rows = json.loads(file.read_text(encoding="utf-8"))
    return {"validation": Dataset.from_list([_choices(row) for row in rows])}


def nq_open(data: str | None = None, **_: Any) -> Splits:
    """Natural Questions, open: a question and the answers that are right, all of them aliases of each other."""
    if data is None:
        return from_hub("google-research-datasets/nq_open", None)
    names = ("NQ-open.dev.jsonl", "NQ-open.efficientqa.dev.1.1.jsonl", "nq_open.jsonl")
    file = find_any(Path(data), ("nq_open", "nq-open"), names)
    return {"validation": Dataset.from_list(read_rows(file)).select_columns(["question", "answer"])}


# ----------------------------------------------------------------------------------------------------------- layouts

_NTREX_ENGLISH = "newstest2019-src.eng.txt"


def _folder(data: str | None, name: str, source: str) -> Path:
    if data is None:
        raise DataError(f"{name} is read from files. Get them ({source}) and name their folder: --data FOLDER.")
    return Path(data)


def _flores_file(folder: Path, split: str, codes: Sequence[str]) -> Path:
    inside = (split, *(f"{name}/{split}" for name in FLORES))
    found = find_files(folder, inside, [f"{code}.{split}" for code in codes])
    if not found:
        raise DataError(f"There is no {either(*(f'{split}/{code}.{split}' for code in codes))} in {folder}. {ADVICE}")
    return found[0]


def _pairs(translated: Path, english: Path, language: str) -> Dataset:
    sources, references = read_lines(translated), read_lines(english)
    if len(sources) != len(references):
        raise DataError(
            f"{translated} has {len(sources)} lines and {english} has {len(references)}. They must be translations of "
            "each other, line by line: get both files again from one version."
        )
    name = language_name(language)
    return Dataset.from_list(
        [
            {"language": name, "source": source.strip(), "english": reference.strip()}
            for source, reference in zip(sources, references, strict=True)
        ]
    )


def _choices(row: dict[str, Any]) -> dict[str, Any]:
    """A question of TruthfulQA with its choices as lists, whichever of the two published forms it comes in."""
    found = {"question": row["question"]}
    for name in ("mc1_targets", "mc2_targets"):
        targets = row[name]
        if "choices" not in targets:
            targets = {"choices": list(targets), "labels": list(targets.values())}
        found[name] = {"choices": targets["choices"], "labels": targets["labels"]}
    return found
