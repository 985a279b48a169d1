"""How many tokens to draft at a time, from the acceptance seen so far and what a draft costs.

Numbers in, numbers out.
"""

from dataclasses import dataclass, field

from lmcompose.errors import ConfigurationError


def expected_tokens(acceptance: float, length: int, bonus: bool = True) -> float:
    """The expected tokens of one round (Leviathan et al. 2023, equation 1): 1 + a + a^2 + ... + a^k.

    Args:
        acceptance: a, the chance that a drafted token is kept.
        length: k, how many are drafted.
        bonus: whether a fully kept draft is followed by a token of the target; without it the last term is missing.
    """
    return sum(acceptance**power for power in range(length + bonus))


def best_length(acceptance: float, cost: float, minimum: int, maximum: int, bonus: bool = True) -> int:
    """The draft length k with the most expected tokens per cost, where a round costs 1 + k `cost`; the least of equals.

    The improvement factor of Leviathan et al. 2023, theorem 3.8, maximised over k as in their section 3.5.
    """
    return max(
        range(minimum, maximum + 1), key=lambda length: expected_tokens(acceptance, length, bonus) / (1 + length * cost)
    )


@dataclass
class DraftLength:
    """Chooses how many tokens to draft next, from the acceptance seen so far. Give equal bounds to fix the length.

    The acceptance is that of the whole batch, a position counting as kept when all rows keep it: lockstep pays for
    every row. Older rounds fade. No clock is read, so that the same text and seed give the same lengths.

    Args:
        minimum: the fewest tokens to draft, at least 1 (with none the acceptance would never be seen again).
        maximum: the most.
        cost: c, what one more drafted token costs relative to a pass of the others over the block: a drafter's pass
            and one more position to score. Measure it beforehand: one measured in the midst of a text would make
            sampled text depend on the clock.
        bonus: whether the target is scored after the last drafted token too. A drafter that is itself a member of the
            formula has no scores there without a pass of its own: then draft one token more, and take no bonus.
        prior: the acceptance supposed before any is seen.
        prior_weight: how many drafted tokens the prior counts for.
        memory: what is left of a round's weight one round later.

    Raises:
        ConfigurationError: a value outside its range.
    """

    minimum: int = 1
    maximum: int = 8
    cost: float = 0.2
    bonus: bool = True
    prior: float = 0.7
    prior_weight: float = 8.0
    memory: float = 0.95
    _kept: float = field(default=0.0, init=False, repr=False)
    _judged: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ConfigurationError(
                f"Draft lengths from {self.minimum} to {self.maximum} cannot be: give 1 <= minimum <= maximum."
            )
        if not 0 <= self.cost < float("inf"):
            raise ConfigurationError(
                f"cost = {self.cost}: give a drafted token's cost relative to one pass of the others, 0 or more."
            )
        if not (0 <= self.prior <= 1 and 0 < self.prior_weight < float("inf") and 0 <= self.memory <= 1):
            raise ConfigurationError(
                f"prior = {self.prior}, prior_weight = {self.prior_weight}, memory = {self.memory}: give a prior and a "
                "memory from 0 to 1, and a weight above 0."
            )

    @property
    def acceptance(self) -> float:
        """The estimated chance that a drafted token is kept in all rows, given that the one before it was."""
        return (self.prior * self.prior_weight + self._kept) / (self.prior_weight + self._judged)

    def next(self, room: int | None = None) -> int:
        """The next draft length; `room` is how many tokens may be drafted at most (0 in a text with one to write)."""
        length = best_length(self.acceptance, self.cost, self.minimum, self.maximum, self.bonus)
        return length if room is None else max(0, min(length, room))

    def observe(self, kept: int, drafted: int) -> None:
        """Learn from a round in which `kept` of `drafted` tokens came before the cut.

        What was drafted behind the cut was thrown away unjudged and does not count.
        """
        self._kept = self.memory * self._kept + kept
        self._judged = self.memory * self._judged + min(kept + 1, drafted)
