"""What holds for every verb: help that teaches, exit codes, errors of one line."""

import contextlib
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lmcompose import __version__
from lmcompose.cli.main import app
from tests.cli.conftest import Proxy, Run, Saved, one_line, process

VERBS = ("demo", "train", "combine", "generate", "evaluate", "trace", "overhead", "report", "inspect")


def test_help_names_every_verb_and_where_to_start(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for text in (*VERBS, "lmcompose demo", "Exit codes"):
        assert text in result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_examples(run: Run, verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"lmcompose {verb}" in result.stdout.split("Examples:")[1]


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_in_the_help_are_right(verb: str) -> None:
    """Each example parses: its options are there and its arguments suffice."""
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    lines = [line.strip() for line in command.help.split("Examples:")[1].splitlines() if "lmcompose" in line]
    assert lines
    for line in lines:
        words = shlex.split(line.partition("lmcompose ")[2].partition(" | ")[0].partition(" > ")[0])
        assert words[0] == verb
        with contextlib.suppress(typer.Exit):  # options that print something and leave
            command.make_context(verb, words[1:])


def test_no_arguments_show_the_help(run: Run) -> None:
    result = run()
    assert "Exit codes" in result.stdout + result.stderr


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"lmcompose {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generat"], "No such command 'generat'. Did you mean 'generate'? See 'lmcompose --help'."),
        (["generate"], "Missing argument 'MODEL'. See 'lmcompose generate --help'."),
        (["overhead", "--evry", "3"], "No such option: --evry"),
        (["generate", "x", "y", "--num-beams", "0"], "Invalid value for '--num-beams'"),
    ],
)
def test_a_misspelt_command_line(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert one_line(result).startswith(message)


def test_debug_shows_where_an_error_comes_from(saved: Saved) -> None:
    missing = saved.folder / "missing"
    plain = CliRunner().invoke(app, ["inspect", str(missing)])
    assert plain.exit_code == 1
    assert "Traceback" not in plain.stderr
    debugged = CliRunner().invoke(app, ["--debug", "inspect", str(missing)])
    assert type(debugged.exception).__name__ == "SavedFolderError"


def test_an_unexpected_error_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch, saved: Saved) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("lmcompose.cli.inspect.describe", broken)
    result = run("inspect", saved.folder)
    assert result.exit_code == 1
    assert one_line(result).startswith("RuntimeError: first line second line (unexpected; run")


def test_real_processes(saved: Saved, proxy: Proxy, recipe: Path) -> None:
    """Each verb that reads a model, from a start where nothing is imported yet."""
    for arguments in (
        ["inspect", saved.folder],
        ["overhead", saved.augmenting, saved.anchor],
        ["train", recipe, "--dry-run"],
        ["generate", saved.folder, "w1 w2 w3", "--max-new-tokens", 5],
        ["combine", "--base", saved.folder, "--expert", proxy.expert, "--dry-run"],
        ["inspect", proxy.folder],
    ):
        command = process(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = command.communicate(timeout=120)
        assert (command.returncode, errors) == (0, "")
        assert output


def test_the_help_comes_before_anything_heavy_is_imported() -> None:
    script = """
import sys
sys.argv = ["bin/lmcompose", "--help"]  # as the console script
from lmcompose.cli.main import run
try:
    run()
except SystemExit as stop:
    assert stop.code == 0
assert not {"torch", "transformers"} & set(sys.modules)
import lmcompose
assert callable(lmcompose.compose)  # what was put off is there when it is asked for
"""
    source = Path(__file__).parents[2] / "src"
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": str(source)}, timeout=120
    )


def test_control_c_ends_with_130(saved: Saved) -> None:
    """In a terminal of its own, at the point where the command waits for a prompt."""
    controller, terminal = pty.openpty()
    try:
        command = process("generate", saved.folder, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert command.stderr is not None
        assert command.stderr.readline() == "Type a prompt and end it with Ctrl-D.\n"
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=60)
    finally:
        os.close(controller)
        os.close(terminal)
    assert (command.returncode, output, errors) == (130, "", "lmcompose: Interrupted.\n")
