"""Normalizers over a text that grows: what no later character can change is normalized, the rest waits.

What waits at the end of a text, step by step of a normalizer:

- Unicode forms (NFC, NFD, NFKC, NFKD, and the accents of BERT): the last character that a later mark could join or
  move, with the marks after it. Nothing waits after a space, and of ordinary text only the last letter.
- A character map of sentencepiece (Precompiled), which works on grapheme clusters: from the last place between two
  characters that are surely two clusters.
- Replacing a string of several characters: an end that may be its beginning. Replacing runs of white space, and
  stripping on the right: white space at the end.
- Lower case, accents, single characters: nothing.

Other steps are refused: how far they look is not known.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from lmcompose.alignment.added import Literals
from lmcompose.alignment.backend import WHITE_SPACE, Spec, build, flat
from lmcompose.errors import MemberError

_SPACE_RUN = re.compile(r"(?: |\[ \]|\\s|\\n|\\r|\\t|\n|\[\\r\\n\])(?:\+|\{\d+,\})")
_JAMO_VOWELS = frozenset(map(chr, range(0x1161, 0x1176)))
_JAMO_FIRSTS = frozenset(map(chr, range(0x1100, 0x1113)))
_JAMO_LASTS = frozenset(map(chr, range(0x11A8, 0x11C3)))


class Taken(NamedTuple):
    """What a step gives out, what waits, and whether it is in the middle of a text (rather than at its start)."""

    text: str
    waiting: str
    middle: bool


class Step:
    """One step of a normalizer. `settled` says how much of a text is certain, `change` is applied to that much.

    Args:
        prefix: what is put before a text that is not empty.
        strip_left, strip_right: whether white space at the ends of a text is taken away.
    """

    def __init__(
        self,
        settled: Callable[[str], int],
        change: Callable[[str], str],
        prefix: str = "",
        strip_left: bool = False,
        strip_right: bool = False,
    ) -> None:
        self._settled, self._change, self._prefix = settled, change, prefix
        self._strip_left, self._strip_right = strip_left, strip_right

    def take(self, text: str, middle: bool, closed: bool) -> Taken:
        """Normalize what is certain of a text; all of it where it ends here."""
        if self._strip_left and not middle:
            text = text.lstrip(_SPACES)
        if closed and self._strip_right:
            text = text.rstrip(_SPACES)
        end = len(text) if closed else self._settled(text)
        if not end:
            return Taken("", text, middle)
        before = "" if middle else self._prefix
        return Taken(before + self._change(text[:end]), text[end:], True)


def normalizing_steps(spec: Spec, name: str) -> list[Step]:
    """The steps of a tokenizer's normalizer, none where it has none.

    Raises:
        MemberError: a step that is not known here.
    """
    return [_step(part, name) for part in flat(spec["normalizer"], "normalizers")]


def _step(part: Spec, name: str) -> Step:
    kind = part["type"]
    if kind == "Prepend":
        return Step(len, _same, prefix=part["prepend"])
    if kind == "Strip":
        left, right = part["strip_left"], part["strip_right"]
        return Step(_before_space if right else len, _same, strip_left=left, strip_right=right)
    settled: Callable[[str], int] | None = None
    if kind in ("Lowercase", "StripAccents", "Nmt"):
        settled = len
    elif kind in ("NFC", "NFD", "NFKC", "NFKD"):
        settled = Form("NFKD" if "K" in kind else "NFD")
    elif kind == "BertNormalizer":
        settled = Form("NFD")
    elif kind == "Precompiled":
        settled = _between_clusters
    elif kind == "Replace" and "String" in part["pattern"]:
        pattern = part["pattern"]["String"]
        if pattern:
            settled = len if len(pattern) == 1 else OneString(pattern)
    elif kind == "Replace" and _SPACE_RUN.fullmatch(part["pattern"]["Regex"]):
        settled = _before_space
    if settled is None:
        what = f"{kind} of {part['pattern']}" if kind == "Replace" else kind
        raise MemberError(
            f"The tokenizer of '{name}' changes texts by a step that is not known here ({what}), so nothing says what "
            "later text could still change. Choose an augmenting model with another tokenizer, or the anchor's own."
        )
    return Step(settled, Change(part))


class Change:
    """One step of a normalizer as the library applies it."""

    def __init__(self, part: Spec) -> None:
        self._tokenizer = build(normalizer=part)

    def __call__(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer is not None else text


class OneString:
    """How much of a text is certain where one string is replaced."""

    def __init__(self, pattern: str) -> None:
        self._literals = Literals([pattern])

    def __call__(self, text: str) -> int:
        match, certain = self._literals.search(text, 0, closed=False)
        while match is not None:
            match, certain = self._literals.search(text, match.end(), closed=False)
        return certain


FormName = Literal["NFD", "NFKD"]


class Form:
    """How much of a text is certain in a Unicode form, given the decomposing form of its kind (NFD or NFKD)."""

    def __init__(self, form: FormName) -> None:
        self._form = form

    def __call__(self, text: str) -> int:
        for at in range(len(text), 0, -1):
            if _stands_alone(text[at - 1], self._form) or (at < len(text) and _begins(text[at], self._form)):
                return at
        return 0


@lru_cache(maxsize=1 << 16)
def _begins(character: str, form: FormName) -> bool:
    """Whether a character can neither join nor move before the one in front of it."""
    first = unicodedata.normalize(form, character)[0]
    return not unicodedata.combining(first) and first not in _joining()[1]


@lru_cache(maxsize=1 << 16)
def _stands_alone(character: str, form: FormName) -> bool:
    """Whether nothing after a character can join it or move before it."""
    last = unicodedata.normalize(form, character)[-1]
    firsts, seconds = _joining()
    # What is a second may be the end of two that are joined, and these may be the first of the next two.
    return not unicodedata.combining(last) and not {character, last} & firsts and last not in seconds


@cache
def _joining() -> tuple[frozenset[str], frozenset[str]]:
    """The characters that can be the first, and the second, of two that Unicode joins to one."""
    firsts, seconds = set(_JAMO_FIRSTS | _JAMO_VOWELS), set(_JAMO_VOWELS | _JAMO_LASTS)
    for code in range(0xC0, 0x30000):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            firsts.add(first)
            seconds.add(second)
    return frozenset(firsts), frozenset(seconds)


_SPACES = "".join(sorted(WHITE_SPACE))


def _before_space(text: str) -> int:
    """Without the white space at the end."""
    return len(text.rstrip(_SPACES))


def _between_clusters(text: str) -> int:
    for at in range(len(text) - 1, 0, -1):
        if _plain(text[at - 1]) and _plain(text[at]):
            return at
    return 0


@lru_cache(maxsize=1 << 16)
def _plain(character: str) -> bool:
    """Whether a character is a grapheme cluster of its own beside another such: no mark, joiner, jamo, flag or emoji,
    and no letter of a script in which letters join to clusters."""
    if character in "\r\n":
        return False
    if character.isascii():
        return True
    category = unicodedata.category(character)
    ideograph = (
        "\u3041" <= character <= "\u3096" or "\u30a1" <= character <= "\u30fa" or ("\u3400" <= character <= "\u9fff")
    )
    return category in ("Lu", "Ll", "Nd", "Zs", "Po", "Ps", "Pe", "Pd") or ideograph


def _same(text: str) -> str:
    return text


def normalized(steps: Sequence[Step], text: str) -> str:
    """A whole text, normalized."""
    for step in steps:
        text = step.take(text, middle=False, closed=True).text
    return text
