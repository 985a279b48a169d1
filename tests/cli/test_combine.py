"""`lmcompose combine` makes what `combine` in Python makes, from a recipe or from options."""

import json
from pathlib import Path

import pytest
import torch

from lmcompose import LogitForCausalLM
from tests.cli.conftest import Proxy, Run, one_line
from tests.compositions import plain_logits
from tests.tiny import random_ids, save_tiny

IDS = random_ids(2, 9)

RECIPE = """\
members:
  base: {base}
  expert: {expert}
  antiexpert: {antiexpert}
formula: base + alpha * (expert - antiexpert)
alpha: 1.0
output: made
"""


@pytest.fixture
def recipe(proxy: Proxy, tmp_path: Path) -> Path:
    file = tmp_path / "proxy.yaml"
    file.write_text(RECIPE.format(**vars(proxy)))
    return file


def trio(proxy: Proxy) -> list[object]:
    return ["--base", proxy.base, "--expert", proxy.expert, "--antiexpert", proxy.antiexpert]


def logits(folder: Path) -> torch.Tensor:
    return plain_logits(LogitForCausalLM.from_pretrained(folder), IDS)


def test_from_options(run: Run, proxy: Proxy, proxy_model: LogitForCausalLM, tmp_path: Path) -> None:
    result = run("combine", *trio(proxy), "--alpha", 1.0, "--output", tmp_path / "made")
    assert result.exit_code == 0, result.stderr
    for text in (
        "antiexpert",
        "gpt2, 3 x 24, 97 ids",
        "base + alpha * (expert - antiexpert)",
        "100.00%",
        "Memory",
        "fits",
    ):
        assert text in result.stdout
    assert torch.equal(logits(tmp_path / "made"), plain_logits(proxy_model, IDS))
    assert sum(file.stat().st_size for file in (tmp_path / "made").iterdir()) < 100_000


def test_from_a_recipe(run: Run, proxy_model: LogitForCausalLM, recipe: Path, tmp_path: Path) -> None:
    assert run("combine", recipe).exit_code == 0
    assert torch.equal(logits(tmp_path / "made"), plain_logits(proxy_model, IDS))
    report = json.loads(run("combine", recipe, "--output", tmp_path / "elsewhere", "--json").stdout)
    assert (report["what"], report["output"]) == ("composition", str(tmp_path / "elsewhere"))
    assert torch.equal(logits(tmp_path / "elsewhere"), plain_logits(proxy_model, IDS))
    config = json.loads((tmp_path / "elsewhere" / "config.json").read_text())
    assert config["provenance"]["recipe"]["formula"] == "base + alpha * (expert - antiexpert)"


def test_a_dry_run_writes_nothing(run: Run, recipe: Path, tmp_path: Path) -> None:
    result = run("combine", recipe, "--dry-run", "--json")
    report = json.loads(result.stdout)
    assert report["what"] == "plan"
    assert (report["parameters"], report["verdict"]) == ({"alpha": 1.0}, "fits")
    assert report["vocabularies"]["expert"]["missing_tokens"] == 0
    assert report["members"]["base"]["weight_bytes"] == 4 * report["members"]["base"]["parameters"]
    assert "Memory" in result.stderr, "what a person reads comes on stderr"
    assert not (tmp_path / "made").exists()
    assert run("combine", recipe, "--dry-run").exit_code == 0


