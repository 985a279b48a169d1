"""The base of a logit composition behind an API: where it is, what it can give, and how it is asked.

Any server with OpenAI's `/v1/completions` that states log-probabilities will do; what more it can is found out by
`probe` and used. How servers differ, so far as it is handled here:

- vLLM reads token ids, names tokens by id, and states numbers for prompts and for named tokens (0.32 does the last).
  Its `--max-logprobs` is the deepest list, 20 by default.
- llama.cpp's own server reads token ids, names tokens by id, and states nothing for prompts.
- llama-cpp-python (which needs `--logits_all true`) reads text and names tokens by strings. Where its model would end
  the text it states nothing, unless `logit_bias` keeps the end away. Without a begin-of-text token its echo is off by
  one token; the probe sees that and leaves it alone.
- OpenAI's own refuses fields that it does not know, and lists 5 tokens.

This file knows no other member and no formula.
"""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lmcompose.errors import ConfigurationError
from lmcompose.logits.remote.capabilities import Capabilities
from lmcompose.logits.remote.client import Client
from lmcompose.logits.remote.endpoint import Endpoint
from lmcompose.logits.remote.probe import probe
from lmcompose.logits.remote.prompts import Prompt, tokenize
from lmcompose.logits.remote.strings import TokenStrings
from lmcompose.places import read_tokenizer


class RemoteBase:
    """A model behind an OpenAI-compatible completions API.

    Args:
        url: of the server or its API, `http://localhost:8000` or `https://host/v1`.
        model: the model's name there; None where the server has only one.
        tokenizer: the model's own, or the folder or hub id that has it. All members share it.
        api_key: the server's key. It is never shown.
        timeout: seconds to wait for the server's next sign of life.
        retries: how often to try again after a lost connection, a time-out, garbled JSON or the status 408, 429 or 5xx.
        top_logprobs: how many top log-probabilities a request asks for; fewer where the server gives fewer.
        backoff, max_wait: seconds before the first retry, doubled each time, and the longest wait (see `Client`).

    Raises:
        ConfigurationError: the address is none, there is no tokenizer, or a number is out of its range.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        top_logprobs: int = 20,
        backoff: float = 0.5,
        max_wait: float = 60.0,
    ) -> None:
        if top_logprobs < 1:
            raise ConfigurationError(f"top_logprobs = {top_logprobs}: ask for one log-probability at least.")
        self.client = Client(url, api_key, timeout, retries, backoff, max_wait)
        self.model = model
        self.tokenizer = _tokenizer(tokenizer)
        self.top_logprobs = top_logprobs
        self.strings = TokenStrings(self.tokenizer)
        self.size = max(self.tokenizer.get_vocab().values()) + 1
        self._endpoint: Endpoint | None = None

    def __repr__(self) -> str:
        return f"RemoteBase({self.client.url!r}, model={self.model!r})"

    def probe(self) -> Capabilities:
        """What the endpoint can give; asked the first time, remembered afterwards.

        Raises:
            RemoteError: the server cannot be reached.
            MemberError: it gives no log-probabilities.
            ConfigurationError: it has no such model.
            TokenizerMismatchError: it reads other tokens than the tokenizer makes.
        """
        return self.endpoint.capabilities

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint, probed."""
        if self._endpoint is None:
            self._endpoint = probe(self.client, self.model, self.strings, self.size, self.end, self.top_logprobs)
        return self._endpoint

    @property
    def end(self) -> list[int]:
        """The token that ends a text, by the tokenizer; empty where it has none."""
        token = self.tokenizer.eos_token_id
        return [token] if isinstance(token, int) else []

    def prompt(self, prompt: str | Sequence[int]) -> Prompt:
        """A prompt as this endpoint reads it.

        Raises:
            ConfigurationError: it is empty, it holds ids that are none, or no text comes out as these ids where the
                endpoint reads text only.
        """
        text = prompt if isinstance(prompt, str) else None
        ids = tokenize(self.tokenizer, prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        if not ids or text == "":
            raise ConfigurationError("The prompt is empty. Give at least one token to go on from.")
        wrong = [token for token in ids if not 0 <= token < self.size]
        if wrong:
            raise ConfigurationError(
                f"The prompt holds the token id {wrong[0]}, and the tokenizer has the ids from 0 to {self.size - 1}."
            )
        capabilities = self.probe()
        made = Prompt(tuple(ids), text, self.tokenizer, capabilities.special_tokens)
        if not capabilities.token_id_prompts and not made.spelled()[1]:
            raise ConfigurationError(
                f"{self.client.url} reads text only, and {made.spelled()[0][:80]!r} does not come out as the tokens of "
                "the prompt when it is tokenized again. Give the prompt as text, as its tokenizer writes it."
            )
        return made


def _tokenizer(given: PreTrainedTokenizerBase | str | Path | None) -> PreTrainedTokenizerBase:
    if isinstance(given, PreTrainedTokenizerBase):
        return given
    found = read_tokenizer(given) if given is not None else None
    if found is None:
        raise ConfigurationError(
            f"The remote base needs its model's tokenizer, and {given!r} is none. Pass tokenizer=..., a folder, a hub "
            "id or a tokenizer."
        )
    return found
