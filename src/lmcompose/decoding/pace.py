"""When to stop drafting, decided token by token: some tokens of a text are sure, and others are anyone's guess.

One more drafted token is worth its pass as long as the draft before it will probably be kept. How probable that is, is
learned from how sure the drafter was of each token, and how often such tokens were kept. No clock is read, so that the
same text and seed give the same drafts. Numbers in, numbers out.

A stop may depend on tokens that were drafted, since all of these are judged: what is emitted keeps its distribution.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from lmcompose.decoding.lengths import DraftLength
from lmcompose.errors import ConfigurationError

LEVELS = (0.2, 0.4, 0.6, 0.8, 0.95)
"""Where one class of sureness (the drafter's probability of the token that it drafted) ends and the next begins."""

SUPPOSED = (0.3, 0.5, 0.65, 0.8, 0.95, 0.98)
"""The share of each class that is kept, before any was judged. Greedy drafts are kept more often than they are sure."""


class Calibration:
    """How often drafted tokens are kept, by how sure the drafter was of them.

    Args:
        weight: how many tokens of its class a supposed share counts for.
        memory: what is left of a token's weight one token of its class later.
    """

    def __init__(self, weight: float = 3.0, memory: float = 0.98) -> None:
        self._weight, self._memory = weight, memory
        self._kept, self._judged = [0.0] * len(SUPPOSED), [0.0] * len(SUPPOSED)

    def chance(self, sure: float) -> float:
        """The chance that a token is kept which the drafter gave the probability `sure`."""
        at = bisect_right(LEVELS, sure)
        return (SUPPOSED[at] * self._weight + self._kept[at]) / (self._weight + self._judged[at])

    def observe(self, sure: float, kept: bool) -> None:
        """Learn from a token that was judged."""
        at = bisect_right(LEVELS, sure)
        self._kept[at] = self._memory * self._kept[at] + kept
        self._judged[at] = self._memory * self._judged[at] + 1


class Round:
    """One draft of a length that is known beforehand.

    Args:
        limit: how many tokens to draft, at most.
    """

    def __init__(self, limit: int, lengths: DraftLength | None = None) -> None:
        self.limit = limit
        self._lengths = lengths

    def goes_on(self, drafted: int) -> bool:
        """Whether to draft another token after so many."""
        return drafted < self.limit

    def drafted(self, sure: Sequence[Sequence[float]]) -> None:
        """Note the next drafted tokens: for each of them, how sure the drafter was of it in every unfinished row."""

    def looks_ahead(self, drafted: int) -> bool:
        """Whether the others should read the last drafted token too, for one token more if the whole draft is kept."""
        return False

    def judged(self, accepted: Sequence[int], kept: int, drafted: int) -> None:
        """Learn how many of `drafted` tokens each unfinished row accepted, and all rows kept."""
        if self._lengths is not None and drafted:
            self._lengths.observe(kept, drafted)

    def done(self, tokens: int, passes: int, positions: int) -> None:
        """Learn how many tokens were written, after so many passes of the drafter over so many positions."""


class Pace:
    """Decides when to stop, by costs in passes of the members that judge.

    Args:
        maximum: the most tokens to draft.
        cost: one more drafted token: a pass of the drafter, and one more position to judge.
        position: that one more position.
        bonus: whether the target needs no scores of the drafter, as in `DraftLength`.
        memory: what is left of a round's weight one round later.

    Raises:
        ConfigurationError: a value outside its range.
    """

    def __init__(
        self, maximum: int = 8, cost: float = 0.4, position: float = 0.07, bonus: bool = False, memory: float = 0.95
    ) -> None:
        if maximum < 1 or not 0 <= cost < float("inf"):
            raise ConfigurationError(
                f"maximum = {maximum}, cost = {cost}: give 1 or more tokens, and a cost of 0 or more passes."
            )
        self.maximum, self.bonus = maximum, bonus
        self.position = min(position, cost)
        self.drafter = cost - self.position
        self.calibration = Calibration()
        self._memory = memory
        self._kept, self._judged = 0.7 * 8.0, 8.0
        self._tokens = 4.0
        self._cost = 0.8 * self._tokens * (1 + (0 if bonus else self.drafter))  # a little less than plain decoding
        self._idle, self._patience = 0, 1

    @property
    def acceptance(self) -> float:
        """The estimated chance that a drafted token is kept in all rows, given that the one before it was."""
        return self._kept / self._judged

    @property
    def cost_per_token(self) -> float:
        """What a token has cost of late; what a token more is worth."""
        return self._cost / self._tokens

    def start(self, room: int | None) -> Round:
        """The next round; `room` is how many tokens may be drafted at most."""
        limit = self.maximum if room is None else max(0, min(self.maximum, room))
        if self.bonus and limit and self.acceptance * self.cost_per_token <= self.drafter + self.position:
            # a drafter that does not pay is asked again at longer and longer intervals
            self._idle += 1
            limit = int(self._idle >= self._patience)
            if limit:
                self._idle, self._patience = 0, min(32, 2 * self._patience)
        elif limit:
            self._idle, self._patience = 0, 1
        return PacedRound(self, limit, room)

    def worth(self, reach: float) -> bool:
        """Whether one more token should be drafted after a draft that is kept with the chance `reach`.

        It costs a pass of the drafter and a position. Where the target is scored after the draft anyway, what is won is
        the chance that the token is kept too. A drafter in the formula has to read the last token before anything can
        come after it; where the others have read it as well, that may be put off until the draft was kept
        (`worth_ahead`). Drafting on is then worth what one may win behind the next token.
        """
        token = self.cost_per_token
        if self.bonus:
            return reach * self.acceptance * token > self.drafter + self.position
        later = self.acceptance * max(0.0, token - self.drafter)
        return reach * (later + self.drafter) > self.drafter + self.position

    def worth_ahead(self, reach: float) -> bool:
        """Whether a position is worth the chance `reach` of one token for a pass of the drafter alone."""
        return reach * (self.cost_per_token - self.drafter) > self.position

    def learn(self, accepted: Sequence[int], kept: int, drafted: int, sure: Sequence[Sequence[float]]) -> None:
        """Learn from a round: as `Round.judged`, with how sure the drafter was, as `Round.drafted` was told."""
        for row, count in enumerate(accepted):
            for at in range(min(count + 1, drafted)):
                self.calibration.observe(sure[at][row], at < count)
        self._kept = self._memory * self._kept + kept
        self._judged = self._memory * self._judged + min(kept + 1, drafted)

    def spend(self, tokens: int, passes: int, positions: int, judged: int) -> None:
        """Learn what a round cost: as `Round.done`, where the others judged so many positions."""
        spent = passes * self.drafter + self.position * self.drafter * max(0, positions - passes)
        spent += 1 + self.position * max(0, judged - 1)
        self._tokens = self._memory * self._tokens + tokens
        self._cost = self._memory * self._cost + spent


class PacedRound(Round):
    """One draft that goes on as long as it pays."""

    def __init__(self, pace: Pace, limit: int, room: int | None) -> None:
        super().__init__(limit)
        self._pace, self._room = pace, room
        self._sure: list[Sequence[float]] = []
        self._reach = 1.0
        self._ahead = 0

    def goes_on(self, drafted: int) -> bool:
        """As in `Round`; the first token is drafted in any case."""
        return drafted < self.limit and (drafted == 0 or self._pace.worth(self._reach))

    def drafted(self, sure: Sequence[Sequence[float]]) -> None:
        """As in `Round`."""
        self._sure += sure
        for rows in sure:
            self._reach *= math.prod(self._pace.calibration.chance(row) for row in rows)

    def looks_ahead(self, drafted: int) -> bool:
        """As in `Round`."""
        room = drafted > 0 and (self._room is None or drafted < self._room)
        self._ahead = int(room and not self._pace.bonus and self._pace.worth_ahead(self._reach))
        return bool(self._ahead)

    def judged(self, accepted: Sequence[int], kept: int, drafted: int) -> None:
        """As in `Round`."""
        if drafted:
            self._pace.learn(accepted, kept, drafted, self._sure)

    def done(self, tokens: int, passes: int, positions: int) -> None:
        """As in `Round`."""
        judged = len(self._sure) + (1 if self._pace.bonus else self._ahead)
        self._pace.spend(tokens, passes, positions, judged)
