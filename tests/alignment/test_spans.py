"""Which augmenting tokens an anchor token sees: the laws of alignment, on every pair of tokenizers."""

import copy
import json
import os
import pickle
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmcompose.alignment.backend import read_backend, special_ids
from lmcompose.alignment.finality import FinalTokens
from lmcompose.alignment.pieces import Pieces, Reading
from lmcompose.alignment.spans import Aligner, Alignment, RowState, TextAligner, aligner, check_text, lag
from lmcompose.errors import ConfigurationError, DataError, MemberError
from tests.tokenizers import FAMILIES, PAGE, byte_level, family, plain_ids, random_rows, random_text

_ALIGNERS: dict[tuple[str, str], TextAligner] = {}
_PARTS: dict[str, tuple[Pieces, FinalTokens]] = {}


def between(anchor: str, augmenting: str) -> TextAligner:
    """The aligner of two families, whose parts are read once for all pairs."""
    for name in (anchor, augmenting):
        if name not in _PARTS:
            made = TextAligner(family(name), family(name), name, name)
            _PARTS[name] = made.pieces, made.final
    made = TextAligner.__new__(TextAligner)
    made.anchor_tokenizer = family(anchor)
    made.pieces, made.final = _PARTS[anchor][0], _PARTS[augmenting][1]
    return made


def special_of(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return sorted(special_ids(tokenizer, read_backend(tokenizer, "t")))


def segments(pieces: Pieces, ids: list[int]) -> tuple[list[str], str]:
    """The texts of a row that are closed, and the one that is not."""
    reading, found = Reading(), [""]
    for token in ids:
        text, closes, reading = pieces.read(reading, token)
        found[-1] += text
        if closes:
            found.append("")
    return found[:-1], found[-1]


def check_row(made: TextAligner, augmenting: PreTrainedTokenizerFast, row: list[int], generator: random.Random) -> None:
    """Every law on one row."""
    found = made.align(row)
    assert len(found.visible) == len(row)
    assert all(a <= b for a, b in pairwise(found.visible))
    assert all(0 <= count <= len(found.ids) for count in found.visible)

    # Chunks: token by token, by runs, and at once.
    for largest in (1, 6):
        state, ids, visible, at = made.start(), [], [], 0
        while at < len(row):
            size = generator.randint(1, largest)
            new, counts = made.advance(state, row[at : at + size])
            ids, visible, at = ids + new, visible + counts, at + size
        if row:
            assert (ids, visible) == (found.ids, found.visible)

    # Finality: what each token sees is a prefix of the tokens of the text, with any end that it can have.
    closed, open_text = segments(made.pieces, row)
    before = [*made.final.leading, *(i for text in closed for i in plain_ids(augmenting, text))]
    for end in ("", "s", " x", "\u0301", random_text(generator, 2)):
        expected = before + plain_ids(augmenting, open_text + end)
        assert expected[: len(found.ids)] == found.ids, (closed, open_text, end)
    if not open_text:
        assert found.ids == before

    # Causality: the tokens before a place do not know of those after it.
    if row:
        place = generator.randrange(len(row))
        other = made.align([*row[:place], generator.randrange(5, 60), 3])
        assert other.visible[:place] == found.visible[:place]
        seen = found.visible[place - 1] if place else 0
        assert other.ids[:seen] == found.ids[:seen]


@pytest.mark.parametrize("anchor", FAMILIES)
def test_the_laws_on_every_pair(anchor: str) -> None:
    generator = random.Random(anchor)
    for augmenting in FAMILIES:
        made = between(anchor, augmenting)
        for row in random_rows(family(anchor), generator, special_of(family(anchor)), 3):
            check_row(made, family(augmenting), row, generator)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FAMILIES)), st.sampled_from(sorted(FAMILIES)), st.text(max_size=30), st.randoms())
def test_the_laws_on_any_text(anchor: str, augmenting: str, text: str, generator: random.Random) -> None:
    row = plain_ids(family(anchor), text)
    check_row(between(anchor, augmenting), family(augmenting), row, generator)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FAMILIES)), st.sampled_from(sorted(FAMILIES)), st.lists(st.integers(0, 430), max_size=40))
def test_the_laws_on_any_ids(anchor: str, augmenting: str, row: list[int]) -> None:
    """As a model may generate them: not canonical, no characters, special tokens anywhere, no tokens at all."""
    check_row(between(anchor, augmenting), family(augmenting), row, random.Random(0))


