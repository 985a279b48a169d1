"""Generating with a remote base: what is certified as exact is what all of the distribution would have given."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lmcompose.errors import ConfigurationError, MemberError, RemoteError, TokenizerMismatchError
from lmcompose.logits.arithmetic import Plausibility, plausible
from lmcompose.logits.formula import parameter, term
from lmcompose.logits.presets import PRESETS
from lmcompose.logits.remote import RemoteBase, RemoteResult, RemoteToken, remote_generate
from lmcompose.logits.remote.generate import NOT_ITS_TOKENS, next_draft_length
from lmcompose.logits.remote.learning import BIAS, DEEPER, ENDED, NAMED, READ_BACK
from tests.logits.remote_server import (
    LLAMA_CPP,
    LLAMA_CPP_PYTHON,
    OPENAI,
    PLAIN,
    VLLM,
    CompletionsServer,
    Manners,
)
from tests.logits.test_remote_strings import byte_level
from tests.tiny import EOS_ID, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
BASE = tiny_model("llama", seed=1)
EXPERT = tiny_model("llama", seed=2, hidden_size=24)
ANTIEXPERT = tiny_model("gpt2", seed=3, hidden_size=24)
PAIR = {"expert": EXPERT, "antiexpert": ANTIEXPERT}
PROMPTS = ["w1 w2 w3 w9", "user : w40 w41 w42 w43 w44", "w7"]
NEW = 10

ALIKE = {"expert": tiny_model("llama", seed=1), "antiexpert": tiny_model("llama", seed=1)}
"""A pair that is the base: its members draft what the base goes on with, so long as their weights cancel."""


@torch.no_grad()
def scores(ids: Sequence[int], members: dict[str, PreTrainedModel] = PAIR, alpha: float = 1.0) -> torch.Tensor:
    """The composition's next scores [vocab], with the whole of the base's distribution."""
    x = torch.tensor([list(ids)])
    base = BASE(x).logits[0, -1].log_softmax(-1)
    return base + alpha * (members["expert"](x).logits[0, -1] - members["antiexpert"](x).logits[0, -1])


def plainly(prompt: str, new: int = NEW, mask: Plausibility | None = None, **options: Any) -> list[int]:
    """Greedy decoding, one token at a time."""
    ids = list(TOKENIZER(prompt)["input_ids"])
    start = len(ids)
    while len(ids) < start + new:
        combined = scores(ids, **options)
        if mask is not None:
            model = BASE if mask.member == "base" else PAIR[mask.member]
            with torch.no_grad():
                kept = plausible(model(torch.tensor([ids])).logits[0, -1], mask.kind, mask.value)
            combined = combined.masked_fill(~kept, -torch.inf)
        ids.append(int(combined.argmax()))
        if ids[-1] == EOS_ID:
            break
    return ids[start:]


def generate(
    manners: Manners, prompts: Any = None, members: Any = None, top_logprobs: int = 20, **options: Any
) -> tuple[RemoteResult, CompletionsServer]:
    prompts = PROMPTS if prompts is None else prompts
    with CompletionsServer(BASE, TOKENIZER, manners) as server:
        base = RemoteBase(server.url, tokenizer=TOKENIZER, backoff=0.01, timeout=5, top_logprobs=top_logprobs)
        base.probe()
        server.bodies.clear()
        options = {"max_new_tokens": NEW, **options}
        return remote_generate(base, PAIR if members is None else members, prompts, **options), server


LEARNS = {
    "vllm": (VLLM, {NAMED}),
    "vllm_without_names": (dataclasses.replace(VLLM, named=False), {BIAS}),
    "vllm_prompts_alone": (dataclasses.replace(VLLM, echo="no"), {NAMED}),
    "llama_cpp": (LLAMA_CPP, {BIAS}),
    "llama_cpp_python": (LLAMA_CPP_PYTHON, {BIAS}),
    "openai": (OPENAI, {BIAS}),
    "bias_alone": (dataclasses.replace(OPENAI, echo="no"), {BIAS}),
    "raw_bias_alone": (dataclasses.replace(OPENAI, echo="no", logit_bias="raw"), {BIAS}),
    "deeper_lists": (dataclasses.replace(LLAMA_CPP, logit_bias=None), {DEEPER}),
    "reads_back": (dataclasses.replace(PLAIN, echo="yes", top=8), {READ_BACK}),
    "one_number": (dataclasses.replace(PLAIN, logprobs="chosen", logit_bias="raw", token_ids=True), {BIAS}),
}


@pytest.mark.parametrize("kind", LEARNS)
def test_what_is_certified_is_what_plain_decoding_gives(kind: str) -> None:
    """With enough requests all of it is, whatever the way to learn more."""
    manners, features = LEARNS[kind]
    result, _ = generate(manners, extra_requests=200)
    assert result.token_ids == [plainly(prompt) for prompt in PROMPTS]
    assert result.certificate.exact
    assert str(result.certificate) == "exact"
    assert features <= set(result.features)
    for text, ids in zip(result.texts, result.token_ids, strict=True):
        assert text.split() == TOKENIZER.decode(ids, skip_special_tokens=True).split()


def test_what_cannot_be_proved_is_counted_and_what_is_proved_is_right() -> None:
    result, _ = generate(PLAIN)
    unproved = 0
    for prompt, output in zip(PROMPTS, result.outputs, strict=True):
        ids = list(TOKENIZER(prompt)["input_ids"])
        for token in output.tokens:
            combined = scores(ids)
            if token.proved:
                assert token.token_id == int(combined.argmax())
                assert token.margin is not None
                assert 0 <= token.margin <= float(combined.topk(2).values.diff().abs()) + 1e-4
            else:
                unproved += 1
                assert token.margin is not None
                assert token.margin < 0
            ids.append(token.token_id)
    assert 0 < unproved < sum(len(output.tokens) for output in result.outputs)
    assert result.certificate.unproved == unproved
    assert not result.certificate.exact
    assert str(result.certificate) == f"{unproved} of {result.certificate.tokens} tokens could not be proved"


def test_the_budget_of_requests_is_kept() -> None:
    for budget in (0, 2):
        manners = dataclasses.replace(PLAIN, echo="yes")
        result, server = generate(manners, extra_requests=budget, draft_length=0)
        assert len(server.bodies) == result.requests == sum(result.features.values())
        assert max(token.requests for output in result.outputs for token in output.tokens) == 1 + budget
        assert sum(token.requests for output in result.outputs for token in output.tokens) == result.requests


def test_more_requests_prove_more() -> None:
    manners = dataclasses.replace(PLAIN, echo="yes")
    unproved = [generate(manners, extra_requests=budget)[0].certificate.unproved for budget in (0, 3, 200)]
    assert unproved[0] > unproved[1] > unproved[2] == 0


def test_without_a_shift_the_base_alone_decides_and_all_is_proved() -> None:
    result, _ = generate(PLAIN, alpha=0.0)
    assert result.certificate.exact
    assert result.token_ids == [plainly(prompt, alpha=0.0) for prompt in PROMPTS]
    assert result.features.keys() == {"top log-probabilities"}


def test_a_formula_of_ones_own_in_python_and_as_text() -> None:
    formula = term("large") * 2.0 - parameter("alpha") * term("antiexpert")
    members = {"antiexpert": ANTIEXPERT}
    python, _ = generate(VLLM, members=members, formula=formula, alpha=0.5)
    text, _ = generate(VLLM, members=members, formula="2 * base - weight * antiexpert", parameters={"weight": 0.5})
    assert python.token_ids == text.token_ids
    assert python.certificate.exact
    with torch.no_grad():
        ids = torch.tensor([TOKENIZER(PROMPTS[0])["input_ids"]])
        wanted = 2 * BASE(ids).logits[0, -1] - 0.5 * ANTIEXPERT(ids).logits[0, -1]
    assert python.token_ids[0][0] == int(wanted.argmax())


def test_a_preset_whose_strong_model_is_not_called_base() -> None:
    """Contrastive decoding with the expert behind an API and the amateur here."""
    preset = PRESETS["contrastive"]
    result, _ = generate(
        LLAMA_CPP,
        members={"amateur": ANTIEXPERT},
        formula=preset.formula,
        role="expert",
        parameters=preset.parameters,
        plausibility=preset.plausibility,
        max_new_tokens=1,
    )
    for prompt, ids in zip(PROMPTS, result.token_ids, strict=True):
        text = torch.tensor([TOKENIZER(prompt)["input_ids"]])
        with torch.no_grad():
            expert, amateur = (model(text).logits[0, -1].log_softmax(-1) for model in (BASE, ANTIEXPERT))
        kept = expert >= expert.max() + torch.tensor(0.1).log()
        assert ids == [int((expert - amateur).masked_fill(~kept, -torch.inf).argmax())]
    assert result.certificate.exact


def test_alpha_by_prompt_and_by_step() -> None:
    by_prompt, _ = generate(VLLM, alpha=torch.tensor([0.0, 1.0, 0.0]))
    assert by_prompt.token_ids == [plainly(p, alpha=a) for p, a in zip(PROMPTS, (0.0, 1.0, 0.0), strict=True)]
    by_step, _ = generate(VLLM, alpha=[1.0, 0.0], max_new_tokens=4)
    for prompt, ids in zip(PROMPTS, by_step.token_ids, strict=True):
        first = plainly(prompt, 1)
        assert ids[:1] == first
        words = TOKENIZER.decode(first)
        assert first == [EOS_ID] or ids[1:] == plainly(f"{prompt} {words}", 3, alpha=0.0)


def test_temperatures_of_members() -> None:
    result, _ = generate(VLLM, prompts=PROMPTS[:1], temperatures={"base": 2.0, "expert": 0.5}, max_new_tokens=1)
    with torch.no_grad():
        ids = torch.tensor([TOKENIZER(PROMPTS[0])["input_ids"]])
        wanted = BASE(ids).logits[0, -1] / 2 + EXPERT(ids).logits[0, -1] / 0.5 - ANTIEXPERT(ids).logits[0, -1]
    assert result.token_ids == [[int(wanted.argmax())]]


@pytest.mark.parametrize(
    "mask",
    [Plausibility("expert", "top_k", 5), Plausibility("base", "ratio", 0.1), Plausibility("base", "top_k", 3),
     Plausibility("base", "top_p", 0.5)],
)  # fmt: skip
def test_a_mask_of_plausible_tokens(mask: Plausibility) -> None:
    result, _ = generate(LLAMA_CPP, plausibility=mask, extra_requests=200)
    assert result.certificate.exact
    assert result.token_ids == [plainly(prompt, mask=mask) for prompt in PROMPTS]
    assert result.token_ids != [plainly(prompt) for prompt in PROMPTS]


def test_a_mask_that_the_list_is_too_short_for_is_not_proved() -> None:
    result, _ = generate(PLAIN, plausibility=Plausibility("base", "top_p", 0.999))
    assert not result.certificate.exact


# ---- drafted blocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vllm", "vllm_prompts_alone", "reads_back"])
def test_a_draft_that_the_base_agrees_with_saves_requests(kind: str) -> None:
    manners, _ = LEARNS[kind]
    options: dict[str, Any] = {"members": ALIKE, "drafter": "expert"}
    drafted, server = generate(manners, draft_length=4, **options)
    plain, _ = generate(manners, draft_length=0, **options)
    assert drafted.token_ids == plain.token_ids == [plainly(prompt, alpha=0.0) for prompt in PROMPTS]
    assert drafted.certificate.exact
    assert drafted.accepted == drafted.drafted > 0
    assert len(server.bodies) < 0.6 * plain.requests
    assert plain.drafted == 0


def test_a_bad_draft_changes_nothing() -> None:
    result, _ = generate(VLLM, drafter="antiexpert", draft_length=6)
    assert result.accepted < result.drafted / 2
    assert result.token_ids == [plainly(prompt) for prompt in PROMPTS]


def test_draft_lengths_follow_what_was_kept() -> None:
    assert next_draft_length(4, 4, 4) == 5
    assert next_draft_length(16, 16, 16) == 16
    assert next_draft_length(4, 4, 2) == 4
    assert next_draft_length(4, 4, 1) == 3
    assert next_draft_length(1, 1, 0) == 1


# ---- texts and ends -----------------------------------------------------------------------------------------------


def test_prompts_of_token_ids_are_those_of_their_text() -> None:
    ids = [list(TOKENIZER(prompt)["input_ids"]) for prompt in PROMPTS]
    for manners in (VLLM, LLAMA_CPP_PYTHON):
        assert generate(manners, prompts=ids)[0].token_ids == generate(manners)[0].token_ids
    assert generate(VLLM, prompts=PROMPTS[0])[0].token_ids == generate(VLLM)[0].token_ids[:1]


def test_a_batch_is_its_prompts_one_by_one() -> None:
    together, _ = generate(OPENAI)
    assert together.token_ids == [generate(OPENAI, prompts=[prompt])[0].token_ids[0] for prompt in PROMPTS]


def test_a_text_ends_with_the_end_token_or_another_one() -> None:
    whole, _ = generate(VLLM)
    stop = whole.token_ids[0][1]
    result, _ = generate(VLLM, eos_token_id=[stop, 5])
    assert result.token_ids[0] == whole.token_ids[0][: whole.token_ids[0].index(stop) + 1]
    assert result.outputs[0].finish_reason == "end"
    assert {output.finish_reason for output in generate(VLLM, max_new_tokens=1)[0].outputs} == {"length"}


@pytest.mark.parametrize("bias", [None, "raw"])
def test_a_server_that_hides_the_end_of_a_text(bias: str | None) -> None:
    """Where its model would end the text, llama-cpp-python gives no token and no numbers."""
    manners = dataclasses.replace(LLAMA_CPP_PYTHON, logit_bias=bias, top=20)
    pairs = torch.cartesian_prod(torch.arange(22, 92), torch.arange(22, 31))
    with torch.no_grad():
        ends = pairs[BASE(pairs).logits[:, -1].argmax(-1) == EOS_ID]
    ending = TOKENIZER.decode(ends[0])
    result, _ = generate(manners, prompts=[ending], alpha=0.0)
    assert result.token_ids == [[EOS_ID]]
    assert result.outputs[0].finish_reason == "end"
    pair, _ = generate(manners, prompts=[ending])
    token = pair.outputs[0].tokens[0]
    if bias is None:
        for unknown in (result.outputs[0].tokens[0], token):
            assert not unknown.proved
            assert unknown.how == ENDED
    else:
        assert result.certificate.exact
        assert token.proved
        assert token.token_id == int(scores(TOKENIZER(ending)["input_ids"]).argmax())


def test_a_text_that_comes_out_as_other_tokens_is_not_certified() -> None:
    """The tokenizer has a token for "the": so when the letters come one by one, no text says so."""
    tokenizer = byte_level()
    sizes = {"vocab_size": len(tokenizer), "eos_token_id": 0}
    letters = [tokenizer.get_vocab()[letter] for letter in "the"]
    base = tiny_model("llama", seed=1, **sizes)
    expert, antiexpert = tiny_model("llama", seed=2, **sizes), tiny_model("llama", seed=3, **sizes)
    with torch.no_grad():  # the expert wants t, then h, then e
        expert.lm_head.weight.zero_()
        expert.lm_head.bias = torch.nn.Parameter(torch.zeros(len(tokenizer)))
        expert.lm_head.bias[letters[1]] = 30.0
    members = {"expert": expert, "antiexpert": antiexpert}
    results = {}
    for manners in (dataclasses.replace(PLAIN, logit_bias="raw"), dataclasses.replace(VLLM, top=5)):
        with CompletionsServer(base, tokenizer, manners) as server:
            remote = RemoteBase(server.url, tokenizer=tokenizer)
            results[manners.token_ids] = remote_generate(remote, members, "t", alpha=1.0, max_new_tokens=3)
    assert results[True].certificate.exact
    assert results[True].token_ids[0][0] == letters[1]
    marked = [token.how == NOT_ITS_TOKENS for token in results[False].outputs[0].tokens]
    assert marked == [False, True, True]
    assert results[False].certificate.unproved == 2


# ---- sampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vllm_without_names", "openai", "reads_back", "deeper_lists"])
def test_samples_are_drawn_from_the_distribution_of_the_whole(kind: str) -> None:
    """Sixty first tokens, whose scores are summed up: mean and spread tell a distribution that is cut off."""
    manners, _ = LEARNS[kind]
    prompt = PROMPTS[0]
    logits = scores(TOKENIZER(prompt)["input_ids"], alpha=0.5)
    probabilities = (logits / 2).softmax(-1)
    options: dict[str, Any] = {"alpha": 0.5, "do_sample": True, "temperature": 2.0, "max_new_tokens": 1}
    result, _ = generate(manners, prompts=[prompt] * 60, seed=5, extra_requests=200, **options)
    assert result.certificate.exact
    surprise = -probabilities.log()
    mean = float((probabilities * surprise).sum())
    deviation = float((probabilities * (surprise - mean) ** 2).sum()) ** 0.5
    seen = surprise[torch.tensor([ids[0] for ids in result.token_ids])]
    assert abs(float(seen.mean()) - mean) < 3.5 * deviation / 60**0.5
    # what a list of the most probable tokens alone would give lies well below
    top = scores(TOKENIZER(prompt)["input_ids"], alpha=0.0).topk(manners.top if manners.top < 20 else 20).indices
    assert {ids[0] for ids in result.token_ids} - set(top.tolist())


def test_samples_that_cannot_be_exact_say_how_far_off_they_can_be() -> None:
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 5, "seed": 0}
    result, _ = generate(PLAIN, **options)
    tokens = [token for output in result.outputs for token in output.tokens]
    assert result.certificate.unproved == sum(not token.proved for token in tokens) > 0
    assert all(0 < token.doubt <= 1 for token in tokens if not token.proved)
    again, _ = generate(PLAIN, **options)
    assert again.token_ids == result.token_ids
    other, _ = generate(PLAIN, **(options | {"seed": 1}))
    assert other.token_ids != result.token_ids


# ---- streaming, failures ------------------------------------------------------------------------------------------


def test_tokens_come_one_by_one_as_they_are_chosen() -> None:
    seen: list[tuple[int, RemoteToken]] = []
    result, _ = generate(VLLM, on_token=lambda row, token: seen.append((row, token)))
    assert [token for _, token in seen] == [token for output in result.outputs for token in output.tokens]
    assert [row for row, _ in seen] == [row for row, ids in enumerate(result.token_ids) for _ in ids]
    for row, output in enumerate(result.outputs):
        assert "".join(token.text for i, token in seen if i == row) == output.text


@pytest.mark.parametrize("trouble", ["dies", "no logprobs", "garbage", "no choices"])
def test_a_server_that_dies_in_mid_generation_loses_nothing(trouble: str) -> None:
    whole, _ = generate(LLAMA_CPP)
    with CompletionsServer(BASE, TOKENIZER, LLAMA_CPP) as server:
        base = RemoteBase(server.url, tokenizer=TOKENIZER, backoff=0.01, retries=2)
        base.probe()
        first = sum(token.requests for token in whole.outputs[0].tokens)
        count = first + sum(token.requests for token in whole.outputs[1].tokens[:3])
        if trouble == "dies":
            server.dies_after = len(server.bodies) + count
        else:
            server.troubles = [None] * count + [trouble] * 3
        with pytest.raises(RemoteError, match=r"3 tokens of prompt 1 had been generated") as caught:
            remote_generate(base, PAIR, PROMPTS, max_new_tokens=NEW)
    error = caught.value
    assert error.token_ids == whole.token_ids[1][:3]
    assert error.text == "".join(token.text for token in whole.outputs[1].tokens[:3])
    assert error.partial.token_ids == [whole.token_ids[0], whole.token_ids[1][:3], []]
    assert error.partial.outputs[0].finish_reason in ("length", "end")
    assert error.partial.requests >= count


def test_troubles_that_pass_change_nothing() -> None:
    whole, _ = generate(OPENAI)
    with CompletionsServer(BASE, TOKENIZER, OPENAI) as server:
        base = RemoteBase(server.url, tokenizer=TOKENIZER, backoff=0.01)
        base.probe()
        server.troubles = [None, 500, 503, None, "drop", "garbage", (429, {"Retry-After": "0.01"}), None, "half"]
        result = remote_generate(base, PAIR, PROMPTS, max_new_tokens=NEW)
    assert result.token_ids == whole.token_ids
    assert result.retried >= 5
    assert result.certificate.exact


def test_a_feature_that_is_refused_later_is_done_without() -> None:
    with CompletionsServer(BASE, TOKENIZER, VLLM) as server:
        base = RemoteBase(server.url, tokenizer=TOKENIZER)
        base.probe()
        server.manners = dataclasses.replace(VLLM, named=False, logit_bias=None, echo="no", prompt_logprobs=False)
        result = remote_generate(base, PAIR, PROMPTS[:1], max_new_tokens=3)
    assert result.drafted == 0
    for token, right in zip(result.outputs[0].tokens, plainly(PROMPTS[0], 3), strict=False):
        if not token.proved:
            break
        assert token.token_id == right


# ---- what does not fit --------------------------------------------------------------------------------------------


def test_the_members_are_given_back_as_they_were() -> None:
    expert = tiny_model("llama", seed=2, hidden_size=24).train()
    generate(VLLM, members={"expert": expert, "antiexpert": expert}, max_new_tokens=2)
    assert expert.training
    assert all(parameter.requires_grad for parameter in expert.parameters())


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"max_new_tokens": 0}, ConfigurationError, "max_new_tokens"),
        ({"do_sample": True, "temperature": 0.0}, ConfigurationError, "temperature"),
        ({"formula": "base + expert"}, ConfigurationError, "does not use it"),
        ({"formula": "expert - antiexpert"}, ConfigurationError, "base"),
        ({"formula": "antiexpert - base + expert"}, ConfigurationError, "weight -1"),
        ({"formula": term("a") + term("b") + term("expert")}, ConfigurationError, "Exactly one must be left over"),
        ({"formula": term("base") + term("expert")}, ConfigurationError, "does not use the member 'antiexpert'"),
        ({"alpha": "high"}, ConfigurationError, "alpha"),
        ({"parameters": {"beta": 1.0}}, ConfigurationError, "beta"),
        ({"temperatures": {"exprt": 1.0}}, ConfigurationError, "exprt"),
        ({"drafter": "base"}, ConfigurationError, "drafter"),
        ({"prompts": [""]}, ConfigurationError, "empty"),
        ({"prompts": ["w1 " * 95]}, ConfigurationError, "takes 100"),
        ({"plausibility": Plausibility("bse", "top_k", 3)}, ConfigurationError, "Did you mean 'base'"),
        ({"alpha": torch.tensor([1.0, 2.0])}, ConfigurationError, "one per prompt"),
        ({"members": PAIR | {"expert": tiny_model("llama", vocab_size=90)}}, TokenizerMismatchError, "90"),
        ({"members": PAIR | {"expert": (EXPERT, byte_level())}}, TokenizerMismatchError, "different"),
        ({"members": PAIR | {"expert": "no/where/near"}}, MemberError, "near"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_before_a_token_is_asked_for(
    options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    seen: list[object] = []
    with pytest.raises(error, match=problem):
        generate(VLLM, **{"on_token": lambda *token: seen.append(token), **options})
    assert not seen


def test_a_prompt_that_a_member_has_no_positions_for_is_refused() -> None:
    short = tiny_model("gpt2", seed=3, n_positions=8)
    with pytest.raises(ConfigurationError, match="the antiexpert has positions for 8"):
        generate(VLLM, members={"expert": EXPERT, "antiexpert": short})


def test_the_result_is_plain_json() -> None:
    result, _ = generate(OPENAI, max_new_tokens=2)
    saved = json.loads(json.dumps(result.to_dict()))
    assert saved["certificate"] == {"tokens": result.certificate.tokens, "unproved": 0, "exact": True}
    assert saved["capabilities"]["logit_bias"] == "biased"
    assert saved["outputs"][0]["tokens"][0]["proved"] is True
