"""The requests that are made of a completions endpoint, and what its answers tell of the next token.

`Endpoint` sends and reads, for one set of capabilities; it decides nothing. The probe uses it with capabilities that it
tries out, the base with those that were found.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmcompose.errors import RemoteError
from lmcompose.logits.remote.bounds import Knowledge, known_from
from lmcompose.logits.remote.capabilities import ECHO, RAW, Capabilities
from lmcompose.logits.remote.client import Client
from lmcompose.logits.remote.prompts import Prompt
from lmcompose.logits.remote.replies import Position, Reply, TokenKey, read_reply
from lmcompose.logits.remote.strings import TokenStrings

BIAS_LIMIT = 100.0
"""Endpoints accept biases from -100 to 100."""
NAMED_AT_ONCE = 128
"""How many tokens vLLM lets one request name."""


class Endpoint:
    """A completions endpoint, asked in one way.

    Args:
        client: to the API.
        capabilities: what may be asked of it.
        strings: the tokenizer's tokens by what a server calls them.
        size: how many token ids the tokenizer has.
        end: the tokens that end a text; some servers state nothing where the most probable token is one.
    """

    def __init__(
        self, client: Client, capabilities: Capabilities, strings: TokenStrings, size: int, end: Sequence[int] = ()
    ) -> None:
        self.client = client
        self.capabilities = capabilities
        self.strings = strings
        self.size = size
        self.end = tuple(end)
        # a server may end a text at more tokens than the tokenizer's one; all of them are special ones
        self.ending = tuple(sorted({*self.end, *strings.tokenizer.all_special_ids}))

    def with_capabilities(self, **changes: Any) -> "Endpoint":
        """The same endpoint, asked in another way."""
        changed = dataclasses.replace(self.capabilities, **changes)
        return Endpoint(self.client, changed, self.strings, self.size, self.end)

    # ---- the requests -----------------------------------------------------------------------------------------

    def reply(self, prompt: Prompt, new: Sequence[int] = (), **fields: Any) -> Reply:
        """The answer to one request for one token, chosen greedily.

        Raises:
            RemoteError: the server failed, or its answer is malformed.
        """
        ids = [*prompt.ids, *new]
        shown: Any = ids if self.capabilities.token_id_prompts else prompt.spelled(new)[0]
        body = {
            "model": self.capabilities.model,
            "prompt": shown,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": self.capabilities.depth,
            **dict(self.capabilities.extras),
            **fields,
        }
        return read_reply(self.client.post("/completions", body), ids)

    def next_token(self, prompt: Prompt, new: Sequence[int] = (), depth: int | None = None) -> Knowledge:
        """What one request tells of the token after the prompt and `new`.

        Raises:
            RemoteError: also where the answer has no log-probabilities although the text goes on.
        """
        depth = depth or self.capabilities.depth
        reply = self.reply(prompt, new, logprobs=depth)
        if reply.generated is not None:
            return self.knowledge(reply.generated, True)
        if not _ended(reply):
            raise RemoteError(
                f"{self.client.url} gave a token without log-probabilities, which it gave before. It may be a proxy "
                "for several servers: ask one of them."
            )
        if self.capabilities.logit_bias == RAW and self.ending:  # with the end out of the way, it states its numbers
            bias = {str(token): -BIAS_LIMIT for token in self.ending}
            reply = self.reply(prompt, new, logprobs=depth, logit_bias=bias)
            if reply.generated is not None:
                return self.knowledge(reply.generated, False)
        return Knowledge.nothing(self.size, ended=True)

    def block(self, prompt: Prompt, new: Sequence[int], draft: Sequence[int]) -> list[Knowledge] | None:
        """What one request tells of every token of `draft` and of the one after it: len(draft) + 1 positions.

        Returns:
            None where the answer is not about these tokens.
        """
        fields: dict[str, Any]
        if self.capabilities.prompt_logprobs == ECHO:
            fields = {"echo": True}
        else:
            fields = {"prompt_logprobs": self.capabilities.depth}
        reply = self.reply(prompt, [*new, *draft], **fields)
        if self.capabilities.prompt_logprobs == ECHO:
            echoed, last = self._split(reply.positions or [], draft)
        else:
            echoed, last = (reply.prompt_positions or [])[-len(draft) :], reply.generated
        if len(echoed) != len(draft) or any(position is None for position in echoed):
            return None
        known = [self.knowledge(position, False) for position in echoed if position is not None]
        if last is not None:
            return [*known, self.knowledge(last, True)]
        return [*known, Knowledge.nothing(self.size, ended=reply.finish_reason == "stop")]

    def _split(
        self, positions: list[Position | None], draft: Sequence[int]
    ) -> tuple[list[Position | None], Position | None]:
        """The positions of `draft` in an echo, and that of the generated token, which is missing where a text ends."""
        for generated in (1, 0):
            echoed = positions[len(positions) - len(draft) - generated : len(positions) - generated]
            if len(echoed) == len(draft) and all(
                position is not None and token in self.candidates(position.chosen)
                for position, token in zip(echoed, draft, strict=True)
            ):
                return echoed, positions[-1] if generated else None
        return [], None

    def named(self, prompt: Prompt, new: Sequence[int], tokens: Iterable[int]) -> dict[int, float]:
        """The log-probabilities of `tokens`, of at most `NAMED_AT_ONCE`, so far as the answer has them."""
        wanted = list(tokens)
        reply = self.reply(prompt, new, logprob_token_ids=wanted, logprobs=len(wanted))
        if reply.generated is None:
            return {}
        known, _ = self.entries(reply.generated)
        return {token: known[token] for token in wanted if token in known}

    def favoured(self, prompt: Prompt, new: Sequence[int], bias: Mapping[int, float]) -> tuple[Reply, tuple[int, ...]]:
        """The answer under a `logit_bias`, and the tokens that the one it chose can be."""
        fields = {str(token): value for token, value in bias.items()}
        reply = self.reply(prompt, new, logit_bias=fields)
        if reply.generated is not None:
            return reply, self.candidates(reply.generated.chosen)
        return reply, self.ending if _ended(reply) else ()

    # ---- reading answers --------------------------------------------------------------------------------------

    def candidates(self, key: TokenKey) -> tuple[int, ...]:
        """The tokens that a server's name for a token can mean."""
        return (key,) if isinstance(key, int) else self.strings.tokens(key)

    def entries(self, position: Position) -> tuple[dict[int, float], list[tuple[tuple[int, ...], float]]]:
        """The log-probabilities of a position by token id, and those whose token is not certain."""
        known: dict[int, float] = {}
        uncertain: list[tuple[tuple[int, ...], float]] = []
        for key, value in position.logprobs.items():
            tokens = self.candidates(key)
            if len(tokens) == 1:
                known[tokens[0]] = value
            else:
                uncertain.append((tokens, value))
        return known, uncertain

    def knowledge(self, position: Position, chosen_is_top: bool) -> Knowledge:
        """What the list of a position tells of all tokens.

        Args:
            chosen_is_top: whether the chosen token is one of the most probable: a token of a prompt is listed whether
                it is or not, and must not lower the bound of the others.
        """
        known, uncertain = self.entries(position)
        listed = [v for key, v in position.logprobs.items() if chosen_is_top or key != position.chosen]
        return known_from(known, uncertain, min(listed, default=None), self.size)


def _ended(reply: Reply) -> bool:
    """Whether the server ended the text instead of generating a token."""
    return reply.finish_reason == "stop" and not reply.positions and not reply.text
