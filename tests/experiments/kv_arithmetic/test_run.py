"""The whole experiment, small: every stage runs, is kept, and is not run again; the parts do what they say."""

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import lmcompose
from lmcompose.errors import ConfigurationError
from lmcompose.experiments.kv_arithmetic import evaluate, members
from lmcompose.experiments.kv_arithmetic import run as run_experiment
from lmcompose.experiments.kv_arithmetic.composition import (
    CompositionBatches,
    CompositionProfile,
)
from lmcompose.experiments.kv_arithmetic.members import MemberProfile
from lmcompose.experiments.kv_arithmetic.profiles import PROFILES, Profile, profile_named
from lmcompose.experiments.kv_arithmetic.run import ready_members
from lmcompose.experiments.kv_arithmetic.task import EQUALS, FILLER, FIRST_DIGIT, FIRST_KEY, Kind, Task
from lmcompose.reporting.tables import kv_grid, probe_grid

ROOT = Path(__file__).parents[3]
MEMBER = MemberProfile(
    width=32, layers=2, heads=2, mlp=16, steps=8, rows=16, learning_rate=3e-3, weight_decay=0.1, mix=(1, 1)
)
TINY = Profile(
    keys=60,
    operands=2,
    augmenting=MEMBER,
    anchor=(dataclasses.replace(MEMBER, unknown=0.5, sparse=0.5), dataclasses.replace(MEMBER, noise=0.1)),
    composition=CompositionProfile(
        connections=((2, 0), (2, 2)),
        num_heads=2,
        initializer_range=0.1,
        steps=6,
        rows=16,
        learning_rate=0.02,
        mix=(0, 1),
    ),
    tested=20,
    arms=("composition", "random_augmenting", "composition_mlp"),
)
TASK = Task(TINY.keys, TINY.operands)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)


