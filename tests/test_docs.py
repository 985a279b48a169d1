"""Every command and every example of the README and of docs/ is run, page by page, where a user's files would be.

In a fenced block, the language says what becomes of it: `bash` lines are run, `python` is executed (one namespace for
each page), and a block with a file name after its language is that file. `make` targets, which set up environments and
take minutes, are checked to exist.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import peft
import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from lmcompose import compose
from lmcompose.cli.main import app
from lmcompose.logits.presets import PRESETS
from tests.evaluation.classifiers import save_classifier
from tests.evaluation.judging.chat_server import ChatServer
from tests.logits.remote_server import VLLM, CompletionsServer
from tests.tiny import save_tiny, tiny_model
from tests.tokenizers import family

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"bash", "python", "yaml", "json", "jsonl", "text", ""}
COMMAND = re.compile(r"^\s*(\$ |lmcompose |make |pip |python |accelerate )", re.MULTILINE)

SERVER = "http://localhost:8000"
JUDGE = "http://localhost:9000"
"""The addresses that pages give, of a completions server and of a judge; those of the tests have ports of their own."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what follows the language, and its text."""

    language: str
    info: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in FENCE.finditer(page.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the pages assume it: models, an adapter, and a composition that was saved."""
    root = tmp_path_factory.mktemp("desk")
    sizes = {"large": ("llama", 0, {"num_hidden_layers": 4}), "other": ("llama", 5, {"num_hidden_layers": 4})}
    small = {"hidden_size": 24, "num_hidden_layers": 4}
    sizes |= {"small": ("gpt2", 1, small), "small-tuned": ("gpt2", 2, small)}
    for name, (architecture, seed, overrides) in sizes.items():
        folder = save_tiny(root / "models" / name, architecture, seed, **overrides)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer.model_input_names = ["input_ids", "attention_mask"]  # as the tokenizers of real decoders have it
        tokenizer.save_pretrained(folder)
    foreign = family("qwen")
    tiny_model("gpt2", 3, vocab_size=len(foreign), **small).save_pretrained(root / "models" / "foreign")
    foreign.save_pretrained(root / "models" / "foreign")
    save_classifier(root / "models" / "classifier")
    shutil.copytree(root / "models" / "large", root / "moved" / "large")
    tuned = tiny_model("gpt2", 1, **small)
    tuned.name_or_path = "models/small"
    lora = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["c_attn"], init_lora_weights=False)
    peft.get_peft_model(tuned, lora).save_pretrained(root / "adapters" / "tuned")
    with contextlib.chdir(root):
        compose(anchor="models/large", augmenting="models/small").save_pretrained("my-composition")
    return root


@pytest.fixture
def workplace(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy of the desk to work in, with the commands of this source tree on the path."""
    place = tmp_path / "work"
    shutil.copytree(desk, place)
    commands = {"lmcompose": "lmcompose", "accelerate": "accelerate.commands.accelerate_cli"}
    for name, module in commands.items():
        shim = tmp_path / "bin" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        shim.chmod(0o755)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(place)
    return place


@pytest.fixture(scope="module")
def server(desk: Path) -> Iterator[CompletionsServer]:
    """A server that runs models/large."""
    folder = desk / "models" / "large"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with CompletionsServer(model, PreTrainedTokenizerFast.from_pretrained(folder), VLLM) as running:
        yield running


@pytest.fixture(scope="module")
def judge() -> Iterator[ChatServer]:
    """A judge to whom the longer answer is the better one."""
    with ChatServer() as running:
        yield running


def run_line(line: str, place: Path) -> None:
    if line.startswith("make "):
        target = line.split()[1]
        result = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    elif line == "pip install -e .":
        return  # the environment that runs this test was made so; installing needs a network
    elif line.startswith("lmcompose ") and not set(line) & set("|<>"):
        # In this process: importing transformers anew for each line takes most of the time of such a test.
        called = CliRunner().invoke(app, shlex.split(line)[1:], prog_name="lmcompose")
        assert called.exit_code == 0, f"$ {line}\n{called.output}\n{called.exception!r}"
        return
    else:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert result.returncode == 0, f"$ {line}\n{result.stdout}\n{result.stderr}"


def run_page(page: Path, place: Path, server: CompletionsServer, judge: ChatServer, slow: bool) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for found in blocks(page):
        block = replace(found, text=found.text.replace(SERVER, server.url).replace(JUDGE, judge.url))
        if block.language == "bash":
            if ("slow" in block.info.split()) == slow:
                for line in block.text.strip().splitlines():
                    run_line(line.partition(" # ")[0].rstrip(), place)
        elif block.language == "python":
            if not slow:
                code = block.text
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(code, f"{page.name}: {code.splitlines()[0]}", "exec"), namespace)
        elif block.info:
            file = place / block.info
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_runs(page: Path, workplace: Path, server: CompletionsServer, judge: ChatServer) -> None:
    before = len(server.bodies)
    run_page(page, workplace, server, judge, slow=False)
    assert (len(server.bodies) > before) == (SERVER in page.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_slow_example_runs(page: Path, workplace: Path, server: CompletionsServer, judge: ChatServer) -> None:
    if not any("slow" in block.info.split() for block in blocks(page)):
        pytest.skip("no slow example on this page")
    run_page(page, workplace, server, judge, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_hides_in_a_block_that_is_not_run(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page.name}: `{block.language}` is not run; use bash or python"
        if block.language not in ("bash", "python"):
            assert not COMMAND.search(block.text), f"{page.name}: a command in a block that is not run:\n{block.text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_pages_have_examples() -> None:
    """The pattern above finds what it should: a fence that is not recognised would be passed over in silence."""
    for page in PAGES:
        assert page.read_text(encoding="utf-8").count("\n```") == 2 * len(blocks(page)), page.name
    assert sum(len(blocks(page)) for page in PAGES) > 20


def test_the_table_of_presets_is_theirs() -> None:
    text = (ROOT / "docs" / "proxy-tuning.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("| `")]
    table = {name.strip("`"): (formula.strip("`"), defaults, source) for name, formula, defaults, source in rows}
    assert list(table) == list(PRESETS)
    for name, preset in PRESETS.items():
        formula, defaults, source = table[name]
        assert (formula, source) == (preset.formula, preset.source)
        stated = [f"{parameter} {value:g}" for parameter, value in preset.parameters.items()]
        if preset.plausibility is not None:
            stated.append(f"{preset.plausibility.kind} {preset.plausibility.value:g} of {preset.plausibility.member}")
        stated += ["logprobs"] if preset.scores == "logprobs" else []
        assert defaults == (", ".join(stated) or "-")
