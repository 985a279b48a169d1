"""Where a text is cut, and which tokenizers nothing can be said of."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmcompose.alignment.cuts import Patterns, check_pattern
from lmcompose.alignment.finality import FinalTokens
from lmcompose.errors import MemberError
from tests.tokenizers import GPT2, LLAMA3, O200K, QWEN, byte_level, family, plain_ids


def by_pattern(pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")  # type: ignore[assignment]
    return tokenizer


@pytest.mark.parametrize("pattern", [GPT2, QWEN, LLAMA3, O200K])
def test_patterns_in_use_cut_before_a_space_at_once(pattern: str) -> None:
    check_pattern(pattern, "known")
    cuts = Patterns(by_pattern(pattern), by_pattern(pattern), "known")
    assert cuts.last("two words ", 0, False).place == len("two words")
    assert cuts.last("two words", 0, False).place == len("two")
    assert cuts.last("a(b)c", 0, False).place in (1, 2, 3)


def test_a_pattern_that_goes_over_a_space_is_cut_two_pieces_later() -> None:
    tokenizer = by_pattern(r"\w+ \w+|\w+|\W")
    cuts = Patterns(tokenizer, tokenizer, "pairs")
    assert cuts.last("two words ", 0, False).place == 0
    assert cuts.last("two words, and", 0, False).place == len("two words,")


def test_a_pattern_that_goes_far_back_is_refused_by_trial() -> None:
    tokenizer = by_pattern(r"\d+%|\d|\s+|[^\d\s]+")
    with pytest.raises(MemberError, match=r"'percent'.*more than the last two pieces"):
        Patterns(tokenizer, tokenizer, "percent")


@pytest.mark.parametrize("pattern", [r"\d{1,3}(?=(?:\d{3})*\b)", r"(?<=a)b", r"^a", r"\w+$", r"a\b"])
def test_a_pattern_that_looks_behind_or_far_ahead_is_refused(pattern: str) -> None:
    with pytest.raises(MemberError, match=r"'far'.*looks behind or far ahead"):
        check_pattern(pattern, "far")


def test_words_of_sentencepiece_bpe_are_cut_by_its_merges() -> None:
    """Between words; and between two characters that no merge joins, so that a text without spaces is cut too."""
    final = FinalTokens(family("llama2"))
    ids, state = final.grow(final.start(), "a line, then the")
    assert family("llama2").decode(ids) == "a line, then"
    assert final.waiting(state) == len("▁the")
    ids, state = final.grow(final.start(), "今天天气很好，我们去公园散步，看见了很多花")
    assert final.waiting(state) < 4


def test_a_merge_over_a_space_joins_words() -> None:
    """Where a vocabulary has a piece over a space, there is no cut at that place."""
    vocabulary = {token: i for i, token in enumerate(["a", "b", "▁", "a▁", "a▁b", "b▁", "<unk>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "▁"), ("a▁", "b")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    final = FinalTokens(fast)
    for text, kept in (("b b", 2), ("a b", 3), ("bba b", 3), ("a bb", 1)):
        ids, state = final.grow(final.start(), text)
        assert final.waiting(state) == kept, text
        assert ids + final.grow(state, "", closed=True)[0] == plain_ids(fast, text)


def test_unknown_characters_beside_each_other_are_one_token() -> None:
    vocabulary = {"a": 0, "▁": 1, "<unk>": 2}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    final = FinalTokens(fast)
    ids, state = final.grow(final.start(), "axyz")
    assert (ids, final.waiting(state)) == ([0], 3)
    assert final.grow(state, "wa", closed=True)[0] == [2, 0] == plain_ids(fast, "axyzwa")[1:]


def _unigram_of_one_piece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _whole_words() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({"a": 0}, [], ignore_merges=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _lengths() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.UnicodeScripts()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_unigram_of_one_piece, "reads a text as one piece"),
        (_whole_words, "reads a text as one piece"),
        (_lengths, "not known here \\(UnicodeScripts\\)"),
        (lambda: byte_level(before=pre_tokenizers.Digits(), prefix=True), "cuts them again.*not known here"),
        (lambda: byte_level(r"\d{1,3}(?=(?:\d{3})*\b)|.|\s"), "looks behind or far ahead"),
    ],
)
def test_tokenizers_that_nothing_can_be_said_of_are_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(MemberError, match=f"'odd'.*{message}.*Choose an augmenting model"):
        FinalTokens(build(), "odd")
