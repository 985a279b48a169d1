"""Three spellings of one answer are read alike, and what is none of them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lmcompose.errors import RemoteError
from lmcompose.logits.remote.replies import Position, read_reply


def answer(logprobs: Any, **choice: Any) -> dict[str, Any]:
    return {
        "choices": [{"text": " b", "finish_reason": "length", "logprobs": logprobs, **choice}],
        "usage": {"prompt_tokens": 4},
    }


def test_openai_style() -> None:
    reply = read_reply(answer({"tokens": [" b"], "token_logprobs": [-0.5], "top_logprobs": [{" b": -0.5, " c": -1.5}]}))
    assert reply.generated == Position(" b", {" b": -0.5, " c": -1.5})
    assert (reply.finish_reason, reply.prompt_tokens, reply.text) == ("length", 4, " b")
    assert reply.generated.logprob == -0.5


def test_vllm_style_names_ids() -> None:
    logprobs = {
        "tokens": ["token_id:7"], "token_logprobs": [-9.0], "top_logprobs": [{"token_id:3": -0.5, "token_id:x": -3.0}],
    }  # fmt: skip
    assert read_reply(answer(logprobs)).generated == Position(7, {3: -0.5, "token_id:x": -3.0, 7: -9.0})


def test_llama_cpp_style() -> None:
    entry = {"id": 5, "token": " b", "logprob": -0.5}
    other = {"id": 6, "token": " c", "logprob": -1.5}
    content = {"content": [{**entry, "top_logprobs": [entry, other]}]}
    assert read_reply(answer(content)).generated == Position(5, {5: -0.5, 6: -1.5})


def test_chat_style_without_ids_names_strings() -> None:
    content = {"content": [{"token": " b", "logprob": -0.5, "top_logprobs": [{"token": " c", "logprob": -1.5}]}]}
    assert read_reply(answer(content)).generated == Position(" b", {" b": -0.5, " c": -1.5})


def test_an_echo_begins_without_numbers() -> None:
    logprobs = {
        "tokens": ["a", " b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {" c": -0.2}],
    }  # fmt: skip
    assert read_reply(answer(logprobs)).positions == [None, Position(" b", {" c": -0.2, " b": -0.5})]


def test_vllms_prompt_logprobs_are_by_id() -> None:
    listed = [None, {"4": {"logprob": -2.0, "rank": 9}, "3": {"logprob": -0.1}}]
    reply = read_reply(answer(None, prompt_logprobs=listed), [8, 4])
    assert reply.prompt_positions == [None, Position(4, {4: -2.0, 3: -0.1})]
    assert read_reply(answer(None, prompt_logprobs=listed), [8]).prompt_positions is None


def test_the_chosen_tokens_number_alone_is_read() -> None:
    reply = read_reply(answer({"tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": None}))
    assert reply.generated == Position("b", {"b": -0.5})


def test_no_numbers_and_no_token() -> None:
    assert read_reply(answer(None)).positions is None
    assert read_reply(answer({"tokens": [], "token_logprobs": [], "top_logprobs": []})).generated is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "no 'choices'"),
        ({"choices": []}, "no 'choices'"),
        ({"choices": ["text"]}, "no 'choices'"),
        (answer({"tokens": ["a"]}), "as many 'token_logprobs'"),
        (answer({"tokens": ["a", "b"], "token_logprobs": [-1.0]}), "as many 'token_logprobs'"),
        (answer({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": []}), "as many 'top_logprobs'"),
        (answer({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": ["a"]}), "neither objects nor lists"),
        (answer({"tokens": [None], "token_logprobs": [-1.0], "top_logprobs": [None]}), "neither a string nor an id"),
        (answer({"tokens": ["a"], "token_logprobs": ["-1"], "top_logprobs": [None]}), "log-probability belongs"),
        (answer({"tokens": ["a"], "token_logprobs": [0.7], "top_logprobs": [None]}), "log-probability belongs"),
        (answer({"tokens": ["a"], "token_logprobs": [float("nan")], "top_logprobs": [None]}), "belongs"),
        (answer({"tokens": ["a"], "token_logprobs": [True], "top_logprobs": [None]}), "belongs"),
        (answer({"content": [{"logprob": -1.0}]}), "without 'token'"),
        (answer({"content": [7]}), "without 'token'"),
    ],
)
def test_what_is_malformed_is_an_error(body: dict[str, Any], problem: str) -> None:
    with pytest.raises(RemoteError, match=problem):
        read_reply(body)


def test_rounding_above_zero_is_zero() -> None:
    reply = read_reply(answer({"tokens": ["a"], "token_logprobs": [1e-4], "top_logprobs": [None]}))
    assert reply.generated is not None
    assert reply.generated.logprob == 0.0
