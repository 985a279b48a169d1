"""Finding out what a completions endpoint can give, by asking it.

Every feature is tried once, on a short text, and its answer compared with a plain one: an endpoint that accepts a field
and ignores it, or that states other numbers than it says, is taken not to have the feature. What was refused is noted
with the server's own words. An endpoint without any log-probabilities cannot be a base and is refused.
"""

from collections.abc import Callable
from typing import Any

import torch

from lmcompose.errors import ConfigurationError, MemberError, RemoteError, TokenizerMismatchError, nearest
from lmcompose.logits.remote.bounds import Knowledge
from lmcompose.logits.remote.capabilities import BIASED, ECHO, PROMPT_LOGPROBS, RAW, Capabilities
from lmcompose.logits.remote.client import Client
from lmcompose.logits.remote.endpoint import BIAS_LIMIT, Endpoint
from lmcompose.logits.remote.prompts import Prompt, tokenize
from lmcompose.logits.remote.replies import Reply
from lmcompose.logits.remote.strings import TokenStrings

TEXTS = ("The first of the", "1 2 3 4", "Once upon a time there was")
"""Short texts that hardly any model ends at once."""

IDS_IN_ANSWERS = (("return_tokens_as_token_ids", True),)
"""vLLM's switch that names tokens by id."""

FALLBACK_DEPTHS = (5, 1)
DEEPER = (1024, 256, 100, 50, 20)
MANY_BIASES = (8192, 1024)
"""How many biases in one request are tried; OpenAI takes 300."""
REFUSED = (400, 404, 405, 422, 500, 501)
"""Statuses by which servers refuse a field: also 500, where they fail over it."""

RETRIES = 2
"""How often at most a request is repeated that may be failing because of what it asks for."""

SAME = 0.1
"""Two requests for one number may differ by this much where a server computes in half precision and in batches."""


def probe(client: Client, model: str | None, strings: TokenStrings, size: int, end: list[int], wanted: int) -> Endpoint:
    """The endpoint with the capabilities that were found.

    Args:
        model: its name, or None for the only one that the server has.
        strings: of the tokenizer; learns how this server spells tokens.
        wanted: how many top log-probabilities a plain request should ask for.

    Raises:
        RemoteError: the server cannot be reached or fails on plain requests.
        MemberError: it gives no log-probabilities, so it cannot be a base.
        ConfigurationError: there is no such model.
        TokenizerMismatchError: it cuts the text into another number of tokens than the tokenizer does.
    """
    name, max_length = _model(client, model)
    plain = Endpoint(client, Capabilities(name, wanted, wanted, max_length=max_length), strings, size, end)
    return _Probe(plain).run(wanted)


def _model(client: Client, model: str | None) -> tuple[str, int | None]:
    """The model's name and the longest text it takes, by the server's list."""
    try:
        listed = client.get("/models").get("data")
    except RemoteError as error:
        if model is None or error.status is None or error.status in (401, 403):
            raise
        return model, None  # some proxies have no list
    models = {
        entry["id"]: entry for entry in listed or [] if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    }
    if model is None:
        if len(models) != 1:
            raise ConfigurationError(f"{client.url} has the models {list(models)}. Choose one with model=...")
        model = next(iter(models))
    elif models and model not in models:
        raise ConfigurationError(
            f"{client.url} has no model '{model}', only {list(models)[:10]}.{nearest(model, models)}"
        )
    length = models.get(model, {}).get("max_model_len")
    return model, length if isinstance(length, int) else None


