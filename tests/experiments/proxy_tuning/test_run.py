"""The whole experiment, small, on a storyteller made here; and its parts: rows, training, and what is measured."""

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

import lmcompose
from lmcompose.errors import DataError, MemberError
from lmcompose.experiments.proxy_tuning import members, run
from lmcompose.experiments.proxy_tuning.__main__ import read_arguments, write_report
from lmcompose.experiments.proxy_tuning.measure import compositions, measure
from lmcompose.experiments.proxy_tuning.profiles import STORIES, Profile, Schooling, Shape
from lmcompose.experiments.proxy_tuning.texts import TASKS, Rows, divide, encode, shortened, tell_stories
from lmcompose.reporting.proxy_tables import losses_grid, proxy_grids, seeds_grid
from tests.experiments.proxy_tuning.conftest import toy_stories

ROOT = Path(__file__).parents[3]
SMALL = Shape(width=16, layers=1, heads=2, mlp=32)
TINY = Profile(
    base=Shape(width=32, layers=2, heads=2, mlp=64),
    small=SMALL,
    base_schooling=Schooling(steps=6, rows=8, learning_rate=5e-3),
    small_schooling=Schooling(steps=6, rows=8, learning_rate=1e-2),
    tuning=Schooling(steps=4, rows=8, learning_rate=5e-3),
    stories=24,
    tuning_stories=24,
    held_out_stories=12,
    new_tokens=48,
    length=48,
    alphas=(0.0, 1.0, 2.0),
    temperatures=(0.5, 1.0),
    samples=3,
    sample_tokens=12,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxy")


@pytest.fixture(scope="module")
def result(teller: Path, place: Path) -> dict:
    console = Console(file=io.StringIO(), width=120)
    return run(teller, seeds=(0, 1), folder=place, profile=TINY, command="python -m x", console=console)


@pytest.fixture(scope="module")
def tokenizer(teller: Path):
    return AutoTokenizer.from_pretrained(teller)


def test_the_result_is_json_and_is_reported(result: dict, tmp_path: Path) -> None:
    path = tmp_path / "report" / "stories.json"
    written = write_report(result, path)
    assert [each.suffix for each in written] == [".json", ".md", ".png", ".html"]
    assert all(each.stat().st_size > 1000 for each in written)
    again = json.loads(path.read_text(encoding="utf-8"))
    text = written[1].read_text(encoding="utf-8")
    for grid in proxy_grids(again):
        assert grid.to_markdown() in text
    assert "Made by `python -m x`." in text
    assert set(again["tasks"]) == set(TASKS)


def test_no_figure_is_broken_in_a_terminal_of_80(result: dict) -> None:
    console = Console(file=(text := io.StringIO()), width=80)
    for grid in proxy_grids(result):
        console.print(grid.to_rich())
        for row in grid.rows:
            for cell in row:
                assert cell in text.getvalue(), f"{cell!r} was wrapped"


def test_every_figure_is_there_with_its_seeds(result: dict) -> None:
    assert result["parameters"]["base"] > 2 * result["parameters"]["antiexpert"]
    for task in result["tasks"].values():
        models = task["models"]
        assert {"base", "antiexpert", "expert", "proxy", "tuned", "expert_only", "other proxy", "code proxy"} <= set(
            models
        )
        for model in models.values():
            estimates = [estimate for estimate, *_ in model["loss"]["by_seed"]]
            assert len(set(estimates)) == 2, "two seeds, two models"
            assert model["loss"]["mean"] == pytest.approx(np.mean(estimates))
        assert models["base"]["gap_closed"]["mean"] == 0
        assert models["tuned"]["gap_closed"]["mean"] == 1
        gap = models["proxy"]["gap_closed"]
        for seed, (estimate, low, high) in enumerate(gap["by_seed"]):
            base, proxy, tuned = (models[name]["loss"]["by_seed"][seed][0] for name in ("base", "proxy", "tuned"))
            assert estimate == pytest.approx((proxy - base) / (tuned - base))
            assert low <= estimate <= high
        assert models["tuned"]["loss"]["mean"] < models["base"]["loss"]["mean"], "tuning helps, even here"


def test_the_sweeps_agree_with_the_models(result: dict) -> None:
    """Alpha 0 is the base and alpha 1 the composition, whose other figures come from another pass."""
    for task in result["tasks"].values():
        rows = {row["value"]: row["loss"]["mean"] for row in task["alpha"]["proxy"]}
        assert rows[0.0] == pytest.approx(task["models"]["base"]["loss"]["mean"], abs=1e-6)
        assert rows[1.0] == pytest.approx(task["models"]["proxy"]["loss"]["mean"], abs=1e-6)
        for name, sweep in task["temperature"].items():
            assert {row["value"]: row["loss"]["mean"] for row in sweep}[1.0] == pytest.approx(
                task["models"][name]["loss"]["mean"]
            )


def test_the_token_by_token_comparison_agrees_with_the_sums(result: dict, place: Path) -> None:
    """`evaluation.compare` scores the same documents one by one; for one seed both must say the same."""
    for task, compared in result["comparison"].items():
        kept = json.loads((place / "seed-0" / f"{task}.json").read_text())["value"]
        assert compared["tokens"] == sum(kept["tokens"])
        for name, figure in {**compared["losses"]["members"], "proxy": compared["losses"]["composition"]}.items():
            assert figure["mean"] == pytest.approx(sum(kept["nats"][name]) / sum(kept["tokens"]), abs=1e-5)
        first = compared["pairs"][0]
        assert (first["first"], first["second"]) == ("tuned", "composition")
        assert first["kl"]["mean"] == pytest.approx(sum(kept["kl"]["tuned proxy"]) / sum(kept["tokens"]), abs=1e-5)


def test_a_second_run_takes_every_stage_from_disk(result: dict, teller: Path, place: Path) -> None:
    written = {path: path.stat().st_mtime_ns for path in place.rglob("*.safetensors")}
    assert len(written) == 2 * 12
    console = Console(file=io.StringIO(), width=120)
    again = run(teller, seeds=(0, 1), folder=place, profile=TINY, console=console)
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*.safetensors")} == written
    for part in ("tasks", "stories", "samples", "comparison", "style"):
        assert again[part] == json.loads(json.dumps(result[part])), part


def test_other_settings_are_not_taken_from_disk(result: dict, teller: Path, place: Path, tmp_path: Path) -> None:
    longer = dataclasses.replace(TINY, tuning=dataclasses.replace(TINY.tuning, steps=5))
    console = Console(file=(text := io.StringIO()), width=120)
    other = run(teller, seeds=(0,), folder=place, profile=longer, console=console)
    assert "base, on the stories: taken from" in text.getvalue(), "what does not depend on it is"
    seed, before = (each["tasks"]["diary"]["models"]["tuned"]["loss"]["by_seed"][0] for each in (other, result))
    assert seed != before


def test_the_models_can_be_named_as_members(result: dict, place: Path) -> None:
    folder = place / "seed-1"
    model = lmcompose.proxy_tune(
        base=str(folder / "base"),
        expert=str(folder / "diary-expert-same"),
        antiexpert=str(folder / "antiexpert-same"),
    )
    ids = torch.tensor([[0, 5, 9]])
    base, expert, antiexpert = (
        AutoModelForCausalLM.from_pretrained(folder / name)(ids).logits
        for name in ("base", "diary-expert-same", "antiexpert-same")
    )
    torch.testing.assert_close(model(ids).logits, base + (expert - antiexpert), atol=1e-5, rtol=0)


def test_measured_sums_are_the_documents_own(tokenizer) -> None:
    """One document at a time, from plain forward passes, in the order of the definition."""
    rows = encode([*toy_stories(5, seed=3), "A long one. " + " ".join(toy_stories(3, seed=4))], tokenizer, 32)
    base, tuned, expert, antiexpert = (members.build(SMALL, tokenizer, 32, seed) for seed in range(4))
    found = measure(
        compositions(base, {"same": (expert, antiexpert)}, tokenizer), tuned, rows, alphas=(0.5,), temperatures=(2.0,)
    )
    for document in range(6):
        own = (rows.documents == document).nonzero().flatten()
        nats = {"base": 0.0, "proxy": 0.0, "alpha": 0.0, "temperature": 0.0}
        kl = same = tokens = 0.0
        for row in own.tolist():
            ids = rows.ids[row][rows.mask[row].bool()][None]
            with torch.no_grad():
                scores = [model(ids).logits[0, :-1] for model in (base, tuned, expert, antiexpert)]
            true = ids[0, 1:, None]
            proxy = scores[0] + scores[2] - scores[3]
            half = scores[0] + 0.5 * (scores[2] - scores[3])
            each = {"base": scores[0], "proxy": proxy, "alpha": half, "temperature": proxy / 2}
            for name, values in each.items():
                nats[name] -= float(values.log_softmax(-1).gather(-1, true).sum())
            log_tuned, log_proxy = scores[1].log_softmax(-1), proxy.log_softmax(-1)
            kl += float((log_tuned.exp() * (log_tuned - log_proxy)).sum())
            same += float((log_tuned.argmax(-1) == log_proxy.argmax(-1)).sum())
            tokens += len(true)
        assert found["tokens"][document] == tokens
        assert found["nats"]["base"][document] == pytest.approx(nats["base"], rel=1e-5)
        assert found["nats"]["proxy"][document] == pytest.approx(nats["proxy"], rel=1e-5)
        assert found["alpha"]["proxy@0.5"][document] == pytest.approx(nats["alpha"], rel=1e-5)
        assert found["temperature"]["proxy@2"][document] == pytest.approx(nats["temperature"], rel=1e-5)
        assert found["kl"]["tuned proxy"][document] == pytest.approx(kl, rel=1e-3, abs=1e-4)
        assert found["agreement"]["tuned proxy"][document] == same
    assert sum(found["tokens"]) == int(rows.mask[:, 1:].sum())


def test_rows_are_of_one_document_each_and_lose_no_token(tokenizer) -> None:
    stories = toy_stories(4)
    rows = encode(stories, tokenizer, 16)
    for number, story in enumerate(stories):
        own = rows.documents == number
        assert (rows.ids[own, 0] == tokenizer.bos_token_id).all()
        kept = [ids[1:][mask[1:].bool()] for ids, mask in zip(rows.ids[own], rows.mask[own], strict=True)]
        ids = torch.cat(kept).tolist()
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids[:-1]) == story
    with pytest.raises(DataError, match="no text"):
        encode([], tokenizer, 16)


