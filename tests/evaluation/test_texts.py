"""Tokens as text: pieces that add up to the text, classes, and what comes after a prompt."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmcompose.errors import ConfigurationError
from lmcompose.evaluation.texts import CLASSES, continuation_ids, decode, piece, spelling, token_class
from tests.tiny import tiny_tokenizer


def byte_tokenizer(*merged: str) -> PreTrainedTokenizerFast:
    """A token for every byte, as byte-level tokenizers spell them, and some merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    for token in merged:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [(token[0], token[1]) for token in merged]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("text", ["w1 w2 9 .", "w5 w5 w5 w5 w5 w5 w5 w5 w5 w5 w5 w6"])
def test_pieces_of_words_add_up_to_the_text(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer(text)["input_ids"]
    pieces = [piece(tokenizer, ids[:at], token) for at, token in enumerate(ids)]
    assert "".join(pieces) == text
    assert pieces[1].startswith(" ")


@pytest.mark.parametrize("text", ["naïve 日本語 🦊!", "ééééééééé", "a 🦊🦊🦊🦊 b\n\n  c"])
def test_pieces_of_bytes_wait_for_the_whole_character(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    pieces = [piece(tokenizer, ids[:at], token) for at, token in enumerate(ids)]
    assert len(ids) == len(text.encode())
    assert "".join(pieces) == text
    assert all(len(part) <= 1 for part in pieces)
    assert "" in pieces  # a character of several bytes appears with the last of them


def test_bytes_that_never_become_a_character_do_not_swallow_what_follows() -> None:
    tokenizer = byte_tokenizer()
    broken = tokenizer("é")["input_ids"][0]
    after = tokenizer("x")["input_ids"][0]
    assert piece(tokenizer, [after], broken) == ""
    assert piece(tokenizer, [after, broken], after) == "\ufffdx"


def test_without_a_tokenizer_tokens_are_their_ids() -> None:
    assert piece(None, [1, 2], 7) == " <7>"
    assert decode(None, [1, 2]) == "<1> <2>"
    assert spelling(None, 7) == "<7>"


def test_spelling_of_a_row_without_a_token() -> None:
    tokenizer = tiny_tokenizer()
    assert spelling(tokenizer, 23) == "w1"
    assert spelling(tokenizer, 5000) == "<5000>"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "whitespace"), (" ", "whitespace"), ("\n\n", "whitespace"), ("\t", "whitespace"),
        ("7", "digits"), (" 1984", "digits"), ("3.5", "digits"), (" ٣", "digits"),
        (".", "punctuation"), (' "', "punctuation"), ("...\n", "punctuation"), ("€", "punctuation"),
        ("The", "capitalised"), (" Lily", "capitalised"), (" Éa", "capitalised"), ("I", "capitalised"),
        (" the", "short word"), (" of", "short word"), (" a", "short word"), (" på", "short word"),
        ("the", "other"), (" girl", "other"), ("ing", "other"), (" 日本", "other"), (" x2", "other"), ("</s>", "other"),
    ],
)  # fmt: skip
def test_the_class_of_a_token_is_in_its_text(text: str, kind: str) -> None:
    assert token_class(text) == kind
    assert kind in CLASSES


def test_a_continuation_keeps_the_prompts_own_ids() -> None:
    tokenizer = byte_tokenizer("ab")
    together = tokenizer("xab")["input_ids"]
    assert continuation_ids(tokenizer, "x", together[:1], "ab") == together[1:]
    assert len(together) == 2
    # The prompt ends inside of a token: its own ids stay, and the rest is encoded alone.
    prompt = tokenizer("xa")["input_ids"]
    assert continuation_ids(tokenizer, "xa", prompt, "b") == tokenizer("b")["input_ids"]
    assert continuation_ids(tokenizer, None, prompt, "ab") == tokenizer("ab")["input_ids"]
    assert continuation_ids(tokenizer, None, prompt, [3, 4]) == [3, 4]


def test_a_continuation_has_no_second_beginning_of_text() -> None:
    tokenizer = tiny_tokenizer()
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    prompt = tokenizer("w1")["input_ids"]
    assert prompt == [1, 23]
    for written in ("w1", None):
        assert continuation_ids(tokenizer, written, prompt, " w2") == [24]


@pytest.mark.parametrize(("continuation", "message"), [("", "empty"), ([], "empty")])
def test_an_empty_continuation_is_refused(continuation: str | list[int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        continuation_ids(tiny_tokenizer(), "w1", [23], continuation)


def test_a_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="token ids"):
        continuation_ids(None, None, [23], "w1")
