"""A model behind an API, alone or composed with local members, as lm-eval sees one.

Choices that differ in their last token, such as letters, take one position: what the server lists is known, and of what
it does not list an upper bound (see `logits/remote/bounds.py`), which stands in the results as `AtMost`. More is asked
for until the choice is proved or the budget is spent. Other choices need the log-probabilities of prompts, and a base
that is alone: of a composition, scores are known up to a number for each position, which cancels at one position only.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from torch import Tensor
from tqdm import tqdm

from lmcompose.alignment.vocabulary import check_same_tokenizer
from lmcompose.architecture import position_limit
from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.bounded import AtMost
from lmcompose.evaluation.remote_system import BASE, RemoteSystem
from lmcompose.evaluation.writing import cut
from lmcompose.loading import load_member
from lmcompose.logits.remote.bounds import Knowledge, combined_bounds, decide
from lmcompose.logits.remote.composition import RemoteComposition
from lmcompose.logits.remote.generate import remote_generate
from lmcompose.logits.remote.learning import Learner
from lmcompose.logits.remote.local import check_rows
from lmcompose.logits.remote.prompts import tokenize
from lmcompose.logits.remote.results import RemoteToken

NO_LIMIT = 1_000_000
"""What stands for a length where nobody states one."""


class RemoteLM(TemplateLM):
    """`system` for lm-eval.

    Args:
        system: a base behind an API, and local members.
        device, dtype, trust_remote_code, use_safetensors: of the local members.

    Raises:
        MemberError, TokenizerMismatchError, ConfigurationError: the members or the formula do not fit.
        RemoteError: the server cannot be reached.
    """

    def __init__(
        self,
        system: RemoteSystem,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        batch_size: int | str = 1,
        trust_remote_code: bool = False,
        use_safetensors: bool = True,
    ) -> None:
        super().__init__()
        self.system, self.base, self.tokenizer = system, system.base, system.base.tokenizer
        self.batch_size, self._device = batch_size, torch.device(device or "cpu")
        options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
        options |= {"use_safetensors": use_safetensors} | (
            {"device_map": device} if device not in (None, "cpu") else {}
        )
        self.members = {}
        for role, source in system.members.items():
            member = load_member(source, role=role, **options)
            if member.tokenizer is not None:
                check_same_tokenizer(self.base.tokenizer, member.tokenizer, "the base", member.reference.name_or_path)
            check_rows(member.model, role, self.base.size)
            self.members[role] = member.model
        self.composition = RemoteComposition(
            system.composed, BASE, self.members, system.values, {}, None, self.base.size
        )
        self.capabilities = self.base.probe()
        self._readers = self.composition.readers()
        self.features: Counter[str] = Counter()

    # ---- what lm-eval asks of a model ---------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        if not self.base.end:
            raise ConfigurationError("The remote base's tokenizer names no token that ends a text. Set its eos_token.")
        return self.base.end[0]

    @property
    def max_length(self) -> int:
        """The longest text in tokens that every member reads."""
        limits = [position_limit(model) for model in self.members.values()]
        return min([limit for limit in (self.capabilities.max_length, *limits) if limit is not None], default=NO_LIMIT)

    @property
    def max_gen_toks(self) -> int:
        """The longest answer where a task names none."""
        return 256

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's caches."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The token ids of a text; special tokens are put around it where it has none."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (begin and string.startswith(begin))
        return tokenize(self.tokenizer, string, add_special_tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as the tokenizer's template writes it."""
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
        }
        return str(self.tokenizer.apply_chat_template(chat_history, tokenize=False, **options))

    def is_too_long(self, context: str, answer: str | int) -> bool:
        """Whether a context with its answer (a text, or how many tokens one may have) is more than the model reads."""
        room = answer if isinstance(answer, int) else len(self._encode_pair(context, answer)[1]) - 1
        return len(self.tok_encode(context)) + room > self.max_length

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Not to be had."""
        raise ConfigurationError("The perplexity of whole texts cannot be asked of an API; name another task.")

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to a stop text or the token that ends a text."""
        written = []
        for request in tqdm(requests, disable=disable_tqdm):
            context, options = request.args
            until = options.get("until") or []
            text = self._write(context, [until] if isinstance(until, str) else list(until), options)
            self.cache_hook.add_partial("generate_until", request.args, text)
            written.append(text)
        return written

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """A score for each continuation, `AtMost` where it is only bounded, and whether it is surely the greedy one.

        Scores are in nats. Of choices at one position they are without what all of them share: the tokens before it,
        and for a composition the normalisation.
        """
        answers: list[tuple[float, bool]] = []
        groups = [list(group) for _, group in groupby(requests, key=lambda request: request[1])]
        for group in tqdm(groups, disable=disable_tqdm):
            found = self._score(group[0][1], [continuation for _, _, continuation in group])
            for (note, _, _), answer in zip(group, found, strict=True):
                if note is not None:
                    self.cache_hook.add_partial("loglikelihood", note, answer)
            answers += found
        return answers

    # ---- one context ---------------------------------------------------------------------------------------------

    def _score(self, context: list[int], continuations: Sequence[list[int]]) -> list[tuple[float, bool]]:
        room = max(len(continuation) for continuation in continuations)
        context = context[-max(1, self.max_length - room) :]
        shared = {tuple(continuation[:-1]) for continuation in continuations}
        alone = len(continuations) == 1  # then nothing that is left out of a score is left out of others too
        if len(shared) == 1 and not (alone and (self.members or room > 1)):
            before = shared.pop()  # whatever the tokenizer puts before every letter
            found = self._next([*context, *before], [continuation[-1] for continuation in continuations])
            return [(score, greedy and not before) for score, greedy in found]
        if self.members:
            raise ConfigurationError(
                "A composition with a base behind an API scores choices that differ in one token, such as letters of "
                "realtime_qa, and these differ in several, or stand alone. Name a task that generates, or one with "
                "letters."
            )
        if self.capabilities.prompt_logprobs is None:
            raise ConfigurationError(
                f"{self.base.client.url} states no log-probabilities of prompts, so it cannot score choices of several "
                "tokens. Name a task that generates, or one with letters, such as realtime_qa."
            )
        return [self._whole(context, continuation) for continuation in continuations]

    def _next(self, context: list[int], tokens: list[int]) -> list[tuple[float, bool]]:
        """One position: the top list, then more until the best of `tokens` is proved or the budget spent."""
        prompt = self.base.prompt(context)
        rows, weights = self.composition.rest(self._readers, context, 1, 0, 0)
        rest, weight = rows[0], weights[0]
        knowledge = self.base.endpoint.next_token(prompt)
        among = torch.full_like(rest, -torch.inf)
        among[tokens] = rest[tokens]
        budget = self.system.extra_requests
        Learner(self.base.endpoint, prompt, (), knowledge, budget, self.features).settle(among, weight)
        scores = combined_bounds(knowledge, rest, weight)
        greedy = decide(knowledge, rest, weight)
        return [(_score(scores, knowledge, token), greedy.proved and greedy.best == token) for token in tokens]

    def _whole(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """A continuation of several tokens under the base alone, by the log-probabilities of a prompt."""
        block = self.base.endpoint.block(self.base.prompt(context), (), continuation)
        if block is None:
            raise ConfigurationError(
                f"{self.base.client.url} gave no log-probabilities for {self.tokenizer.decode(continuation)[:60]!r} "
                "after its context: its tokenizer cuts the text in another way. Name a task that generates."
            )
        total, greedy, bounded = 0.0, True, False
        for token, knowledge in zip(continuation, block, strict=False):
            value = _score(knowledge.upper, knowledge, token)
            total, bounded = total + value, bounded or isinstance(value, AtMost)
            greedy = greedy and bool(knowledge.known[token]) and float(knowledge.upper.max()) <= value
        return AtMost(total) if bounded else total, greedy

    def _write(self, context: str, until: Sequence[str], options: dict[str, Any]) -> str:
        longest = int(options.get("max_gen_toks") or self.max_gen_toks)
        sampled = bool(options.get("do_sample")) and float(options.get("temperature") or 0) > 0
        drawn: dict[str, Any] = {"do_sample": True, "temperature": float(options["temperature"])} if sampled else {}
        ids = self.tok_encode(context)[-max(1, self.max_length - longest) :]
        watch = _Watch(until)
        with suppress(_StopTextError):
            remote_generate(
                self.base,
                self.members,
                [ids],
                formula=self.system.composed,
                role=BASE,
                parameters=self.system.values,
                max_new_tokens=longest,
                extra_requests=self.system.extra_requests,
                on_token=watch,
                **drawn,
            )
        return cut(watch.text, until)


def _score(bounds: Tensor, knowledge: Knowledge, token: int) -> float:
    value = float(bounds[token])
    return value if bool(knowledge.known[token]) else AtMost(value)


class _StopTextError(Exception):
    """A stop text was written: every further token would cost a request and be cut off."""


class _Watch:
    """Puts the tokens of one text together, and stops at a stop text."""

    def __init__(self, until: Sequence[str]) -> None:
        self.until, self.text = until, ""

    def __call__(self, row: int, token: RemoteToken) -> None:
        self.text += token.text
        if any(stop in self.text for stop in self.until):
            raise _StopTextError
