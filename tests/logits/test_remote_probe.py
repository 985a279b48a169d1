"""The probe finds what each kind of server can do, and believes nothing that its numbers contradict."""

from __future__ import annotations

import dataclasses

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmcompose.errors import ConfigurationError, MemberError, RemoteError, TokenizerMismatchError
from lmcompose.logits.remote import Capabilities, RemoteBase
from tests.logits.remote_server import (
    LLAMA_CPP,
    LLAMA_CPP_PYTHON,
    OPENAI,
    PLAIN,
    VLLM,
    CompletionsServer,
    Manners,
)
from tests.tiny import BOS_ID, VOCAB_SIZE, tiny_model, tiny_tokenizer


def found(manners: Manners, troubles: list[object] | None = None, **options: object) -> Capabilities:
    """What the probe finds at a server of these manners."""
    with CompletionsServer(tiny_model("llama", seed=1), tiny_tokenizer(), manners) as server:
        server.troubles = troubles or []
        base = RemoteBase(server.url, tokenizer=tiny_tokenizer(), backoff=0.01, timeout=5, **options)  # type: ignore[arg-type]
        capabilities = base.probe()
        assert base.probe() is capabilities  # asked once
        return capabilities


def said(capabilities: Capabilities) -> tuple[object, ...]:
    """The findings in one line: how deep, token ids in, ids out, prompts, named tokens, bias."""
    c = capabilities
    return c.depth, c.deepest, c.token_id_prompts, c.token_ids, c.prompt_logprobs, c.named_token_ids, c.logit_bias


@pytest.mark.parametrize(
    ("manners", "expected"),
    [
        (VLLM, (20, 20, True, True, "echo", True, "raw")),
        (LLAMA_CPP, (20, VOCAB_SIZE, True, True, None, False, "raw")),
        (LLAMA_CPP_PYTHON, (20, VOCAB_SIZE, False, False, None, False, "raw")),
        (OPENAI, (5, 5, True, False, "echo", False, "biased")),
        (PLAIN, (5, 5, False, False, None, False, None)),
        (dataclasses.replace(VLLM, echo="no"), (20, 20, True, True, "prompt_logprobs", True, "raw")),
        (dataclasses.replace(PLAIN, top=50, echo="yes"), (20, 50, False, False, "echo", False, None)),
        (dataclasses.replace(PLAIN, names="entry", logit_bias="biased"), (5, 5, False, False, None, False, "biased")),
        (dataclasses.replace(PLAIN, logprobs="chosen", logit_bias="raw"), (1, 1, False, False, None, False, "raw")),
        (dataclasses.replace(PLAIN, counts=False, token_ids=True), (5, 5, True, False, None, False, None)),
    ],
)
def test_what_a_server_can_do_is_found(manners: Manners, expected: tuple[object, ...]) -> None:
    capabilities = found(manners)
    assert said(capabilities) == expected
    assert capabilities.model == "tiny"
    assert capabilities.max_length == manners.max_length


def test_what_is_refused_is_noted_in_the_servers_words() -> None:
    capabilities = found(LLAMA_CPP)
    assert any("echo" in note and "Only no echo is supported" in note for note in capabilities.notes)
    assert "Only no echo is supported" in str(capabilities)
    assert capabilities.to_dict()["notes"] == list(capabilities.notes)


def test_an_echo_whose_numbers_are_off_by_one_is_not_used() -> None:
    capabilities = found(dataclasses.replace(PLAIN, echo="shifted"))
    assert capabilities.prompt_logprobs is None
    assert any("echo" in note and "plain request" in note for note in capabilities.notes)


def test_a_strict_server_is_asked_without_the_fields_it_does_not_know() -> None:
    with CompletionsServer(tiny_model("llama", seed=1), tiny_tokenizer(), OPENAI) as server:
        capabilities = RemoteBase(server.url, tokenizer=tiny_tokenizer()).probe()
        assert capabilities.extras == ()
        assert set(server.bodies[-1]) <= {
            "model", "prompt", "max_tokens", "temperature", "logprobs", "echo", "logit_bias",
            "prompt_logprobs", "logprob_token_ids",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("logprobs", "reason"), [("no", "its answers have none"), ("refused", "not supported by this model")]
)
def test_a_server_without_probabilities_cannot_be_a_base(logprobs: str, reason: str) -> None:
    with pytest.raises(MemberError, match=f"cannot be the base: it gives no log-probabilities.*{reason}.*vLLM"):
        found(dataclasses.replace(PLAIN, logprobs=logprobs))


def test_a_server_that_fails_at_everything_is_no_server_without_probabilities() -> None:
    with pytest.raises(RemoteError, match="out of order"):
        found(PLAIN, troubles=[400] * 100)


def test_passing_troubles_do_not_hide_what_a_server_can_do() -> None:
    troubles: list[object] = [500, 500, None, "drop", None, 503, "garbage", None, "half", None, 429, None, "drop"]
    assert said(found(VLLM, troubles)) == said(found(VLLM))


def test_a_dead_server_is_an_error() -> None:
    with pytest.raises(RemoteError):
        found(PLAIN, troubles=["drop"] * 100, retries=1)


def test_the_model_is_chosen_by_name_or_is_the_only_one() -> None:
    two = dataclasses.replace(PLAIN, models=("tiny", "large"))
    assert found(two, model="large").model == "large"
    with pytest.raises(ConfigurationError, match=r"has the models \['tiny', 'large'\]. Choose one with model="):
        found(two)
    with pytest.raises(ConfigurationError, match="Did you mean 'large'"):
        found(two, model="larg")


def test_another_tokenizer_is_noticed_by_the_count_of_tokens() -> None:
    with pytest.raises(TokenizerMismatchError, match=r"reads 5 tokens in .* makes 4 of it"):
        found(dataclasses.replace(PLAIN, extra_token=True))


def test_another_tokenizer_is_noticed_by_its_words() -> None:
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"word{i}": i for i in range(4, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    other = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    with (
        CompletionsServer(tiny_model("llama", seed=1), tiny_tokenizer(), PLAIN) as server,
        pytest.raises(TokenizerMismatchError, match="speaks of tokens that the tokenizer does not have"),
    ):
        RemoteBase(server.url, tokenizer=other).probe()


def test_a_token_that_the_server_puts_before_texts_is_one_token_too_many_for_this_tokenizer() -> None:
    """The tokenizer puts none there, so what the members read would not be what the server reads."""
    with pytest.raises(TokenizerMismatchError):
        found(dataclasses.replace(PLAIN, begin=BOS_ID))


def test_fewer_log_probabilities_can_be_asked_for() -> None:
    capabilities = found(LLAMA_CPP, top_logprobs=3)
    assert (capabilities.depth, capabilities.deepest) == (3, VOCAB_SIZE)


def test_a_proxy_without_a_list_of_models_needs_a_name() -> None:
    with CompletionsServer(tiny_model("llama", seed=1), tiny_tokenizer(), PLAIN) as server:
        url = f"{server.url}/elsewhere"
        with pytest.raises(RemoteError, match="404"):
            RemoteBase(url, tokenizer=tiny_tokenizer()).probe()
        with pytest.raises(RemoteError, match="Check the address"):
            RemoteBase(url, "tiny", tiny_tokenizer()).probe()