def test_what_a_token_sees_by_example() -> None:
    """Words become visible when the next one begins, and everything at the end of the text."""
    anchor, augmenting = family("gpt2"), family("llama2")
    made = aligner(anchor, augmenting)
    ids = [anchor.bos_token_id, *plain_ids(anchor, "the lazy dogs"), anchor.eos_token_id]
    found = made.align(ids)
    assert found.ids == augmenting("the lazy dogs")["input_ids"]
    for end, count in enumerate(found.visible, 1):
        text = anchor.decode(ids[:end], skip_special_tokens=True)
        assert text.startswith(augmenting.decode(found.ids[:count], skip_special_tokens=True))
    assert found.visible[0] == 1  # the augmenting model's own begin of text
    assert found.visible[-1] == len(found.ids)


def test_rows_grow_by_different_numbers() -> None:
    anchor = family("gpt2")
    made = between("gpt2", "wordlevel")
    rows = [plain_ids(anchor, text) for text in ("The quick brown foxes jump ", "1234567890")]
    length = min(map(len, rows))
    first, second = (made.align(row[:length]) for row in rows)
    assert len(first.ids) != len(second.ids)


def test_a_segment_is_a_text_of_its_own() -> None:
    """A special token of the anchor ends a text for the augmenting model, which gets no second begin of text."""
    anchor, augmenting = family("qwen"), family("llama2")
    made = between("qwen", "llama2")
    row = [*plain_ids(anchor, "two wor"), anchor.eos_token_id, *plain_ids(anchor, "ds"), anchor.eos_token_id]
    assert made.align(row).ids == [1, *plain_ids(augmenting, "two wor"), *plain_ids(augmenting, "ds")]
    assert made.align([anchor.eos_token_id] * 3) == Alignment([1], [1, 1, 1])


def test_a_spelled_special_token_closes_nothing() -> None:
    anchor = family("qwen")
    row = plain_ids(anchor, "a <|end|> b <s> c ")
    found = between("qwen", "llama2").align(row)
    assert 2 not in found.ids
    assert found.ids.count(1) == 1


def test_a_character_of_several_tokens_is_seen_when_it_is_whole() -> None:
    anchor = family("gpt2")
    row = [i for byte in "猫 ".encode() for i in plain_ids(anchor, chr(byte)) if byte < 128]
    bytes_of_cat = plain_ids(anchor, "猫")
    assert len(bytes_of_cat) == 3
    found = between("gpt2", "llama2").align([*bytes_of_cat, *row])
    assert found.visible[0] == found.visible[1] == 1
    assert found.ids[1:] == plain_ids(family("llama2"), "猫")
    assert found.visible[-1] == len(found.ids)


@pytest.mark.parametrize("name", FAMILIES)
def test_identical_tokenizers_pass_ids_through(name: str) -> None:
    """Loaded twice or one object; canonical or not; an id without a token too."""
    tokenizer = family(name)
    for other in (tokenizer, copy.deepcopy(tokenizer)):
        made = aligner(tokenizer, other)
        assert made.same_tokens
        row = [3, 3, 7, 0, 2, 5, 100_000]
        assert made.align(row) == Alignment(row, [1, 2, 3, 4, 5, 6, 7])
        state = made.start()
        assert made.advance(state, row[:3]) == (row[:3], [1, 2, 3])
        assert made.advance(state, torch.tensor(row[3:])) == (row[3:], [4, 5, 6, 7])
        assert lag(made, "the fox") == (0.0, 0.0)


def test_different_tokenizers_do_not_pass_ids_through() -> None:
    assert not aligner(family("gpt2"), family("qwen")).same_tokens
    assert not aligner(family("llama2"), family("gemma")).same_tokens


def _checked(made: Aligner, state: RowState, row: list[int], after: int) -> None:
    assert made.advance(state, row[after:])[1] == made.align(row).visible[after:]


def test_a_row_that_forks_goes_two_ways() -> None:
    anchor = family("gpt2")
    made = between("gpt2", "gemma")
    start = plain_ids(anchor, "the lazy do")
    one, other = [*start, *plain_ids(anchor, "gs and cats")], [*start, *plain_ids(anchor, "or\n\n\n<table>")]
    state = made.start()
    made.advance(state, start)
    fork = state.copy()
    stored = pickle.loads(pickle.dumps(state))
    _checked(made, state, one, len(start))
    _checked(made, fork, other, len(start))
    _checked(made, stored, other, len(start))


def test_an_aligner_can_be_sent_to_a_worker() -> None:
    made = aligner(family("qwen"), family("unigram"))
    row = plain_ids(family("qwen"), PAGE[0])
    assert pickle.loads(pickle.dumps(made)).align(row) == made.align(row)


