"""The text of an anchor's ids, id by id: that of its own decoder, and special tokens that have none."""

import random
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from lmcompose.alignment.backend import read_backend, special_ids
from lmcompose.alignment.pieces import Pieces, Reading, byte_alphabet, fallback_byte
from lmcompose.errors import ConfigurationError, MemberError
from tests.tokenizers import FAMILIES, family, plain_ids, random_text

EVERY_BYTE = ["gpt2", "roberta", "starcoder", "o200k", "bloom"]
SENTENCEPIECE = ["llama2", "llama2_tools", "gemma"]


def pieces_of(name: str) -> Pieces:
    return Pieces(family(name), read_backend(family(name), name), name)


def read(pieces: Pieces, ids: list[int]) -> list[str]:
    """The segments of a row; the last one is not closed."""
    reading = Reading()
    segments = [""]
    for token in ids:
        text, closes, reading = pieces.read(reading, token)
        segments[-1] += text
        if closes:
            segments.append("")
    return segments


def special(name: str) -> int:
    token = family(name).eos_token_id
    assert isinstance(token, int)
    return token


@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_is_that_of_the_decoder(name: str) -> None:
    """For the ids of texts, character by character as they become certain, in front of a special token and after."""
    pieces, tokenizer = pieces_of(name), family(name)
    generator = random.Random(name)
    for _ in range(60):
        ids = plain_ids(tokenizer, random_text(generator))
        # The decoder takes the letters of an added token for bytes, where they are some in the byte alphabet.
        left_out = {tokenizer.unk_token_id, tokenizer.get_added_vocab().get("café")}
        ids = [i for i in ids if i not in left_out]
        expected = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        assert read(pieces, [*ids, special(name)]) == [expected, ""]
        assert read(pieces, [special(name), *ids, special(name)])[1] == expected


@pytest.mark.parametrize("name", EVERY_BYTE)
def test_bytes_in_any_order_are_those_of_the_decoder(name: str) -> None:
    """Bytes that make no character too: what can still become one waits, and the rest is replaced as it does."""
    pieces, tokenizer = pieces_of(name), family(name)
    generator = random.Random(name)
    tokens = [i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids]
    for _ in range(200):
        ids = generator.choices(tokens, k=generator.randint(1, 20))
        expected = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        assert read(pieces, [*ids, special(name)]) == [expected, ""]


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_fallback_bytes_wait_for_their_character(name: str) -> None:
    pieces, tokenizer = pieces_of(name), family(name)
    first, second, third = (tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "☃".encode())
    word = tokenizer.convert_tokens_to_ids("▁t")
    assert read(pieces, [first]) == [""]
    assert read(pieces, [first, second]) == [""]
    assert read(pieces, [first, second, third]) == ["☃"]
    # What will be no character is replaced byte by byte, as soon as that is certain and no sooner.
    assert read(pieces, [first, second, word]) == ["\ufffd\ufffd t"]
    assert read(pieces, [first, first]) == ["\ufffd"]
    assert read(pieces, [third, first, second, third]) == ["\ufffd☃"]
    assert read(pieces, [first, second, special(name)]) == ["\ufffd\ufffd", ""]
    decoded = tokenizer.backend_tokenizer.decode([word, first, second, word], skip_special_tokens=False)
    assert read(pieces, [word, first, second, word]) == [decoded]


def test_the_space_before_a_text_is_taken_away_where_it_was_put() -> None:
    for name, texts in {
        "llama2": ["one", "two"],  # before every segment
        "llama2_metaspace": ["one", " two"],  # before the first one only
        "gemma": [" one", " two"],  # nowhere
        "unigram": ["one", "two"],
        "unigram_first": ["one", " two"],
    }.items():
        tokenizer = family(name)
        one, two = (tokenizer.convert_tokens_to_ids(["▁", *letters]) for letters in ("one", "two"))
        row = [*one, special(name), *two, special(name)]
        assert read(pieces_of(name), row) == [*texts, ""], name


def test_a_token_with_a_role_is_special_even_where_it_is_not_marked_so() -> None:
    """As the end of text of Phi 3."""
    tokenizer = family("gpt2")
    spec = read_backend(tokenizer, "gpt2")
    for token in spec["added_tokens"]:
        token["special"] = False
    assert tokenizer.eos_token_id in special_ids(tokenizer, spec)


def test_words_are_joined_by_spaces() -> None:
    tokenizer = family("wordlevel")
    ids = tokenizer.convert_tokens_to_ids(["The", "lazy", "dogs,"])
    assert read(pieces_of("wordlevel"), ids) == ["The lazy dogs,"]
    assert read(pieces_of("wordlevel"), [*ids, special("wordlevel"), *ids]) == ["The lazy dogs,"] * 2
    # An unknown word has no text: what stands before it and behind it are two texts.
    assert read(pieces_of("wordlevel"), [ids[0], tokenizer.unk_token_id, ids[1]]) == ["The", "lazy"]


def test_added_tokens_are_text_unless_they_are_special() -> None:
    tokenizer = family("qwen")
    tool, accent = (tokenizer.convert_tokens_to_ids(token) for token in ("<tool>", "café"))
    assert read(pieces_of("qwen"), [tool, accent, special("qwen")]) == ["<tool>café", ""]
    beyond = len(tokenizer) + 5
    assert read(pieces_of("qwen"), [tool, beyond, tool]) == ["<tool>", "<tool>"]  # a padded row of the embeddings


@pytest.mark.parametrize("name", ["gpt2", "llama2", "wordpiece"])
def test_a_text_only_grows(name: str) -> None:
    """What an id adds depends on the ids up to it alone."""
    pieces = pieces_of(name)
    generator = random.Random(name)
    ids = [generator.randrange(len(family(name))) for _ in range(60)]
    texts = ["\0".join(read(pieces, ids[:end])) for end in range(len(ids) + 1)]
    assert all(after.startswith(before) for before, after in pairwise(texts))


def test_a_label_that_is_ignored_is_no_token() -> None:
    with pytest.raises(ConfigurationError, match=r"-100 is no token id\. Leave out labels"):
        read(pieces_of("gpt2"), [5, -100])


def test_an_unknown_decoder_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.CTC()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    with pytest.raises(MemberError, match=r"'speech'.*its decoder is CTC.*Choose an anchor"):
        Pieces(fast, read_backend(fast, "speech"), "speech")


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    decoder = decoders.ByteLevel()
    assert all(decoder.decode([character]) == chr(byte) for character, byte in alphabet.items() if byte < 128)
    assert decoder.decode([c for b in "é☃".encode() for c, byte in alphabet.items() if byte == b]) == "é☃"
    assert [fallback_byte(token) for token in ("<0xE2>", "<0xGG>", "<0xE2", "x")] == [0xE2, None, None, None]
