"""Models on tasks by lm-eval: scores are those made by hand, and lm-eval's own, and a killed run goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from lmcompose import compose, proxy_tune
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.chrf import chrf1
from lmcompose.evaluation.harness import Settings, evaluate
from lmcompose.evaluation.hflm import ComposedLM
from lmcompose.evaluation.identity import describe
from lmcompose.evaluation.scores import scores
from lmcompose.evaluation.statistics import NO_DIFFERENCE, wilson_interval
from lmcompose.evaluation.tasks import find_tasks
from lmcompose.evaluation.tasks.languages import language_name
from tests.compositions import randomise
from tests.evaluation.samples import ENGLISH, NQ, write_samples
from tests.tiny import tiny_model
from tests.tokenizers import family

TASKS = ["ntrex_som", "gsm8k", "truthfulqa_mc1", "nq_open"]
TINY = {"shots": 1, "max_new_tokens": 4}
SHORT = Settings(**TINY)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"))


def member(architecture: str, seed: int, **sizes: Any) -> Any:
    tokenizer = family("qwen")
    return tiny_model(architecture, seed, vocab_size=len(tokenizer), max_position_embeddings=1024, **sizes), tokenizer


def large() -> Any:
    return member("llama", 0)


def small(seed: int = 1) -> Any:
    return member("llama", seed, hidden_size=24)


@pytest.fixture(scope="module")
def trained() -> Any:
    return randomise(compose(anchor=large(), augmenting=small(), connections=[(1, 2), (3, 3)]))


@pytest.fixture(scope="module")
def proxy() -> Any:
    return proxy_tune(large(), small(1), small(2))


def rows(output: Path, label: str, task: str) -> list[dict[str, Any]]:
    return json.loads((output / label / f"{task}.json").read_text(encoding="utf-8"))["examples"]


# ------------------------------------------------------------------------------------------------------------- scores


def test_a_composition_with_no_output_scores_as_its_anchor(trained: Any, data: Path, tmp_path: Path) -> None:
    """In every task, to the last bit; with random composition parameters it does not."""
    untrained = compose(anchor=large(), augmenting=small())
    models = {"anchor": large(), "untrained": untrained, "trained": trained}
    result = evaluate(models, TASKS, tmp_path, settings=Settings(limit=3, **TINY), data=data, batch_size=2)
    differing = 0
    for task, found in result["scores"].items():
        assert rows(tmp_path, "untrained", task) == rows(tmp_path, "anchor", task), task
        differing += rows(tmp_path, "trained", task) != rows(tmp_path, "anchor", task)
        for by_model in found.values():
            assert by_model["untrained"] == by_model["anchor"]
        assert result["minus_first"][task]["untrained"]["mean"] == 0
        assert result["minus_first"][task]["untrained"]["verdict"] == NO_DIFFERENCE
    assert differing >= 2
    assert result["families"]["ntrex"]["beats"]["untrained"] == 0
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == result
    assert result["versions"]["lm_eval"]
    assert result["seed"] == 1234
    assert result["command"]


@pytest.mark.parametrize("kind", ["trained", "proxy"])
def test_batched_scores_are_those_of_one_text_at_a_time(
    kind: str, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    tasks = ["nq_open", "truthfulqa_mc2"]
    evaluate({"it": model}, tasks, tmp_path, settings=SHORT, data=data, batch_size=3)
    lengths = set()
    for row, asked in zip(rows(tmp_path, "it", "nq_open"), prompts("nq_open", data), strict=True):
        inputs = model.tokenizer(asked, return_tensors="pt")
        lengths.add(inputs["input_ids"].shape[1])
        with torch.no_grad():
            output = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)
        text = model.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert row["responses"] == [text.split("\n")[0]]
    assert len(lengths) > 1  # so that rows were padded
    for row, asked, doc in zip(
        rows(tmp_path, "it", "truthfulqa_mc2"),
        prompts("truthfulqa_mc2", data),
        find_tasks(["truthfulqa_mc2"], str(data))["truthfulqa_mc2"].eval_docs,
        strict=True,
    ):
        targets = doc["mc2_targets"]
        likelihoods = [likelihood(model, asked, f" {choice}") for choice in targets["choices"]]
        assert [response[0] for response in row["responses"]] == pytest.approx(likelihoods, abs=1e-3)
        masses = torch.tensor(likelihoods, dtype=torch.float64).softmax(0)
        share = float(masses[torch.tensor(targets["labels"]) == 1].sum())
        assert row["values"]["acc,none"] == pytest.approx(share, abs=1e-3)


def prompts(name: str, data: Path) -> list[str]:
    task = find_tasks([name], str(data))[name]
    task.set_fewshot_seed(1234)
    shots = min(1, task.get_config("num_fewshot"))
    return [task.fewshot_context(doc, shots) for doc in task.eval_docs]


def likelihood(model: Any, before: str, after: str, **given: Any) -> float:
    prompt = model.tokenizer(before)["input_ids"]
    ids = torch.tensor([model.tokenizer(before + after)["input_ids"]])
    if "prompt_length" in given:
        given["prompt_length"] = len(prompt)
    with torch.no_grad():
        scores = model(ids, use_cache=False, **given).logits[0, :-1].log_softmax(-1)
    chosen = scores.gather(-1, ids[0, 1:, None])[:, 0]
    return float(chosen[len(prompt) - 1 :].sum())


def test_an_augmenting_model_that_reads_the_prompt_does_not_read_the_answer(data: Path) -> None:
    model = randomise(compose(anchor=large(), augmenting={"it": small()}, reads="prompt"))
    lm = ComposedLM(model, batch_size=2)
    asked, answers = "Q: can cats fly?\nA:", [" No, they can't.", " Yes"]
    whole = [likelihood(model, asked, answer) for answer in answers]
    right = [likelihood(model, asked, answer, prompt_length=0) for answer in answers]
    assert abs(whole[0] - right[0]) > 1e-2  # it matters
    found = lm._loglikelihood_tokens([(None, *lm._encode_pair(asked, answer)) for answer in answers], True)
    assert [value for value, _ in found] == pytest.approx(right, abs=1e-3)


# ------------------------------------------------------------------------------- agreement with lm-eval and sacrebleu


class Replay(LM):
    """Answers as given, by the last question of a prompt, stopped where a task says."""

    def __init__(self, texts: Sequence[str], seed: int = 0) -> None:
        super().__init__()
        self.texts, self.drawn = texts, random.Random(seed)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        found = []
        for text, request in zip(self.texts, requests, strict=True):
            for stop in request.args[1]["until"]:
                text = text.split(stop)[0]
            found.append(text)
        return found

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [(-10 * self.drawn.random(), False) for _ in requests]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError


def measured(task: Any, texts: Sequence[str] = ()) -> dict[str, list[float]]:
    """Every score of every example, by metric and filter."""
    task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(0)
    found = lm_evaluate(Replay(texts), {"tasks": {task.task_name: task}, "groups": {}}, bootstrap_iters=0)
    values: dict[str, list[float]] = {}
    for sample in found["samples"][task.task_name]:
        for metric in sample["metrics"]:
            values.setdefault(f"{metric},{sample['filter']}", []).append(sample[metric])
    return values


def of_lm_eval(file: str, like: Any, **instead: Any) -> Any:
    """lm-eval's own task on the data of one of ours."""
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / file)
    ours = {key: like.get_config(key) for key in ("custom_dataset", "dataset_kwargs")}
    splits = ("training_split", "validation_split", "test_split", "fewshot_split")
    kept = {key: value for key, value in config.items() if key not in ("tag", "dataset_name", *splits)}
    return ConfigurableTask(config={**kept, **ours, **{key: like.get_config(key) for key in splits}, **instead})


