"""How a text is put before a server: as token ids, or as text that the server's tokenizer cuts into the same tokens.

Not every list of tokens has such a text. Where none is found it is said so, and nobody is left to believe that the
server reads what the local members read. This file knows no server.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = True) -> list[int]:
    """The token ids of a text, with the tokenizer's own special tokens around it or without."""
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
    """The text of token ids, without tidied-up spaces."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))


def continuation(
    tokenizer: PreTrainedTokenizerBase, before: Sequence[int], new: Sequence[int], skip_special_tokens: bool = True
) -> str:
    """What the tokens `new` add to the text of the tokens before them."""
    start = decode(tokenizer, before, skip_special_tokens)
    whole = decode(tokenizer, [*before, *new], skip_special_tokens)
    # a character may only become whole with the first new token, and then the beginning is not the same
    return whole[len(start) :] if whole.startswith(start) else decode(tokenizer, new, skip_special_tokens)


@dataclass(frozen=True)
class Prompt:
    """A prompt and what may follow it.

    Attributes:
        ids: of the prompt.
        text: as it was given, where it was given as text.
        tokenizer: shared by all members.
        special: whether the server puts the tokenizer's special tokens around a text.
    """

    ids: tuple[int, ...]
    text: str | None
    tokenizer: PreTrainedTokenizerBase
    special: bool = True

    def spelled(self, new: Sequence[int] = ()) -> tuple[str, bool]:
        """The text of the prompt and `new`, and whether the server makes these very tokens of it."""
        ids = [*self.ids, *new]
        added = continuation(self.tokenizer, self.ids, new, skip_special_tokens=False) if new else ""
        texts = [beginning + added for beginning in self._beginnings()]
        texts += [decode(self.tokenizer, ids), decode(self.tokenizer, ids[self._special_before() :])]
        fitting = (text for text in texts if tokenize(self.tokenizer, text, self.special) == ids)
        text = next(fitting, None)
        return (text, True) if text is not None else (texts[0], False)

    def _beginnings(self) -> list[str]:
        """Texts of the prompt: as given, and with the special tokens that the server may not add by itself."""
        special, rest = self.ids[: self._special_before()], self.ids[self._special_before() :]
        bare = self.text if self.text is not None else decode(self.tokenizer, rest)
        return [bare, decode(self.tokenizer, special) + bare] if special else [bare]

    def _special_before(self) -> int:
        """How many special tokens the prompt begins with."""
        special = set(self.tokenizer.all_special_ids)
        return next((i for i, token in enumerate(self.ids) if token not in special), len(self.ids))
