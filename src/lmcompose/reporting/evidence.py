"""What the papers claim, beside what was measured here: one row per claim, its verdict worked out from the results.

A verdict is never written by hand. Every claim has a rule that reads result files; where a file is not there, the row
says that nothing was measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmcompose.reporting.tables import Grid

Result = Mapping[str, Any]
Results = Mapping[str, Result]
"""Results by the path of their file under the results' folder, without its ending."""

SHOWN, WEAKER, NOT_SHOWN, OTHERWISE, OPEN = "shown", "shown, weaker", "no difference shown", "otherwise here", "open"

VERDICTS = {
    SHOWN: "the interval lies on the claim's side, and where the claim has a figure, not below it",
    WEAKER: "the interval lies on the claim's side, and below the paper's figure",
    NOT_SHOWN: "the interval holds zero, or half where the claim says most",
    OTHERWISE: "the interval lies on the other side, or a count says otherwise",
    OPEN: "not measured yet",
}


@dataclass(frozen=True)
class Finding:
    """What was measured for a claim: the figure in words, and the verdict, one of `VERDICTS`."""

    ours: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Args:
        source: where it stands.
        claim: what is claimed.
        theirs: the paper's figure and its models.
        scale: what ours was measured on.
        files: the results that `rule` needs.
        rule: those results -> the finding.
    """

    source: str
    claim: str
    theirs: str
    scale: str
    files: tuple[str, ...]
    rule: Callable[..., Finding]

    def finding(self, results: Results) -> Finding:
        """The finding, or that there is none because a file is not there."""
        if any(name not in results for name in self.files):
            return Finding("", OPEN)
        return self.rule(*(results[name] for name in self.files))


def verdict(interval: tuple[float, float] | list[float], theirs: float | None = None) -> str:
    """The verdict on a quantity that the claim says is above zero.

    Args:
        interval: of ours.
        theirs: the paper's figure in the same unit, where it can be compared.
    """
    low, high = interval
    if low <= 0 <= high:
        return NOT_SHOWN
    if high < 0:
        return OTHERWISE
    return WEAKER if theirs is not None and high < theirs else SHOWN


def evidence_grid(results: Results, claims: tuple[Claim, ...]) -> Grid:
    """Every claim with its finding."""
    rows = []
    for each in claims:
        found = each.finding(results)
        rows.append([each.claim, each.source, each.theirs, found.ours or "–", each.scale, found.verdict])
    return Grid(
        "The papers' claims, and what was measured",
        ["claim", "source", "theirs", "ours", "at what scale", "verdict"],
        rows,
        notes=[f"{name}: {meaning}." for name, meaning in VERDICTS.items()],
    )


def percent(interval: list[float] | tuple[float, float], mean: float, sign: str = "") -> str:
    """A fraction and its interval in percent."""
    low, high = (f"{100 * end:{sign}.1f}" for end in interval)
    return f"{100 * mean:{sign}.1f} [{low}, {high}]"


def plain(interval: list[float] | tuple[float, float], mean: float, digits: int = 3) -> str:
    """A difference and its interval, with signs."""
    low, high = (f"{end:+.{digits}f}" for end in interval)
    return f"{mean:+.{digits}f} [{low}, {high}]"
