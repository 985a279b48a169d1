"""The small maths behind traces and comparisons, on numbers worked out by hand; and models left as they were."""

from __future__ import annotations

import math
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

import lmcompose
from lmcompose.errors import ConfigurationError, TokenizerMismatchError
from lmcompose.evaluation.scoring import (
    POSITIONS_AT_ONCE,
    common,
    composed_scores,
    divergence,
    evaluating,
    finite,
    log_probabilities,
    standing,
    tuned_model,
)
from tests.compositions import random_composition
from tests.tiny import PAIRS, random_ids, save_tiny, tiny_model, tiny_tokenizer

INF = math.inf


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def test_divergence_by_hand() -> None:
    # 1/2 log(1/2 : 1/4) + 1/2 log(1/2 : 3/4) = 1/2 log 2 + 1/2 log 2/3
    by_hand = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence(logs(0.5, 0.5), logs(0.25, 0.75)).item() == pytest.approx(by_hand, abs=1e-7)
    assert divergence(logs(0.25, 0.75), logs(0.25, 0.75)).item() == 0


def test_divergence_where_something_is_ruled_out() -> None:
    assert divergence(logs(1.0, 0.0), logs(0.5, 0.5)).item() == pytest.approx(math.log(2))  # 0 log 0 is nothing
    assert divergence(logs(0.5, 0.5), logs(1.0, 0.0)).item() == INF
    assert divergence(logs(1.0, 0.0), logs(1.0, 0.0)).item() == 0


def test_common_tokens_are_made_distributions_again() -> None:
    missing = torch.tensor([False, False, True])
    left, right = common(logs(0.25, 0.25, 0.5), logs(0.2, 0.8, 0.0), missing)
    assert torch.allclose(left.exp(), torch.tensor([[0.5, 0.5, 0.0]]))
    assert torch.allclose(right.exp(), torch.tensor([[0.2, 0.8, 0.0]]))
    by_hand = 0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.8)
    assert divergence(left, right).item() == pytest.approx(by_hand, abs=1e-6)
    same = logs(0.25, 0.75)
    assert common(same, same, None)[0] is same


def test_log_probabilities_rule_out_the_lowest_number_of_half_precision() -> None:
    scores = torch.tensor([0.0, torch.finfo(torch.float16).min, -INF, 0.0], dtype=torch.float16)
    assert log_probabilities(scores).exp().tolist() == pytest.approx([0.5, 0, 0, 0.5])


def test_standing_counts_those_that_are_likelier() -> None:
    scores = logs(0.1, 0.4, 0.1, 0.4).expand(4, -1)
    chances, ranks = standing(scores, torch.tensor([0, 1, 2, 3]))
    assert ranks.tolist() == [3, 1, 3, 1]
    assert chances.exp().tolist() == pytest.approx([0.1, 0.4, 0.1, 0.4])
    assert standing(logs(1.0, 0.0, 0.0), torch.tensor([2]))[1].tolist() == [2]


def test_json_has_no_infinity() -> None:
    assert [finite(number) for number in (1.5, INF, -INF, math.nan)] == [1.5, None, None, None]


def test_scores_come_in_pieces_that_add_up() -> None:
    model = lmcompose.proxy_tune(
        base=tiny_model("llama", 0), expert=tiny_model("llama", 1), antiexpert=tiny_model("gpt2")
    )
    ids = random_ids(1, POSITIONS_AT_ONCE + 10)
    scores = composed_scores(model, {"input_ids": ids}, 0)
    parts = list(scores.log_probabilities())
    assert [(rows.start, rows.stop) for rows, _ in parts] == [(0, 64), (64, 74)]
    whole = torch.cat([part.composition for _, part in parts])
    assert torch.equal(whole, torch.log_softmax(model(ids).logits[0], -1))
    assert torch.equal(
        torch.cat([part.base for _, part in parts]), torch.log_softmax(tiny_model("llama", 0)(ids).logits[0], -1)
    )


def test_a_composition_that_is_no_sum_has_its_leader_for_a_base() -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    ids = random_ids(1, 9)
    scores = composed_scores(model, {"input_ids": ids}, 4)
    with torch.no_grad(), model.disable():
        bare = model(ids).logits[0, -4:]
    assert list(scores.members) == ["anchor"]
    assert torch.equal(scores.base, bare)
    assert torch.allclose(scores.composition, model(ids).logits[0, -4:], atol=1e-5)
    assert not torch.allclose(scores.composition, bare, atol=1e-3)
    with pytest.raises(ConfigurationError, match="Only a logit composition has parameters"):
        composed_scores(model, {"input_ids": ids}, 4, alpha=0.5)


def test_a_tuned_model_is_left_as_it_was() -> None:
    model = lmcompose.proxy_tune(base=tiny_model("llama", 0), expert=tiny_model("llama", 1))
    live = tiny_model("llama", 2).train()
    live.model.layers[0].eval()
    before = [module.training for module in live.modules()]
    ids = random_ids(1, 6)
    scores = tuned_model(live, model).scores({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 2)
    assert [module.training for module in live.modules()] == before
    assert all(parameter.requires_grad for parameter in live.parameters())
    assert not scores.requires_grad
    assert torch.allclose(scores, live.eval()(ids).logits[0, -2:], atol=1e-6)


def test_a_block_that_fails_gives_the_model_back_too() -> None:
    live = tiny_model("llama", 2).train()
    with pytest.raises(RuntimeError), evaluating(live):
        assert not live.training
        raise RuntimeError
    assert live.training


def test_a_tuned_model_of_another_size_needs_tokenizers() -> None:
    base = tiny_model("llama", 0)
    wide = tiny_model("llama", 2)
    wide.resize_token_embeddings(128)
    with pytest.raises(TokenizerMismatchError, match="128"):
        tuned_model(wide, lmcompose.proxy_tune(base=base, expert=tiny_model("llama", 1)))
    model = lmcompose.proxy_tune(base=(base, tiny_tokenizer()), expert=(tiny_model("llama", 1), tiny_tokenizer()))
    ids = random_ids(1, 5)
    scores = tuned_model((wide, tiny_tokenizer()), model).scores({"input_ids": ids, "attention_mask": ids > 0}, 1)
    assert scores.shape == (1, 97)
    assert torch.allclose(scores, wide(ids).logits[0, -1:, :97], atol=1e-5)


def test_a_tuned_model_may_be_a_live_adapter_or_its_folder(tmp_path: Path) -> None:
    save_tiny(tmp_path / "base", "llama", 0)
    live = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(live, peft.LoraConfig(r=2, task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    model = lmcompose.proxy_tune(base=(tiny_model("llama", 1), tiny_tokenizer()), expert=tiny_model("llama", 2))
    ids = random_ids(1, 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        expected = adapted(ids).logits[0, -3:]
    for source in (adapted, str(tmp_path / "adapter")):
        assert torch.allclose(tuned_model(source, model).scores(inputs, 3), expected, atol=1e-5)
    assert not torch.allclose(tuned_model(str(tmp_path / "base"), model).scores(inputs, 3), expected, atol=1e-2)
