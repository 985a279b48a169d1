"""`LogitForCausalLM` beyond the laws: vocabularies that differ, early refusals, and callers that only want scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lmcompose import LogitForCausalLM, combine, proxy_tune
from lmcompose.errors import ConfigurationError
from tests.compositions import assert_same_logits, plain_logits
from tests.logit_compositions import IDS, MASK, PROXY, TRIOS, antiexpert_of, base_of, composition, decode, expert_of
from tests.tiny import CHAT_TEMPLATE, VOCAB_SIZE, random_ids, tiny_model, tiny_tokenizer

# ------------------------------------------------------------------------------- vocabularies


def tokenizer_of(words: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="left"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def words() -> list[str]:
    return tiny_tokenizer().convert_ids_to_tokens(list(range(VOCAB_SIZE)))


def reordered(model: PreTrainedModel, order: torch.Tensor) -> PreTrainedModel:
    """The same model under other ids: its id i is the old id order[i]."""
    rows = {
        id(module.weight): module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings())
    }
    with torch.no_grad():
        for weight in rows.values():  # one, where the two are tied
            weight.copy_(weight[order].clone())
    return model


@pytest.mark.parametrize(
    "arch", ["gpt2", pytest.param("llama", marks=pytest.mark.slow), pytest.param("gemma3", marks=pytest.mark.slow)]
)
def test_members_with_reordered_ids_compose_as_if_they_had_the_leaders(arch: str) -> None:
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    other = tokenizer_of([words()[i] for i in order])
    pair = [reordered(tiny_model(arch, seed), order) for seed in (1, 2)]
    members = {
        "base": (tiny_model("qwen2"), tiny_tokenizer()), "expert": (pair[0], other), "antiexpert": (pair[1], other)
    }  # fmt: skip
    model = combine(PROXY, members, alpha=1.0)
    plain = proxy_tune(tiny_model("qwen2"), tiny_model(arch, 1), tiny_model(arch, 2))
    assert model.vocabularies["expert"].identical is False
    assert_same_logits(plain_logits(model, IDS), plain_logits(plain, IDS))
    for settings in ({}, {"use_cache": False}, {"num_beams": 2}, {"cache_implementation": "static"}):
        assert torch.equal(decode(model, **settings).sequences, decode(plain, **settings).sequences)
    prompts = ["w1 w2 w3", "w4"]
    arguments: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    inputs = model.prepare(prompts, context={"expert": "w50 w51 "})
    same = plain_inputs(prompts, {"expert": "w50 w51 "})
    assert not torch.equal(inputs["member_input_ids"], same["member_input_ids"])
    assert torch.equal(model.generate(**inputs, **arguments), plain.generate(**same, **arguments))


def plain_inputs(prompts: list[str], context: dict[str, str]) -> dict[str, torch.Tensor]:
    from lmcompose.logits.prompts import prepare_prompts

    return prepare_prompts(dict.fromkeys(("base", "expert", "antiexpert"), tiny_tokenizer()), prompts, context=context)


def test_a_base_with_more_padded_rows() -> None:
    """Qwen2.5: one tokenizer, 151,936 and 152,064 rows. Rows without a token are the base's alone."""
    base = tiny_model("llama", vocab_size=104)
    tokenizer = tiny_tokenizer()
    small = [tiny_model("gpt2", seed) for seed in (1, 2)]
    model = proxy_tune((base, tokenizer), *((member, tokenizer) for member in small))
    logits = plain_logits(model, IDS)
    base_logits, expert, antiexpert = plain_logits(base, IDS), *(plain_logits(member, IDS) for member in small)
    assert logits.shape[-1] == model.config.vocab_size == 104
    assert_same_logits(logits[..., :VOCAB_SIZE], base_logits[..., :VOCAB_SIZE] + expert - antiexpert)
    assert torch.equal(logits[..., VOCAB_SIZE:], base_logits[..., VOCAB_SIZE:])
    assert torch.equal(plain_logits(model, IDS, alpha=0.0), base_logits)
    forbidden = combine(
        PROXY, {"base": (base, tokenizer), "expert": (small[0], tokenizer), "antiexpert": (small[1], tokenizer)},
        alpha=1.0, missing_tokens="forbid",
    )  # fmt: skip
    assert bool(plain_logits(forbidden, IDS)[..., VOCAB_SIZE:].isneginf().all())


def test_a_base_with_fewer_rows_than_its_pair() -> None:
    tokenizer, base = tiny_tokenizer(), tiny_model("llama")
    small = [tiny_model("gpt2", seed, vocab_size=110) for seed in (1, 2)]
    model = proxy_tune((base, tokenizer), *((member, tokenizer) for member in small))
    expert, antiexpert = (plain_logits(member, IDS)[..., :VOCAB_SIZE] for member in small)
    assert_same_logits(plain_logits(model, IDS), plain_logits(base, IDS) + expert - antiexpert)
    assert torch.equal(decode(model).sequences, decode(model, use_cache=False).sequences)


