"""Every arm at once, small: members of one shape and one tokenizer, questions with answers, two seeds."""

import hashlib
import io
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import lmcompose
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.experiments.ablations import run
from lmcompose.experiments.ablations.__main__ import main
from lmcompose.experiments.ablations.arms import ARMS
from lmcompose.experiments.ablations.pipeline import answers, with_answers
from lmcompose.loading import load_member
from lmcompose.reporting.ablation_tables import ablation_grids, ablation_markdown, ladder_grid
from lmcompose.training.data import prepare_data
from lmcompose.training.encoding import Example
from lmcompose.training.interrupt import Interrupted
from lmcompose.training.lora import lora_shapes
from lmcompose.training.packing import IGNORED
from lmcompose.training.recipe import Ablations, TrainingRecipe
from lmcompose.training.run import train
from tests.experiments.ablations.documents import held_out_documents
from tests.experiments.ablations.stopping import stop_at_the_third_step
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer
from tests.tokenizers import family

RECIPE = """\
anchor: anchor
augmenting: {expert: expert}
connections: [[1, 1], [2, 3]]
data:
  - {path: train.jsonl, kind: prompt_completion}
validation:
  data:
    - {path: heldout.jsonl, kind: prompt_completion}
training:
  steps: 4
  batch_size: 4
  max_length: 24
  learning_rate: 0.01
  eval_every: 4
  save_every: 2
ablations:
  vanilla: before
  weight: 0.3
  alpha: 0.5
  scale: 0.7
  domain_data:
    - {path: domain.jsonl, kind: prompt_completion}
  domain_epochs: 2
  forgetting:
    - {path: stories.txt}
    - {path: sums.jsonl, kind: prompt_completion}
  learning_rates: {lora: 0.02}
  pipeline: {template: "system : {answer} . {prompt}", new_tokens: 3}
output: out
"""
SHARED = ("composition", "vanilla", "random", "shuffled", "encoder", "lora", "finetuned")
TRAINED = (*SHARED, "finetuned_domain")
MODELS = ("anchor", "expert", "before")
SUMS = 12