def test_gsm8k_scores_as_in_lm_eval(data: Path) -> None:
    texts = ["3 + 4 = 7\n#### 7", "He has 6 apples.", "It is $1,125.\nQuestion: what is 5?"]
    task = find_tasks(["gsm8k"], str(data))["gsm8k"]
    ours, theirs = measured(task, texts), measured(of_lm_eval("gsm8k/gsm8k.yaml", task), texts)
    assert theirs == {"exact_match,strict-match": [1, 0, 0], "exact_match,flexible-extract": [1, 1, 1]}
    assert theirs.items() <= ours.items()
    assert ours["exact_match,number"] == [1, 1, 1]
    awkward = ["The answer is 7 apples. She had 3.", "**6** (10 - 4)", "I cannot tell."]
    assert measured(task, awkward)["exact_match,number"] == [1, 0, 0]


def test_mgsm_scores_as_in_lm_eval(data: Path) -> None:
    task = find_tasks(["mgsm_sw"], str(data))["mgsm_sw"]
    texts = ["Jibu ni 7", "6.", "2,125 dollars"]
    ours = measured(task, texts)
    assert ours["exact_match,number"] == [1, 1, 1]
    fields = {"doc_to_target": "{{answer}}", "doc_to_text": "{{question}}"}  # its own have other names on the hub
    direct = of_lm_eval("mgsm/direct/mgsm_direct_sw.yaml", task, **fields)
    assert measured(direct, texts)["exact_match,flexible-extract"] == ours["exact_match,flexible-extract"]