def test_a_token_that_the_pair_lacks_is_read_as_unknown_and_is_the_bases_own() -> None:
    base = tiny_model("llama", vocab_size=98)
    added = tokenizer_of([*words(), "<tool>"])
    small = [tiny_model("gpt2", seed) for seed in (1, 2)]
    members = {
        "base": (base, added), "expert": (small[0], tiny_tokenizer()), "antiexpert": (small[1], tiny_tokenizer())
    }  # fmt: skip
    ids = torch.tensor([[5, 97, 8, 9]])
    read = torch.tensor([[5, tiny_tokenizer().unk_token_id, 8, 9]])
    by_hand = plain_logits(small[0], read) - plain_logits(small[1], read)
    for policy in ("leader", "forbid", "lowest"):
        logits = plain_logits(combine(PROXY, members, alpha=1.0, missing_tokens=policy), ids)
        assert_same_logits(logits[..., :97], plain_logits(base, ids)[..., :97] + by_hand)
        last = {"leader": plain_logits(base, ids)[..., 97], "forbid": torch.tensor(-torch.inf)}
        if policy in last:
            assert torch.equal(logits[..., 97], last[policy].expand(1, 4))
        else:
            assert bool(logits[..., 97].isfinite().all())


def test_a_mask_of_a_member_that_lacks_tokens() -> None:
    members = {
        "base": (tiny_model("llama", vocab_size=104), tiny_tokenizer()),
        "expert": (tiny_model("gpt2"), tiny_tokenizer()),
    }
    for kind, value in (("ratio", 0.1), ("top_p", 0.9), ("top_p", 1.0), ("top_k", 5), ("top_k", 100)):
        mask = {"member": "expert", "kind": kind, "value": value}
        logits = plain_logits(combine("base + expert", members, plausibility=mask), IDS)
        assert bool(logits[..., VOCAB_SIZE:].isneginf().all()), (kind, value)
        assert bool(logits[..., :VOCAB_SIZE].isfinite().any(-1).all())


# ------------------------------------------------------------------------------- refusals before anything is computed


def refused(model: LogitForCausalLM, message: str, *arguments: Any, **keywords: Any) -> None:
    ran: list[int] = []
    handle = model.leader.register_forward_pre_hook(lambda module, args: ran.append(1))
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        model.generate(*arguments, max_new_tokens=3, **keywords)
    handle.remove()
    assert not ran, "something was computed before the refusal"


def test_bad_parameters_are_refused_before_decoding() -> None:
    model = composition(TRIOS["llama+gpt2"])
    for alpha in ("1", True, float("nan"), {}, [], torch.tensor([True]), torch.tensor([[1.0]])):
        refused(model, "alpha", IDS, alpha=alpha)
    refused(model, "alpha has 2 values for 3 texts", IDS, alpha=torch.tensor([1.0, 2.0]))
    refused(model, "alpha at step 0 = None", IDS, alpha=lambda step: None)
    refused(model, r"no parameter 'beta'; its parameters are \['alpha'\]", IDS, parameters={"beta": 1.0})
    refused(model, r"Did you mean 'alpha'\?", IDS, parameters={"alfa": 1.0})
    two = {"base": base_of(TRIOS["llama+gpt2"]), "expert": expert_of(TRIOS["llama+gpt2"])}
    cancelling = combine("(1 - a) * base + b * expert", two, parameters={"a": 0.5, "b": 0.0})
    refused(cancelling, "the weights cancel", IDS, parameters={"a": 1})
    refused(cancelling, "the weights cancel", IDS, parameters={"a": torch.tensor([0.0, 1.0, 0.5])})
    refused(cancelling, "the weights cancel", IDS, parameters={"a": [0.0, 0.5, 1.0]})
    with pytest.raises(ConfigurationError, match=r"no parameter 'alpha'; its parameters are \['a', 'b'\]"):
        plain_logits(cancelling, IDS, alpha=1.0)


def test_empty_prompts_are_refused_before_decoding() -> None:
    model = composition(TRIOS["llama+gpt2"])
    refused(model, "The prompt is empty", IDS[:, :0])
    mask = MASK.clone()
    mask[1] = 0
    refused(model, r"The prompt is empty in rows \[1\]", IDS, attention_mask=mask)
    refused(model, r"The prompt is empty in rows \[1\]", input_ids=IDS, attention_mask=mask)


