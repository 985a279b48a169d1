"""Normalizers on a text that grows give what they give on the whole text."""

import json
import random
import unicodedata
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers

from lmcompose.alignment.normalizing import normalizing_steps
from lmcompose.errors import MemberError
from tests.tokenizers import random_text

NORMALIZERS: dict[str, Any] = {
    "nfc": normalizers.NFC(),
    "nfd": normalizers.NFD(),
    "nfkc": normalizers.NFKC(),
    "nfkd": normalizers.NFKD(),
    "bert": normalizers.BertNormalizer(),
    "bert_cased": normalizers.BertNormalizer(lowercase=False, strip_accents=True),
    "lower": normalizers.Lowercase(),
    "accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
    "nmt": normalizers.Nmt(),
    "strip": normalizers.Strip(),
    "strip_right": normalizers.Strip(False, True),
    "spaces": normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), "▁")]),
    "string": normalizers.Sequence([normalizers.Replace("aab", "x"), normalizers.Replace("  ", "_")]),
    "llama": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
}


def spec_of(normalizer: Any) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_text_that_grows_is_normalized_as_the_whole(name: str) -> None:
    generator = random.Random(name)
    steps = normalizing_steps(spec_of(NORMALIZERS[name]), name)
    for text in [random_text(generator, 8) for _ in range(120)]:
        found = ""
        waiting = [("", False)] * len(steps)
        for character in [*text, None]:
            passed = character or ""
            for i, step in enumerate(steps):
                kept, middle = waiting[i]
                passed, kept, middle = step.take(kept + passed, middle, closed=character is None)
                waiting[i] = kept, middle
            found += passed
        assert found == NORMALIZERS[name].normalize_str(text), text


@pytest.mark.parametrize(("form", "kind"), [("NFC", "nfc"), ("NFKC", "nfkc")])
def test_every_join_of_unicode_waits(form: str, kind: str) -> None:
    """A character that is followed by one that it joins was held back."""
    (step,) = normalizing_steps(spec_of(NORMALIZERS[kind]), kind)
    joins = 0
    for code in range(0xC0, 0x30000):
        parts = unicodedata.normalize("NFD", chr(code))
        if len(parts) == 1 or unicodedata.normalize(form, parts) != chr(code):
            continue
        joins += 1
        for cut in range(1, len(parts)):
            first = step.take(parts[:cut], middle=False, closed=False)
            rest = step.take(first.waiting + parts[cut:], middle=True, closed=True)
            assert first.text + rest.text == NORMALIZERS[kind].normalize_str(parts), f"U+{code:04X}"
    assert joins > 10_000  # the Hangul syllables alone


@pytest.mark.parametrize("form", ["nfc", "nfkc"])
def test_little_of_ordinary_text_waits(form: str) -> None:
    (step,) = normalizing_steps(spec_of(NORMALIZERS[form]), form)
    assert step.take("two words", middle=False, closed=False).waiting == "s"
    assert step.take("two words ", middle=False, closed=False).waiting == ""
    assert step.take("你好", middle=False, closed=False).waiting == ""


def protobuf_field(message: bytes, wanted: int) -> bytes:
    """The first field of a number in a message, whose fields before it all have a length."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while True:
        tag, size = number(), number()
        if tag >> 3 == wanted:
            return message[at : at + size]
        at += size


def test_a_character_map_of_sentencepiece(tmp_path: Any) -> None:
    trainer = pytest.importorskip("sentencepiece")
    text = tmp_path / "text"
    text.write_text("one two three four five six seven\n" * 20)
    trainer.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "m"), vocab_size=20, minloglevel=2, num_threads=1
    )
    normalizer_spec = protobuf_field((tmp_path / "m.model").read_bytes(), 3)
    normalizer = normalizers.Precompiled(protobuf_field(normalizer_spec, 2))
    (step,) = normalizing_steps(spec_of(normalizer), "map")
    generator = random.Random(0)
    for text in [random_text(generator, 8) for _ in range(300)]:
        found, waiting, middle = "", "", False
        for character in text:
            out, waiting, middle = step.take(waiting + character, middle, closed=False)
            found += out
        assert found + step.take(waiting, middle, closed=True).text == normalizer.normalize_str(text), text


@pytest.mark.parametrize("normalizer", [normalizers.Replace(Regex("a.*b"), "x"), normalizers.ByteLevel()])
def test_a_step_of_unknown_reach_is_refused(normalizer: Any) -> None:
    with pytest.raises(MemberError, match=r"'odd'.*not known here.*Choose an augmenting model"):
        normalizing_steps(spec_of(normalizer), "odd")