def test_shortened_rows_keep_some_of_every_document() -> None:
    ids = torch.arange(7)[:, None]
    rows = shortened(Rows(ids, torch.ones_like(ids), torch.tensor([0, 0, 0, 0, 1, 2, 2])), most=5)
    assert rows.ids.flatten().tolist() == [0, 1, 4, 5, 6]
    assert rows.documents.tolist() == [0, 0, 1, 2, 2]


def test_the_parts_share_no_story() -> None:
    stories = [f"A girl named Ann{chr(97 + index)} ran." for index in range(20)]
    parts = divide(stories, dataclasses.replace(TINY, stories=6, tuning_stories=5, held_out_stories=3))
    assert (parts["stories"], parts["other"], parts["held_out"]) == (stories[:6], stories[6:12], stories[17:])
    assert (len(parts["diary"]), len(parts["diary_held_out"])) == (5, 3)


def test_every_row_is_read_before_one_is_read_again() -> None:
    schooling = Schooling(steps=5, rows=4, learning_rate=1.0)
    rows = torch.cat(list(members.order(10, schooling, seed=2)))
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))
    assert not torch.equal(rows[:10], rows[10:])
    assert torch.equal(rows, torch.cat(list(members.order(10, schooling, seed=2))))


def test_the_learning_rate_rises_and_falls() -> None:
    shares = [members.schedule(step, 100) for step in range(100)]
    assert shares[0] == 1 / 8
    assert max(shares) == shares[7] == 1
    assert shares[99] == pytest.approx(1 / 93)


