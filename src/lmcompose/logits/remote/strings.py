"""Which token a server means by a string.

Servers name tokens in their answers by text, and each has its own way: the vocabulary's entry, the text that the token
alone decodes to, its text within a line, or that without what is no whole character. A string can stand for several
tokens, and then it is said so: whoever reads it must not take one for the other. This file knows no server.
"""

from collections.abc import Callable, Iterable
from functools import cached_property

from transformers import PreTrainedTokenizerBase

SPELLINGS = ("entry", "alone", "within", "whole")


class TokenStrings:
    """Looks tokens up by what a server calls them.

    Args:
        tokenizer: of the model that the server runs.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids = sorted(set(tokenizer.get_vocab().values()))
        self.spellings: tuple[str, ...] = SPELLINGS
        self._tables: dict[str, dict[str, tuple[int, ...]]] = {}

    def learn(self, strings: Iterable[str]) -> None:
        """Rule out the spellings in which one of `strings` is no token, as long as one is left.

        Spellings that explain all of them stay side by side: a string that they read differently is then ambiguous.
        Strings that are no whole character say nothing of how the others are spelled.
        """
        seen = {string for string in strings if not _is_unwritable(string)}
        fits = tuple(name for name in self.spellings if all(string in self._table(name) for string in seen))
        if fits:
            self.spellings = fits

    def tokens(self, string: str) -> tuple[int, ...]:
        """The tokens that `string` can stand for, in ascending order; empty where it is none.

        What is no whole character, or nothing at all, has no certain name: servers write these tokens as U+FFFD, as
        nothing, or as either with a space. So a string of that kind can be any of them.
        """
        found: set[int] = set(self._unwritable) if _is_unwritable(string) else set()
        for name in self.spellings:
            found.update(self._table(name).get(string, ()))
        return tuple(sorted(found))

    @cached_property
    def _unwritable(self) -> list[int]:
        """The special tokens, and those that are no whole character."""
        special = set(self.tokenizer.all_special_ids)
        texts = _alone(self.tokenizer, self.ids)
        return [token for token, text in zip(self.ids, texts, strict=True) if token in special or _is_unwritable(text)]

    def _table(self, name: str) -> dict[str, tuple[int, ...]]:
        if name not in self._tables:
            spelled: dict[str, list[int]] = {}
            for token, string in zip(self.ids, _SPELL[name](self.tokenizer, self.ids), strict=True):
                spelled.setdefault(string, []).append(token)
            self._tables[name] = {string: tuple(tokens) for string, tokens in spelled.items()}
        return self._tables[name]


def _is_unwritable(string: str) -> bool:
    return not string or "\ufffd" in string


def _entry(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    return [str(entry) for entry in tokenizer.convert_ids_to_tokens(ids)]


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[list[int]]) -> list[str]:
    return [str(text) for text in tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)]


def _alone(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    return _decode(tokenizer, [[token] for token in ids])


def _within(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """The text that a token adds after another one: decoders drop the space at the beginning of a line."""
    before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    start = _decode(tokenizer, [before])[0]
    texts = _decode(tokenizer, [[*before, token] for token in ids])
    return [
        text.removeprefix(start) if text.startswith(start) else alone
        for text, alone in zip(texts, _alone(tokenizer, ids), strict=True)
    ]


def _whole(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """As llama-cpp-python has it: without the bytes that are no character, and special tokens are nothing."""
    special = set(tokenizer.all_special_ids)
    return [
        "" if token in special else text.replace("\ufffd", "")
        for token, text in zip(ids, _within(tokenizer, ids), strict=True)
    ]


_SPELL: dict[str, Callable[[PreTrainedTokenizerBase, list[int]], list[str]]] = {
    "entry": _entry,
    "alone": _alone,
    "within": _within,
    "whole": _whole,
}
