"""Sweeps: the parameter is what was asked for at each setting, and the fast sweep of the loss is the slow one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.sweep import sweep, sweep_loss
from tests.compositions import random_composition
from tests.tiny import PAIRS, random_ids, tiny_model

ALPHAS, TEMPERATURES = [0.0, 0.5, 2.0], [1.0, 2.0]


def composition(**options: Any) -> LogitForCausalLM:
    members = {"base": tiny_model("llama", 0), "expert": tiny_model("gpt2", 1), "antiexpert": tiny_model("llama", 2)}
    return lmcompose.proxy_tune(**members, **options)


def texts() -> list[list[int]]:
    return [random_ids(1, length, seed)[0].tolist() for seed, length in enumerate((5, 9, 14, 20, 7))]


def slow_loss(model: LogitForCausalLM, temperature: float) -> list[float]:
    """Nats per token of each text, from the model's own forward pass."""
    losses = []
    for ids in texts():
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1] / temperature
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item())
    return losses


def test_the_fast_loss_is_the_slow_one() -> None:
    result = sweep_loss(composition(), ALPHAS, TEMPERATURES, texts=texts())
    lengths = [len(ids) - 1 for ids in texts()]
    assert [(row["value"], row["temperature"]) for row in result["results"]] == [
        (a, t) for a in ALPHAS for t in TEMPERATURES
    ]
    for row in result["results"]:
        losses = slow_loss(composition(alpha=row["value"]), row["temperature"])
        mean = sum(loss * length for loss, length in zip(losses, lengths, strict=True)) / sum(lengths)
        assert row["mean"] == pytest.approx(mean, abs=1e-4)
        assert row["interval"][0] < mean < row["interval"][1]
        assert row["items"] == 5


def test_a_sweep_sets_the_parameter_and_puts_it_back() -> None:
    model = composition(alpha=0.25)
    ids = random_ids(1, 6)
    before = model(ids).logits
    seen = []

    def score(given: LogitForCausalLM, temperature: float) -> float:
        assert given is model
        assert torch.equal(given(ids).logits, composition(alpha=given.config.parameters["alpha"])(ids).logits)
        seen.append((given.config.parameters["alpha"], temperature))
        return given.config.parameters["alpha"] * temperature

    result = sweep(model, ALPHAS, TEMPERATURES, score, name="product", task="one")
    assert seen == [(a, t) for a in ALPHAS for t in TEMPERATURES]
    assert torch.equal(model(ids).logits, before)
    assert result["best"] == {"value": 2.0, "temperature": 2.0, "mean": 4.0}
    assert [row["mean"] for row in result["results"]] == [0, 0, 0.5, 1, 2, 4]
    assert [row["interval"] for row in result["results"]] == [None] * 6
    assert result["model"]["parameters"] == {"alpha": 0.25}
    assert (result["score"], result["task"], result["better"]) == ("product", "one", "higher")
    with pytest.raises(ZeroDivisionError):
        sweep(model, [3.0], [1.0], lambda given, temperature: 1 / 0)
    assert torch.equal(model(ids).logits, before)


def test_intervals_and_the_difference_from_the_best() -> None:
    """The same items at every setting: what they share cancels in the difference, and not in the interval."""
    shared = [0.0, 10.0, 20.0, 30.0]
    result = sweep(
        composition(), [0.0, 1.0], [1.0],
        lambda model, temperature: [item + model.config.parameters["alpha"] for item in shared], better="lower",
    )  # fmt: skip
    first, second = result["results"]
    assert result["best"]["value"] == 0.0
    assert (first["mean"], second["mean"]) == (15, 16)
    assert second["interval"][1] - second["interval"][0] > 10
    assert second["minus_best"]["mean"] == 1
    assert second["minus_best"]["interval"] == pytest.approx([1, 1])
    assert first["minus_best"] == {"mean": 0, "interval": [0, 0]}


def test_another_parameter_of_the_formula() -> None:
    model = lmcompose.combine(
        "base + gamma * expert",
        {"base": tiny_model("llama", 0), "expert": tiny_model("gpt2", 1)},
        parameters={"gamma": 1.0},
    )
    result = sweep_loss(model, [0.0, 1.0], texts=texts(), parameter="gamma")
    assert result["parameter"] == "gamma"
    plain = [slow_loss(lmcompose.combine("base", {"base": tiny_model("llama", 0)}), 1.0)]
    lengths = [len(ids) - 1 for ids in texts()]
    mean = sum(loss * length for loss, length in zip(plain[0], lengths, strict=True)) / sum(lengths)
    assert result["results"][0]["mean"] == pytest.approx(mean, abs=1e-4)


def test_the_json_has_this_form() -> None:
    result = sweep_loss(composition(), ALPHAS, texts=texts(), task="random words", seed=3, command="made so")
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert set(result) == {
        "what", "command", "recipe", "seed", "versions", "machine", "model", "parameter", "score", "better", "task",
        "results", "best",
    }  # fmt: skip
    assert (result["what"], result["command"], result["seed"], result["better"]) == ("sweep", "made so", 3, "lower")
    for row in result["results"]:
        assert set(row) == {"value", "temperature", "mean", "interval", "items", "minus_best"}


def test_an_infinite_loss_is_none_and_never_the_best() -> None:
    members = {"base": tiny_model("llama", 0), "expert": tiny_model("gpt2", 1), "antiexpert": tiny_model("llama", 2)}
    masked = lmcompose.proxy_tune(**members, plausibility={"member": "base", "kind": "top_k", "value": 3})
    with pytest.raises(DataError, match="No score is a finite number"):
        sweep_loss(masked, [0.0, 1.0], texts=texts())
    result = sweep(masked, [0.0, 1.0], [1.0], lambda m, t: float("inf") if m.config.parameters["alpha"] else 2.0)
    assert [row["mean"] for row in result["results"]] == [2.0, None]
    assert result["best"]["value"] == 0.0
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1.0]), "nothing to sweep"),
        (([1.0], []), "nothing to sweep"),
        ((["1"], [1.0]), "is no number"),
        (([True], [1.0]), "is no number"),
        (([float("nan")], [1.0]), "no finite number"),
        (([1.0], [0.0]), "temperature is a number above 0"),
    ],
)
def test_bad_settings(arguments: tuple[list[Any], list[Any]], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sweep(composition(), *arguments, lambda model, temperature: 1.0)


def test_bad_scores_and_parameters() -> None:
    model = composition()
    with pytest.raises(ConfigurationError, match=r"no parameter 'alpa'.*Did you mean 'alpha'"):
        sweep(model, [1.0], [1.0], lambda given, temperature: 1.0, parameter="alpa")
    with pytest.raises(ConfigurationError, match="Did you mean 'higher'"):
        sweep(model, [1.0], [1.0], lambda given, temperature: 1.0, better="highest")
    with pytest.raises(DataError, match=r"\[1, 2\] scores"):
        sweep(model, [1.0, 2.0], [1.0], lambda given, t: [1.0] * int(given.config.parameters["alpha"]))
    with pytest.raises(DataError, match="none has a token"):
        sweep_loss(model, [1.0], texts=[[5]])
    with pytest.raises(ConfigurationError, match="Only a logit composition"):
        sweep(random_composition(PAIRS["llama+gpt2"]), [1.0], [1.0], lambda given, t: 1.0)  # type: ignore[arg-type]