@pytest.mark.parametrize("name", ["truthfulqa_mc1", "truthfulqa_mc2"])
def test_truthfulqa_scores_as_in_lm_eval(name: str, data: Path) -> None:
    task = find_tasks([name], str(data))[name]
    theirs = of_lm_eval(f"truthfulqa/{name}.yaml", task)
    doc = task.eval_docs[1]
    assert task.fewshot_context(doc, 0) == theirs.fewshot_context(doc, 0)
    ours = measured(task)
    assert ours["acc,none"] == pytest.approx(measured(theirs)["acc,none"], abs=1e-12)
    assert 0 < sum(ours["acc,none"]) < 3


def test_nq_open_scores_as_in_lm_eval(data: Path) -> None:
    task = find_tasks(["nq_open"], str(data))["nq_open"]
    theirs = of_lm_eval("nq_open/nq_open.yaml", task)
    assert task.fewshot_context(task.eval_docs[0], 0) == theirs.fewshot_context(theirs.eval_docs[0], 0)
    for texts in (
        [" Missouri, of course", " December 1972\nQ: who?", " the beatles."],
        [" St. Louis, Missouri", " The answer is **14 December 1972**.", " The Rolling Stones"],
    ):
        ours = measured(task, texts)
        assert ours["exact_match,lm-eval"] == measured(theirs, texts)["exact_match,remove_whitespace"]
    assert ours["exact_match,answer"] == [1, 1, 0]  # where lm-eval has none right, since it stops at the full stop
    assert ours["exact_match,lm-eval"] == [0, 0, 0]
    assert [row["answer"] for row in task.eval_docs] == [answers for _, answers in NQ]