def questions(count: int, seed: int) -> str:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        length = 2 + draw.randrange(5)
        words = " ".join(f"w{draw.randrange(40)}" for _ in range(length))
        rows.append({"prompt": f"user : {words} =", "completion": f" w{draw.randrange(40)} {length} ."})
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_project(folder: Path) -> Path:
    for seed, name in enumerate(MODELS):
        save_tiny(folder / name, "llama", seed=seed)
    for seed, (name, count) in enumerate({"train": 40, "heldout": 8, "domain": 12, "sums": SUMS}.items()):
        (folder / f"{name}.jsonl").write_text(questions(count, seed))
    (folder / "stories.txt").write_text("w1 w2 w3 w4\nw9 w8 w7 w6 w5\nw3 w3 w1\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def run_in(recipe: Path, runs: str = "runs", **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"arms": ("composition", "all"), "seeds": (0, 1), "command": "python -m x"}
    console = Console(file=io.StringIO(), width=200)
    return run(recipe, folder=recipe.parent / runs, console=console, **{**settings, **changes})


def digests(folder: Path) -> dict[str, str]:
    files = [path for name in MODELS for path in sorted((folder / name).rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("arms"))


@pytest.fixture(scope="module")
def result(recipe: Path) -> dict[str, Any]:
    before = digests(recipe.parent)
    found = run_in(recipe)
    assert digests(recipe.parent) == before, "the models that the recipe names stay as they are"
    return dict(json.loads(json.dumps(found)))


@pytest.fixture(scope="module")
def documents(recipe: Path) -> list[list[Example]]:
    return held_out_documents(read(recipe), recipe.parent)


def read(recipe: Path) -> TrainingRecipe:
    return TrainingRecipe.model_validate(yaml.safe_load(recipe.read_text()))


def model_at(recipe: Path, name: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(recipe.parent / name).eval()


def saved(recipe: Path, arm: str, seed: int = 1) -> Path:
    return recipe.parent / "runs" / arm / f"seed-{seed}" / "training" / "model"


@torch.no_grad()
def by_hand(scores: Any, documents: list[list[Example]]) -> float:
    """Bits of all that is asked for, one example after the other; scores: ids [1, n] -> logits [1, n, V]."""
    nats = 0.0
    for document in documents:
        for example in document:
            ids = torch.from_numpy(example.input_ids).long()[None]
            asked = torch.from_numpy(example.labels[1:] != IGNORED)
            logs = scores(ids)[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            nats -= float(logs[asked].sum())
    return nats / math.log(2)


def total(result: dict[str, Any], arm: str, seed: int = 1) -> float:
    """Bits of all held-out documents, out of the result."""
    return float(result["per_byte"]["arms"][arm]["by_seed"][seed][0] * result["held_out"]["bytes"])


def test_every_arm_is_run_and_scored_on_every_set(recipe: Path, result: dict[str, Any]) -> None:
    assert result["refused"] == {}
    assert str(recipe.parent) not in json.dumps(result)
    assert result["settings"]["proxy"] == {"vanilla": {"expert": "before"}, "alpha": 0.5}
    assert list(result["arms"]) == list(ARMS)
    assert set(result["per_byte"]["arms"]) == {*ARMS, "anchor", "alone expert"}
    assert set(result["forgetting"]) == {"stories", "sums"}
    assert set(result["forgetting"]["sums"]["per_byte"]["arms"]) == set(result["per_byte"]["arms"])
    assert set(result["forgetting"]["stories"]["per_byte"]["arms"]) == {*ARMS, "anchor", "alone expert"} - {"pipeline"}
    assert result["forgetting"]["sums"]["held_out"]["documents"] == SUMS
    for figures in (result, *result["forgetting"].values()):
        means = [each["mean"] for each in figures["per_byte"]["arms"].values()]
        assert all(math.isfinite(mean) and mean > 0 for mean in means)
        assert len(set(means)) == len(means), "no two arms are one"


def test_all_that_share_the_data_see_the_same_rows_in_the_same_order(recipe: Path, result: dict[str, Any]) -> None:
    work = result["work"]
    assert set(work) == set(TRAINED)
    for seed in (0, 1):
        assert len({work[name]["data_fingerprints"][seed] for name in SHARED}) == 1
        assert len({work[name]["tokens"][seed] for name in SHARED}) == 1
        arm = yaml.safe_load((saved(recipe, "lora", seed).parents[1] / "recipe.yaml").read_text())
        data = prepare_data(TrainingRecipe.model_validate(arm), tiny_tokenizer(), recipe.parent)
        assert work["lora"]["data_fingerprints"][seed] == data.fingerprint
        assert work["lora"]["tokens"][seed] == sum(len(data.train[row]["input_ids"]) for row in range(16))
    assert work["lora"]["data_fingerprints"][0] != work["lora"]["data_fingerprints"][1]
    domain = work["finetuned_domain"]
    assert domain["steps"] == [6, 6], "twelve questions twice, four at a time"
    assert domain["data"][0]["source"] == "domain.jsonl"
    assert domain["data_fingerprints"][0] not in work["lora"]["data_fingerprints"]
    for each in work.values():
        assert all(seconds > 0 for seconds in each["seconds"])


def test_the_parameters_of_lora_match_those_of_the_bridges_within_a_rank(recipe: Path, result: dict[str, Any]) -> None:
    wanted, got = (result["work"][name]["parameters"] for name in ("composition", "lora"))
    per_rank = sum(rows * columns for rows, columns in lora_shapes(tiny_model("llama"), 1))
    assert got % per_rank == 0
    assert abs(got - wanted) <= per_rank / 2
    tensors = load_file(saved(recipe, "lora") / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == got
    assert all("lora_" in name for name in tensors)
    assert wanted == lmcompose.load(saved(recipe, "composition")).num_composition_parameters()


def test_a_whole_model_is_tuned_and_an_adapted_one_keeps_its_base(recipe: Path, result: dict[str, Any]) -> None:
    anchor, tuned = model_at(recipe, "anchor"), AutoModelForCausalLM.from_pretrained(saved(recipe, "finetuned"))
    assert result["work"]["finetuned"]["parameters"] == sum(p.numel() for p in anchor.parameters())
    assert all(not torch.equal(p, anchor.get_parameter(name)) for name, p in tuned.named_parameters())
    adapted = load_member(str(saved(recipe, "lora"))).model
    base = {name.replace("base_layer.", ""): p for name, p in adapted.named_parameters() if "lora_" not in name}
    assert all(torch.equal(p, anchor.get_parameter(name)) for name, p in base.items())
    assert len(base) == len(list(anchor.parameters()))
    assert not (saved(recipe, "finetuned").parent / "checkpoints").exists()
    arms = [
        yaml.safe_load((saved(recipe, arm).parents[1] / "recipe.yaml").read_text()) for arm in ("lora", "finetuned")
    ]
    assert [arm["training"]["learning_rate"] for arm in arms] == [0.02, 0.01]


@pytest.mark.parametrize("arm", ["finetuned", "finetuned_domain", "lora", "composition", "vanilla"])
def test_a_trained_arm_scores_what_its_model_says(
    recipe: Path, result: dict[str, Any], documents: list[list[Example]], arm: str
) -> None:
    place = saved(recipe, arm)
    model: Any = load_member(str(place)).model if ARMS[arm].family == "tuned" else lmcompose.load(place)
    assert total(result, arm) == pytest.approx(by_hand(lambda ids: model(ids).logits, documents), rel=1e-5)


def test_the_vanilla_arm_reads_the_model_before_its_training(recipe: Path, result: dict[str, Any]) -> None:
    members = {arm: lmcompose.load(saved(recipe, arm)).config.references()["expert"].name_or_path for arm in
               ("composition", "vanilla")}  # fmt: skip
    assert [Path(members[arm]).name for arm in ("composition", "vanilla")] == ["expert", "before"]


def test_an_encoder_reads_the_prompt_alone(
    recipe: Path, result: dict[str, Any], documents: list[list[Example]]
) -> None:
    model: Any = lmcompose.load(saved(recipe, "encoder"))
    assert model.reads_prompts
    nats = 0.0
    for document in documents:
        for example in document:
            ids, labels = (torch.from_numpy(each).long()[None] for each in example)
            with torch.no_grad():
                nats += float(model(ids, labels=labels).loss) * int((labels[:, 1:] != IGNORED).sum())
    assert total(result, "encoder") == pytest.approx(nats / math.log(2), rel=1e-5)
    with torch.no_grad():
        elsewhere = by_hand(lambda ids: model(ids).logits, documents)  # all of the text as the prompt
    assert abs(elsewhere - total(result, "encoder")) > 1e-3


def test_models_joined_at_their_scores(recipe: Path, result: dict[str, Any], documents: list[list[Example]]) -> None:
    anchor, expert, before = (model_at(recipe, name) for name in MODELS)
    ensemble = by_hand(lambda ids: 0.7 * anchor(ids).logits + 0.3 * expert(ids).logits, documents)
    assert total(result, "ensemble") == pytest.approx(ensemble, rel=1e-5)
    proxy = by_hand(lambda ids: anchor(ids).logits + 0.5 * (expert(ids).logits - before(ids).logits), documents)
    assert total(result, "proxy") == pytest.approx(proxy, rel=1e-5)
    assert result["settings"]["ensemble"] == {"weight": 0.3}
    assert "0.3 of it m_A" in result["arms"]["ensemble"]
    assert "alpha 0.5" in result["arms"]["proxy"]


def test_models_joined_by_their_weights(recipe: Path, result: dict[str, Any], documents: list[list[Example]]) -> None:
    anchor, expert, before = (model_at(recipe, name).state_dict() for name in MODELS)
    joined = model_at(recipe, "anchor")
    joined.load_state_dict({key: 0.7 * anchor[key] + 0.3 * expert[key] for key in anchor})
    assert total(result, "average") == pytest.approx(by_hand(lambda ids: joined(ids).logits, documents), rel=1e-5)
    joined.load_state_dict({key: anchor[key] + 0.7 * (expert[key] - before[key]) for key in anchor})
    by_arithmetic = by_hand(lambda ids: joined(ids).logits, documents)
    assert total(result, "task_arithmetic") == pytest.approx(by_arithmetic, rel=1e-5)


def test_routing_takes_the_better_model_of_each_document(
    recipe: Path, result: dict[str, Any], documents: list[list[Example]]
) -> None:
    anchor, expert = (model_at(recipe, name) for name in ("anchor", "expert"))
    bits = [
        min(by_hand(lambda ids, model=model: model(ids).logits, [document]) for model in (anchor, expert))
        for document in documents
    ]
    assert total(result, "routing") == pytest.approx(sum(bits), rel=1e-5)
    assert total(result, "routing") < min(total(result, name) for name in ("anchor", "alone expert"))


def test_a_pipeline_reads_what_the_other_model_answered(
    recipe: Path, result: dict[str, Any], documents: list[list[Example]]
) -> None:
    tokenizer, anchor = tiny_tokenizer(), model_at(recipe, "anchor")
    prompts = [json.loads(line)["prompt"] for line in (recipe.parent / "heldout.jsonl").read_text().splitlines()]
    given = answers(load_member(str(recipe.parent / "expert")), prompts, 3, rows_at_once=1)
    assert all(len(answer.split()) <= 3 for answer in given)
    asked = with_answers(documents, given, "system : {answer} . {prompt}", tokenizer)
    assert total(result, "pipeline") == pytest.approx(by_hand(lambda ids: anchor(ids).logits, asked), rel=1e-5)
    assert tokenizer.decode(asked[0][0].input_ids).startswith(f"system : {given[0]} . {prompts[0]}")


def test_what_is_not_trained_has_no_interval_over_seeds(result: dict[str, Any]) -> None:
    gains = result["per_byte"]["gains"]
    for name, gain in gains.items():
        untrained = name == "alone expert" or ARMS[name].family == "untrained"
        assert (gain["seeds"] is None) == untrained, name
        figures = result["per_byte"]["arms"]
        assert gain["mean"] == pytest.approx(figures[name]["mean"] - figures["anchor"]["mean"])


def test_gains_and_losses_stand_in_one_table(result: dict[str, Any]) -> None:
    grid = ladder_grid(result)
    assert grid.columns[:5] == ["", "held out", "minus the anchor", "stories, minus the anchor",
                                "sums, minus the anchor"]  # fmt: skip
    rows = {row[0]: row for row in grid.rows}
    assert len(rows) == len(ARMS) + 2
    assert rows["m_A's answer in the anchor's prompt"][3] == "cannot be scored"
    tuned = rows["the anchor tuned whole on the composition data"]
    assert tuned[5] == f"{result['work']['finetuned']['parameters'] / 1000:.3g} k"
    said = [gain["verdict"] for gain in result["per_byte"]["gains"].values()]
    assert [row[2].split(", ", 1)[1] for row in grid.rows[1:]] == [
        result["per_byte"]["gains"][name]["verdict"] for name in (*result["arms"], "alone expert")
    ]
    assert "no difference shown" in said, "two seeds of four steps cannot show all of them"
    text = ablation_markdown(result)
    assert all(grid.title in text for grid in ablation_grids(result))
    assert "on stories, bits per byte" in text


def test_a_second_run_takes_everything_from_the_first(recipe: Path, result: dict[str, Any]) -> None:
    kept = [path for path in (recipe.parent / "runs").rglob("*") if path.suffix in (".safetensors", ".json")]
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    again = run_in(recipe)
    assert {path: path.stat().st_mtime_ns for path in kept} == stamps
    assert json.loads(json.dumps(again["per_byte"])) == result["per_byte"]
    assert again["work"] == result["work"]


def test_another_setting_scores_again_only_what_it_decides(recipe: Path, result: dict[str, Any]) -> None:
    options = read(recipe).ablations
    assert options is not None
    files = {arm: recipe.parent / "runs" / arm / "scores.json" for arm in ("ensemble", "average", "proxy")}
    stamps = {arm: path.stat().st_mtime_ns for arm, path in files.items()}
    before = {path: path.read_text() for path in files.values()}
    changed = run_in(recipe, arms=("composition", *files), options=options.model_copy(update={"alpha": 2.0}))
    assert {arm for arm, path in files.items() if path.stat().st_mtime_ns != stamps[arm]} == {"proxy"}
    assert total(changed, "proxy") != total(result, "proxy")
    for path, text in before.items():
        path.write_text(text)


@pytest.mark.parametrize("arm", ["lora", "finetuned"])
def test_an_arm_that_was_stopped_in_training_goes_on(
    recipe: Path, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    steps = stop_at_the_third_step(monkeypatch)
    with pytest.raises(Interrupted, match="python -m x"):
        run_in(recipe, f"stopped-{arm}", arms=(arm,), seeds=(1,))
    again = run_in(recipe, f"stopped-{arm}", arms=(arm,), seeds=(1,))
    assert steps == [1, 2, 3, 4]
    assert again["work"][arm]["resumed"] == [3]
    assert total(again, arm, 0) == pytest.approx(total(result, arm), rel=1e-6)
    assert "Went on from a checkpoint" in ablation_markdown(again)


def test_the_run_of_one_arm_is_not_gone_on_with_as_another(recipe: Path, result: dict[str, Any]) -> None:
    arm = saved(recipe, "lora").parents[1] / "recipe.yaml"
    with pytest.raises(ConfigurationError, match=r"trains LoRA of about .* and not a composition"):
        train(arm, resume=True)


# ------------------------------------------------------------------------------------- runs that are there already


def changed(recipe: Path, *replacements: tuple[str, str]) -> Path:
    text = RECIPE
    for before, after in replacements:
        assert before in text
        text = text.replace(before, after)
    place = recipe.with_name("changed.yaml")
    place.write_text(text)
    return place


def test_a_finished_run_of_another_recipe_is_refused_before_anything_is_trained(
    recipe: Path, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcompose.experiments.ablations.runs.train", None)
    monkeypatch.setattr("lmcompose.experiments.ablations.runs.tune", None)
    other = changed(recipe, ("learning_rate: 0.01", "learning_rate: 0.03"))
    with pytest.raises(ConfigurationError, match=r"'composition'.*\(training.learning_rate\).*--runs"):
        run_in(other)
    with pytest.raises(ConfigurationError, match=r"'finetuned'.*training.learning_rate"):
        run_in(other, arms=("finetuned",))
    rates = Ablations(learning_rates={"lora": 0.5})
    with pytest.raises(ConfigurationError, match=r"'lora'.*training.learning_rate"):
        run_in(recipe, arms=("composition", "lora"), options=rates)
    with pytest.raises(ConfigurationError, match=r"'vanilla'.*augmenting"):
        run_in(recipe, arms=("composition", "vanilla"), options=Ablations(vanilla="expert"))
    other = changed(recipe, ("{expert: expert}", "{expert: before}"))
    with pytest.raises(ConfigurationError, match=r"random/seed-0/expert holds a model that another recipe"):
        run_in(other, arms=("random",))


def test_data_that_were_changed_are_noticed(recipe: Path, result: dict[str, Any]) -> None:
    text = (recipe.parent / "train.jsonl").read_text()
    (recipe.parent / "train.jsonl").write_text(text.replace("w1 ", "w2 "))
    try:
        with pytest.raises(ConfigurationError, match="composition data were changed"):
            run_in(recipe, arms=("lora",))
    finally:
        (recipe.parent / "train.jsonl").write_text(text)


def test_held_out_documents_that_were_changed_are_scored_again(recipe: Path, result: dict[str, Any]) -> None:
    text = (recipe.parent / "stories.txt").read_text()
    (recipe.parent / "stories.txt").write_text(text.replace("w1 w2", "w1 w5"))
    try:
        again = run_in(recipe, arms=("composition", "finetuned"))
    finally:
        (recipe.parent / "stories.txt").write_text(text)
    old, new = (each["forgetting"]["stories"]["per_byte"]["arms"]["finetuned"]["mean"] for each in (result, again))
    assert old != new
    assert again["per_byte"]["arms"]["finetuned"]["mean"] == result["per_byte"]["arms"]["finetuned"]["mean"]


def test_no_seed_trains_on_what_is_held_out_by_a_fraction(recipe: Path) -> None:
    fraction = ("  data:\n    - {path: heldout.jsonl, kind: prompt_completion}\n", "  fraction: 0.2\n")
    other = changed(recipe, fraction)
    held = {document[0].input_ids.tobytes() for document in
            held_out_documents(read(other), recipe.parent)}  # fmt: skip
    run_in(other, "fraction", arms=("lora",), seeds=(0, 5))
    for seed in (0, 5):
        arm = read(recipe.parent / "fraction" / "lora" / f"seed-{seed}" / "recipe.yaml")
        data = prepare_data(arm, tiny_tokenizer(), recipe.parent)
        assert arm.seed == seed
        assert not held & {each.input_ids.tobytes() for each in data.train.examples[0]}
    kept = changed(recipe, fraction, ("output: out", "output: out\nseed: 5"))
    other_split = held_out_documents(read(kept), recipe.parent)
    assert held != {document[0].input_ids.tobytes() for document in other_split}, "another seed would hold out others"


# ---------------------------------------------------------------------------------------------------------- refusals


def test_arms_that_cannot_be_run_say_why_and_leave_the_others(recipe: Path, tmp_path: Path) -> None:
    """Members of other shapes with other tokenizers, plain text, and nothing to compare with."""
    foreign = family("qwen")
    tiny_model("gpt2", 3, vocab_size=len(foreign), hidden_size=24).save_pretrained(tmp_path / "foreign")
    foreign.save_pretrained(tmp_path / "foreign")
    save_tiny(tmp_path / "anchor", "llama")
    for name, numbers in (("train", range(12)), ("heldout", range(12, 16))):
        (tmp_path / f"{name}.txt").write_text("".join(f"w{n} w2 w{n + 3} w4 w5\n" for n in numbers))
    values = {
        "anchor": "anchor", "augmenting": "foreign", "data": [{"path": "train.txt"}], "output": "out",
        "validation": {"data": [{"path": "heldout.txt"}]}, "training": {"steps": 1, "batch_size": 2, "max_length": 8},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    found = run_in(tmp_path / "recipe.yaml", seeds=(0,), arms=("lora", "all"))
    why = {name: found["refused"].get(arm.title.format(weight=0.5, scale=1, alpha=1)) for name, arm in ARMS.items()}
    ran = ("composition", "random", "shuffled", "lora", "finetuned", "routing")
    assert [name for name in ARMS if why[name] is None] == list(ran)
    assert set(found["arms"]) == set(ran)
    expected = {
        "vanilla": "--vanilla", "encoder": "plain text without prompts", "finetuned_domain": "--domain-data",
        "ensemble": "token", "average": "all shapes match", "task_arithmetic": "--vanilla", "proxy": "--vanilla",
        "pipeline": "no prompt that m_A could answer",
    }  # fmt: skip
    for name, part in expected.items():
        assert part in why[name], (name, why[name])
    text = ablation_markdown(found)
    assert all(reason in text for reason in found["refused"].values())
    assert ladder_grid(found).rows[-1][1] == "not run"
    with pytest.raises(ConfigurationError, match="The first arm, 'pipeline', cannot be run"):
        run_in(tmp_path / "recipe.yaml", arms=("pipeline", "lora"))
    vanilla = Ablations(vanilla="foreign")
    found = run_in(tmp_path / "recipe.yaml", seeds=(0,), arms=("lora", "proxy", "encoder"), options=vanilla)
    assert all("token" in reason or "plain text" in reason for reason in found["refused"].values())
    assert len(found["refused"]) == 2


def test_a_recipe_that_extends_a_composition_has_the_arms_that_it_can_have(
    recipe: Path, documents: list[list[Example]], tmp_path: Path
) -> None:
    places = {name: str(recipe.parent / name) for name in MODELS}
    lmcompose.compose(places["anchor"], {"expert": places["expert"]}).save_pretrained(tmp_path / "saved")
    other = changed(
        recipe, ("anchor: anchor", f"extends: {tmp_path / 'saved'}"), ("{expert: expert}", "{more: before}")
    )
    found = run_in(other, "extends", arms=("composition", "random", "lora", "ensemble", "routing"), seeds=(0,),
                   options=Ablations())  # fmt: skip
    assert list(found["arms"]) == ["composition", "random", "routing"]
    assert all("extends a saved composition" in reason for reason in found["refused"].values())
    anchor = model_at(recipe, "anchor")
    assert total(found, "anchor", 0) == pytest.approx(by_hand(lambda ids: anchor(ids).logits, documents), rel=1e-5)


def test_each_source_of_held_out_documents_is_scored_by_itself_too(recipe: Path) -> None:
    lines = (recipe.parent / "heldout.jsonl").read_text().splitlines(keepends=True)
    for name, some in (("som", lines[:3]), ("orm", lines[3:])):
        (recipe.parent / f"{name}.jsonl").write_text("".join(some))
    one = "    - {path: heldout.jsonl, kind: prompt_completion}\n"
    two = changed(recipe, (one, one.replace("heldout", "som") + one.replace("heldout", "orm")))
    found = run_in(two, "by-source", arms=("composition", "routing"), seeds=(0,))
    parts = found["by_source"]
    assert {name: part["held_out"]["documents"] for name, part in parts.items()} == {"som": 3, "orm": len(lines) - 3}
    for arm, whole in found["per_byte"]["arms"].items():
        added = sum(part["per_byte"]["arms"][arm]["mean"] * part["held_out"]["bytes"] for part in parts.values())
        assert added == pytest.approx(whole["mean"] * found["held_out"]["bytes"])
    grid = next(grid for grid in ablation_grids(found) if grid.title.startswith("Held-out loss by source"))
    assert list(grid.columns) == ["model", "som", "minus the anchor", "orm", "minus the anchor"]
    assert "by_source" not in run_in(recipe, "by-source-one", arms=("routing",), seeds=(0,))


def test_an_encoder_with_tokens_of_its_own_is_refused(recipe: Path, tmp_path: Path) -> None:
    foreign = family("qwen")
    tiny_model("gpt2", 3, vocab_size=len(foreign)).save_pretrained(tmp_path / "foreign")
    foreign.save_pretrained(tmp_path / "foreign")
    other = changed(recipe, ("{expert: expert}", f"{{expert: {tmp_path / 'foreign'}}}"))
    found = run_in(other, "foreign", arms=("lora", "encoder"), seeds=(0,))
    (reason,) = found["refused"].values()
    assert "has a tokenizer of its own" in reason


def test_domain_data_with_held_out_documents_are_refused(recipe: Path) -> None:
    leaking = recipe.with_name("leaking.jsonl")
    first = (recipe.parent / "heldout.jsonl").read_text().splitlines(keepends=True)[0]
    leaking.write_text((recipe.parent / "domain.jsonl").read_text() + first)
    options = Ablations(domain_data=[{"path": "leaking.jsonl", "kind": "prompt_completion"}])  # type: ignore[list-item]
    found = run_in(recipe, "leaking", arms=("lora", "finetuned_domain"), seeds=(0,), options=options)
    (reason,) = found["refused"].values()
    assert "leaking.jsonl holds 1 of the held-out documents" in reason


@pytest.mark.parametrize(("of", "said"), [("heldout", "held-out documents"), ("sums", "documents of 'sums'")])
def test_composition_data_with_what_arms_are_scored_on_are_refused(recipe: Path, of: str, said: str) -> None:
    first = (recipe.parent / f"{of}.jsonl").read_text().splitlines(keepends=True)[0]
    taught = recipe.with_name(f"taught-{of}.jsonl")
    taught.write_text((recipe.parent / "train.jsonl").read_text() + first)
    with pytest.raises(DataError, match=f"{taught.name} holds 1 of the {said}"):
        run_in(changed(recipe, ("train.jsonl", taught.name)), f"taught-{of}", arms=("composition",), seeds=(0,))
    assert not (recipe.parent / f"taught-{of}").exists()


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_tuned(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = sum(p.numel() for p in tiny_model("llama").parameters())
    room = 15 * parameters  # four numbers of four bytes each would be needed
    monkeypatch.setattr("lmcompose.training.plan.memory", lambda: (room, room))
    found = run_in(recipe, "memory", arms=("lora", "finetuned"), seeds=(0,))
    (reason,) = found["refused"].values()
    assert "before its first step" in reason
    room = 17 * parameters
    assert run_in(recipe, "memory", arms=("lora", "finetuned"), seeds=(0,))["refused"] == {}


def test_an_arm_that_loses_its_way_does_not_take_the_others_with_it(recipe: Path, result: dict[str, Any]) -> None:
    options = Ablations(learning_rates={"finetuned": 1e30})
    found = run_in(recipe, "lost", arms=("lora", "finetuned", "average"), seeds=(0,), options=options)
    (reason,) = found["refused"].values()
    assert "Lower the learning rate" in reason
    assert set(found["arms"]) == {"lora", "average"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vanilla": {"exprt": "before"}}, "Did you mean 'expert'"),
        ({"learning_rates": {"lroa": 0.1}}, "Did you mean 'lora'"),
        ({"learning_rates": {"average": 0.1}}, "is not trained"),
    ],
)
def test_options_that_mean_nothing_are_refused(recipe: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_in(recipe, "bad", options=Ablations.model_validate(options))
    assert not (recipe.parent / "bad").exists()


def test_the_command_takes_what_a_recipe_may_say(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = recipe.with_name("bare.yaml")
    values = yaml.safe_load(RECIPE)
    del values["ablations"]
    bare.write_text(yaml.safe_dump(values))
    monkeypatch.chdir(recipe.parent)
    given = ["bare.yaml", "--arms", "proxy", "pipeline", "ensemble", "--seeds", "0", "--vanilla", "before",
             "--forgetting", "stories.txt", "sums.jsonl:prompt_completion", "--weight", "0.25", "--alpha", "2",
             "--template", "{answer} {prompt}", "--answer-tokens", "2", "--runs", str(tmp_path / "runs"),
             "--output", str(tmp_path / "out.json")]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["ablations", *given])
    main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["settings"]["pipeline"] == {"pipeline": {"template": "{answer} {prompt}", "new_tokens": 2}}
    assert found["settings"]["ensemble"] == {"weight": 0.25}
    assert found["options"]["vanilla"] == "before"
    assert str(recipe.parent) not in (tmp_path / "out.json").read_text(), "folders of a machine are nobody's business"
    assert list(found["forgetting"]) == ["stories", "sums"]
    assert found["recipe"].get("ablations") is None
    assert "0.25 of it m_A" in (tmp_path / "out.md").read_text()
    assert found["work"] == {}
    for wrong, message in (("--weight 1.5", "weight"), ("--template nothing", "places"), ("--vanilla a=before", "'a'")):
        monkeypatch.setattr("sys.argv", ["ablations", "bare.yaml", *wrong.split()])
        with pytest.raises(SystemExit) as refused:
            main()
        assert refused.value.code == 2
        assert message in capsys.readouterr().err


def test_a_whole_anchor_of_bfloat16_learns_in_float32(recipe: Path) -> None:
    other = changed(recipe, ("output: out", "dtype: bfloat16\noutput: out"))
    found = run_in(other, "half", arms=("finetuned", "lora"), seeds=(0,))
    whole = load_file(recipe.parent / "half" / "finetuned" / "seed-0" / "training" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in whole.values()} == {torch.float32}
    assert math.isfinite(found["per_byte"]["arms"]["finetuned"]["mean"])
    adapter = load_file(recipe.parent / "half" / "lora" / "seed-0" / "training" / "model" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}


def test_early_stopping_on_what_is_scored_is_refused(recipe: Path) -> None:
    stopping = "training:\n  early_stopping: {patience: 1}"
    with pytest.raises(ConfigurationError, match="ahead of what is not"):
        run_in(
            changed(recipe, ("training:", stopping), ("save_every: 2", "save_every: 4")),
            "stopping",
            arms=("lora",),
            seeds=(0,),
        )