def test_training_learns_and_leaves_the_original_alone(tokenizer) -> None:
    rows = encode(toy_stories(16), tokenizer, 32)
    model = members.build(SMALL, tokenizer, 32, seed=0)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    losses: list[float] = []
    members.tuned(
        model,
        rows,
        Schooling(steps=30, rows=8, learning_rate=1e-2),
        seed=0,
        report=lambda *step: losses.append(step[2]),
    )
    assert losses[-1] < losses[0] - 1
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_padding_is_not_learned(tokenizer) -> None:
    """A row's loss is that of its tokens, whatever stands at its end."""
    rows = encode(["One day, a boy named Tim saw a cat.", " ".join(toy_stories(1))], tokenizer, 64)
    reports: list[float] = []
    for filler in (1, 7):
        ids = rows.ids.masked_fill(rows.mask == 0, filler)
        model = members.build(SMALL, tokenizer, 64, seed=0)
        schooling = Schooling(steps=1, rows=2, learning_rate=1e-2)
        members.train(model, Rows(ids, rows.mask, rows.documents), schooling, 0, lambda *step: reports.append(step[2]))
    assert reports[0] == reports[1]


def test_a_teller_that_repeats_itself_is_refused(teller: Path, tokenizer) -> None:
    model = AutoModelForCausalLM.from_pretrained(teller)
    with pytest.raises(DataError, match="were different"):
        tell_stories(model, tokenizer, 6, new_tokens=24, temperature=1e-4, seed=0)


def test_no_model_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MemberError, match="--stories FOLDER"):
        run(tmp_path)


def test_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORIES", "models/here")
    options, command = read_arguments(["--seeds", "3"])
    assert options.stories == Path("models/here")
    assert command == "python -m lmcompose.experiments.proxy_tuning --stories models/here --seeds 3"
    monkeypatch.delenv("STORIES")
    with pytest.raises(SystemExit, match="2"):
        read_arguments([])
    assert read_arguments(["--stories", "x"])[0].seeds == [0, 1, 2]


def test_the_base_is_several_times_larger_than_the_pair() -> None:
    assert STORIES.base.width > STORIES.small.width
    assert STORIES.base.layers > STORIES.small.layers


def test_the_documentation_shows_the_committed_result() -> None:
    committed = json.loads((ROOT / "results" / "proxy_tuning" / "stories.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "proxy-stories.md").read_text(encoding="utf-8")
    for task in committed["tasks"].values():
        assert losses_grid(task).to_markdown() in page
    assert seeds_grid(committed["tasks"], committed["seeds"]).to_markdown() in page
    assert len(committed["seeds"]) >= 3
    assert committed["recipe"]["profile"] == json.loads(json.dumps(dataclasses.asdict(STORIES)))
