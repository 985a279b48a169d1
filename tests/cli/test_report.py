"""`lmcompose report` writes the page and its Markdown, and says what it left out."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run, one_line
from tests.reporting.report.found import curve_result, training_result, write


def test_a_page_and_its_markdown_beside_the_results(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "runs/first/result", training_result())
    write(tmp_path, "runs/first/loss_curve", curve_result())
    result = run("report", tmp_path / "runs")
    assert result.exit_code == 0, result.stderr
    html = (tmp_path / "runs" / "report.html").read_text()
    assert "<title>Report on runs</title>" in html
    assert "./first/result.json" in html
    assert "# Report on runs" in (tmp_path / "runs" / "report.md").read_text()
    assert "Shown: 2, broken: 0, left out: 0." in result.stdout


def test_a_place_and_a_title_of_ones_own_and_several_folders(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "a/result", training_result())
    write(tmp_path, "b/result", training_result())
    page = tmp_path / "pages" / "all.html"
    result = run("report", tmp_path / "a", tmp_path / "b", "--output", page, "--title", "A & B")
    assert result.exit_code == 0, result.stderr
    html = page.read_text()
    assert "<title>A &amp; B</title>" in html
    assert "./../a/result.json" in html
    assert "./../b/result.json" in html
    assert page.with_suffix(".md").exists()
    assert not (tmp_path / "a" / "report.html").exists()


def test_drawn_again_it_is_the_same(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "result", training_result())
    assert run("report", tmp_path).exit_code == 0
    before = (tmp_path / "report.html").read_bytes()
    assert run("report", tmp_path).exit_code == 0
    assert (tmp_path / "report.html").read_bytes() == before


def test_a_broken_file_is_named_and_the_rest_is_drawn(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "result", training_result())
    (tmp_path / "cut.json").write_text("{")
    result = run("report", tmp_path)
    assert result.exit_code == 0
    assert "cut.json: It is no JSON that can be read" in result.stderr
    assert "Shown: 1, broken: 1" in result.stdout


def test_bad_input_is_one_line_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "full/result", training_result())
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ((tmp_path / "nowhere",), "There is no folder"),
        ((tmp_path / "empty",), "can be shown"),
        ((tmp_path / "full", "--output", tmp_path / "page.pdf"), "ends in .html"),
        ((), "Missing argument"),
    ):
        result = run("report", *arguments)
        assert result.exit_code == 2
        assert said in one_line(result)
    assert [path.name for path in tmp_path.rglob("report.*")] == []
