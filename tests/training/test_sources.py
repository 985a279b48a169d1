"""Every kind of file gives the same records, and every broken one a sentence that names the place."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from lmcompose.errors import DataError
from lmcompose.training.recipe import DataSource
from lmcompose.training.sources import check_source, read_records

ROWS = [{"prompt": "a +", "completion": "1", "n": 1}, {"prompt": 'say "b",\nplease', "completion": "b", "n": 2}]


def source(**fields: Any) -> DataSource:
    return DataSource.model_validate(fields)


def records(folder: Path, **fields: Any) -> list[dict[str, Any]]:
    return [record for _, record in read_records(source(**fields), folder)]


def write_rows(folder: Path, suffix: str) -> str:
    path = folder / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n")
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif suffix == ".parquet":
        datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]), delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(ROWS)
    return path.name


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_every_file_type_gives_the_same_records(tmp_path: Path, suffix: str) -> None:
    expected = [{"prompt": row["prompt"], "completion": row["completion"]} for row in ROWS]
    path = write_rows(tmp_path, suffix)
    assert records(tmp_path, path=path, kind="prompt_completion") == expected
    assert records(tmp_path, path=path, kind="prompt_completion", limit=1) == expected[:1]
    swapped = {"prompt": "completion", "completion": "prompt"}
    assert records(tmp_path, path=path, kind="prompt_completion", columns=swapped)[0] == {
        "prompt": "1",
        "completion": "a +",
    }


def test_a_dataset_saved_to_disk_is_read_with_its_splits(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"text": "x"}, {"text": "y"}])
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(str(tmp_path / "set"))
    assert records(tmp_path, dataset="set") == [{"text": "x"}, {"text": "y"}]
    assert records(tmp_path, dataset="set", split="test") == [{"text": "y"}]
    with pytest.raises(DataError, match=r"no split 'tset'.*Did you mean 'test'"):
        records(tmp_path, dataset="set", split="tset")


def test_text_files_are_one_document_a_line_or_one_in_all(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    assert records(tmp_path, path="t.txt") == [{"text": "one"}, {"text": "two"}]
    assert records(tmp_path, path="t.txt", documents="file") == [{"text": "one\ntwo\n"}]


def test_conversations_are_read_from_lists_and_from_json_in_a_cell(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    (tmp_path / "c.tsv").write_text('messages\n"' + json.dumps(messages).replace('"', '""') + '"\n')
    assert records(tmp_path, path="c.jsonl", kind="chat") == [{"messages": messages}]
    assert records(tmp_path, path="c.tsv", kind="chat") == [{"messages": messages}]


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("facts.jsonl", '{"text": "x"}', {"path": "fact.jsonl"}, "no file .*fact.jsonl.*Did you mean 'facts.jsonl'"),
        ("f.jsonl", "", {}, "holds no example"),
        ("f.txt", "\n \n", {}, "holds no example"),
        ("f.csv", "text\n", {}, "holds no example"),
        ("f.jsonl", '{"txt": "x"}', {}, r"f.jsonl, line 1: there is no column 'text'.*Did you mean 'txt'"),
        ("f.jsonl", '{"text": 3}', {}, "line 1: column 'text' holds int, not text"),
        ("f.jsonl", '{"text": ', {}, "line 1 is not JSON"),
        ("f.jsonl", "[1]", {}, "not a JSON object"),
        ("f.json", '{"text": "x"}', {}, "not a list of JSON objects"),
        ("f.csv", "text,b\nx\n", {}, "not as many cells"),
        ("f.parquet", "no", {}, "not a Parquet file"),
        ("f.docx", "x", {}, "files of type '.docx' are not read"),
        ("f.txt", "x", {"kind": "chat"}, "its kind is 'text'"),
        ("f.jsonl", '{"messages": "x"}', {"kind": "chat"}, "is not a conversation"),
        (
            "f.jsonl",
            '{"messages": [{"role": "user", "content": "x"}]}',
            {"kind": "chat"},
            "no message of the assistant",
        ),
    ],
)
def test_a_broken_source_is_named_at_its_first_record(
    tmp_path: Path, name: str, content: str, fields: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        check_source(source(**{"path": name, **fields}), tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(DataError, match="not UTF-8"):
        check_source(source(path="f.txt"), tmp_path)


def test_a_dataset_that_is_nowhere_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'no/such-set \\(train\\)' cannot be read"):
        check_source(source(dataset="no/such-set"), tmp_path)
