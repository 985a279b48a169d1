"""`lmcompose overhead` prints what `overhead_report` counts."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from lmcompose.experiments.overhead import overhead_report, worked_example
from tests.cli.conftest import Run, Saved, one_line


@pytest.mark.parametrize("connections", [None, 2])
def test_json(run: Run, saved: Saved, connections: int | None) -> None:
    options = ["-n", connections] if connections else []
    result = run("overhead", saved.augmenting, saved.anchor, "--json", *options)
    assert result.exit_code == 0, result.stderr
    configs = [AutoConfig.from_pretrained(folder) for folder in (saved.anchor, saved.augmenting)]
    assert json.loads(result.stdout) == overhead_report(*configs, n=connections)


def test_the_papers_example(run: Run) -> None:
    assert json.loads(run("overhead", "--example", "--json").stdout) == worked_example()
    text = run("overhead", "--example").stdout
    for figure in ("15 M", "1.5 %", "4.4 %", "5.7 %"):
        assert figure in text


def test_bad_input(run: Run, saved: Saved, tmp_path: Path) -> None:
    for arguments, message in (
        ([], "Name two models"),
        ([saved.anchor], "Name the anchor model as well"),
        ([saved.anchor, saved.anchor, "--example"], "Name two models"),
        ([tmp_path, saved.anchor], f"No model configuration at '{tmp_path}' (for the augmenting model)"),
    ):
        result = run("overhead", *arguments)
        assert result.exit_code == 2
        assert one_line(result).startswith(message)
