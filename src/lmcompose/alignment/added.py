"""Added tokens in a text that grows: which are certain to be there, and which end of the text may become one.

An added token is cut from a text before anything else happens to it: the first that begins is taken, and of those that
begin together the longest. So a match is certain as soon as no longer one can begin at its place or before it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lmcompose.alignment.backend import WHITE_SPACE


@dataclass(frozen=True)
class Added:
    """One added token: its text, its id, and whether it takes the white space before and after it."""

    content: str
    token: int
    lstrip: bool = False
    rstrip: bool = False


class Literals:
    """Finds a fixed set of strings in a text that grows: the first that begins, and of these the longest."""

    def __init__(self, contents: Iterable[str]) -> None:
        ordered = sorted(set(contents), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)))
        self._beginnings = {content[:end] for content in ordered for end in range(1, len(content))}
        self._longest = max(map(len, ordered))

    def search(self, text: str, start: int, closed: bool) -> tuple[re.Match[str] | None, int]:
        """The first certain match from `start` on, and up to where the text before it, or all of it, is certain."""
        open_end = len(text) if closed else self._unfinished(text, start)
        match = self._pattern.search(text, start)
        if match is not None and (closed or match.start() < open_end):
            return match, match.start()
        return None, open_end

    def _unfinished(self, text: str, start: int) -> int:
        """The first place from which the rest of the text is the beginning of a longer string; else its length."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at:] in self._beginnings:
                return at
        return len(text)


class AddedTokens:
    """Cuts added tokens from a text that grows.

    Args:
        tokens: at least one, no two of one content.
    """

    def __init__(self, tokens: Iterable[Added]) -> None:
        self._tokens = {token.content: token for token in tokens}
        self._literals = Literals(self._tokens)
        self._take_before = any(token.lstrip for token in self._tokens.values())

    def cut(self, text: str, dropping: bool, closed: bool) -> tuple[list[str | int], str, bool]:
        """What is certain of a text: pieces of text and ids of added tokens, in order.

        Args:
            text: what is not yet cut.
            dropping: whether white space at its start belongs to an added token before it.
            closed: whether the text ends here.

        Returns:
            The pieces, the text that remains, and `dropping` for that text.
        """
        found: list[str | int] = []
        at = 0
        while True:
            if dropping:
                while at < len(text) and text[at] in WHITE_SPACE:
                    at += 1
                dropping = at == len(text)
            match, certain = self._literals.search(text, at, closed)
            token = self._tokens[match.group()] if match else None
            end = certain
            if (token.lstrip if token else self._take_before and not closed) and not dropping:
                while end > at and text[end - 1] in WHITE_SPACE:
                    end -= 1
            if end > at:
                found.append(text[at:end])
            if match is None or token is None:
                return found, text[end:], dropping
            found.append(token.token)
            at, dropping = match.end(), token.rstrip