def test_chrf_is_that_of_sacrebleus_command_line(data: Path, tmp_path: Path) -> None:
    texts = [
        "The cat is sleeping.",
        "",
        "brown Fox!",
        "A line that ends here.",
        "1984",
        "Dogs do care a lot, cats do not.",
    ]
    task = find_tasks(["ntrex_som"], str(data))["ntrex_som"]
    task.set_config(key="num_fewshot", value=0)
    found = lm_evaluate(Replay(texts), {"tasks": {"ntrex_som": task}, "groups": {}}, bootstrap_iters=0)
    result = found["results"]["ntrex_som"]
    (tmp_path / "ref").write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for beta in (1, 2):
        command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-m", "chrf", "--chrf-beta", str(beta)]
        said = subprocess.run([*command, "-b", "-w", "6"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert round(result[f"chrf{beta},first_line"], 6) == float(said.stdout)
    assert result["chrf1,first_line"] != result["chrf2,first_line"]


def test_intervals_are_wilsons_or_around_the_estimate() -> None:
    right = [{"doc_id": i, "filter": "none", "metrics": ["acc"], "acc": float(i < 3)} for i in range(10)]
    found = scores(right, {"acc,none": 0.3})["acc,none"]
    assert found == {"estimate": 0.3, "interval": list(wilson_interval(3, 10)[1:]), "examples": 10, "unit": "share"}
    shares = [{**sample, "acc": sample["doc_id"] / 10} for sample in right]
    low, high = scores(shares, {"acc,none": 0.45})["acc,none"]["interval"]
    assert 0.2 < low < 0.4 < 0.5 < high < 0.7
    pairs = [{**sample, "metrics": ["chrf1"], "chrf1": (ENGLISH[i % 6], ENGLISH[0])} for i, sample in enumerate(right)]
    whole = chrf1([sample["chrf1"] for sample in pairs])
    found = scores(pairs, {"chrf1,none": whole})["chrf1,none"]
    assert found["interval"][0] < found["estimate"] == whole < found["interval"][1]
    assert found["unit"] == "chrF"
    perplexity = [{**sample, "acc": 2.0 + sample["doc_id"]} for sample in right]
    assert scores(perplexity, {"acc,none": 9.9})["acc,none"]["interval"] is None  # not the mean of its examples


# ------------------------------------------------------------------------------------------------------------- resuming


def test_a_killed_run_goes_on_where_it_was(trained: Any, data: Path, tmp_path: Path) -> None:
    """Killed in its second task, it runs neither the first nor what the second had answered again."""
    tasks, options = ["gsm8k", "nq_open"], {"settings": SHORT, "data": data, "batch_size": 1}
    whole = evaluate({"it": trained}, tasks, tmp_path / "whole", **options)
    calls: list[int] = []
    generate = type(trained).generate

    def killed_at_the_fifth(self: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return generate(self, *arguments, **keywords)

    child = os.fork()
    if child == 0:
        type(trained).generate = killed_at_the_fifth
        evaluate({"it": trained}, tasks, tmp_path / "killed", **options)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not (tmp_path / "killed" / "it" / "nq_open.json").exists()

    def counted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        return generate(self, *arguments, **keywords)

    try:
        type(trained).generate = counted
        resumed = evaluate({"it": trained}, tasks, tmp_path / "killed", **options)
        assert len(calls) == 2  # of the second task's three questions
        again = evaluate({"it": trained}, tasks, tmp_path / "killed", **options)
        assert len(calls) == 2
    finally:
        type(trained).generate = generate
    assert resumed["scores"] == again["scores"] == whole["scores"]
    for task in tasks:
        assert rows(tmp_path / "killed", "it", task) == rows(tmp_path / "whole", "it", task)
    assert sorted(file.name for file in (tmp_path / "killed" / "it").iterdir()) == ["gsm8k.json", "nq_open.json"]


def test_results_of_other_settings_or_another_model_are_refused(trained: Any, data: Path, tmp_path: Path) -> None:
    tasks, options = ["truthfulqa_mc1"], {"data": data}
    first = evaluate({"it": trained}, tasks, tmp_path, settings=Settings(limit=2), **options)
    with pytest.raises(ConfigurationError, match=r"differs in limit 2, now 1\..*--redo"):
        evaluate({"it": trained}, tasks, tmp_path, settings=Settings(limit=1), **options)
    other = randomise(compose(anchor=large(), augmenting=small()), seed=5)
    with pytest.raises(ConfigurationError, match="differs in the model's files"):
        evaluate({"it": other}, tasks, tmp_path, settings=Settings(limit=2), **options)
    redone = evaluate({"it": other}, tasks, tmp_path, settings=Settings(limit=2), redo=True, **options)
    assert redone["models"]["it"]["digest"] != first["models"]["it"]["digest"]
    kept = evaluate({"it": other}, tasks, tmp_path, settings=Settings(limit=2), **options)
    assert kept["scores"] == redone["scores"]


def test_a_folder_is_told_by_its_files_and_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (model, tokenizer) in {"large": large(), "small": small()}.items():
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
    composition = randomise(compose(anchor="large", augmenting="small"))
    composition.save_pretrained("mine")
    before = describe("mine")["digest"]
    (tmp_path / "mine" / "README.md").write_text("Another card.")
    assert describe("mine")["digest"] == before
    randomise(composition, seed=9).save_pretrained("mine")
    retrained = describe("mine")["digest"]
    assert retrained != before
    file = tmp_path / "small" / "generation_config.json"
    file.write_text(file.read_text().replace("{", '{"max_length": 9,', 1))
    assert describe("mine")["digest"] != retrained


# ---------------------------------------------------------------------------------------------------------------- tasks


def test_shots_are_other_examples_and_flores_takes_them_from_dev(data: Path) -> None:
    tasks = find_tasks(["ntrex_som", "flores"], str(data))
    assert list(tasks) == ["ntrex_som", "flores_som_Latn"]
    for name, pool in (("ntrex_som", ENGLISH), ("flores_som_Latn", ENGLISH[:3])):
        task = tasks[name]
        task.set_fewshot_seed(3)
        for doc in task.eval_docs:
            shots = task.fewshot_context(doc, 2).split("\n\n")
            assert shots[-1] == f"Somali: {doc['source']}\nEnglish:"
            shown = [shot.partition("\nEnglish: ")[2] for shot in shots[:-1]]
            assert len(shown) == 2
            assert set(shown) <= set(pool) - {doc["english"]}


def test_what_is_not_there_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no task 'ntrex_smo': ntrex has cym, som\. Did you mean 'som'\?"):
        find_tasks(["ntrex_smo"], str(data))
    with pytest.raises(DataError, match=r"NTREX is read from files.*--data FOLDER"):
        find_tasks(["ntrex"])
    with pytest.raises(DataError, match=r"There is no train\.jsonl in "):
        find_tasks(["gsm8k"], str(tmp_path))
    with pytest.raises(DataError, match=r"could not be read from the hub.*--data FOLDER"):
        find_tasks(["gsm8k"])
    other = write_samples(tmp_path / "data")
    file = other / "ntrex" / "newstest2019-ref.som.txt"
    file.write_text(file.read_text(encoding="utf-8") + "one more\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"has 7 lines and .* has 6"):
        find_tasks(["ntrex_som"], str(other))
    (other / "mgsm" / "mgsm_sw.tsv").write_text("A question with no answer\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"mgsm_sw\.tsv, line 1: a line is a question, a tab and a number"):
        find_tasks(["mgsm"], str(other))


def test_answers_without_room_are_refused_and_cut_prompts_counted(data: Path, tmp_path: Path) -> None:
    tokenizer = family("qwen")
    model = tiny_model("llama", 0, vocab_size=len(tokenizer), max_position_embeddings=64), tokenizer
    with pytest.raises(ConfigurationError, match="an answer may have 64 tokens, and the model reads 64 in all"):
        evaluate({"it": model}, ["gsm8k"], tmp_path, settings=Settings(0, max_new_tokens=64), data=data)
    result = evaluate({"it": model}, ["gsm8k"], tmp_path, settings=Settings(2, max_new_tokens=4), data=data)
    assert result["cut"] == {"it, gsm8k": 3}


def test_models_without_tokenizer_and_names_that_are_no_folders_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no tokenizer"):
        evaluate({"it": large()[0]}, ["gsm8k"], tmp_path, settings=SHORT, data=data)
    with pytest.raises(ConfigurationError, match="cannot be the name of a model"):
        evaluate({"a/b": large()}, ["gsm8k"], tmp_path, data=data)


def test_the_model_is_registered_with_lm_eval() -> None:
    assert get_model("lmcompose") is ComposedLM


def test_languages_have_names() -> None:
    assert [language_name(code) for code in ("som", "som_Latn", "eng-GB", "sw", "xyz")] == [
        "Somali", "Somali", "English", "Swahili", "xyz",
    ]  # fmt: skip
