"""A saved composition of two tiny members, as a user would have it on disk, and the command line to call on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lmcompose import CalmForCausalLM, LogitForCausalLM, compose, proxy_tune
from lmcompose.cli.main import app
from tests.compositions import randomise
from tests.tiny import save_tiny

Run = Callable[..., Result]

RECIPE = """\
anchor: {anchor}
augmenting:
  domain: {augmenting}
connections: [[1, 2]]
data:
  - path: data.txt
training:
  steps: 3
  batch_size: 2
  max_length: 16
  log_every: 1
output: out
"""


@dataclass(frozen=True)
class Saved:
    """The folders of a composition and of its members."""

    folder: Path
    anchor: Path
    augmenting: Path


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    root = tmp_path_factory.mktemp("cli")
    anchor = save_tiny(root / "large", "llama", seed=0)
    augmenting = save_tiny(root / "small", "gpt2", seed=1, hidden_size=24)
    model = randomise(compose(anchor=anchor, augmenting={"domain": augmenting}, connections=[(1, 2), (3, 3)]))
    model.save_pretrained(root / "composition")
    return Saved(root / "composition", anchor, augmenting)


@pytest.fixture(scope="session")
def model(saved: Saved) -> CalmForCausalLM:
    """The same composition in Python, to compare with."""
    return CalmForCausalLM.from_pretrained(saved.folder)


@dataclass(frozen=True)
class Proxy:
    """The folders of a logit composition and of its members."""

    folder: Path
    base: Path
    expert: Path
    antiexpert: Path


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Proxy:
    root = tmp_path_factory.mktemp("cli-proxy")
    base = save_tiny(root / "large", "llama", seed=0, num_hidden_layers=4)
    expert = save_tiny(root / "tuned", "gpt2", seed=3, hidden_size=24)
    antiexpert = save_tiny(root / "small", "gpt2", seed=4, hidden_size=24)
    proxy_tune(base, expert, antiexpert).save_pretrained(root / "proxy")
    return Proxy(root / "proxy", base, expert, antiexpert)


@pytest.fixture(scope="session")
def proxy_model(proxy: Proxy) -> LogitForCausalLM:
    """The same composition in Python, to compare with."""
    return LogitForCausalLM.from_pretrained(proxy.folder)


@pytest.fixture
def run() -> Run:
    """Call `lmcompose` in this process; a failure that is no clean exit is raised."""

    def call(*arguments: object, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, prog_name="lmcompose")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def recipe(saved: Saved, tmp_path: Path) -> Path:
    (tmp_path / "data.txt").write_text("".join(f"w{i} w{i + 1} w{i + 2} w{i + 3}\n" for i in range(12)))
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.format(**vars(saved)))
    return file


def one_line(result: Result) -> str:
    """The error of a failed call: one line on stderr, nothing on stdout."""
    assert result.stdout == ""
    assert result.stderr.startswith("lmcompose: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("lmcompose: ").rstrip("\n")


def process(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """Start `lmcompose` as a process of its own, from this source tree, as the installed console script does."""
    script = "import sys; sys.argv[0] = 'bin/lmcompose'; from lmcompose.cli.main import run; run()"
    source = Path(__file__).parents[2] / "src"
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment,
        text=True,
        **options,  # type: ignore[call-overload]
    )
