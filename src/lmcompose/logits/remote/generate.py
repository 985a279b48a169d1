"""Generating with a base behind an API and the other members here, one token or one drafted block per request.

Each step combines what the server tells of the base with the local members' exact scores, asks for more until the token
is proved or the budget is spent, and says of every token which of the two it was. Where the server states numbers for
the tokens of a prompt, a local member drafts a block and one request verifies it: greedy output stays what it is.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lmcompose.alignment.vocabulary import check_same_tokenizer
from lmcompose.errors import ConfigurationError, RemoteError
from lmcompose.freezing import hold, let_go
from lmcompose.loading import Source, load_member
from lmcompose.logits.arithmetic import Plausibility
from lmcompose.logits.formula import Formula
from lmcompose.logits.remote.base import RemoteBase
from lmcompose.logits.remote.bounds import Knowledge
from lmcompose.logits.remote.composition import PROXY_TUNING, RemoteComposition
from lmcompose.logits.remote.learning import READ_BACK, REFUSED, TOP, Choice, Learner
from lmcompose.logits.remote.local import check_length, check_rows
from lmcompose.logits.remote.prompts import Prompt, continuation
from lmcompose.logits.remote.results import RemoteResult, RemoteText, RemoteToken

NOT_ITS_TOKENS = "the text so far does not come out as its tokens when it is tokenized again"
LONGEST_DRAFT = 16

OnToken = Callable[[int, RemoteToken], None]
"""Called with the number of the prompt and each token as soon as it is chosen."""


def remote_generate(
    base: RemoteBase,
    members: Mapping[str, Source],
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    *,
    formula: Formula | str = PROXY_TUNING,
    role: str = "base",
    alpha: Any = None,
    parameters: Mapping[str, Any] | None = None,
    temperatures: Mapping[str, float] | None = None,
    plausibility: Plausibility | None = None,
    max_new_tokens: int = 64,
    eos_token_id: int | Sequence[int] | None = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    seed: int | None = None,
    extra_requests: int = 8,
    draft_length: int = 4,
    drafter: str | None = None,
    on_token: OnToken | None = None,
) -> RemoteResult:
    """Generate with a composition whose base is behind an API.

    Args:
        base: the remote base.
        members: the other members by role: live models, (model, tokenizer) pairs, or names of models to load. All share
            the base's tokenizer. The default formula needs an "expert" and an "antiexpert".
        prompts: texts, or lists of token ids.
        formula: a weighted sum of members (see `formula.py`), as text or in Python. Its one member that is not in
            `members` is the remote one.
        role: what a formula in text calls the remote member.
        alpha: the formula's parameter of that name; 1 in the default formula.
        parameters: values of this and the formula's other parameters, by name.
        temperatures: role -> temperature of that member's scores.
        plausibility: keep only tokens that one member finds plausible (see `arithmetic.Plausibility`).
        max_new_tokens: per prompt.
        eos_token_id: the token or tokens after which a text ends; the tokenizer's own by default.
        do_sample: sample at `temperature` instead of choosing greedily.
        seed: of the sampling; the same seed and the same answers give the same text.
        extra_requests: how many requests more a token may cost until it is proved, or drawn exactly.
        draft_length: how many tokens to draft at first where the server can verify them; 0 drafts none.
        drafter: the role that drafts; by default "expert" or the first one with a positive weight.
        on_token: called with each token as it comes.

    Returns:
        Texts, token ids, the certificate of each token, and what it took.

    Raises:
        RemoteError: the server failed; the error has the text and the token ids up to then, and all `partial` results.
        ConfigurationError, MemberError, TokenizerMismatchError: something does not fit, said before decoding starts.
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    if max_new_tokens < 1 or extra_requests < 0 or draft_length < 0:
        raise ConfigurationError(
            f"max_new_tokens = {max_new_tokens} must be 1 or more, and extra_requests = {extra_requests} and "
            f"draft_length = {draft_length} cannot be negative."
        )
    if do_sample and not temperature > 0:
        raise ConfigurationError(f"temperature = {temperature!r} must be above 0. Without do_sample it is not used.")
    with _loaded(members, base) as models:
        composition = RemoteComposition(
            formula, role, models, _values(formula, alpha, parameters), temperatures or {}, plausibility, base.size
        )
        ready = [base.prompt(prompt) for prompt in prompts]
        for prompt in ready:
            _check_length(base, models, len(prompt.ids) + max_new_tokens)
        for row in range(len(ready)):
            composition.weights(row, 0)
        run = _Run(base, composition, max_new_tokens, extra_requests, on_token)
        run.end = frozenset(_end_tokens(base, eos_token_id))
        if do_sample:
            run.generator = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
            run.temperature = temperature
        elif base.probe().prompt_logprobs is not None:
            run.draft_length = min(draft_length, LONGEST_DRAFT)
            run.drafter = _drafter(drafter, composition)
        return run.all(ready)


