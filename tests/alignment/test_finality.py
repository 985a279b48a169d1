"""The final tokens of a text that grows: a prefix of the tokens of every text that it can become."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmcompose.alignment.finality import FinalTokens
from lmcompose.errors import MemberError
from tests.tokenizers import FAMILIES, PAGE, byte_level, family, plain_ids, random_text

_FINAL: dict[str, FinalTokens] = {}


def final_of(name: str) -> FinalTokens:
    if name not in _FINAL:
        _FINAL[name] = FinalTokens(family(name), name)
    return _FINAL[name]


def grown(final: FinalTokens, text: str, sizes: list[int]) -> list[list[int]]:
    """The ids that are final after each character or run of characters, and at the end of the segment."""
    state, ids, found, at = final.start(), [], [], 0
    for size in sizes:
        new, state = final.grow(state, text[at : at + size])
        ids = ids + new
        found.append(ids)
        at += size
    new, state = final.grow(state, text[at:], closed=True)
    assert state == final.start()
    return [*found, ids + new]


@pytest.mark.parametrize("name", FAMILIES)
def test_final_tokens_are_those_of_the_whole_text(name: str) -> None:
    final, tokenizer = final_of(name), family(name)
    generator = random.Random(name)
    for text in [random_text(generator) for _ in range(150)]:
        by_character = grown(final, text, [1] * len(text))
        expected = plain_ids(tokenizer, text)
        assert by_character[-1] == expected, text
        assert all(expected[: len(ids)] == ids for ids in by_character)
        assert grown(final, text, [generator.randint(0, 9) for _ in range(4)])[-1] == expected
        assert final.whole(text) == expected


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FAMILIES)), st.text(max_size=20), st.text(max_size=8), st.text(max_size=8))
def test_no_later_text_changes_what_is_final(name: str, text: str, one: str, other: str) -> None:
    """Any Unicode text, with any two continuations."""
    final = final_of(name)
    found, _ = final.grow(final.start(), text)
    for continuation in (one, other):
        assert plain_ids(family(name), text + continuation)[: len(found)] == found


@pytest.mark.parametrize("name", FAMILIES)
def test_not_much_waits(name: str) -> None:
    """A text of words is final up to its last words: holding everything back would pass every other test."""
    final = final_of(name)
    for line in (PAGE[0], PAGE[7]):
        waiting, state = [], final.start()
        for character in line:
            _, state = final.grow(state, character)
            waiting.append(final.waiting(state))
        assert sum(waiting) / len(waiting) < 8
        assert max(waiting) < 25


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_final_is_not_read_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of twice the length costs twice as many characters, counted where the tokenizer reads them."""
    final = final_of(name)
    words: Any = final._stages[-1]
    count = 0

    def counting(text: str, kept: Any) -> None:
        nonlocal count
        count += len(kept.text) + len(text)

    original = words.take
    monkeypatch.setattr(
        words, "take", lambda kept, text, closed: (counting(text, kept), original(kept, text, closed))[1]
    )
    costs = []
    for times in (4, 8):
        count, state = 0, final.start()
        for character in PAGE[0] * times:
            _, state = final.grow(state, character)
        costs.append(count)
    assert costs[1] < 2.1 * costs[0]


@pytest.mark.parametrize("name", ["gpt2", "llama2", "unigram", "unigram_first", "wordlevel", "wordpiece"])
def test_a_special_token_that_is_spelled_stays_text(name: str) -> None:
    """Also where the model's own vocabulary holds it, as a word or as a piece."""
    tokenizer, final = family(name), final_of(name)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for token in tokenizer.all_special_tokens:
        for text in (token, f"a {token} b", f"a{token}{token}"):
            assert not special & set(final.whole(text)), text
            assert final.whole(text)


def test_a_beginning_of_an_added_token_waits() -> None:
    tokenizer, final = family("qwen"), final_of("qwen")
    tool, tools = (tokenizer.convert_tokens_to_ids(token) for token in ("<tool>", "<tool>s"))
    ids, state = final.grow(final.start(), "the fox <tool")
    assert ids == plain_ids(tokenizer, "the fox")
    whole = ids + final.grow(state, ">")[0]
    assert whole == plain_ids(tokenizer, "the fox")  # "<tool>s" may follow
    _, state = final.grow(state, ">")
    assert final.grow(state, " ")[0][-1] == tool
    assert final.grow(state, "s")[0][-1] == tools


def test_an_accent_may_still_follow() -> None:
    final = final_of("qwen")
    ids, state = final.grow(final.start(), "a cafe")
    assert ids + final.grow(state, "\u0301 ")[0] == plain_ids(family("qwen"), "a café")


@pytest.mark.parametrize(
    ("name", "leading"), [("gpt2", [1]), ("qwen", []), ("llama2", [1]), ("wordpiece", [1]), ("wordlevel", [])]
)
def test_the_begin_of_text_is_the_tokenizers_own(name: str, leading: list[int]) -> None:
    assert final_of(name).leading == leading


def _slow() -> Any:
    class Slow:
        all_special_ids: tuple[int, ...] = ()

    return Slow()


def _custom() -> PreTrainedTokenizerFast:
    class Halves:
        def pre_tokenize(self, text: Any) -> None: ...

    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Halves())  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    fast._tokenizer = tokenizer
    return fast


def _dropout() -> PreTrainedTokenizerFast:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.model.dropout = 0.1
    return tokenizer


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: None, r"'m' has no tokenizer.*tokenizer\.json.*\(model, tokenizer\)"),
        (_slow, r"'m' has a tokenizer without a fast backend \(Slow\).*cannot say where.*use_fast=True"),
        (_custom, r"'m' cannot be written as JSON"),
        (_dropout, r"'m' drops merges at random \(dropout = 0.1"),
        (lambda: byte_level(added=(AddedToken("x", single_word=True),)), r"'m' has an added token .*single_word"),
    ],
)
def test_tokenizers_that_cannot_be_aligned(build: Any, message: str) -> None:
    with pytest.raises(MemberError, match=message):
        FinalTokens(build(), "m")