def test_prompts_that_are_too_long_are_refused_before_decoding() -> None:
    """By the name of the member that they are too long for; padding does not count."""
    model = proxy_tune(tiny_model("llama"), tiny_model("gpt2", seed=1, n_positions=16), tiny_model("gpt2", seed=2))
    refused(model, r"The prompt has 17 tokens for .* \(the expert\), which is made for 16", random_ids(1, 17))
    ids, mask = random_ids(2, 17), torch.ones(2, 17, dtype=torch.long)
    mask[:, :5] = 0
    assert model.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False).shape[0] == 2
    own = random_ids(2, 40).view(1, 2, 40)
    contexts = {"member_input_ids": own, "member_attention_mask": torch.ones_like(own)}
    refused(model, r"The prompt has 40 tokens for .* \(the expert\)", random_ids(1, 5), **contexts)
    contexts["member_attention_mask"][:, 0, :-10] = 0
    assert model.generate(random_ids(1, 20), **contexts, max_new_tokens=2, do_sample=False).shape[1] >= 21
    with pytest.raises(ConfigurationError, match=r"positions for 16"):  # where the text outgrows it while decoding
        model.generate(random_ids(1, 14), max_new_tokens=9, do_sample=False, eos_token_id=None)


def test_a_forward_pass_refuses_what_it_cannot_read() -> None:
    model = composition(TRIOS["llama+gpt2"])
    for call in (
        {},
        {"inputs_embeds": torch.zeros(1, 2, 32)},
        {"input_ids": IDS, "inputs_embeds": torch.zeros(1, 2, 32)},
    ):
        with pytest.raises(ConfigurationError, match="reads input_ids"):
            model(**call)
    for option in ("output_hidden_states", "output_attentions"):
        with pytest.raises(ConfigurationError, match=option):
            model(IDS, **{option: True})
    with pytest.raises(ConfigurationError, match="number of last positions"):
        model(IDS, alpha=[1.0, 0.5], logits_to_keep=torch.tensor([1, 2]))
    with pytest.raises(ConfigurationError, match="Resize the members first"):
        model.resize_token_embeddings(200)


def test_prepare_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigurationError, match=r"The leader has no tokenizer.*base=\(model, tokenizer\)"):
        composition(TRIOS["llama+gpt2"]).prepare("w1")
    members: dict[str, Any] = {"base": (tiny_model("llama"), tiny_tokenizer()), "expert": tiny_model("gpt2")}
    inputs = combine("base + expert", members).prepare("w1 w2", context={"expert": "w3 "})
    assert inputs["member_input_ids"].shape == (1, 1, 3)


# ------------------------------------------------------------------------------- temperatures, masks, scores


def test_temperatures_and_log_probabilities_by_hand() -> None:
    trio = TRIOS["llama+gpt2"]
    members = {"base": base_of(trio), "expert": expert_of(trio), "antiexpert": antiexpert_of(trio)}
    base, expert, antiexpert = (plain_logits(member, IDS) for member in members.values())
    warm = combine(PROXY, members, alpha=1.0, temperatures={"expert": 0.5, "antiexpert": 2.0})
    assert_same_logits(plain_logits(warm, IDS), base + expert / 0.5 - antiexpert / 2.0)
    scores = combine(PROXY, members, alpha=1.0, scores="logprobs", temperatures={"antiexpert": 2.0})
    by_hand = base.log_softmax(-1) + expert.log_softmax(-1) - (antiexpert / 2).log_softmax(-1)
    assert_same_logits(plain_logits(scores, IDS), by_hand)
    masked = combine(PROXY, members, alpha=1.0, plausibility={"member": "base", "kind": "ratio", "value": 0.3})
    kept = base >= base.amax(-1, keepdim=True) + torch.tensor(0.3).log()
    expected = torch.where(kept, base + expert - antiexpert, -torch.inf)
    got = plain_logits(masked, IDS)
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert_same_logits(got[kept], expected[kept])
    assert torch.equal(decode(masked).sequences, decode(masked, use_cache=False).sequences)


def test_log_likelihoods_by_lm_eval() -> None:
    """lm-evaluation-harness scores a composition as it scores any model."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    tokenizer = tiny_tokenizer()
    trio = TRIOS["llama+gpt2"]
    members = {
        role: (build(trio), tokenizer)
        for role, build in (("base", base_of), ("expert", expert_of), ("antiexpert", antiexpert_of))
    }
    model = combine(PROXY, members, alpha=1.0)
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, device="cpu")
    texts = [("w1 w2 w3", " w4 w5"), ("w9", " w10"), ("w20 w21 w22 w23", " w24 w25 w26")]
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(texts)]
    base, expert, antiexpert = (build(trio) for build in (base_of, expert_of, antiexpert_of))
    for (context, continuation), (score, greedy) in zip(texts, harness.loglikelihood(requests), strict=True):
        ids = torch.tensor([tokenizer(context + continuation)["input_ids"]])
        start = len(tokenizer(context)["input_ids"])
        logits = plain_logits(base, ids) + plain_logits(expert, ids) - plain_logits(antiexpert, ids)
        chosen = logits[0, start - 1 : -1].log_softmax(-1)
        tokens = ids[0, start:]
        assert score == pytest.approx(float(chosen.gather(-1, tokens[:, None]).sum()), abs=1e-4)
        assert greedy == bool((chosen.argmax(-1) == tokens).all())
