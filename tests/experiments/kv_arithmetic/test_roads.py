"""The roads beside the default: they differ in what they say and in nothing else, and the page shows the figures."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.statistics import wilson_interval
from lmcompose.experiments.kv_arithmetic import roads
from lmcompose.experiments.kv_arithmetic import run as run_experiment
from lmcompose.experiments.kv_arithmetic.composition import (
    UNFROZEN_RATE,
    Together,
    compose_members,
    train_composition,
)
from lmcompose.experiments.kv_arithmetic.differences import figures
from lmcompose.experiments.kv_arithmetic.evaluate import exact_match, right_answers
from lmcompose.experiments.kv_arithmetic.members import build_anchor, build_augmenting, schedule, with_full_vocabulary
from lmcompose.experiments.kv_arithmetic.profiles import PROFILES
from lmcompose.experiments.kv_arithmetic.roads import DEFAULT, ROADS, Road, write_report
from lmcompose.experiments.kv_arithmetic.run import load_member, ready_members
from lmcompose.experiments.kv_arithmetic.task import Kind, Task
from lmcompose.reporting.marked import BEGIN, END, with_marked
from lmcompose.reporting.road_tables import roads_grids, with_section
from tests.experiments.kv_arithmetic.test_run import MEMBER, TASK, TINY

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "roads.md"
COMMITTED = ROOT / "results" / "kv_arithmetic" / "roads.json"


def quiet(folder: Path, *names: str, **options: Any) -> dict[str, Any]:
    return roads.run("tiny", names, folder=folder, console=Console(file=io.StringIO()), **options)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "tiny", TINY)


def test_roads_are_trained_kept_and_reported(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    result = quiet(tmp_path / "roads", "reverse", "gate", seeds=(0, 1), command="python -m roads")
    assert list(result["results"]) == ["default", "gate", "reverse"], "the default first, however they are asked for"
    assert {(cell["total"], len(cell["by_seed"])) for row in result["results"].values() for cell in row.values()} == {
        (40, 2)
    }
    assert result["parameters"]["default"] == 2 * 5 * 32 * 32
    assert result["parameters"]["gate"] == result["parameters"]["default"] + 2
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in result["seconds"].values())
    configs = {
        name: json.loads((tmp_path / "roads" / "seed-1" / name / "config.json").read_text())
        for name in result["results"]
    }
    assert {name: config["gate"] for name, config in configs.items()} == {
        "default": False,
        "gate": True,
        "reverse": False,
    }
    members = {name: config["members"]["anchor"]["name_or_path"] for name, config in configs.items()}
    assert members == {"default": "../../anchor", "gate": "../../anchor", "reverse": "../../augmenting"}

    # The default is the demo's own composition, bit for bit.
    run_experiment("tiny", output=tmp_path / "demo", console=Console(file=io.StringIO()))
    ours, theirs = (
        load_file(tmp_path / place / "model.safetensors") for place in ("roads/seed-0/default", "demo/composition")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    # A second run takes all of it from disk; a road that is another now is made again, and no other is.
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "roads").rglob("model.safetensors")}
    assert len(kept) == 2 + 3 * 2
    again = quiet(tmp_path / "roads", "reverse", "gate", seeds=(0, 1))
    assert (again["results"], again["seconds"]) == (result["results"], result["seconds"])
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    monkeypatch.setitem(ROADS, "gate", Road("gate", {"gate": True, "norm": True}))
    quiet(tmp_path / "roads", "reverse", "gate", seeds=(0, 1))
    remade = {path.parent.name for path, time in kept.items() if path.stat().st_mtime_ns != time}
    assert remade == {"gate"}

    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    places = write_report(result, tmp_path / "out" / "roads.json", page)
    assert [path.suffix for path in places] == [".json", ".md", ".png", ".md"]
    assert json.loads(places[0].read_text()) == json.loads(json.dumps(result))
    text = page.read_text()
    assert all(grid.to_markdown() in text for grid in roads_grids(result))
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert with_section(text, result) == text, "writing it again changes nothing"
    assert "Made by `python -m roads`." in places[1].read_text()


def test_figures_by_hand() -> None:
    """Four expressions, two seeds: the default gets 2 and 1 of them, the road 3 and 3."""

    def answers(*seeds: list[int]) -> list[dict[str, list[int]]]:
        return [{str(kind): list(right) for kind in Kind} for right in seeds]

    default, better = answers([1, 1, 0, 0], [1, 0, 0, 0]), answers([1, 1, 1, 0], [1, 1, 1, 0])
    found = figures({"default": default, "better": better})
    cell = found["results"]["better"]["kv_math"]
    assert (cell["correct"], cell["total"], cell["by_seed"], cell["accuracy"]) == (6, 8, [3, 3], 0.75)
    assert cell["interval"] == list(wilson_interval(6, 8)[1:])
    assert list(found["differences"]) == ["better"]
    difference = found["differences"]["better"]["kv_math"]
    assert difference["mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert [estimate for estimate, *_ in difference["by_seed"]] == pytest.approx([0.25, 0.5])
    # Over the expressions: 0, 0.5, 1 and 0 by expression, of which four are drawn; over two seeds: t is 12.7.
    assert 0 <= difference["documents"][0] < 0.375 < difference["documents"][1] <= 1
    assert difference["seeds"] == pytest.approx([0.375 - 12.706 * 0.125, 0.375 + 12.706 * 0.125], rel=1e-3)


def test_every_road_starts_as_its_anchor_and_is_another_composition() -> None:
    """On the demo's own members: what `make roads` will train."""
    folder, settings = ready_members(), PROFILES["demo"]
    assert folder is not None
    task = Task(settings.keys, settings.operands)
    ids = torch.from_numpy(task.encode(task.sample(np.random.default_rng(0), 2, 2, task.split[0]), Kind.KV_MATH)[0])
    made = set()
    for name, road in ROADS.items():
        anchor, augmenting = (load_member(folder / role) for role in ("anchor", "augmenting"))
        if road.swapped:
            anchor, augmenting = augmenting, anchor
        model = compose_members(task, anchor, augmenting, settings.composition, 0, **road.options)
        with torch.no_grad():
            logits = model(ids).logits
            model.detach()
            assert torch.equal(logits, anchor(ids).logits), name
        made.add(json.dumps({**model.config.to_dict(), "members": road.swapped}, sort_keys=True, default=str))
    assert len(made) == len(ROADS)
    assert next(iter(ROADS)) == DEFAULT
    assert not ROADS[DEFAULT].options


