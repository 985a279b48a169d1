"""The short way in: formulas, presets, and what is refused before a weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, BertConfig, T5Config

import lmcompose
from lmcompose import combine, parameter, plan_logits, proxy_tune, term
from lmcompose.errors import ConfigurationError, MemberError, TokenizerMismatchError
from lmcompose.logits.arithmetic import Plausibility
from lmcompose.logits.presets import PRESETS
from tests.compositions import plain_logits
from tests.logit_compositions import IDS, PROXY
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer


def trio() -> dict[str, Any]:
    return {"base": tiny_model("llama"), "expert": tiny_model("gpt2", seed=1), "antiexpert": tiny_model("gpt2", seed=2)}


def test_three_ways_to_write_one_composition() -> None:
    members = trio()
    expected = plain_logits(proxy_tune(**members, alpha=0.5), IDS)
    written = term("base") + parameter("alpha") * (term("expert") - term("antiexpert"))
    for model in (
        combine(PROXY, members, alpha=0.5),
        combine(written, members, alpha=0.5),
        combine(PROXY, members, parameters={"alpha": 0.5}),
        combine("proxy_tuning", members, alpha=0.5),
        combine("base + 0.5 * (expert - antiexpert)", members),
        combine("base + 0.5 * expert - 0.5 * antiexpert", members),
    ):
        assert torch.equal(plain_logits(model, IDS), expected)
        assert list(model.members) == ["base", "expert", "antiexpert"]


def test_without_an_antiexpert_the_expert_is_added() -> None:
    members = trio()
    model = proxy_tune(members["base"], members["expert"], alpha=0.5)
    by_hand = plain_logits(members["base"], IDS) + 0.5 * plain_logits(members["expert"], IDS)
    torch.testing.assert_close(plain_logits(model, IDS), by_hand)
    assert model.config.formula == PRESETS["expert_only"].formula


def test_a_presets_leader_leads_in_whatever_order_members_are_given() -> None:
    members = dict(reversed(trio().items()))
    assert list(combine("proxy_tuning", members).members) == ["base", "expert", "antiexpert"]
    assert list(combine(PROXY, members, alpha=1.0).members) == ["antiexpert", "expert", "base"]


def test_a_presets_own_settings_and_others() -> None:
    members = {"expert": tiny_model("llama"), "amateur": tiny_model("gpt2", seed=1)}
    config = plan_logits("contrastive", members)
    assert config.scores == "logprobs"
    assert config.mask() == Plausibility("expert", "ratio", 0.1)
    assert plan_logits("contrastive", members, plausibility=True).mask() == Plausibility("expert", "ratio", 0.1)
    assert plan_logits("contrastive", members, plausibility=False).mask() is None
    other = {"member": "amateur", "kind": "top_k", "value": 7}
    assert plan_logits("contrastive", members, plausibility=other).mask() == Plausibility("amateur", "top_k", 7)
    assert plan_logits("contrastive", members, scores="logits").scores == "logits"
    assert plan_logits("debias", {"base": members["expert"], "biased": members["amateur"]}, alpha=3).parameters == {
        "alpha": 3.0
    }
    with pytest.raises(ConfigurationError, match="plausibility = True is no mask"):
        plan_logits("base", {"base": members["expert"]}, plausibility=True)


def test_a_drafter_beside_a_preset() -> None:
    config = plan_logits("proxy_tuning", {"draft": tiny_model("opt"), **trio()}, drafter="draft")
    assert list(config.members) == ["base", "expert", "antiexpert", "draft"]
    assert plan_logits("proxy_tuning", trio(), drafter="expert").drafter == "expert"


def test_a_plan_reads_no_weights(tmp_path: Path) -> None:
    folders = {role: save_tiny(tmp_path / role, "llama", seed) for seed, role in enumerate(("base", "expert"))}
    for folder in folders.values():
        (folder / "model.safetensors").unlink()
    config = plan_logits("base + expert", folders)
    assert config.references()["expert"].name_or_path == str(folders["expert"])
    with pytest.raises(MemberError, match=r"weights of .*base.* could not be read"):
        combine("base + expert", folders)


def test_numpy_numbers_can_be_saved(tmp_path: Path) -> None:
    model = combine(PROXY, trio(), alpha=np.float32(0.5))
    assert model.config.parameters == {"alpha": 0.5}
    with pytest.warns(UserWarning, match="came live"):
        model.save_pretrained(tmp_path)
    scheduled = combine(PROXY, trio(), parameters={"alpha": (np.float64(1.0), 0)})
    assert scheduled.config.parameters == {"alpha": [1.0, 0.0]}


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("base + alpha * (expert - antiexpertt)", {"alpha": 1.0}, "Unknown name 'antiexpertt'.*mean 'antiexpert'"),
        ("base + alpha * (expert - antiexpert", {"alpha": 1.0}, "never closed"),
        ("base * expert * antiexpert", {}, "a product of members"),
        (PROXY, {"alpha": "1"}, "alpha = '1' is no finite number"),
        (PROXY, {"alpha": True}, "alpha = True is no finite number"),
        (PROXY, {"alpha": float("nan")}, "alpha = nan is no finite number"),
        (PROXY, {"alpha": torch.tensor(1.0)}, "cannot be the default of a parameter"),
        (PROXY, {"alpha": lambda step: 1.0}, "cannot be the default of a parameter"),
        (PROXY, {"alpha": 1.0, "parameters": {"alpa": 2.0}}, "'alpa' is given but the formula"),
        (PROXY, {}, "Unknown name 'alpha'"),
        ("base - base + 0 * (expert - antiexpert)", {}, "the weights cancel"),
        ("- base - expert - antiexpert", {}, "no weight is positive"),
        ("proxy_tunning", {}, r"There is no preset 'proxy_tunning'.*Did you mean 'proxy_tuning'\?"),
        ("contrastive", {}, r"has the members \['expert', 'amateur'\].*Rename them"),
        ("proxy_tuning", {"temperatures": {"exprt": 0.5}}, r"Did you mean 'expert'\?"),
        ("proxy_tuning", {"plausibility": "ratio"}, "plausibility = 'ratio' is no mask"),
        ("proxy_tuning", {"missing_tokens": "leadr"}, r"Did you mean 'leader'\?"),
        ("proxy_tuning", {"scores": "probabilities"}, "is none of 'logits', 'logprobs'"),
        ("proxy_tuning", {"min_coverage": 2.0}, "min_coverage is a share from 0 to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(formula: str, options: dict[str, Any], message: str) -> None:
    members = {role: (model, tiny_tokenizer()) for role, model in trio().items()}
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        combine(formula, members, **options)
    assert all(parameter.requires_grad for model, _ in members.values() for parameter in model.parameters())


def test_an_error_in_a_formula_points_at_the_character() -> None:
    with pytest.raises(ConfigurationError) as refused:
        combine("base + alpha * (expert - antiexpert) ** 2", trio(), alpha=1.0)
    *_, text, caret = str(refused.value).splitlines()
    assert text[caret.index("^") :].startswith("** 2")


def test_no_members() -> None:
    for members in ({}, None, ["base"]):
        with pytest.raises(ConfigurationError, match="There are no members"):
            combine("base", members)  # type: ignore[arg-type]


def test_what_is_no_causal_language_model() -> None:
    bert = AutoModelForMaskedLM.from_config(
        BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=97)
    )
    t5 = AutoModelForSeq2SeqLM.from_config(
        T5Config(d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, vocab_size=97)
    )
    for wrong, why in ((bert, "an encoder, its tokens see"), (t5, "an encoder-decoder")):
        with pytest.raises(MemberError, match=rf"cannot be the expert: it is {why}.*decoder-only model"):
            proxy_tune(tiny_model("llama"), wrong, tiny_model("gpt2"))
    for odd in (nn.Linear(2, 2), 5, object()):
        with pytest.raises(MemberError, match=r"\(for the expert\)"):
            proxy_tune(tiny_model("llama"), odd, tiny_model("gpt2"))  # type: ignore[arg-type]
    with pytest.raises(MemberError, match=r"/nowhere/at/all' \(for the antiexpert\)"):
        proxy_tune(tiny_model("llama"), tiny_model("gpt2"), "/nowhere/at/all")


def test_members_that_read_other_tokens() -> None:
    narrow = tiny_model("gpt2", vocab_size=90)
    with pytest.raises(TokenizerMismatchError, match=r"97.*90"):
        proxy_tune(tiny_model("llama"), narrow, tiny_model("gpt2"))
    other = tiny_tokenizer()
    vocabulary = {f"x{i}" if i > 20 else token: i for token, i in other.get_vocab().items()}
    from tokenizers import Tokenizer, models

    other._tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    with pytest.raises(TokenizerMismatchError, match=r"21\.6%.*at least 95\.0%.*missing"):
        proxy_tune(
            (tiny_model("llama"), tiny_tokenizer()), (tiny_model("gpt2"), other), (tiny_model("gpt2"), tiny_tokenizer())
        )


def test_what_the_package_offers() -> None:
    for name in ("combine", "proxy_tune", "plan_logits", "term", "parameter", "LogitConfig", "LogitForCausalLM"):
        assert getattr(lmcompose, name).__module__.startswith("lmcompose.logits")