def _values(formula: Formula | str, alpha: Any, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    default = {"alpha": 1.0} if formula == PROXY_TUNING else {}
    return {**default, **(parameters or {}), **({} if alpha is None else {"alpha": alpha})}


@contextmanager
def _loaded(members: Mapping[str, Source], base: RemoteBase) -> Iterator[dict[str, PreTrainedModel]]:
    """The members' models, frozen while the block runs."""
    models: dict[str, PreTrainedModel] = {}
    holder = _Holder()
    try:
        for role, source in members.items():
            member = load_member(source, role=role)
            hold(member.model, holder)
            models[role] = member.model
            if member.tokenizer is not None:
                check_same_tokenizer(base.tokenizer, member.tokenizer, "the base", member.reference.name_or_path)
            check_rows(member.model, role, base.size)
        yield models
    finally:
        for model in models.values():
            let_go(model, holder)


class _Holder:
    """Something that holds live models: `freezing` asks for an object of its own."""


def _check_length(base: RemoteBase, models: Mapping[str, PreTrainedModel], length: int) -> None:
    for role, model in models.items():
        check_length(model, role, length)
    limit = base.probe().max_length
    if limit is not None and length > limit:
        raise ConfigurationError(
            f"The prompt and the new tokens are {length} tokens, and {base.client.url} takes {limit}. Give a shorter "
            "prompt or ask for fewer new tokens."
        )


def _end_tokens(base: RemoteBase, given: int | Sequence[int] | None) -> list[int]:
    if given is None:
        return base.end
    return [given] if isinstance(given, int) else list(given)


def _drafter(named: str | None, composition: RemoteComposition) -> str | None:
    weights = composition.weights(0, 0)
    if named is not None and named not in composition.members:
        raise ConfigurationError(f"The drafter '{named}' is none of the local members {list(composition.members)}.")
    likely = [role for role in composition.members if weights[role] > 0]
    return named or ("expert" if "expert" in likely else next(iter(likely), None))


class _Run:
    """One call of `remote_generate`: its settings, and the results as they grow."""

    def __init__(
        self,
        base: RemoteBase,
        composition: RemoteComposition,
        max_new_tokens: int,
        extra_requests: int,
        on_token: OnToken | None,
    ) -> None:
        self.base = base
        self.composition = composition
        self.max_new_tokens = max_new_tokens
        self.extra_requests = extra_requests
        self.on_token = on_token
        self.end: frozenset[int] = frozenset()
        self.generator: torch.Generator | None = None
        self.temperature = 1.0
        self.draft_length = 0
        self.drafter: str | None = None
        self.features: Counter[str] = Counter()
        self.result = RemoteResult([], base.probe())
        self._requests = base.client.requests

    def all(self, prompts: Sequence[Prompt]) -> RemoteResult:
        started, requests, retried = time.perf_counter(), self.base.client.requests, self.base.client.retried
        self.result.outputs = [RemoteText(list(prompt.ids)) for prompt in prompts]
        try:
            for row, prompt in enumerate(prompts):
                try:
                    self._generate(row, prompt, self.result.outputs[row])
                except RemoteError as error:
                    raise self._lost(error, row) from error
        finally:
            self.result.features = dict(self.features)
            self.result.requests = self.base.client.requests - requests
            self.result.retried = self.base.client.retried - retried
            self.result.seconds = time.perf_counter() - started
        return self.result

    def _lost(self, error: RemoteError, row: int) -> RemoteError:
        output = self.result.outputs[row]
        return RemoteError(
            f"{error} {len(output.tokens)} tokens of prompt {row} had been generated and are kept in the error's text, "
            "token_ids and partial.",
            status=error.status,
            text=output.text,
            token_ids=output.token_ids,
            partial=self.result,
        )

    # ---- one prompt -------------------------------------------------------------------------------------------

    def _generate(self, row: int, prompt: Prompt, output: RemoteText) -> None:
        readers = self.composition.readers()
        while not output.finish_reason:
            new = output.token_ids
            ids, step = [*prompt.ids, *new], len(new)
            draft = self._draft(readers, ids, min(self.draft_length, self.max_new_tokens - step - 1))
            knowledge, draft = self._ask(prompt, new, draft)
            rest, weights = self.composition.rest(readers, [*ids, *draft], len(draft) + 1, row, step)
            kept = 0
            for i, known in enumerate(knowledge):
                choice = self._choose(prompt, [*new, *draft[:i]], known, rest[i], weights[i])
                self._emit(row, prompt, output, choice)
                if output.finish_reason or i == len(draft) or choice.token != draft[i]:
                    break
                kept += 1
            self._note_draft(len(draft), kept)

    def _draft(self, readers: Mapping[str, Any], ids: list[int], length: int) -> list[int]:
        """What the drafter alone would go on with, greedily, up to the end of the text."""
        draft: list[int] = []
        while self.drafter is not None and len(draft) < length:
            token = int(readers[self.drafter].logits([*ids, *draft])[0].argmax())
            if token in self.end or token in self.base.end:
                break
            draft.append(token)
        return draft

    def _ask(self, prompt: Prompt, new: list[int], draft: list[int]) -> tuple[list[Knowledge], list[int]]:
        """What one request tells of the next tokens, and the draft if it could be verified."""
        endpoint = self.base.endpoint
        while draft and not self._is_exact(prompt, [*new, *draft]):
            draft = draft[:-1]
        if draft:
            self.features[READ_BACK] += 1
            try:
                block = endpoint.block(prompt, new, draft)
            except RemoteError as error:
                if error.status not in REFUSED:
                    raise
                block = None
            if block is not None:
                return block, draft
            self.drafter = None  # it could when it was probed, so it is not worth asking again and again
        self.features[TOP] += 1
        return [endpoint.next_token(prompt, new)], []

    def _is_exact(self, prompt: Prompt, new: list[int]) -> bool:
        """Whether the server reads the very tokens that the local members read."""
        return self.base.probe().token_id_prompts or prompt.spelled(new)[1]

    def _choose(self, prompt: Prompt, new: list[int], known: Knowledge, rest: Tensor, weight: float) -> Choice:
        exact = self._is_exact(prompt, new)
        budget = self.extra_requests if exact else 0
        learner = Learner(self.base.endpoint, prompt, new, known, budget, self.features, self.composition.base_mask)
        if self.generator is None:
            choice = learner.greedy(rest, weight)
        else:
            choice = learner.sample(rest, weight, self.temperature, self.generator)
        return choice if exact else Choice(choice.token, False, NOT_ITS_TOKENS, choice.margin, choice.doubt)

    def _emit(self, row: int, prompt: Prompt, output: RemoteText, choice: Choice) -> None:
        ids = [*output.token_ids, choice.token]
        text = continuation(self.base.tokenizer, prompt.ids, ids)
        # bytes that are no whole character yet come out with the token that completes them
        shown = text.rstrip("\ufffd") if len(ids) < self.max_new_tokens and choice.token not in self.end else text
        added = shown[len(output.text) :] if shown.startswith(output.text) else ""
        requests, self._requests = self.base.client.requests - self._requests, self.base.client.requests
        token = RemoteToken(choice.token, added, choice.proved, choice.how, choice.margin, choice.doubt, requests)
        output.tokens.append(token)
        output.text = shown
        if choice.token in self.end:
            output.finish_reason = "end"
        elif len(ids) == self.max_new_tokens:
            output.finish_reason = "length"
        if self.on_token is not None:
            self.on_token(row, token)

    def _note_draft(self, drafted: int, kept: int) -> None:
        self.result.drafted += drafted
        self.result.accepted += kept
        if drafted:
            self.draft_length = next_draft_length(self.draft_length, drafted, kept)


def next_draft_length(length: int, drafted: int, kept: int) -> int:
    """How much to draft after a block: more when all of it was kept, less when not half of it was."""
    if kept == drafted:
        return min(LONGEST_DRAFT, length + 1)
    return max(1, length - 1) if 2 * kept < drafted else length
