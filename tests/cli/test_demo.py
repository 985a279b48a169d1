"""`lmcompose demo` hands its options on; the experiment itself is tested in tests/experiments/."""

import inspect
from pathlib import Path

from lmcompose.experiments.kv_arithmetic import run as experiment
from tests.cli.conftest import Run, one_line


def test_an_unknown_profile_is_refused_before_anything_is_made(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--profile", "demmo", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "Did you mean 'demo'?" in one_line(result)
    assert not (tmp_path / "out").exists()


def test_what_the_command_says_of_defaults_is_so() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(experiment).parameters.items()}
    assert (defaults["profile"], defaults["seeds"], defaults["output"]) == ("demo", (0,), None)