def test_without_an_antiexpert_the_expert_is_added(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    options = ["--base", proxy.base, "--expert", proxy.expert, "--alpha", 0.5]
    assert run("combine", *options, "--output", tmp_path / "made").exit_code == 0
    model = LogitForCausalLM.from_pretrained(tmp_path / "made")
    base, expert = (plain_logits(model.member(role), IDS) for role in ("base", "expert"))
    torch.testing.assert_close(plain_logits(model, IDS), base + 0.5 * expert)


def test_any_formula_and_any_members(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    members = ["--member", f"a={proxy.base}", "--member", f"b={proxy.expert}", "--temperature", "b=2"]
    formula = ["--formula", "0.5 * a + beta * b", "--parameter", "beta=0.25"]
    assert run("combine", *formula, *members, "--output", tmp_path / "made").exit_code == 0
    model = LogitForCausalLM.from_pretrained(tmp_path / "made")
    a, b = (plain_logits(model.member(role), IDS) for role in "ab")
    torch.testing.assert_close(plain_logits(model, IDS), 0.5 * a + 0.25 * b / 2)


def test_presets(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    members = ["--member", f"amateur={proxy.expert}", "--member", f"expert={proxy.base}"]
    options = ["--preset", "contrastive", "--temperature", "amateur=0.5", "--dtype", "bfloat16", "--json"]
    report = json.loads(run("combine", *options, *members, "--output", tmp_path / "made").stdout)
    assert list(report["members"]) == ["expert", "amateur"], "the preset says who leads"
    assert report["plausibility"] == {"member": "expert", "kind": "ratio", "value": 0.1}
    assert (report["scores"], report["temperatures"]) == ("logprobs", {"amateur": 0.5})
    assert LogitForCausalLM.from_pretrained(tmp_path / "made").dtype == torch.bfloat16


def test_keys(run: Run) -> None:
    result = run("combine", "--keys")
    assert result.exit_code == 0
    for text in ("members:", "plausibility:", "missing_tokens:", "A weighted sum of the members"):
        assert text in result.stdout


def test_a_mistake_in_a_formula_is_pointed_at(run: Run, recipe: Path, proxy: Proxy) -> None:
    recipe.write_text(recipe.read_text().replace("(expert", "(exprt"))
    result = run("combine", recipe)
    assert (result.exit_code, result.stdout) == (2, "")
    problem, text, pointer = result.stderr.splitlines()
    assert problem.startswith(f"lmcompose: {recipe}, line 5: 'formula': Unknown name 'exprt'.")
    assert problem.endswith("Did you mean 'expert'?")
    assert text[pointer.index("^") :] == "exprt - antiexpert)"
    result = run("combine", "--formula", "a + * b", "--member", f"a={proxy.base}", "--member", f"b={proxy.expert}")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1:] == ["  a + * b", "      ^"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "There is nothing to combine. Give a recipe; or --base, --expert and --antiexpert; or"),
        (["--base", "{base}", "--expert", "{expert}"], "Say where to save the composition: --output FOLDER."),
        (["{recipe}", "--alpha", "2"], "A recipe says all but --output itself."),
        (["{recipe}", "--base", "{base}"], "A recipe says all but --output itself."),
        (["no-such.yaml"], "no-such.yaml: no such file."),
        (["--base", "{base}", "--member", "base={expert}"], "--member base=... and --base name one member."),
        (["--base", "{base}", "--member", "x"], "--member 'x' is not of the form ROLE=MODEL"),
        (["--base", "{base}", "--expert", "{expert}", "--alpha", "big"], "--alpha 'big' is no number."),
        (["--base", "{base}", "--expert", "{expert}", "--alpha", "nan"], "alpha = nan is no finite number"),
        (["--base", "{base}", "--parameter", "x"], "--parameter 'x' is not of the form NAME=NUMBER"),
        (["--base", "{base}", "--alpha", "1", "--parameter", "alpha=2"], "Give alpha either as --alpha or as"),
        (["--base", "{base}", "--parameter", "a=1", "--parameter", "a=2"], "--parameter a=... is given twice."),
        (["--base", "{base}", "--expert", "{expert}", "--temperature", "base=x"], "--temperature base=x is no number."),
        (["--formula", "a", "--preset", "debias"], "Give either --formula or --preset, not both."),
        (["--base", "{base}", "--preset", "debais"], "There is no preset 'debais'."),
        (["--base", "{base}", "--expert", "{expert}", "--scores", "logit"], "scores = 'logit' is none of"),
        (["--base", "{base}", "--expert", "nobody"], "No model could be read at 'nobody' (for the expert)"),
    ],
)
def test_bad_input(run: Run, proxy: Proxy, recipe: Path, arguments: list[str], message: str) -> None:
    result = run("combine", *(argument.format(**vars(proxy), recipe=recipe) for argument in arguments))
    assert result.exit_code == 2
    assert one_line(result).startswith(message)


def test_too_large_for_this_machine(run: Run, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcompose.logits.plan.memory", lambda: (1_000, 2_000))
    result = run("combine", *trio(proxy), "--output", tmp_path / "made")
    assert result.exit_code == 2
    assert "The members' weights take" in result.stderr
    assert not (tmp_path / "made").exists()
    assert run("combine", *trio(proxy), "--dry-run").exit_code == 0


def test_members_of_other_tokens(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", "gpt2")
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"w', '"v'))
    result = run("combine", "--base", proxy.base, "--expert", other, "--dry-run")
    assert result.exit_code == 2
    assert "'w0' (id 22) is missing" in one_line(result)
