"""HornMT and NTREX as data of a recipe: what is learned is asked in the same words, and nothing tested is learned."""

import json
from pathlib import Path

import pytest

from lmcompose.errors import DataError
from lmcompose.evaluation.tasks import find_tasks
from lmcompose.experiments.translation_data import TESTED, write_translation_data

SHARED = "This sentence stands in both."


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Made-up files of HornMT and NTREX."""
    hornmt, ntrex = tmp_path / "hornmt", tmp_path / "ntrex"
    hornmt.mkdir()
    ntrex.mkdir()
    english = [f"News number {number}." for number in range(20)] + [SHARED, "long " * 40]
    tested = ["Tested first.", *(f"Test sentence {number}." for number in range(9)), SHARED, "long " * 40]
    for language in ("eng", "som", "orm"):
        lines = [f"{language}: {line}" if language != "eng" else line for line in english]
        (hornmt / f"{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (ntrex / "newstest2019-src.eng.txt").write_text("\n".join(tested) + "\n", encoding="utf-8")
    for language in TESTED:
        lines = [f"{language} of {line}" for line in tested]
        (ntrex / f"newstest2019-ref.{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return hornmt, ntrex


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_file_and_no_sentence_in_two(folders: tuple[Path, Path], tmp_path: Path) -> None:
    written = write_translation_data(tmp_path / "out", *folders, share=0.25, tested=8)
    files = {path.stem: rows(path) for path in written}
    assert set(files) == {"domain", "train", *(f"heldout-{name}" for name in TESTED)}
    assert len(files["domain"]) == 2 * 20
    assert len(files["train"]) == 2 * 5
    assert {row["prompt"] + row["completion"] for row in files["train"]} <= {row["text"] for row in files["domain"]}
    assert {"Somali: som: News number 3.\nEnglish: News number 3."} <= {row["text"] for row in files["domain"]}
    assert not any(SHARED in row["text"] for row in files["domain"])
    for name in TESTED:
        assert len(files[f"heldout-{name}"]) == 8
        assert all(len(row["completion"]) < 100 for row in files[f"heldout-{name}"])
    again = write_translation_data(tmp_path / "again", *folders, share=0.5, tested=8)
    assert again[0].read_text(encoding="utf-8") == written[0].read_text(encoding="utf-8"), "the share decides no order"


def test_prompts_are_those_of_the_task(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    written = write_translation_data(tmp_path / "out", *folders, tested=3)
    asked = next(rows(path) for path in written if path.stem == "heldout-som")
    task = find_tasks(["ntrex_som"], str(folders[1].parent))["ntrex_som"]
    for doc, row in zip(task.eval_docs, asked, strict=False):
        assert task.doc_to_text(doc) == row["prompt"]
        assert task.config.target_delimiter + task.doc_to_target(doc) == row["completion"]


def test_a_missing_file_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (folders[0] / "orm.txt").unlink()
    with pytest.raises(DataError, match="orm"):
        write_translation_data(tmp_path / "out", *folders)


def test_problems_of_gsm8k_are_those_of_its_task(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    folder = tmp_path / "gsm8k"
    with pytest.raises(DataError, match="--gsm8k"):
        write_translation_data(tmp_path / "out", *folders, folder)
    folder.mkdir()
    problems = [{"question": f"What is {n} plus 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(5)]
    lines = "".join(json.dumps(each) + "\n" for each in problems)
    for part in ("train", "test"):
        (folder / f"{part}.jsonl").write_text(lines, encoding="utf-8")
    written = write_translation_data(tmp_path / "out", *folders, folder, problems=3)
    assert written[-1].name == "gsm8k.jsonl"
    asked = rows(written[-1])
    assert len(asked) == 3
    task = find_tasks(["gsm8k"], str(tmp_path))["gsm8k"]
    for doc, row in zip(task.eval_docs, asked, strict=False):
        assert task.doc_to_text(doc) == row["prompt"]
    assert asked[0]["completion"] == " It is 1.\n#### 1"
