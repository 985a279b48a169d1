"""What a judge's reply says, and what all verdicts say together. Pure functions; this file asks nobody.

A reply counts as the verdict that it states in the form it was asked for. Where it states none, or two that differ, it
is unreadable: that is counted, and nothing is guessed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lmcompose.evaluation.statistics import compare, ratio_bootstrap, wilson_interval

Verdict = Literal["A", "B", "tie"]

_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_NAMED = r"(?:(?:[Aa]n?\s+)?(?P<tie>[Tt]ie|TIE|[Dd]raw)|(?:(?:[Aa]nswer|[Rr]esponse|[Aa]ssistant)\s+)?(?P<letter>[AB]))"
_ENDS = (
    r"""(?=[\s"'*_`)\]}.!]*$"""  # nothing more on the line,
    r"""|["'*_`)\]}]*[.!]\s"""  # another sentence,
    r"""|["'*_`)\]}]*\s*[,;:\u2013\u2014-](?!\s*\(?(?:[AB]|[Tt]ie)\b)"""  # a reason, but no "A, B",
    r"""|["'*_`)\]}]*\s*\((?!\s*(?:[AB]|[Tt]ie)\s*\)))"""  # or one in brackets
)
_STATED = re.compile(rf"\b(?i:verdict)\b[\s*_`:=>-]*(?:is\b[\s*_`:]*)?[\"'*_`(\[{{]*{_NAMED}{_ENDS}", re.MULTILINE)
_ANY_STATED = re.compile(r"\b(?i:verdict)\b[\s*_`]*[:=]")
_BRACKETED = re.compile(r"\[\[\s*(?:(?P<letter>[AB])|(?P<tie>C|[Tt]ie))\s*\]\]")
_BARE = re.compile(rf"""[\s"'*_`(\[]*{_NAMED}[\s"'*_`)\].!]*""")

POINTS: dict[Verdict, float] = {"A": 1.0, "tie": 0.5, "B": 0.0}
"""What a verdict gives to the answer that was shown as A."""


def read_verdict(reply: str) -> Verdict | None:
    """The verdict that `reply` states; None where it states none, or several that differ.

    What counts is `Verdict: A`, `Verdict: B` or `Verdict: tie`, `[[A]]`, `[[B]]` or `[[C]]` (a tie), or nothing but
    such a word. Markdown, quotation marks and a reason behind a comma or a dash change nothing; what stands in
    <think>...</think> does not count. "Verdict: A or B" and "Verdict: A better answer is B" are unreadable.
    """
    text = _THOUGHT.sub(" ", reply)
    stated = [*_STATED.finditer(text), *_BRACKETED.finditer(text)]
    if not stated:
        whole = _BARE.fullmatch(text)
        stated = [whole] if whole else []
    elif len(_ANY_STATED.findall(text)) > len(list(_STATED.finditer(text))):
        return None  # it states another verdict, which cannot be read
    found = {_named(match) for match in stated}
    return found.pop() if len(found) == 1 else None


def _named(match: re.Match[str]) -> Verdict:
    return "tie" if match["tie"] else "A" if match["letter"] == "A" else "B"


def points(shown_first: Verdict | None, shown_second: Verdict | None) -> float | None:
    """What one instruction gives to the first system, from 0 to 1; None where one of its two verdicts is unreadable.

    shown_first, shown_second: the verdicts where the first system's answer was shown as A, and as B.
    """
    if shown_first is None or shown_second is None:
        return None
    return (POINTS[shown_first] + 1 - POINTS[shown_second]) / 2


def summarise(pairs: Sequence[tuple[Verdict | None, Verdict | None]], seed: int = 0) -> dict[str, Any]:
    """All verdicts together, of the first system against the second.

    Args:
        pairs: of every instruction, the verdicts where the first system's answer was shown as A, and as B.
        seed: of the bootstraps.

    Returns:
        `win_rate`: the mean of `points`, where a tie is half a win and each instruction counts once, with a bootstrap
        interval over instructions; over those with two readable verdicts. `at_least` and `at_most` are what it would
        be if every unreadable verdict went against the first system, or for it.
        `comparison`: the win rate of the first less that of the second, as `statistics.compare` has it, with its
        paired bootstrap interval, p and verdict.
        `counts`: of instructions: `wins`, `losses` (in both orders), `ties` (both), `half` (one order decides, the
        other is a tie), `flipped` (the order decides: one position won twice), `unreadable` (one verdict is, or both).
        `position`: how often the answer shown as A is called better, of all verdicts that call one: 0.5 is no bias;
        with an interval over instructions.
        `flips`: the share of `flipped` among the instructions with two readable verdicts, with Wilson's interval.
        `verdicts`: how many there are in all, and how many are unreadable.
    """
    scored = [value for pair in pairs if (value := points(*pair)) is not None]
    every = [verdict for pair in pairs for verdict in pair]
    unreadable = sum(verdict is None for verdict in every)
    counts = dict.fromkeys(("wins", "losses", "ties", "half", "flipped", "unreadable"), 0)
    for pair in pairs:
        counts[_kind(*pair)] += 1
    return {
        "win_rate": None if not scored else _rate(scored, [1.0] * len(scored), seed),
        "at_least": _with_unreadable_as(pairs, "B", "A"),
        "at_most": _with_unreadable_as(pairs, "A", "B"),
        "comparison": compare(scored, [1 - value for value in scored], seed=seed).to_json()
        if len(scored) > 1
        else None,
        "counts": counts,
        "position": _position(pairs, seed),
        "flips": _share(counts["flipped"], len(scored)),
        "verdicts": {"all": len(every), "unreadable": unreadable},
    }


def _kind(one: Verdict | None, other: Verdict | None) -> str:
    if one is None or other is None:
        return "unreadable"
    if one == "tie" or other == "tie":
        return "ties" if one == other else "half"
    if one == other:
        return "flipped"
    return "wins" if one == "A" else "losses"


def _with_unreadable_as(
    pairs: Sequence[tuple[Verdict | None, Verdict | None]], one: Verdict, other: Verdict
) -> float | None:
    values = [points(first or one, second or other) for first, second in pairs]
    return sum(value for value in values if value is not None) / len(values) if values else None


def _position(pairs: Sequence[tuple[Verdict | None, Verdict | None]], seed: int) -> dict[str, Any] | None:
    shown_as_a = [float(sum(verdict == "A" for verdict in pair)) for pair in pairs]
    decided = [float(sum(verdict in ("A", "B") for verdict in pair)) for pair in pairs]
    return _rate(shown_as_a, decided, seed) if sum(decided) else None


def _rate(above: Sequence[float], below: Sequence[float], seed: int) -> dict[str, Any]:
    estimate = sum(above) / sum(below)
    interval = list(ratio_bootstrap(above, below, seed=seed)[1:]) if len(above) > 1 else None
    return {"estimate": estimate, "interval": interval, "count": int(sum(below))}


def _share(part: int, whole: int) -> Mapping[str, Any] | None:
    if not whole:
        return None
    share, low, high = wilson_interval(part, whole)
    return {"estimate": share, "interval": [low, high], "count": whole}
