"""Learning more of one position of the base until its greedy choice is proved, or its sample drawn exactly.

Each way costs a request: naming tokens, a `logit_bias` under which the server's own choice is the composition's, one
that favours a token so that its number shows, a deeper list, and a text that goes on with a token and comes back with
that token's number. Whatever is learned is a value or an upper bound of
the base's log-probabilities. This file decides what to ask; `bounds` and `sampling` decide what it means.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lmcompose.errors import RemoteError
from lmcompose.logits.arithmetic import Plausibility
from lmcompose.logits.remote.bounds import Decision, Knowledge, combined_bounds, decide
from lmcompose.logits.remote.capabilities import BIASED, RAW
from lmcompose.logits.remote.endpoint import BIAS_LIMIT, NAMED_AT_ONCE, Endpoint
from lmcompose.logits.remote.plausibility import possible_and_certain
from lmcompose.logits.remote.prompts import Prompt
from lmcompose.logits.remote.replies import Reply
from lmcompose.logits.remote.sampling import draw

TOP, DEEPER = "top log-probabilities", "deeper log-probabilities"
NAMED, BIAS, READ_BACK = "named token ids", "logit_bias", "log-probabilities of prompts"
ENDED = "the server ended the text and stated nothing"
DEEPEN = 4
"""How much deeper a list is asked for each time."""
REFUSED = (400, 404, 405, 413, 422, 501)
"""Statuses by which a server says that it will not do what it is asked."""
MARGIN = 1.0
"""By how much a bias lifts the tokens in question above all others."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Choice:
    """A token of the composition.

    Attributes:
        token: its id.
        proved: whether it is the greedy choice for certain, or drawn from exactly the right distribution.
        how: by which feature of the server, the last one that it took.
        margin: of a greedy choice, how far its score lies above what any other token can reach; None where only the
            server knows (`logit_bias`), and of samples.
        doubt: of a sample that is not exact, how probable the tokens that were left out can be at most.
    """

    token: int
    proved: bool
    how: str
    margin: float | None = None
    doubt: float = 0.0


