"""What a completions endpoint answers, read into one shape, whichever server it is.

Three spellings of the same thing are read: OpenAI's completions (`tokens`, `token_logprobs`, `top_logprobs`; also
vLLM's and llama-cpp-python's), the chat kind with a `content` list (llama.cpp's own server, which gives token ids), and
vLLM's `prompt_logprobs`. Tokens come as strings or, as "token_id:7" or beside an "id", as ids; this file does not know
which string is which token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmcompose.errors import RemoteError

TokenKey = str | int
"""A token as a server names it: its id, or a string."""

ID_PREFIX = "token_id:"
ROUNDING = 1e-2
"""How far above 0 a log-probability may lie before it is none."""


@dataclass(frozen=True)
class Position:
    """What a server says of one position.

    Attributes:
        chosen: the token that stands there.
        logprobs: log-probabilities by token: of the most probable ones, and of `chosen` whether it is one or not.
    """

    chosen: TokenKey
    logprobs: dict[TokenKey, float]

    @property
    def logprob(self) -> float | None:
        """The log-probability of the chosen token, where it was stated."""
        return self.logprobs.get(self.chosen)


@dataclass(frozen=True)
class Reply:
    """One completion.

    Attributes:
        positions: the tokens of the answer (with `echo`, those of the prompt first); None for one without numbers (the
            first token of a prompt). The list is None where the server gives no log-probabilities.
        prompt_positions: the tokens of the prompt, where the server lists them apart.
        finish_reason: "length", "stop" or whatever the server says.
        prompt_tokens: how many tokens the server read, if it says so.
        text: the completion.
    """

    positions: list[Position | None] | None
    prompt_positions: list[Position | None] | None
    finish_reason: str | None
    prompt_tokens: int | None
    text: str

    @property
    def generated(self) -> Position | None:
        """The token that was generated, where one was; only of a reply without `echo`."""
        return self.positions[0] if self.positions else None


def read_reply(body: Mapping[str, Any], prompt_ids: list[int] | None = None) -> Reply:
    """The first completion in a server's answer.

    Args:
        prompt_ids: what was sent, to tell which tokens vLLM's `prompt_logprobs` are about.

    Raises:
        RemoteError: the answer has not the shape of a completion, or a number in it is no log-probability.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise _malformed("has no 'choices'", body)
    choice = choices[0]
    usage = body.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    finish = choice.get("finish_reason")
    text = choice.get("text")
    return Reply(
        _positions(choice.get("logprobs")),
        _prompt_positions(choice.get("prompt_logprobs"), prompt_ids),
        finish if isinstance(finish, str) else None,
        count if isinstance(count, int) else None,
        text if isinstance(text, str) else "",
    )


def _positions(logprobs: Any) -> list[Position | None] | None:
    if not isinstance(logprobs, Mapping):
        return None
    if isinstance(logprobs.get("content"), list):
        return [_chat_position(entry) for entry in logprobs["content"]]
    tokens, chosen_values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(chosen_values, list) or len(tokens) != len(chosen_values):
        raise _malformed("has 'logprobs' without as many 'token_logprobs' as 'tokens'", logprobs)
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list):
        tops = [None] * len(tokens)  # the chosen token's own number is then all there is
    if len(tops) != len(tokens):
        raise _malformed("has not as many 'top_logprobs' as 'tokens'", logprobs)
    positions: list[Position | None] = []
    for token, value, top in zip(tokens, chosen_values, tops, strict=True):
        if value is None and not top:
            positions.append(None)
            continue
        entries = _entries(top)
        if value is not None:
            entries[_key(token)] = _number(value)
        positions.append(Position(_key(token), entries))
    return positions


def _chat_position(entry: Any) -> Position:
    entries = dict([_chat_entry(top) for top in entry.get("top_logprobs") or []]) if isinstance(entry, Mapping) else {}
    chosen, value = _chat_entry(entry)
    return Position(chosen, {**entries, chosen: value})


def _chat_entry(entry: Any) -> tuple[TokenKey, float]:
    if not isinstance(entry, Mapping) or "logprob" not in entry or not ("id" in entry or "token" in entry):
        raise _malformed("has an entry in 'logprobs' without 'token' and 'logprob'", entry)
    key = entry["id"] if isinstance(entry.get("id"), int) else _key(entry.get("token"))
    return key, _number(entry["logprob"])


def _entries(top: Any) -> dict[TokenKey, float]:
    if top is None:
        return {}
    if isinstance(top, Mapping):
        return {_key(token): _number(value) for token, value in top.items()}
    if isinstance(top, list):
        return dict(_chat_entry(entry) for entry in top)
    raise _malformed("has 'top_logprobs' that are neither objects nor lists", top)


def _prompt_positions(listed: Any, prompt_ids: list[int] | None) -> list[Position | None] | None:
    """vLLM's extra list: per token of the prompt None or {id: {"logprob": ...}}."""
    if not isinstance(listed, list) or prompt_ids is None or len(listed) != len(prompt_ids):
        return None
    positions: list[Position | None] = []
    for token, entry in zip(prompt_ids, listed, strict=True):
        if not isinstance(entry, Mapping):
            positions.append(None)
            continue
        values: dict[TokenKey, float] = {}
        for key, value in entry.items():
            if not str(key).isdigit():
                raise _malformed("has 'prompt_logprobs' that are not by token id", entry)
            values[int(key)] = _number(value.get("logprob") if isinstance(value, Mapping) else value)
        positions.append(Position(token, values))
    return positions


def _key(token: Any) -> TokenKey:
    if isinstance(token, str):
        number = token.removeprefix(ID_PREFIX)
        return int(number) if number != token and number.isdigit() else token
    if isinstance(token, int) and not isinstance(token, bool):
        return token
    raise _malformed("names a token by neither a string nor an id", token)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value > ROUNDING:
        raise _malformed("has something else where a log-probability belongs", value)
    return min(float(value), 0.0)


def _malformed(problem: str, found: Any) -> RemoteError:
    return RemoteError(
        f"The server's answer {problem}: {str(found)[:200]}. It does not speak the OpenAI completions API as lmcompose "
        "knows it; try its latest version, or another server (vLLM, llama.cpp)."
    )
