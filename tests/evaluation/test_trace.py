"""A trace against numbers worked out from the plain models, for generated tokens and for given ones."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.errors import ConfigurationError, DataError
from lmcompose.evaluation.trace import trace
from tests.compositions import random_composition
from tests.tiny import PAIRS, random_ids, tiny_model, tiny_tokenizer

PROMPT = "w1 w2 . w3"
STANDING = {"probability", "log_probability", "rank"}
CHOICE = {"id", "text", "probability"}


def members() -> dict[str, PreTrainedModel]:
    return {"base": tiny_model("llama", 0), "expert": tiny_model("gpt2", 1), "antiexpert": tiny_model("llama", 2)}


def composition(**options: Any) -> LogitForCausalLM:
    tokenizer = tiny_tokenizer()
    return lmcompose.proxy_tune(**{role: (model, tokenizer) for role, model in members().items()}, **options)


def by_hand(ids: list[int], alpha: float = 1.0) -> dict[str, torch.Tensor]:
    """Probabilities [positions, vocabulary] in float64, by role and for the composition."""
    with torch.no_grad():
        logits = {role: model(torch.tensor([ids])).logits[0].double() for role, model in members().items()}
    logits["composition"] = logits["base"] + alpha * (logits["expert"] - logits["antiexpert"])
    return {name: rows.softmax(-1) for name, rows in logits.items()}


def check(result: dict[str, Any], alpha: float = 1.0) -> None:
    """All numbers of a trace, from the plain models."""
    prompt, ids = result["prompt_ids"], [token["id"] for token in result["tokens"]]
    tokenizer = tiny_tokenizer()
    expected = {name: rows[len(prompt) - 1 : -1] for name, rows in by_hand(prompt + ids, alpha).items()}
    for at, token in enumerate(result["tokens"]):
        rows = {name: row[at] for name, row in expected.items()}
        for name, row in rows.items():
            found = token["composition"] if name == "composition" else token["members"][name]
            assert found["probability"] == pytest.approx(row[ids[at]].item(), rel=1e-3)
            assert found["log_probability"] == pytest.approx(row[ids[at]].log().item(), abs=1e-4)
            assert found["rank"] == 1 + sorted(row.tolist(), reverse=True).index(row[ids[at]].item())
        for name in ("base", "composition"):
            choice = token[f"{name}_choice"]
            assert choice["id"] == rows[name].argmax().item()
            assert choice["text"] == " " + tokenizer.decode([choice["id"]])
            assert choice["probability"] == pytest.approx(rows[name].max().item(), rel=1e-3)
        shift = math.log(rows["composition"][ids[at]].item() / rows["base"][ids[at]].item())
        assert token["shift"] == pytest.approx(shift, abs=1e-4)
        kl = sum(p * math.log(p / q) for p, q in zip(rows["composition"].tolist(), rows["base"].tolist(), strict=True))
        assert token["kl"] == pytest.approx(kl, abs=1e-4)
    summary = result["summary"]
    assert summary["tokens"] == len(ids)
    assert summary["shift"] == pytest.approx(sum(token["shift"] for token in result["tokens"]) / len(ids))
    total = sum(math.log(expected["expert"][at, token].item()) for at, token in enumerate(ids))
    assert summary["log_probability"]["members"]["expert"] == pytest.approx(total, abs=1e-3)
    differ = (expected["base"].argmax(-1) != expected["composition"].argmax(-1)).sum().item()
    assert summary["changed"] == differ


def test_generated_tokens() -> None:
    model = composition()
    result = trace(model, PROMPT, max_new_tokens=8)
    ids = model.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    expected = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, 4:].tolist()
    assert [token["id"] for token in result["tokens"]] == expected == result["outputs"]["composition"]["ids"]
    assert all(token["composition"]["rank"] == 1 for token in result["tokens"])
    assert result["source"] == "generated"
    assert result["text"] == tiny_tokenizer().decode(expected, skip_special_tokens=True)
    assert result["summary"]["changed"] > 0  # or the members are too alike for these numbers to tell anything
    check(result)


def test_a_given_continuation_and_another_alpha() -> None:
    result = trace(composition(), PROMPT, " w7 5 w9 w7", alpha=-0.5)
    assert [token["id"] for token in result["tokens"]] == tiny_tokenizer()("w7 5 w9 w7")["input_ids"]
    assert "".join(token["text"] for token in result["tokens"]) == " w7 5 w9 w7"
    assert [token["spelling"] for token in result["tokens"]] == ["w7", "5", "w9", "w7"]
    assert (result["source"], result["outputs"]) == ("given", {})
    assert result["model"]["parameters"] == {"alpha": -0.5}
    check(result, alpha=-0.5)


def test_a_continuation_longer_than_what_is_worked_on_at_once() -> None:
    ids = random_ids(1, 100, seed=5)[0].tolist()
    result = trace(composition(), ids[:3], ids[3:])
    assert len(result["tokens"]) == 97
    check(result)


def test_nothing_is_moved_by_alpha_0() -> None:
    tokens = trace(composition(alpha=0.0), PROMPT, max_new_tokens=5)["tokens"]
    assert all(token["shift"] == 0 and token["kl"] == 0 for token in tokens)
    assert all(token["composition"] == token["members"]["base"] for token in tokens)


def test_a_schedule_counts_from_the_prompt() -> None:
    """The n-th token is scored with the n-th alpha, in the one pass too."""
    model = composition()
    result = trace(model, PROMPT, max_new_tokens=4, alpha=[0.0, 1.0, 2.0])
    assert [token["shift"] == 0 for token in result["tokens"]] == [True, False, False, False]
    assert all(token["composition"]["rank"] == 1 for token in result["tokens"])
    assert result["model"]["parameters"] == {"alpha": [0.0, 1.0, 2.0]}
    ids = [token["id"] for token in result["tokens"]]
    last = trace(model, PROMPT, ids, alpha=2.0)["tokens"][-1]
    assert result["tokens"][-1]["shift"] == pytest.approx(last["shift"], abs=1e-5)
    assert trace(model, PROMPT, ids, alpha=lambda step: 0.5)["model"]["parameters"]["alpha"] == "<lambda>"


def test_all_outputs_side_by_side() -> None:
    tuned = tiny_model("llama", 3)
    result = trace(composition(), PROMPT, max_new_tokens=6, tuned=tuned)
    ids = tiny_tokenizer()(PROMPT, return_tensors="pt", return_token_type_ids=False)
    for name, model in (("base", tiny_model("llama", 0)), ("tuned", tuned)):
        expected = model.generate(**ids, max_new_tokens=6, do_sample=False)[0, 4:].tolist()
        assert result["outputs"][name]["ids"] == expected
        assert result["outputs"][name]["text"] == tiny_tokenizer().decode(expected, skip_special_tokens=True)
    whole = torch.tensor([result["prompt_ids"] + result["outputs"]["composition"]["ids"]])
    chances = tuned(whole).logits[0].softmax(-1)[3:-1]
    for at, token in enumerate(result["tokens"]):
        assert token["tuned"]["probability"] == pytest.approx(chances[at, token["id"]].item(), rel=1e-3)
    assert result["tuned"] == "a live LlamaForCausalLM"


def test_with_a_continuation_texts_are_written_only_on_request() -> None:
    result = trace(composition(), PROMPT, "w7", max_new_tokens=3)
    assert {name: len(output["ids"]) for name, output in result["outputs"].items()} == {"composition": 3, "base": 3}
    assert len(result["tokens"]) == 1


def test_sampling_repeats_with_its_seed() -> None:
    model = composition()
    texts = [trace(model, PROMPT, max_new_tokens=8, do_sample=True, seed=seed)["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_prompts_as_ids_as_a_conversation_and_prepared() -> None:
    model = composition()
    ids = tiny_tokenizer()(PROMPT)["input_ids"]
    expected = trace(model, PROMPT, max_new_tokens=4)
    for prompt in (ids, torch.tensor(ids), torch.tensor([ids]), model.prepare(PROMPT)):
        result = trace(model, prompt, max_new_tokens=4)
        assert (result["tokens"], result["prompt"]) == (expected["tokens"], PROMPT)
    chat = trace(model, [{"role": "user", "content": "w1 w2"}], max_new_tokens=4)
    assert chat["prompt"] == "user : w1 w2 </s> assistant :"
    assert chat["tokens"] == trace(model, chat["prompt_ids"], max_new_tokens=4)["tokens"]


def test_members_that_read_other_contexts() -> None:
    """Context-aware decoding: the same model, with and without a context in front of the prompt."""
    live, tokenizer = tiny_model("llama", 0), tiny_tokenizer()
    model = lmcompose.combine(
        "context_aware", {"with_context": (live, tokenizer), "without_context": (live, tokenizer)}, alpha=0.5
    )
    prepared = model.prepare("w1 w2", context={"with_context": "w30 w31 "})
    result = trace(model, prepared, "w5 w6")
    with torch.no_grad():
        far = live(torch.tensor([tokenizer("w30 w31 w1 w2 w5")["input_ids"]])).logits[0, 3:].double()
        near = live(torch.tensor([tokenizer("w1 w2 w5")["input_ids"]])).logits[0, 1:].double()
    chances = {"with_context": far, "without_context": near, "composition": 1.5 * far - 0.5 * near}
    for at, token in enumerate(result["tokens"]):
        found = {**token["members"], "composition": token["composition"]}
        for name, logits in chances.items():
            assert found[name]["probability"] == pytest.approx(logits[at].softmax(-1)[token["id"]].item(), rel=1e-3)
    assert result["base"] == "with_context"


def test_a_token_that_the_mask_rules_out_is_none_and_not_infinite() -> None:
    model = composition()
    least = trace(model, PROMPT, max_new_tokens=1)["prompt_ids"]
    unlikely = int(by_hand(least)["base"][-1].argmin())
    masked = lmcompose.combine(
        "base + alpha * (expert - antiexpert)",
        {role: (live, tiny_tokenizer()) for role, live in members().items()},
        alpha=1.0,
        plausibility={"member": "base", "kind": "top_k", "value": 5},
    )
    result = trace(masked, PROMPT, [unlikely])
    token = result["tokens"][0]
    assert token["composition"]["probability"] == 0
    assert (token["composition"]["log_probability"], token["shift"]) == (None, None)
    assert token["composition"]["rank"] == 6
    assert token["kl"] > 0
    assert (result["summary"]["shift"], result["summary"]["log_probability"]["composition"]) == (None, None)
    json.dumps(result, allow_nan=False)


def test_member_temperatures_are_in_the_numbers() -> None:
    model = composition(temperatures={"base": 0.5})
    token = trace(model, PROMPT, "w7")["tokens"][0]
    with torch.no_grad():
        logits = tiny_model("llama", 0)(torch.tensor([tiny_tokenizer()(PROMPT)["input_ids"]])).logits[0, -1]
    assert token["members"]["base"]["probability"] == pytest.approx((logits / 0.5).softmax(-1)[29].item(), rel=1e-3)
    assert token["id"] == 29


def test_calm_has_its_anchor_for_a_base() -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    result = trace(model, random_ids(1, 6), max_new_tokens=5)
    assert (result["base"], list(result["members"]), result["model"]) == ("anchor", ["anchor"], {"model_type": "calm"})
    assert all(token["composition"]["rank"] == 1 for token in result["tokens"])
    assert any(abs(token["shift"]) > 1e-3 for token in result["tokens"])
    assert result["tokens"][0]["text"] == f" <{result['tokens'][0]['id']}>"


def test_the_json_has_this_form() -> None:
    result = trace(composition(), PROMPT, max_new_tokens=3, tuned=tiny_model("llama", 3), seed=4, command="made so")
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again == result
    assert set(again) == {
        "what", "command", "recipe", "seed", "versions", "machine", "model", "base", "members", "tuned", "prompt",
        "prompt_ids", "text", "source", "tokens", "outputs", "summary",
    }  # fmt: skip
    assert (again["what"], again["command"], again["seed"]) == ("trace", "made so", 4)
    assert again["recipe"] == {"max_new_tokens": 3}
    assert again["model"]["formula"] == "base + alpha * (expert - antiexpert)"
    assert again["versions"]["torch"] == torch.__version__
    for token in again["tokens"]:
        assert set(token) == {
            "id", "text", "spelling", "members", "composition", "tuned", "base_choice", "composition_choice", "shift",
            "kl",
        }  # fmt: skip
        assert list(token["members"]) == ["base", "expert", "antiexpert"]
        for standing in (*token["members"].values(), token["composition"], token["tuned"]):
            assert set(standing) == STANDING
            assert 0 <= standing["probability"] <= 1
            assert isinstance(standing["rank"], int)
        for choice in (token["base_choice"], token["composition_choice"]):
            assert set(choice) == CHOICE
    assert set(again["outputs"]) == {"composition", "base", "tuned"}
    assert set(again["summary"]) == {"tokens", "changed", "shift", "kl", "log_probability"}
    assert set(again["summary"]["log_probability"]) == {"members", "composition", "tuned"}


def test_the_model_is_left_as_it_was() -> None:
    model = composition()
    ids = random_ids(1, 5)
    before = model(ids).logits
    trace(model, PROMPT, max_new_tokens=3, alpha=0.3)
    assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda model: trace(model, ""), DataError, "empty"),
        (lambda model: trace(model, []), DataError, "no prompt"),
        (lambda model: trace(model, torch.zeros(1, 0, dtype=torch.long)), ConfigurationError, "The prompt is empty"),
        (lambda model: trace(model, model.prepare(["w1", "w2"])), ConfigurationError, "one prompt, and 2 were given"),
        (lambda model: trace(model, PROMPT, ""), ConfigurationError, "continuation is empty"),
        (lambda model: trace(model, PROMPT, max_new_tokens=0), ConfigurationError, "max_new_tokens = 0"),
        (lambda model: trace(model, PROMPT, parameters={"alhpa": 1.0}), ConfigurationError, "Did you mean 'alpha'"),
        (lambda model: trace(model, PROMPT, alpha="much"), ConfigurationError, "alpha = 'much'"),
        (lambda model: trace(model, PROMPT, "w1 " * 200), ConfigurationError, "128"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(composition())


def test_a_text_needs_a_tokenizer() -> None:
    bare = random_composition(PAIRS["llama+gpt2"])
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        trace(bare, "w1")
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        trace(lmcompose.proxy_tune(**members()), "w1")