def test_a_run_reports_and_a_second_one_takes_every_stage_from_disk(tmp_path: Path, tiny: None) -> None:
    text = io.StringIO()
    console = Console(file=text, width=120)
    result = run_experiment("tiny", output=tmp_path, console=console, command="lmcompose demo")
    assert {"result.json", "result.md", "result.png", "anchor", "augmenting", "composition"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert json.loads((tmp_path / "result.json").read_text())["results"] == json.loads(json.dumps(result["results"]))
    assert set(result["results"]) == {"augmenting", "anchor", *TINY.arms}
    assert all(cell["total"] == 20 for row in result["results"].values() for cell in row.values())
    assert result["command"] == "lmcompose demo"
    assert result["example"]["answer"] == str(eval(result["example"]["meaning"].removesuffix("=")))
    assert "A held-out expression" in text.getvalue()
    written = (tmp_path / "composition" / "model.safetensors").stat().st_mtime_ns
    again = run_experiment("tiny", output=tmp_path, console=console)
    assert again["results"] == result["results"]
    assert (tmp_path / "composition" / "model.safetensors").stat().st_mtime_ns == written
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    loaded = lmcompose.load(moved / "composition")  # the members are found beside it, wherever it is
    assert evaluate.score(loaded, TASK, 20, TASK.split[1]) == {
        kind: {key: cell[key] for key in ("correct", "total")}
        for kind, cell in result["results"]["composition"].items()
    }


def test_several_seeds_are_pooled(tmp_path: Path, tiny: None) -> None:
    result = run_experiment("tiny", output=tmp_path, seeds=(0, 1), console=Console(file=io.StringIO()))
    assert result["results"]["anchor"]["num_math"]["total"] == 40
    assert len(result["by_seed"]) == 2
    assert result["seeds"] == [0, 1]


def test_unknown_profiles_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'demo'"):
        profile_named("demos")


def test_the_shipped_members_have_the_demos_shape_and_skill() -> None:
    folder = ready_members()
    assert folder is not None
    profile = PROFILES["demo"]
    task = Task(profile.keys, profile.operands)
    anchor, augmenting = (members.GPT2LMHeadModel.from_pretrained(folder / role) for role in ("anchor", "augmenting"))
    for model, shape in ((anchor, profile.anchor[0]), (augmenting, profile.augmenting)):
        assert (model.config.n_embd, model.config.n_layer) == (shape.width, shape.layers)
        assert model.config.vocab_size == task.vocab_size
    _, held_out = task.split
    assert evaluate.exact_match(anchor, task, Kind.NUM_MATH, 100, held_out)["correct"] >= 90
    assert evaluate.exact_match(augmenting, task, Kind.KV_SUBS, 100, held_out)["correct"] >= 90
    assert evaluate.exact_match(augmenting, task, Kind.KV_MATH, 100, held_out)["correct"] <= 5
    assert evaluate.exact_match(anchor, task, Kind.KV_MATH, 100, held_out)["correct"] <= 5
    assert anchor.transformer.wte.weight[FIRST_KEY:].abs().max() == 0  # it has seen no key


def test_batches_hold_their_shares_are_repeatable_and_show_held_in_keys_only() -> None:
    profile = dataclasses.replace(TINY.composition, substitution=0.25, mix=(1, 1), rows=64)
    batches = CompositionBatches(TASK, profile, seed=3)
    rows: dict[str, int] = {}
    for part, same in zip(batches[4]["parts"], batches[4]["parts"], strict=True):
        assert torch.equal(part["input_ids"], same["input_ids"])
        kind = "math" if part["input_ids"][0, part["prompt"] - 1] == EQUALS else "subs"
        rows[kind] = rows.get(kind, 0) + len(part["input_ids"])
        keys = part["input_ids"][part["input_ids"] >= FIRST_KEY] - FIRST_KEY
        assert set(keys.tolist()) <= set(TASK.split[0].tolist())
    assert rows == {"math": 48, "subs": 16}
    assert not torch.equal(batches[4]["parts"][0]["input_ids"], batches[5]["parts"][0]["input_ids"])


def test_answer_loss_is_the_cross_entropy_over_the_whole_vocabulary() -> None:
    states, labels = torch.randn(3, 4, 8), torch.randint(0, 5, (3, 4))
    head = torch.randn(5, 8)
    whole = torch.cat([head, torch.zeros(7, 8)])
    expected = torch.nn.functional.cross_entropy((states @ whole.T).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(members.answer_loss(states, head, labels, keys=7), expected)


def test_scaling_states_changes_no_answer() -> None:
    model = members.with_full_vocabulary(members.build_augmenting(TASK, MEMBER, 0), TASK)
    torch.nn.init.normal_(model.transformer.wte.weight, std=0.1)
    ids = torch.randint(0, TASK.vocab_size, (2, 9))
    with torch.no_grad():
        before = model(ids).logits
        members.scale_states(model, key_norm=5.0)
        after = model(ids).logits
    assert model.transformer.wte.weight[FIRST_KEY:].norm(dim=1).mean().item() == pytest.approx(5.0, rel=1e-4)
    torch.testing.assert_close(after, before, atol=1e-3, rtol=1e-2)


def test_forgotten_digits_are_digits_of_the_prompt() -> None:
    ids, prompt = TASK.encode(TASK.sample(np.random.default_rng(0), 200, 2), Kind.NUM_MATH)
    original = torch.from_numpy(ids)
    kept = members.forget_digits(original, prompt, 0.0, np.random.default_rng(0))
    forgotten = members.forget_digits(original, prompt, 1.0, np.random.default_rng(0))
    assert torch.equal(kept, original)
    changed = forgotten != original
    assert (forgotten[changed] == FILLER).all()
    assert (original[changed] >= FIRST_DIGIT).all()
    assert not changed[:, prompt:].any()
    assert 0.3 < changed[:, 1:prompt].float().mean() < 0.6


def test_the_schedule_rises_stays_and_falls() -> None:
    shares = [members.schedule(step, 100, 0.5, warmup=10) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert shares[20] == 1.0
    assert shares[75] == pytest.approx(0.5)
    assert shares[99] == pytest.approx(0.02)


def test_the_probe_reads_what_is_there_and_nothing_else() -> None:
    """Keys whose rows spell their digits are read; random rows are not."""
    task = Task(400)
    model = members.with_full_vocabulary(members.build_augmenting(task, MEMBER, 0), task)
    digits = torch.from_numpy(task.digits(task.values, task.width)) - FIRST_DIGIT
    with torch.no_grad():
        rows = model.transformer.wte.weight[FIRST_KEY:]
        rows.normal_(generator=torch.Generator().manual_seed(0))
        blind = evaluate.probe_layer(model, task, 0, steps=100)["all"]
        spelled = torch.nn.functional.one_hot(digits, 10).flatten(1).float()
        rows[:, :30] = spelled
        seeing = evaluate.probe_layer(model, task, 0, steps=100)["all"]
    assert blind < 0.05
    assert seeing > blind + 0.3  # 80 keys held in do not pin every digit down


def test_the_documentation_shows_the_committed_results() -> None:
    page = (ROOT / "docs" / "kv-arithmetic.md").read_text(encoding="utf-8")
    for name in ("demo", "paper"):
        committed = json.loads((ROOT / "results" / "kv_arithmetic" / f"{name}.json").read_text(encoding="utf-8"))
        assert kv_grid(committed).to_markdown() in page
        assert probe_grid(committed).to_markdown() in page
        assert committed["recipe"]["profile"] == json.loads(json.dumps(dataclasses.asdict(PROFILES[name])))


def test_one_composition_beats_the_papers_figures_on_all_three_tasks() -> None:
    """What is committed, and with its lower bound where the issue names a figure."""
    committed = json.loads((ROOT / "results" / "kv_arithmetic" / "paper.json").read_text(encoding="utf-8"))
    composition, random = (committed["results"][arm] for arm in ("composition", "random_augmenting"))
    for kind, figure in (("kv_subs", 0.929), ("num_math", 0.720), ("kv_math", 0.843)):
        assert composition[kind]["interval"][0] > figure
    assert random["kv_math"]["interval"][1] < 0.02
