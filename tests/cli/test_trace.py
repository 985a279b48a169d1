"""`lmcompose trace` prints what `trace` in Python gives, and writes the page of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.cli.saved_model import load_composition
from lmcompose.evaluation.trace import trace
from lmcompose.reporting.page import page
from tests.cli.conftest import Run, Saved, one_line
from tests.tiny import save_tiny

PROMPT = "w1 w2 . w3"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of three members, of a directly tuned model, and of the proxy-tuned composition."""
    root = tmp_path_factory.mktemp("proxy")
    for name, architecture, seed in (
        ("large", "llama", 0),
        ("expert", "gpt2", 1),
        ("small", "gpt2", 2),
        ("tuned", "llama", 3),
    ):
        save_tiny(root / name, architecture, seed)
    model = lmcompose.proxy_tune(base=root / "large", expert=root / "expert", antiexpert=root / "small", alpha=0.8)
    model.save_pretrained(root / "proxy")
    return root


@pytest.fixture(scope="module")
def proxy(root: Path) -> LogitForCausalLM:
    model = load_composition(str(root / "proxy"), None)
    assert isinstance(model, LogitForCausalLM)
    return model


def test_json(run: Run, root: Path, proxy: LogitForCausalLM) -> None:
    result = run("trace", root / "proxy", PROMPT, "--max-new-tokens", 5, "--json")
    assert result.exit_code == 0, result.stderr
    found, expected = json.loads(result.stdout), trace(proxy, PROMPT, max_new_tokens=5)
    for key in ("tokens", "outputs", "summary", "model", "members", "prompt", "text"):
        assert found[key] == json.loads(json.dumps(expected[key]))
    assert found["model"]["parameters"] == {"alpha": 0.8}


def test_a_table_and_the_texts(run: Run, root: Path, proxy: LogitForCausalLM) -> None:
    result = run("trace", root / "proxy", PROMPT, "--max-new-tokens", 5, "--tuned", root / "tuned")
    assert result.exit_code == 0, result.stderr
    expected = trace(proxy, PROMPT, max_new_tokens=5, tuned=root / "tuned")
    for name, output in expected["outputs"].items():
        assert f"{name}: {output['text']}\n" in result.stdout
    for token in expected["tokens"]:
        assert f"{100 * token['tuned']['probability']:.1f}" in result.stdout
        assert f'"{token["text"]}"' in result.stdout
    assert "KL(composition || base)" in result.stdout


def test_the_page(run: Run, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "trace.html"
    result = run("trace", root / "proxy", PROMPT, "--max-new-tokens", 4, "--page", file, "--json")
    assert result.exit_code == 0, result.stderr
    assert file.read_text(encoding="utf-8") == page(json.loads(result.stdout))
    told = run("trace", root / "proxy", PROMPT, "--max-new-tokens", 4, "--page", file)
    assert told.stdout.endswith(f"Written to {file}\n")


def test_a_continuation_and_parameters(run: Run, root: Path, proxy: LogitForCausalLM) -> None:
    options = ("--continuation", " w7 5", "--json")
    expected = {alpha: trace(proxy, PROMPT, " w7 5", alpha=alpha)["tokens"] for alpha in (0.8, -0.5)}
    expected_steps = trace(proxy, PROMPT, " w7 5", alpha=[0.0, 1.0])["tokens"]
    calls = {
        (): expected[0.8],
        ("--alpha", -0.5): expected[-0.5],
        ("--parameter", "alpha=-0.5"): expected[-0.5],
        ("--alpha", "0,1"): expected_steps,
    }
    for given, tokens in calls.items():
        result = run("trace", root / "proxy", PROMPT, *options, *given)
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert (found["tokens"], found["outputs"], found["source"]) == (json.loads(json.dumps(tokens)), {}, "given")


def test_stdin_chat_and_sampling(run: Run, root: Path, proxy: LogitForCausalLM) -> None:
    piped = json.loads(run("trace", root / "proxy", "--json", "--max-new-tokens", 3, stdin=PROMPT + "\n").stdout)
    assert piped["prompt"] == PROMPT
    chat = json.loads(run("trace", root / "proxy", "w1", "--chat", "--json", "--max-new-tokens", 3).stdout)
    assert chat["prompt"] == "user : w1 </s> assistant :"
    texts = [
        json.loads(
            run(
                "trace", root / "proxy", PROMPT, "--json", "--max-new-tokens", 8, "--temperature", 2, "--seed", seed
            ).stdout
        )["text"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0] == trace(proxy, PROMPT, max_new_tokens=8, do_sample=True, temperature=2.0, seed=1)["text"]


def test_members_that_have_moved(run: Run, root: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.symlink_to(root / "expert")
    result = run("trace", root / "proxy", PROMPT, "--max-new-tokens", 1, "--member", f"expert={moved}", "--json")
    assert result.exit_code == 0, result.stderr


def test_calm_has_a_trace_too(run: Run, saved: Saved) -> None:
    result = run("trace", saved.folder, "w1 w2", "--max-new-tokens", 3, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["base"], list(found["members"])) == ("anchor", ["anchor"])
    refused = run("trace", saved.folder, "w1 w2", "--alpha", 1)
    assert refused.exit_code == 2
    assert one_line(refused).startswith("Only a logit composition has parameters such as alpha")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{root}/proxy", ""], 2, "The prompt is empty."),
        (["{root}/proxy", "w1", "--continuation", ""], 2, "--continuation is empty."),
        (["{root}/proxy", "w1", "--alpha", "much"], 2, "--alpha 'much' is no number."),
        (["{root}/proxy", "w1", "--parameter", "gamma=1"], 2, "The formula has no parameter 'gamma'"),
        (
            ["{root}/proxy", "w1", "--tuned", "{root}/nothing"],
            2,
            "No model could be read at '{root}/nothing' (for the tuned",
        ),
        (["{root}/proxy", "w1", "--member", "expert"], 2, "--member 'expert' is not of the form ROLE=MODEL"),
        (["{root}/proxy", "w1", "--member", "anchor={root}/large"], 2, "'{root}/proxy' has no member ['anchor']"),
        (["{root}/proxy", "w1", "--member", "expert={root}/small"], 2, "This composition is composed of "),
        (["{root}/large", "w1"], 1, "'{root}/large' holds a 'llama' model and not the composition"),
        (["{root}/nothing", "w1"], 1, "No saved composition at '{root}/nothing'"),
    ],
)
def test_bad_input(run: Run, root: Path, arguments: list[str], code: int, message: str) -> None:
    result = run("trace", *(argument.format(root=root) for argument in arguments))
    assert result.exit_code == code
    assert one_line(result).startswith(message.format(root=root))


def test_generate_takes_a_logit_composition(run: Run, root: Path, proxy: LogitForCausalLM) -> None:
    """Both verbs load by the same function, which knows every kind of composition."""
    result = run("generate", root / "proxy", PROMPT, "--max-new-tokens", 5)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == trace(proxy, PROMPT, max_new_tokens=5)["text"]


def test_without_a_tokenizer(run: Run, root: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    for name in ("large", "expert"):
        folder = tmp_path / name
        folder.mkdir()
        for file in (root / name).iterdir():
            if "token" not in file.name and "chat" not in file.name:
                (folder / file.name).symlink_to(file)
    lmcompose.proxy_tune(base=tmp_path / "large", expert=tmp_path / "expert").save_pretrained(bare)
    result = run("trace", bare, "w1")
    assert result.exit_code == 2
    assert "was saved without a tokenizer" in one_line(result)
