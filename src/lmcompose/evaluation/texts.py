"""Tokens as text: what each one adds, which class it belongs to, and what of a text comes after a prompt.

This file knows tokenizers, and no model.
"""

from collections.abc import Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from lmcompose.errors import ConfigurationError

PIECE_CONTEXT = 8
"""How many tokens before it are read to find out what a token adds: spaces and letters of several bytes need some."""

INCOMPLETE = "\ufffd"
"""What tokenizers write for a part of a character."""

SHORT_WORD = 3

CLASSES = {
    "whitespace": "white space and line ends only (or nothing: a part of a character that is not complete yet)",
    "digits": "a digit and no letter",
    "punctuation": "neither a letter nor a digit",
    "capitalised": "begins with a capital letter",
    "short word": f"begins a word, and is up to {SHORT_WORD} small letters: most function words, in many languages",
    "other": "all else: longer words, parts of words, scripts without capitals, special tokens",
}
"""The classes of tokens with their rules, of which the first that holds counts."""


def token_class(text: str) -> str:
    """The class of a token, by nothing but the text that it adds; a key of `CLASSES`."""
    bare = text.strip()
    if not bare:
        return "whitespace"
    if not any(character.isalpha() for character in bare):
        return "digits" if any(character.isnumeric() for character in bare) else "punctuation"
    if bare[0].isupper():
        return "capitalised"
    if text[0].isspace() and len(bare) <= SHORT_WORD and bare.isalpha() and bare.islower():
        return "short word"
    return "other"


def decode(tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int], special: bool = True) -> str:
    """The text of `ids`; without a tokenizer, the ids themselves."""
    if tokenizer is None:
        return " ".join(f"<{token}>" for token in ids)
    text = tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    return cast(str, text)


def piece(tokenizer: PreTrainedTokenizerBase | None, before: Sequence[int], token: int) -> str:
    """What `token` adds to the text of the tokens `before`: its own space too, and nothing until a character is whole.

    The pieces of a text, put together, are the text. Without a tokenizer a token's piece is its id.
    """
    if tokenizer is None:
        return f" <{token}>"
    before = list(before[-PIECE_CONTEXT:])
    left = decode(tokenizer, before).rstrip(INCOMPLETE)
    whole = decode(tokenizer, [*before, token]).rstrip(INCOMPLETE)
    shared = next(
        (at for at, (a, b) in enumerate(zip(left, whole, strict=False)) if a != b), min(len(left), len(whole))
    )
    return whole[shared:]


def spelling(tokenizer: PreTrainedTokenizerBase | None, token: int) -> str:
    """The token as the vocabulary spells it."""
    spelt: Any = tokenizer.convert_ids_to_tokens(token) if tokenizer is not None else None
    return spelt if isinstance(spelt, str) else f"<{token}>"  # a padded row has no token


def continuation_ids(
    tokenizer: PreTrainedTokenizerBase | None,
    prompt: str | None,
    prompt_ids: Sequence[int],
    continuation: str | Sequence[int],
) -> list[int]:
    """The ids of what follows a prompt, whose own ids stay as they are.

    Where the tokens of the two texts put together begin with the prompt's, their rest is taken, so that a token's space
    is where the model would have put it; where they do not (the prompt ends in the middle of a token, or is given as
    ids), the continuation is encoded alone.

    Raises:
        ConfigurationError: a text and no tokenizer, or nothing to score.
    """
    if not isinstance(continuation, str):
        ids = [int(token) for token in continuation]
    elif tokenizer is None:
        raise ConfigurationError(
            "The composition has no tokenizer, so a continuation is given as token ids. Or compose it with one: "
            "(model, tokenizer)."
        )
    else:
        ids = []
        if prompt is not None and continuation:
            whole = list(tokenizer(prompt + continuation)["input_ids"])
            if whole[: len(prompt_ids)] == list(prompt_ids):
                ids = whole[len(prompt_ids) :]
        ids = ids or list(tokenizer(continuation, add_special_tokens=False)["input_ids"])
    if not ids:
        raise ConfigurationError("The continuation is empty: there is no token to score. Give a text, or leave it out.")
    return ids