def test_right_answers_add_up_to_the_exact_match() -> None:
    folder, settings = ready_members(), PROFILES["demo"]
    assert folder is not None
    model, task = load_member(folder / "anchor"), Task(settings.keys, settings.operands)
    right = right_answers(model, task, Kind.NUM_MATH, 40, None)
    assert exact_match(model, task, Kind.NUM_MATH, 40, None, batch_size=7) == {"correct": sum(right), "total": 40}
    assert len(right) == 40
    assert sum(right) > 30


def test_gates_and_what_is_trained_beside_the_bridges_have_rates_of_their_own() -> None:
    """AdamW's steps have the size of the rate, which rises from zero; layers that are not frozen have a smaller one."""
    anchor = with_full_vocabulary(build_anchor(TASK, MEMBER, 0), TASK)
    augmenting = with_full_vocabulary(build_augmenting(TASK, MEMBER, 1), TASK)
    model = compose_members(TASK, anchor, augmenting, TINY.composition, 0, gate=True)
    vector = model.other = torch.nn.Parameter(torch.zeros(MEMBER.width))  # added to what the anchor's last norm reads
    anchor.transformer.ln_f.register_forward_pre_hook(lambda module, args: (args[0] + vector,))
    bridges = {name: value.clone() for name, value in model.composition_parameters() if name != "other"}
    train_composition(model, TASK, TINY.composition, 0)
    largest = vector.abs().max().item()
    assert 0.1 * UNFROZEN_RATE < largest < 1.01 * UNFROZEN_RATE * TINY.composition.steps
    rates = [TINY.composition.learning_rate * schedule(step, 6, 0.75, warmup=20) for step in range(6)]
    assert all(0.5 * rates[0] < bridge.gate.abs().item() < 1.01 * sum(rates) for bridge in model.bridges.values())
    assert all(not torch.equal(value, bridges[n]) for n, value in model.composition_parameters() if n in bridges)


def test_two_optimizers_as_one_take_the_rates_of_its_groups() -> None:
    one, two = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    together = Together(torch.optim.SGD([one], lr=1.0), torch.optim.SGD([two], lr=1.0))
    together.load_state_dict(together.state_dict())  # as a trainer does, which replaces the groups
    together.param_groups[0]["lr"], together.param_groups[1]["lr"] = 0.5, 0.0
    (one + two).backward()
    together.step()
    together.zero_grad()
    assert (one.item(), two.item()) == (0.5, 1.0)
    assert one.grad is None


def test_unknown_roads_and_pages_without_a_place_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'reverse'"):
        roads.run("demo", ["revers"])
    with pytest.raises(DataError, match="Put both there"):
        with_marked(f"a page\n{BEGIN}\n", "tables")


def test_the_page_shows_the_committed_results_or_says_that_there_are_none() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if not COMMITTED.exists():
        assert page.partition(BEGIN)[2].partition(END)[0].strip() == "Nothing yet: the command above writes this part."
        return
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert with_section(page, committed) == page
    assert list(committed["results"]) == list(ROADS)
    assert committed["seeds"] == list(range(len(committed["seeds"])))
    assert ("One seed, so" in page) == (len(committed["seeds"]) == 1)
    assert committed["recipe"]["roads"] == json.loads(json.dumps({name: vars(road) for name, road in ROADS.items()}))
