"""Choosing among options of which some scores are known only to be at most so much: an API states its top k alone.

Numbers in, numbers out; this file knows no server and no task.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class AtMost(float):
    """An upper bound, in place of a score that is not known."""

    def __repr__(self) -> str:
        return f"at most {float(self)!r}"


@dataclass(frozen=True)
class Pick:
    """What was chosen.

    Attributes:
        option: its index, the first of equals; None where no score is known.
        proved: whether it is what all scores would have given: no bound lies above its score.
        known: how many options have a score.
    """

    option: int | None
    proved: bool
    known: int


def pick(scores: Sequence[float]) -> Pick:
    """The option with the highest of the scores that are known.

    A bound is never taken for a score: an option that is known only by one is not chosen, however high it is, and
    leaves the choice unproved where it lies above the best score.
    """
    known = [index for index, value in enumerate(scores) if not isinstance(value, AtMost)]
    if not known:
        return Pick(None, False, 0)
    best = max(known, key=lambda index: scores[index])
    proved = all(scores[index] <= scores[best] for index in range(len(scores)) if index not in known)
    return Pick(best, proved, len(known))
