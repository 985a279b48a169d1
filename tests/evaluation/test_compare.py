"""A comparison against the same figures worked out from the plain models, token by token."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.compare import compare
from lmcompose.evaluation.positions import Cases
from tests.compositions import random_composition
from tests.tiny import PAIRS, random_ids, tiny_model, tiny_tokenizer

WORDS = tiny_tokenizer().convert_ids_to_tokens(list(range(97)))


def members() -> dict[str, PreTrainedModel]:
    return {"base": tiny_model("llama", 0), "expert": tiny_model("gpt2", 1), "antiexpert": tiny_model("llama", 2)}


def composition(**options: Any) -> LogitForCausalLM:
    tokenizer = tiny_tokenizer()
    return lmcompose.proxy_tune(**{role: (model, tokenizer) for role, model in members().items()}, **options)


def texts(count: int, length: int = 12, seed: int = 0) -> list[str]:
    return [" ".join(WORDS[token] for token in random_ids(1, length, seed + row)[0].tolist()) for row in range(count)]


def drawn_from(model: PreTrainedModel, count: int, length: int) -> list[list[int]]:
    """Texts that a model wrote, so that it is often right about them."""
    starts = random_ids(count, 2, seed=9)
    rows = model.generate(starts, max_new_tokens=length - 2, do_sample=True, top_k=4, eos_token_id=[])
    return [list(row) for row in rows.tolist()]


def by_hand(rows: Sequence[list[int]], tuned: PreTrainedModel, alpha: float = 1.0) -> dict[str, Tensor]:
    """Log-probabilities [tokens, vocabulary] in float64 at all positions but the first of each text."""
    found: dict[str, list[Tensor]] = {}
    for row in rows:
        with torch.no_grad():
            logits = {
                name: model(torch.tensor([row])).logits[0, :-1].double()
                for name, model in {**members(), "tuned": tuned}.items()
            }
        logits["composition"] = logits["base"] + alpha * (logits["expert"] - logits["antiexpert"])
        for name, values in logits.items():
            found.setdefault(name, []).append(values.log_softmax(-1))
    return {name: torch.cat(values) for name, values in found.items()}


def kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(-1)


def pair_of(result: dict[str, Any], first: str, second: str) -> dict[str, Any]:
    return next(pair for pair in result["pairs"] if (pair["first"], pair["second"]) == (first, second))


def test_every_figure_by_hand() -> None:
    tuned, tokenizer = tiny_model("llama", 3), tiny_tokenizer()
    rows = drawn_from(tuned, 6, 14)
    written = [" ".join(WORDS[token] for token in row) for row in rows]
    assert tokenizer(written[0])["input_ids"] == rows[0]
    result = compare(composition(), (tuned, tokenizer), written, alpha=0.7)
    logs = by_hand(rows, tuned, alpha=0.7)
    true = torch.tensor([token for row in rows for token in row[1:]])
    assert (result["tokens"], result["texts"]) == (78, 6)
    losses = {**result["losses"]["members"], **{key: result["losses"][key] for key in ("composition", "tuned")}}
    expected = {name: -values.gather(-1, true[:, None])[:, 0] for name, values in logs.items()}
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        assert loss["mean"] == pytest.approx(expected[name].mean().item(), abs=1e-4)
        low, high = loss["interval"]
        assert low < loss["mean"] < high
    base, composed, direct = (expected[name].mean().item() for name in ("base", "composition", "tuned"))
    assert direct < base
    assert result["gap_closed"]["mean"] == pytest.approx((base - composed) / (base - direct), abs=1e-3)

    best = {name: values.argmax(-1) for name, values in logs.items()}
    assert [(pair["first"], pair["second"]) for pair in result["pairs"]] == [
        ("tuned", "composition"),
        ("tuned", "members.base"),
        ("composition", "members.base"),
        ("members.base", "members.expert"),
        ("members.base", "members.antiexpert"),
    ]
    kinds = ["digits" if WORDS[token].isdigit() else "other" for token in true.tolist()]
    kinds = [
        "punctuation" if WORDS[token] in ("+", "-", "=", ".", ":") else kind
        for token, kind in zip(true, kinds, strict=True)
    ]
    for pair in result["pairs"]:
        first, second = (name.removeprefix("members.") for name in (pair["first"], pair["second"]))
        values = {"kl": kl(logs[first], logs[second]), "reverse_kl": kl(logs[second], logs[first])}
        values["agreement"] = (best[first] == best[second]).double()
        for key, each in values.items():
            assert pair[key]["mean"] == pytest.approx(each.mean().item(), abs=1e-4)
            for kind, figures in pair["classes"].items():
                chosen = each[torch.tensor([other == kind for other in kinds])]
                assert figures[key]["tokens"] == len(chosen)
                assert figures[key]["mean"] == pytest.approx(chosen.mean().item(), abs=1e-4)
        assert sum(figures["kl"]["tokens"] for figures in pair["classes"].values()) == 78
    right = {name: likeliest == true for name, likeliest in best.items()}
    for name, cell in {**result["accuracy"]["members"], "tuned": result["accuracy"]["tuned"]}.items():
        assert (cell["correct"], cell["total"]) == (right[name].sum().item(), 78)
    assert result["cases"] == {
        "both": (right["base"] & right["composition"]).sum().item(),
        "base_only": (right["base"] & ~right["composition"]).sum().item(),
        "composition_only": (~right["base"] & right["composition"]).sum().item(),
        "neither": (~right["base"] & ~right["composition"]).sum().item(),
    }


def test_examples_show_the_clearest_cases() -> None:
    model, base = composition(), tiny_model("llama", 0)
    rows = drawn_from(base, 8, 20)  # the base is right about its own texts, and the composition spoils them
    result = compare(model, None, rows, examples=3, context=2)
    assert result["cases"]["base_only"] > 3
    found = result["examples"]["base_only"]
    assert len(found) == 3
    moves = []
    for example in found:
        row, position = rows[example["text"]], example["position"]
        assert example["true"] == " " + WORDS[row[position]]
        assert example["context"] == " ".join(WORDS[token] for token in row[position - 2 : position])
        assert example["choices"]["members"]["base"]["text"] == example["true"]
        assert example["choices"]["composition"]["text"] != example["true"]
        assert "tuned" not in example["choices"]
        with torch.no_grad():
            chance = base(torch.tensor([row[:position]])).logits[0, -1].softmax(-1)[row[position]].item()
        assert example["choices"]["members"]["base"]["of_true"] == pytest.approx(chance, rel=1e-3)
        assert example["choices"]["members"]["base"]["probability"] == pytest.approx(chance, rel=1e-3)
        moves.append(abs(math.log(chance / example["choices"]["composition"]["of_true"])))
    assert moves == sorted(moves, reverse=True)
    more = compare(model, None, rows, examples=100, context=2)["examples"]["base_only"]
    assert more[:3] == found
    assert len(more) == result["cases"]["base_only"]
    assert compare(model, None, rows, examples=0)["examples"] == {"base_only": [], "composition_only": []}


def test_cases_keep_the_farthest() -> None:
    cases = Cases(2)
    for moved in (1.0, 3.0, 3.0, 2.0, 5.0, 0.5):
        if cases.count(moved):
            cases.keep(moved, {"moved": moved, "number": cases.total})
    assert cases.total == 6
    assert cases.examples() == [{"moved": 5.0, "number": 5}, {"moved": 3.0, "number": 2}]


def test_two_models_that_are_one() -> None:
    """Compared with what it is, a composition is at distance 0 and closes the whole gap."""
    model, tokenizer = composition(), tiny_tokenizer()
    result = compare(model, model, texts(4))
    pair = pair_of(result, "tuned", "composition")
    assert (pair["kl"]["mean"], pair["reverse_kl"]["mean"], pair["agreement"]["mean"]) == (0, 0, 1)
    same = lmcompose.proxy_tune(
        base=(tiny_model("llama", 0), tokenizer), expert=(tiny_model("gpt2", 1), tokenizer),
        antiexpert=(tiny_model("llama", 0), tokenizer),
    )  # fmt: skip
    result = compare(same, tiny_model("gpt2", 1), drawn_from(tiny_model("gpt2", 1), 4, 12))
    assert pair_of(result, "members.base", "members.antiexpert")["kl"]["mean"] == 0
    assert result["gap_closed"]["mean"] == pytest.approx(1, abs=1e-5)


def test_completions_and_lengths() -> None:
    model, written = composition(), texts(3, 10)
    pairs = [(text[: text.index(" ", 8)], text[text.index(" ", 8) :]) for text in written]
    lengths = [len(tiny_tokenizer()(completion)["input_ids"]) for _, completion in pairs]
    result = compare(model, None, pairs)
    assert result["tokens"] == sum(lengths)
    assert compare(model, None, written, max_length=4)["tokens"] == 9
    assert compare(model, None, pairs, max_length=5)["tokens"] == sum(5 - 10 + length for length in lengths)
    ids = [tiny_tokenizer()(text)["input_ids"] for text in written]
    assert compare(model, None, ids)["losses"] == compare(model, None, written)["losses"]


def test_one_text_has_no_interval() -> None:
    result = compare(composition(), tiny_model("llama", 3), texts(1))
    assert result["losses"]["tuned"]["interval"] is None
    assert result["losses"]["tuned"]["mean"] > 0
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_tuned_model_that_is_worse_leaves_no_gap() -> None:
    rows = drawn_from(tiny_model("llama", 0), 4, 12)
    assert compare(composition(), tiny_model("llama", 3), rows)["gap_closed"] is None


def test_what_a_mask_rules_out_is_none() -> None:
    model = lmcompose.combine(
        "base + alpha * (expert - antiexpert)",
        {role: (live, tiny_tokenizer()) for role, live in members().items()},
        alpha=1.0,
        plausibility={"member": "base", "kind": "top_k", "value": 5},
    )
    result = compare(model, tiny_model("llama", 3), texts(3))
    pair = pair_of(result, "tuned", "composition")
    assert (pair["kl"]["mean"], pair["kl"]["interval"]) == (None, None)
    assert pair["agreement"]["mean"] is not None
    assert result["losses"]["composition"]["mean"] is None
    assert result["gap_closed"] is None
    json.dumps(result, allow_nan=False)


def test_a_role_may_be_called_tuned() -> None:
    tokenizer = tiny_tokenizer()
    model = lmcompose.combine(
        "base + tuned - composition",
        {
            name: (live, tokenizer)
            for name, live in zip(("base", "tuned", "composition"), members().values(), strict=True)
        },
    )
    result, plain = (compare(each, tiny_model("llama", 3), texts(2)) for each in (model, composition()))
    assert result["losses"]["members"]["tuned"] == plain["losses"]["members"]["expert"]
    assert result["losses"]["tuned"] == plain["losses"]["tuned"]
    assert result["losses"]["composition"] == plain["losses"]["composition"]


def test_members_of_more_rows_are_compared_over_what_both_have() -> None:
    """Padded rows of the base are none of the antiexpert's tokens, and make no infinite divergence."""
    tokenizer, base = tiny_tokenizer(), tiny_model("llama", 0)
    base.resize_token_embeddings(128, mean_resizing=False)
    model = lmcompose.proxy_tune(
        base=(base, tokenizer),
        expert=(tiny_model("gpt2", 1), tokenizer),
        antiexpert=(tiny_model("llama", 2), tokenizer),
    )
    rows = [random_ids(1, 8, seed)[0].tolist() for seed in range(2)]
    result = compare(model, None, rows)
    with torch.no_grad():
        logs = [
            torch.cat([live(torch.tensor([row])).logits[0, :-1, :97] for row in rows]).double().log_softmax(-1)
            for live in (base, tiny_model("llama", 2))
        ]
    expected = kl(*logs).mean().item()
    assert pair_of(result, "members.base", "members.antiexpert")["kl"]["mean"] == pytest.approx(expected, abs=1e-4)
    tuned = tiny_model("llama", 3)
    found = pair_of(compare(model, (tuned, tokenizer), rows), "tuned", "members.base")["kl"]["mean"]
    with torch.no_grad():
        direct = torch.cat([tuned(torch.tensor([row])).logits[0, :-1] for row in rows]).double().log_softmax(-1)
    assert found == pytest.approx(kl(direct, logs[0]).mean().item(), abs=1e-4)


def test_calm_beside_its_anchor() -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    result = compare(model, None, random_ids(3, 8).tolist())
    assert [(pair["first"], pair["second"]) for pair in result["pairs"]] == [("composition", "members.anchor")]
    assert result["pairs"][0]["kl"]["mean"] > 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda model: compare(model, None, []), DataError, "none has a token"),
        (lambda model: compare(model, None, ["w1"]), DataError, "Of 1 texts, none has a token"),
        (lambda model: compare(model, None, [("", "w1")]), DataError, "A prompt is empty"),
        (lambda model: compare(model, None, [("w1", "")]), ConfigurationError, "continuation is empty"),
        (lambda model: compare(model, None, texts(1), parameters={"gamma": 1.0}), ConfigurationError, "no parameter"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(composition())


def test_texts_need_a_tokenizer() -> None:
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        compare(lmcompose.proxy_tune(**members()), None, ["w1 w2"])
