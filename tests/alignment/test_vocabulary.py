"""Which tokenizers count as the same."""

import pytest
from tokenizers import pre_tokenizers

from lmcompose.alignment.vocabulary import check_same_size, check_same_tokenizer, vocabulary_differences
from lmcompose.errors import TokenizerMismatchError
from tests.tiny import tiny_tokenizer


def test_equal_tokenizers_pass() -> None:
    check_same_tokenizer(tiny_tokenizer(), tiny_tokenizer(), "a", "b")


def test_differences_are_named_in_the_order_of_ids() -> None:
    other = tiny_tokenizer()
    other.add_tokens(["later", "last"])
    expected = ["'later' is missing and id 97", "'last' is missing and id 98"]
    assert vocabulary_differences(tiny_tokenizer(), other) == expected
    with pytest.raises(TokenizerMismatchError, match=r"'a' and 'b'.*'later' is missing and id 97"):
        check_same_tokenizer(tiny_tokenizer(), other, "a", "b")


def test_same_vocabulary_but_other_splitting_is_refused() -> None:
    other = tiny_tokenizer()
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("e")
    with pytest.raises(TokenizerMismatchError, match="split text differently"):
        check_same_tokenizer(tiny_tokenizer(), other, "a", "b")


def test_sizes() -> None:
    check_same_size(97, 97, "a", "b")
    with pytest.raises(TokenizerMismatchError, match="97 token ids"):
        check_same_size(97, 98, "a", "b")
