"""The arms of the ablations: each differs in what it says, takes what is there, and answers what the others answer."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from lmcompose.errors import ConfigurationError
from lmcompose.experiments.kv_arithmetic import ablations, evaluate, tuned
from lmcompose.experiments.kv_arithmetic import run as run_experiment
from lmcompose.experiments.kv_arithmetic.ablations import write_report
from lmcompose.experiments.kv_arithmetic.arms import ARMS, DEFAULT, MOST_HELD_IN, SWEEPS, chosen, curves
from lmcompose.experiments.kv_arithmetic.composition import CompositionBatches
from lmcompose.experiments.kv_arithmetic.members import build_anchor, build_augmenting, with_full_vocabulary
from lmcompose.experiments.kv_arithmetic.profiles import PROFILES
from lmcompose.experiments.kv_arithmetic.routing import skyline
from lmcompose.experiments.kv_arithmetic.task import FIRST_DIGIT, FIRST_KEY, Kind, Task
from lmcompose.reporting.kv_ablation_tables import with_section
from lmcompose.reporting.marked import BEGIN, END
from tests.experiments.kv_arithmetic.test_run import MEMBER, TASK, TINY

ROOT = Path(__file__).parents[3]


def quiet(folder: Path, *arms: str, sweeps: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
    return ablations.run("tiny", arms, sweeps, folder=folder, console=Console(file=io.StringIO()), **options)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)


def test_arms_take_what_the_demo_left_and_are_kept(tmp_path: Path, tiny: None) -> None:
    run_experiment("tiny", output=tmp_path, seeds=(0, 1), console=Console(file=io.StringIO()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    result = quiet(tmp_path, "random", "vanilla", "lora", "finetuned_all", seeds=(0, 1), sweeps=("heads",))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items()), "what the demo made is taken"
    ladder = ["augmenting", "anchor", "composition", "random", "vanilla", "lora", "finetuned_all"]
    assert result["ladder"] == ladder
    assert list(result["results"]) == [*ladder, "heads_1", "heads_2", "heads_4", "heads_16"]
    assert result["curves"]["heads"]["points"] == [
        [1, "heads_1"], [2, "heads_2"], [4, "heads_4"], [8, "composition"], [16, "heads_16"],
    ]  # fmt: skip
    assert {cell["total"] for row in result["results"].values() for cell in row.values()} == {2 * TINY.tested}
    assert result["parameters"]["composition"] == 2 * 5 * 32 * 32
    per_rank = 2 * (32 + 96 + 32 + 32 + 2 * (32 + 16))
    assert abs(result["parameters"]["lora"] - result["parameters"]["composition"]) <= per_rank / 2
    assert set(result["differences"]) == set(result["results"]) - {DEFAULT}
    own = {path.parent.name for path in (tmp_path / "seed-1" / "ablations").rglob("model.safetensors")}
    assert own == {"vanilla", "lora", "finetuned_all", "heads_1", "heads_2", "heads_4", "heads_16"}
    assert (tmp_path / "seed-1" / "vanilla" / "model.safetensors").exists()
    config = json.loads((tmp_path / "seed-1" / "ablations" / "vanilla" / "config.json").read_text())
    assert config["members"]["augmenting"]["name_or_path"] == "../../vanilla"

    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    again = quiet(tmp_path, "random", "vanilla", "lora", "finetuned_all", seeds=(0, 1), sweeps=("heads",))
    assert {key: again[key] for key in ("results", "seconds", "routing")} == {
        key: result[key] for key in ("results", "seconds", "routing")
    }
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())

    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    places = write_report(result, tmp_path / "out" / "ablations.json", page)
    assert json.loads(places[0].read_text()) == json.loads(json.dumps(result))
    assert [path.suffix for path in places] == [".json", ".md", ".png", ".md"]
    assert with_section(page.read_text(), result, "ablations.png") == page.read_text()


def test_a_try_with_fewer_steps_touches_nothing_but_members(tmp_path: Path, tiny: None) -> None:
    """And what an earlier run with one seed left is found without a folder of the seed's own."""
    run_experiment("tiny", output=tmp_path, console=Console(file=io.StringIO()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    result = quiet(tmp_path, "encoder", seeds=(0,), steps=2)
    made = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors") if path not in before}
    assert made == {"steps-2/composition", "steps-2/encoder"}
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert result["recipe"]["profile"]["composition"]["steps"] == 2
    assert result["recipe"]["arms"]["encoder"]["options"] == {"reads": "prompt"}
    assert (result["curves"], result["seeds"]) == ({}, [0])


def test_members_are_made_where_there_are_none(tmp_path: Path, tiny: None) -> None:
    quiet(tmp_path, seeds=(3,))
    made = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors")}
    assert made == {f"seed-3/{name}" for name in ("anchor", "augmenting", "composition")}


def test_no_arm_sees_what_is_tested_but_the_skyline() -> None:
    tested = set(dataclasses.replace(TASK, held_in=MOST_HELD_IN).split[1].tolist())
    for name, arm in chosen().items():
        task = TASK if arm.held_in is None else dataclasses.replace(TASK, held_in=arm.held_in)
        pool = np.arange(task.keys) if arm.every_key else None
        profile = dataclasses.replace(TINY.composition, rows=400, **arm.data)
        parts = CompositionBatches(task, profile, 0, pool)[0]["parts"]
        seen = {int(key) - FIRST_KEY for part in parts for key in part["input_ids"].unique() if key >= FIRST_KEY}
        assert bool(seen & tested) == arm.every_key, name
        kinds = {int(part["input_ids"][0, part["prompt"] - 1]) for part in parts}
        assert len(kinds) == (1 if name.endswith("_only") else 2), name


def test_every_arm_is_another_one() -> None:
    arms = chosen()
    said = {name: json.dumps(arm.settings((2, 3)), sort_keys=True) for name, arm in arms.items()}
    assert len(set(said.values())) == len(said)
    assert list(arms) == [*ARMS, *(f"{name}_{value}" for name, sweep in SWEEPS.items() for value in sweep.values)]
    assert arms["connections_all"].settings((2, 3))["options"]["connections"] == [[2, 0], [2, 1], [2, 2], [2, 3]]
    assert arms["connections_2"].settings((2, 3))["options"]["connections"] == [[2, 0], [2, 1]]
    assert curves(list(arms))["fraction"]["points"][-2:] == [[20, DEFAULT], [50, "fraction_50"]]
    for profile in (PROFILES["demo"], PROFILES["paper"]):  # what the sweeps say is the default's own value
        assert profile.composition.num_heads == SWEEPS["heads"].default
        assert len(profile.composition.connections) == SWEEPS["connections"].default
        assert 100 * Task(profile.keys).held_in == SWEEPS["fraction"].default


def test_another_table_is_another_permutation_of_the_same_values() -> None:
    wrong = dataclasses.replace(TASK, table=1)
    assert sorted(wrong.values) == sorted(TASK.values)
    assert (wrong.values != TASK.values).mean() > 0.8
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(wrong.split, TASK.split, strict=True))


def test_tuning_leaves_the_anchor_alone_and_says_how_much_it_trained() -> None:
    anchor = with_full_vocabulary(build_anchor(TASK, MEMBER, 0), TASK)
    before = {name: value.clone() for name, value in anchor.state_dict().items()}
    for how in ("lora", "whole"):
        model, notes = tuned.tune(anchor, TASK, TINY.composition, how, MEMBER, 4_000, 0)
        assert all(torch.equal(value, before[name]) for name, value in anchor.state_dict().items())
        assert len(notes["curve"]) == TINY.composition.steps
        words, head = model.transformer.wte.weight.detach(), model.lm_head.weight.detach()
        assert head[FIRST_KEY:].abs().max() == 0, "no answer has a key"
        held_in, held_out = (words[FIRST_KEY + keys].norm(dim=1) for keys in TASK.split)
        if how == "lora":
            digits = words[FIRST_DIGIT : FIRST_DIGIT + 10].norm(dim=1).mean()
            torch.testing.assert_close(held_out, digits.expand_as(held_out))
            assert torch.equal(words[:FIRST_KEY], before["transformer.wte.weight"][:FIRST_KEY])
            per_rank = 2 * (32 + 96 + 32 + 32 + 2 * (32 + 16))
            assert notes["parameters"] % per_rank == 0
            assert abs(notes["parameters"] - 4_000) <= per_rank / 2
        else:
            assert notes["parameters"] == model.num_parameters()
            assert held_out.max() == 0, "no data, no gradient"
            assert held_in.min() > 0
        changed = model.transformer.h[0].mlp.c_fc.weight.detach() - before["transformer.h.0.mlp.c_fc.weight"]
        assert changed.abs().max() > 0
        assert sum(evaluate.answers_of(model, TASK, 3, TASK.split[1])["kv_math"]) <= 3


def test_the_tuned_model_is_read_back_as_it_was(tmp_path: Path) -> None:
    from lmcompose.experiments.kv_arithmetic.run import load_member

    anchor = with_full_vocabulary(build_anchor(TASK, MEMBER, 0), TASK)
    model, _ = tuned.tune(anchor, TASK, TINY.composition, "whole", MEMBER, 0, 0)
    model.save_pretrained(tmp_path)
    again = load_member(tmp_path)
    ids = torch.tensor([[1, FIRST_KEY + 3, 8, 3, FIRST_DIGIT, 6]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert load_file(tmp_path / "model.safetensors").keys() >= {"lm_head.weight", "transformer.wte.weight"}


def test_a_larger_rank_is_taken_for_more_parameters() -> None:
    model = build_augmenting(TASK, MEMBER, 0)
    per_rank = 2 * (32 + 96 + 32 + 32 + 2 * (32 + 16))
    assert [tuned.matching_rank(model, wanted) for wanted in (1, per_rank, 5 * per_rank + 1)] == [1, 1, 5]


def test_the_routing_skyline_by_hand() -> None:
    def answers(*accuracies: list[int]) -> dict[str, list[int]]:
        return {str(kind): right for kind, right in zip(Kind, accuracies, strict=True)}

    augmenting = [answers([1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1])]
    anchor = [answers([0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1])]
    composition = [answers([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0])]
    found = skyline(augmenting, anchor, composition)
    assert found["product"]["mean"] == pytest.approx(0.75 * 0.5)
    assert found["minus"]["mean"] == pytest.approx(0.75 - 0.375)
    assert found["minus"]["documents"][0] < 0.375 < found["minus"]["documents"][1]
    assert (found["either"]["correct"], found["either"]["total"]) == (2, 4)


def test_unknown_arms_and_sweeps_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'vanilla'"):
        ablations.run("demo", ["vanila"])
    with pytest.raises(ConfigurationError, match="Did you mean 'heads'"):
        ablations.run("demo", [], ["head"])


@pytest.mark.parametrize(("page", "name"), [("kv-ablations", "ablations"), ("kv-natural", "natural")])
def test_a_page_shows_the_committed_results_or_says_that_there_are_none(page: str, name: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    path = ROOT / "results" / "kv_arithmetic" / f"{name}.json"
    if not path.exists():
        assert text.partition(BEGIN)[2].partition(END)[0].strip() == "Nothing yet: the command above writes this part."
        return
    committed = json.loads(path.read_text(encoding="utf-8"))
    assert with_section(text, committed, f"{name}.png") == text
    profile = PROFILES[committed["profile"]]
    assert committed["profile"].endswith("-natural") == (name == "natural")
    depths = profile.augmenting.layers, profile.anchor[0].layers
    said = json.loads(json.dumps({arm: entry.settings(depths) for arm, entry in chosen().items()}))
    assert committed["recipe"]["arms"].items() <= said.items()
    assert committed["recipe"]["profile"] == json.loads(json.dumps(dataclasses.asdict(profile)))