class Learner:
    """Asks for more about one position.

    Args:
        endpoint: with what it can.
        prompt, new: the text up to the position.
        knowledge: what is known of the base there.
        budget: how many requests more may be made.
        features: counts the requests by what they used.
        mask: of the tokens that the base finds plausible, where the base decides.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prompt: Prompt,
        new: Sequence[int],
        knowledge: Knowledge,
        budget: int,
        features: Counter[str],
        mask: Plausibility | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.prompt = prompt
        self.new = new
        self.knowledge = knowledge
        self.left = budget
        self.features = features
        self.depth = endpoint.capabilities.depth
        self.mask = mask
        self.how = TOP

    def greedy(self, rest: Tensor, weight: float) -> Choice:
        """The greedy choice of weight * base + rest, [vocab], and whether it is proved."""
        if (end := self._ended_by()) is not None:
            return Choice(end, False, ENDED)
        capabilities = self.endpoint.capabilities
        names, biases = capabilities.named_token_ids, capabilities.logit_bias is not None and self.mask is None
        reads_back = capabilities.prompt_logprobs is not None
        while True:
            allowed, certain = self._allowed(rest)
            decision = decide(self.knowledge, allowed, weight, certain)
            if decision.proved or self.left == 0 or len(decision.challengers) == 0:
                break
            unknown = decision.challengers[~self.knowledge.known[decision.challengers]].tolist()
            if not unknown:  # only a deeper list can tell which of them the base finds plausible
                if not self._deepen():
                    break
            elif names and len(unknown) <= NAMED_AT_ONCE:
                names = self._name(unknown)
            elif biases and len(unknown) < capabilities.biased_at_once:
                chosen, biases = self._let_choose(decision, rest, weight)
                if chosen is not None:
                    return Choice(chosen, True, BIAS)
            elif self._deepen():
                continue
            elif biases and capabilities.logit_bias == RAW:
                _, biases = self._let_choose(decision, rest, weight)
            elif names:
                names = self._name(unknown[:NAMED_AT_ONCE])
            elif reads_back:
                reads_back = self._read_back(unknown[0])
            else:
                break
        return Choice(decision.best, decision.proved, self.how, decision.margin)

    def settle(self, rest: Tensor, weight: float) -> Decision:
        """The best of the few tokens that `rest` [vocab] leaves (the others are at -inf), learning their numbers.

        Unlike `greedy` it asks for values and lets no server choose: the scores of all of these tokens are of use, and
        `knowledge` has them afterwards, so far as the budget went.
        """
        names = self.endpoint.capabilities.named_token_ids
        while True:
            decision = decide(self.knowledge, rest, weight)
            unknown = decision.challengers[~self.knowledge.known[decision.challengers]].tolist()
            if decision.proved or not unknown or self.left <= 0:
                return decision
            if names:
                names = False  # once: what it is not told now it will not be told later
                self._name(unknown[:NAMED_AT_ONCE])
            elif not any(
                self.left > 0 and self._learn_about(token, combined_bounds(self.knowledge, rest, weight))
                for token in unknown
            ):
                return decision

    def sample(self, rest: Tensor, weight: float, temperature: float, generator: torch.Generator) -> Choice:
        """A sample of softmax((weight * base + rest) / temperature)."""
        if (end := self._ended_by()) is not None:
            return Choice(end, False, ENDED, doubt=1.0)
        allowed, certain = self._allowed(rest)
        while self.mask is not None and not _settled(allowed, certain) and self.left > 0 and self._deepen():
            allowed, certain = self._allowed(rest)
        settled = _settled(allowed, certain)
        drawn = draw(
            self.knowledge,
            allowed,
            weight,
            temperature,
            generator,
            lambda token: self._learn_about(token, combined_bounds(self.knowledge, allowed, weight)),
        )
        return Choice(drawn.token, drawn.exact and settled, self.how, doubt=drawn.doubt if settled else 1.0)

    def _allowed(self, rest: Tensor) -> tuple[Tensor, Tensor | None]:
        """`rest` without the tokens that the base finds implausible, and which of the others it certainly does not."""
        if self.mask is None:
            return rest, None
        possible, certain = possible_and_certain(self.knowledge, self.mask.kind, self.mask.value)
        if not bool(rest[possible].isfinite().any()):  # as `arithmetic.restrict`: no position is left without a token
            return rest, None
        return rest.masked_fill(~possible, -torch.inf), certain

    def _ended_by(self) -> int | None:
        """The token that ends the text, where the server ended it and stated nothing."""
        nothing = self.knowledge.ended and not bool(self.knowledge.known.any())
        return self.endpoint.end[0] if nothing and self.endpoint.end else None

    # ---- one request each -------------------------------------------------------------------------------------

    def _ask(self, feature: str, request: Callable[[], Answer]) -> Answer | None:
        """The answer to one request more; None where the server refuses it, as some do with the one or other token."""
        self.left -= 1
        self.features[feature] += 1
        try:
            answer = request()
        except RemoteError as error:
            if error.status in REFUSED:
                return None
            raise
        self.how = feature
        return answer

    def _deepen(self) -> bool:
        """A deeper list; False where there is none."""
        deepest = self.endpoint.capabilities.deepest
        if self.depth >= deepest:
            return False
        self.depth = min(deepest, self.depth * DEEPEN)
        found = self._ask(DEEPER, lambda: self.endpoint.next_token(self.prompt, self.new, self.depth))
        if found is not None:
            self.knowledge.merge(found)
        return found is not None

    def _name(self, tokens: list[int]) -> bool:
        """The values of some tokens; False where the server gave none."""
        values = self._ask(NAMED, lambda: self.endpoint.named(self.prompt, self.new, tokens))
        for token, value in (values or {}).items():
            self.knowledge.learn(token, value)
        return bool(values)

    def _let_choose(self, decision: Decision, rest: Tensor, weight: float) -> tuple[int | None, bool]:
        """Let the server choose between the best token and its challengers.

        Under a bias of rest / weight, the server's greedy choice among them is the composition's. One number is added
        to the biases of all of them, so that the best one comes before every token that is not among them.

        Returns:
            The greedy choice, or None where this does not prove it; and whether asking again can help.
        """
        rivals = decision.challengers[: self.endpoint.capabilities.biased_at_once - 1].tolist()
        if not bool(self.knowledge.known[decision.best]):
            return None, False  # nothing says how far to lift them
        tokens = [decision.best, *rivals]
        shift = rest[tokens].to(torch.float64) / weight
        value = float(self.knowledge.values[decision.best])
        outside = self.knowledge.upper.clone()
        outside[tokens] = -torch.inf
        highest = float(outside.max()) if bool(outside.isfinite().any()) else value
        biases = shift - float(shift[0]) + highest + MARGIN - value
        if float(biases.abs().max()) > BIAS_LIMIT:
            return None, False
        answer = self._favour(dict(zip(tokens, biases.tolist(), strict=True)))
        if answer is None:
            return None, False
        reply, candidates = answer
        chosen = [token for token in tokens if token in candidates]
        if len(chosen) != 1:
            return None, False
        winner = chosen[0]
        if len(rivals) == len(decision.challengers):
            return winner, False
        stated = reply.generated.logprob if reply.generated is not None else None
        if self.endpoint.capabilities.logit_bias != RAW or stated is None:
            return None, False
        self.knowledge.learn(winner, stated)
        losers = torch.tensor([token for token in tokens if token != winner])
        self.knowledge.limit(losers, stated + (rest[winner] - rest[losers]).to(torch.float64) / weight)
        return None, True

    def _read_back(self, token: int) -> bool:
        """The value of one token, by a prompt that goes on with it; False where no text does."""
        if not (self.endpoint.capabilities.token_id_prompts or self.prompt.spelled([*self.new, token])[1]):
            return False
        block = self._ask(READ_BACK, lambda: self.endpoint.block(self.prompt, self.new, [token]))
        if block is not None:
            self.knowledge.merge(block[0])
        return block is not None and bool(self.knowledge.known[token])

    def _learn_about(self, token: int, bounds: Tensor) -> bool:
        """Something about one token: its value, or a tighter bound. False where nothing more can be learned.

        Args:
            bounds: [vocab] of the combined scores. Where one request can name many tokens, those with the highest
                bounds are named along, since they are the next to be drawn.
        """
        capabilities = self.endpoint.capabilities
        ways: list[Callable[[], bool]] = []
        if capabilities.named_token_ids:
            others = bounds.masked_fill(self.knowledge.known, -torch.inf).argsort(descending=True)[:NAMED_AT_ONCE]
            named = [token, *(other for other in others.tolist() if other != token)]
            ways.append(lambda: self._name(named[:NAMED_AT_ONCE]))
        if capabilities.logit_bias == RAW:
            ways.append(lambda: self._favour_raw(token))
        if capabilities.logit_bias == BIASED:
            ways.append(lambda: self._favour_biased(token))
        if capabilities.prompt_logprobs is not None:
            ways.append(lambda: self._read_back(token))
        # a deeper list lowers every bound, and the bounds of a large vocabulary weigh much together
        return any(self.left > 0 and way() for way in [self._deepen, *ways])

    def _favour(self, bias: Mapping[int, float]) -> tuple[Reply, tuple[int, ...]] | None:
        return self._ask(BIAS, lambda: self.endpoint.favoured(self.prompt, self.new, bias))

    def _favour_raw(self, token: int) -> bool:
        """The value of a token that a bias makes the server choose, where it states the model's own numbers."""
        answer = self._favour({token: BIAS_LIMIT})
        if answer is None or answer[0].generated is None:
            return False
        if token not in answer[1]:  # not even so: then it is less probable than the chosen one by that much
            self.knowledge.limit(torch.tensor([token]), torch.tensor([-BIAS_LIMIT], dtype=torch.float64))
            return True
        value = answer[0].generated.logprob
        if value is not None:
            self.knowledge.learn(token, value)
        return value is not None

    def _favour_biased(self, token: int) -> bool:
        """The value of a token that a bias lifts into the list, where the server states numbers after the bias.

        All tokens but this one lose the same amount to it, which another listed token tells: with b the bias and r that
        token, log p = log p' - b + log p_r - log p'_r. A token that is not in the list even so lies below the lowest
        that is, less the bias.
        """
        known = self.knowledge.known
        if not bool(known.any()):
            return False
        top = float(self.knowledge.values[known].max())
        bias = min(BIAS_LIMIT, top - float(self.knowledge.upper[token]) + 10 * MARGIN)
        answer = self._favour({token: bias})
        if answer is None or answer[0].generated is None:
            return False
        position = answer[0].generated
        stated, uncertain = self.endpoint.entries(position)
        if token not in stated and any(token in tokens or not tokens for tokens, _ in uncertain):
            return False
        others = [other for other in stated if other != token and other < len(known) and bool(known[other])]
        if not others:
            return False
        reference = max(others, key=lambda other: float(self.knowledge.values[other]))
        lost = float(self.knowledge.values[reference]) - stated[reference]
        if token in stated:
            value = stated[token] - bias + lost
            self.knowledge.learn(token, min(value, float(self.knowledge.upper[token])))
            return True
        before = float(self.knowledge.upper[token])
        bound = min(position.logprobs.values()) + lost - bias
        self.knowledge.limit(torch.tensor([token]), torch.tensor([bound], dtype=torch.float64))
        return bound < before - 1e-6 and math.isfinite(bound)


def _settled(allowed: Tensor, certain: Tensor | None) -> bool:
    """Whether it is known of every token if it is allowed."""
    return certain is None or bool((allowed.isfinite() == (certain & allowed.isfinite())).all())