class _Probe:
    """The steps of the probe; each one changes `endpoint` by what it found."""

    prompt: Prompt
    known: Knowledge

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.notes: list[str] = []
        tokenizer = endpoint.strings.tokenizer
        self.prompts = [Prompt(tuple(tokenize(tokenizer, text)), text, tokenizer) for text in TEXTS]

    def run(self, wanted: int) -> Endpoint:
        replies = self._plain(wanted)
        self._learn_names(replies)
        self._check_tokenizer(replies)
        self._look_at_numbers(replies)
        self._try("token ids as prompts", self._token_ids)
        self._deepest()
        self._try("log-probabilities of named tokens", self._named)
        self._try("logit_bias", self._bias)
        if not self._try("log-probabilities of prompts by echo", lambda: self._prompt_logprobs(ECHO)):
            self._try("log-probabilities of prompts by prompt_logprobs", lambda: self._prompt_logprobs(PROMPT_LOGPROBS))
        self._note(notes=tuple(self.notes))
        return self.endpoint

    def _note(self, **found: Any) -> None:
        self.endpoint = self.endpoint.with_capabilities(**found)

    def _try(self, feature: str, attempt: Callable[[], str | None]) -> bool:
        """Whether the endpoint has a feature; `attempt` says what is wrong with its answer, or None."""
        try:
            with self.endpoint.client.retrying(RETRIES):
                problem = attempt()
        except RemoteError as error:
            if error.status not in REFUSED and error.status is not None:
                raise
            problem = str(error).removeprefix(f"{self.endpoint.client.url}/completions ")
        if problem:
            self.notes.append(f"no {feature}: {problem}")
        return not problem

    # ---- plain answers ----------------------------------------------------------------------------------------

    def _plain(self, wanted: int) -> list[Reply]:
        """Answers with as many log-probabilities as are given, up to `wanted`."""
        refusal: RemoteError | None = None
        for extras in (IDS_IN_ANSWERS, ()):
            for depth in (wanted, *(smaller for smaller in FALLBACK_DEPTHS if smaller < wanted)):
                self._note(depth=depth, extras=extras)
                try:
                    with self.endpoint.client.retrying(RETRIES):
                        replies = [self.endpoint.reply(self.prompts[0])]
                except RemoteError as error:
                    if error.status not in REFUSED:
                        raise
                    refusal = error
                    continue
                replies += [self.endpoint.reply(prompt) for prompt in self.prompts[1:]]
                given = max((len(reply.generated.logprobs) for reply in replies if reply.generated), default=0)
                if given == 0:
                    raise self._no_probabilities("its answers have none, although the request asks for them")
                self._note(depth=min(depth, given))
                return replies
        assert refusal is not None
        try:
            self.endpoint.reply(self.prompts[0], logprobs=None)
        except RemoteError:
            raise refusal from None
        raise self._no_probabilities(f"with 'logprobs' it refuses: {refusal}")

    def _no_probabilities(self, reason: str) -> MemberError:
        return MemberError(
            f"'{self.endpoint.capabilities.model}' at {self.endpoint.client.url} cannot be the base: it gives no "
            f"log-probabilities of its tokens ({reason}). A composition adds up scores and needs them: choose a server "
            "that states them, such as vLLM or llama.cpp (llama-cpp-python with --logits_all true)."
        )

    def _learn_names(self, replies: list[Reply]) -> None:
        names = [key for reply in replies if reply.generated for key in reply.generated.logprobs]
        self._note(token_ids=all(isinstance(name, int) for name in names))
        self.endpoint.strings.learn(name for name in names if isinstance(name, str))
        unexplained = {name for name in names if not self.endpoint.candidates(name)}
        if len(unexplained) > len(set(names)) / 2:
            raise TokenizerMismatchError(
                f"'{self.endpoint.capabilities.model}' at {self.endpoint.client.url} speaks of tokens that the "
                f"tokenizer does not have: {sorted(map(str, unexplained))[:5]}. Pass the tokenizer of that model."
            )

    def _check_tokenizer(self, replies: list[Reply]) -> None:
        """Compare how many tokens the server read in each text with the tokenizer's own count."""
        for prompt, reply in zip(self.prompts, replies, strict=True):
            count = reply.prompt_tokens
            bare = tokenize(prompt.tokenizer, prompt.text or "", special=False)
            if count is None or len(bare) == len(prompt.ids) == count:
                continue
            if count not in (len(prompt.ids), len(bare)):
                raise TokenizerMismatchError(
                    f"'{self.endpoint.capabilities.model}' at {self.endpoint.client.url} reads {count} tokens in "
                    f"{prompt.text!r}, and the tokenizer makes {len(prompt.ids)} of it ({len(bare)} without special "
                    "tokens). Pass the tokenizer of that model."
                )
            self._note(special_tokens=count == len(prompt.ids))

    def _look_at_numbers(self, replies: list[Reply]) -> None:
        """What the plain answers tell, and first a text for which they tell something."""
        if not self.endpoint.capabilities.special_tokens:  # what was asked is not what the tokenizer makes of it
            self.prompts = [Prompt(prompt.ids, prompt.text, prompt.tokenizer, False) for prompt in self.prompts]
            replies = [self.endpoint.reply(prompt) for prompt in self.prompts]
        known = [
            self.endpoint.knowledge(reply.generated, True) if reply.generated else Knowledge.nothing(self.endpoint.size)
            for reply in replies
        ]
        best = max(range(len(known)), key=lambda i: int(known[i].known.sum()))
        self.prompt, self.known = self.prompts[best], known[best]
        if not bool(self.known.known.any()):
            raise self._no_probabilities("none of those that it states can be told to belong to one token")

    # ---- features ---------------------------------------------------------------------------------------------

    def _token_ids(self) -> str | None:
        by_id = self.endpoint.with_capabilities(token_id_prompts=True)
        reply = by_id.reply(self.prompt)
        if reply.prompt_tokens not in (None, len(self.prompt.ids)):
            return f"it reads {reply.prompt_tokens} tokens where {len(self.prompt.ids)} ids are sent"
        problem = _disagree(by_id.next_token(self.prompt), self.known)
        # a server that adds nothing to a text, where the tokenizer would, reads other tokens of it than these ids
        if problem and self.prompt.spelled()[1]:
            return problem
        self._note(token_id_prompts=True)
        self.known = by_id.next_token(self.prompt)
        return None

    def _deepest(self) -> None:
        depth = self.endpoint.capabilities.depth
        for deeper in (self.endpoint.size, *DEEPER):
            if deeper <= depth:
                continue
            try:
                with self.endpoint.client.retrying(RETRIES):
                    reply = self.endpoint.reply(self.prompt, logprobs=deeper)
            except RemoteError as error:
                if error.status not in REFUSED:
                    raise
                continue
            given = len(reply.generated.logprobs) if reply.generated else 0
            self._note(deepest=max(depth, given))
            return
        self._note(deepest=depth)

    def _named(self) -> str | None:
        known = self.known.known
        wanted = (~known).nonzero().squeeze(-1)[:3].tolist() or known.nonzero().squeeze(-1)[-3:].tolist()
        found = self.endpoint.named(self.prompt, (), wanted)
        if set(found) != set(wanted):
            return "it ignores 'logprob_token_ids'"
        if any(value > self.known.upper[token] + SAME for token, value in found.items()):
            return "the numbers contradict those of a plain request"
        self._note(named_token_ids=True)
        return None

    def _bias(self) -> str | None:
        """Favour a token that a plain request does not choose."""
        values = self.known.values.nan_to_num(nan=-torch.inf)
        order = values.argsort(descending=True, stable=True).tolist()  # the listed ones first: their names are certain
        token = next(token for token in order[1:] if token not in self.endpoint.ending)
        reply, candidates = self.endpoint.favoured(self.prompt, (), {token: BIAS_LIMIT})
        if token not in candidates or reply.generated is None:
            return "it ignores 'logit_bias'"
        stated = reply.generated.logprob
        if stated is None:
            return "it states no number for the favoured token"
        self._note(logit_bias=RAW if stated <= float(self.known.upper[token]) + SAME else BIASED)
        for count in MANY_BIASES:
            count = min(count, self.endpoint.size)
            bias = {**dict.fromkeys(range(count), 0.0), token: BIAS_LIMIT}
            try:
                _, candidates = self.endpoint.favoured(self.prompt, (), bias)
            except RemoteError as error:
                if error.status is not None and error.status not in (*REFUSED, 413):
                    raise
                continue
            if token in candidates:
                self._note(biased_at_once=count)
                break
        return None

    def _prompt_logprobs(self, kind: str) -> str | None:
        """Verify a block of two tokens and compare it with plain requests."""
        trial = self.endpoint.with_capabilities(prompt_logprobs=kind)
        first = int(self.known.upper.argmax())
        ids = [token for token in (first, *self.prompt.ids) if token not in self.endpoint.end][:2]
        if not self.endpoint.capabilities.token_id_prompts:
            ids = next((part for part in (ids, ids[:1]) if self.prompt.spelled(part)[1]), [])
        if not ids:
            return "no text for a trial comes out as the tokens that it stands for"
        block = trial.block(self.prompt, (), ids)
        if block is None:
            return "the answer is not about the tokens of the prompt"
        for i, found in enumerate(block):
            if problem := _disagree(found, self.endpoint.next_token(self.prompt, ids[:i])):
                return problem
        self._note(prompt_logprobs=kind)
        return None


def _disagree(found: Knowledge, plain: Knowledge) -> str | None:
    """What is wrong with numbers that should be those of a plain request."""
    if found.ended or plain.ended:
        return None
    both = found.known & plain.known
    if int(both.sum()) * 2 < int(plain.known.sum()) or int(both.sum()) == 0:
        return "it states the log-probabilities of other tokens than a plain request does"
    if float((found.values[both] - plain.values[both]).abs().median()) > SAME:
        return "the numbers are not those of a plain request"
    return None