def test_an_id_that_is_refused_leaves_the_row_as_it_was() -> None:
    made = between("gpt2", "llama2")
    state = made.start()
    made.advance(state, [40, 41])
    before = state.copy()
    with pytest.raises(ConfigurationError, match="-100 is no token id"):
        made.advance(state, [42, -100])
    assert state == before


def test_no_ids_give_no_more_than_the_begin_of_text() -> None:
    made = between("gpt2", "llama2")
    state = made.start()
    assert made.advance(state, []) == ([1], [])
    assert made.advance(state, []) == ([], [])


def test_the_lag_is_the_word_that_is_being_written() -> None:
    made = between("gpt2", "llama2")
    found = lag(made, "the lazy dogs and the lazy cats")
    assert 0.5 < found.characters < 5
    assert 0.5 < found.tokens < 5
    # A text of one word: nothing is seen before its end.
    anchor, augmenting = family("gpt2"), family("wordlevel")
    word = lag(between("gpt2", "wordlevel"), "lazy")
    count = len(anchor("lazy")["input_ids"])
    spelled = [anchor.decode(plain_ids(anchor, "lazy")[: end + 1]) for end in range(count - 1)]
    assert word.tokens == sum(len(plain_ids(augmenting, text)) for text in spelled) / count
    assert word.characters == sum(map(len, spelled)) / count


def test_a_lone_surrogate_is_refused() -> None:
    made = between("gpt2", "llama2")
    with pytest.raises(DataError, match=r"lone surrogate \(U\+D83D\) at character 3.*errors='replace'"):
        lag(made, "ab \ud83d")
    check_text("ab 😀")
    with pytest.raises(DataError, match="has none"):
        lag(between("qwen", "llama2"), "")


def test_a_missing_tokenizer_is_named() -> None:
    with pytest.raises(MemberError, match="'large' has no tokenizer"):
        aligner(None, family("gpt2"), "large", "small")
    with pytest.raises(MemberError, match="'small' has no tokenizer"):
        aligner(family("gpt2"), None, "large", "small")


def real_folders() -> list[Path]:
    """The folders of real tokenizers on this machine."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "models"
    places = [beside, *map(Path, filter(None, os.environ.get("LMCOMPOSE_REAL_MODELS", "").split(os.pathsep)))]
    return sorted({file.parent for place in places for file in place.glob("**/tokenizer.json")})


@pytest.mark.real
@pytest.mark.skipif(not real_folders(), reason="no real tokenizers: set LMCOMPOSE_REAL_MODELS to a folder of models")
def test_the_laws_on_real_tokenizers() -> None:
    """Every pair of them, and each with two families from here."""
    tokenizers = {folder.name: AutoTokenizer.from_pretrained(folder) for folder in real_folders()}
    tokenizers |= {name: family(name) for name in ("qwen", "unigram")}
    generator = random.Random(0)
    parts = {name: TextAligner(tokenizer, tokenizer, name, name) for name, tokenizer in tokenizers.items()}
    for anchor, tokenizer in tokenizers.items():
        for augmenting in tokenizers:
            made = copy.copy(parts[anchor])
            made.final = parts[augmenting].final
            for row in random_rows(tokenizer, generator, special_of(tokenizer), 25):
                check_row(made, tokenizers[augmenting], row, generator)


def test_one_vocabulary_in_two_orders_is_aligned_as_text() -> None:
    """Equal strings under other ids: the ids of one mean nothing to the other."""
    one, other = byte_level(vocab_size=400), byte_level(vocab_size=360)
    made = aligner(one, other)
    assert not made.same_tokens
    row = [*plain_ids(one, PAGE[0]), one.eos_token_id]
    assert made.align(row).ids == plain_ids(other, PAGE[0])


def test_the_committed_fuzz_found_nothing_and_the_page_has_its_counts() -> None:
    root = Path(__file__).parents[2]
    found = json.loads((root / "results" / "alignment" / "fuzz.json").read_text(encoding="utf-8"))
    page = (root / "docs" / "different-tokenizers.md").read_text(encoding="utf-8")
    checked = found["checked"]
    aligned = checked["alignment"]["tokens"] + checked["alignment of real tokenizers"]["tokens"]
    assert found["failures"] == []
    for figure in (
        checked["alignment"]["pairs"],
        checked["generation"]["pairs"],
        checked["generation"]["tokens"],
        aligned,
    ):
        assert f"{figure:,}" in page
