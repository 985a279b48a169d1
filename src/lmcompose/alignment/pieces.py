"""The text that each token id of an anchor adds, id after id, and the ids that add none.

The text is the one that the tokenizer's own decoder gives, with four differences, since a decoder sees a whole row and
this file sees a row that still grows:

- A special token (begin, end, padding, chat markers, unknown), or an id without a token, has no text. It closes the
  text before it, which is called a segment.
- Bytes that are no whole character yet wait. What can no longer become one is replaced by U+FFFD: by the longest
  possible beginning of a character for byte-level tokenizers, byte by byte for those with byte fallback (the rule of
  sentencepiece; the decoder of tokenizers replaces a whole run of bytes, which no prefix could know).
- A space that the tokenizer puts before a text is taken away where it was put: at the start of every segment, or of
  the first one only.
- An added token that has a text is spelled as it is (the byte-level decoder takes its letters for bytes: "café").

Families: byte-level (GPT-2, Llama 3, Qwen), sentencepiece with or without byte fallback (Llama 2, Gemma, T5),
WordPiece, and words joined by spaces.
"""

import codecs
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from lmcompose.alignment.backend import Spec, build, flat, special_ids
from lmcompose.errors import ConfigurationError, MemberError

REPLACEMENT = "\ufffd"
_FAMILIES = "Known are the decoders of byte-level, sentencepiece, WordPiece and word-level tokenizers."


def byte_alphabet() -> dict[str, int]:
    """The character of each byte in a byte-level vocabulary (GPT-2's table), as character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


@dataclass(frozen=True)
class Family:
    """How the decoder of a tokenizer spells its tokens.

    Attributes:
        kind: what a token is: bytes in a byte-level alphabet, text, or a word or part of one.
        replaced: strings within a token and what they stand for, in order ("▁" for a space).
        byte_fallback: whether "<0xE2>" is a byte.
        strip: what is taken away at the start: nothing, one space, or every space mark of the first token.
        everywhere: whether at the start of every segment, or of the first one that has text.
    """

    kind: Literal["bytes", "text", "words"]
    replaced: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: Literal["nothing", "space", "marks"] = "nothing"
    everywhere: bool = False


@dataclass(frozen=True)
class Reading:
    """Where the reading of one row stands.

    Attributes:
        pending: bytes that are no whole character yet.
        opened: whether a token of this segment was read.
        written: whether a character of it was.
        first: whether no earlier segment had text.
    """

    pending: bytes = b""
    opened: bool = False
    written: bool = False
    first: bool = True


class Pieces:
    """What the ids of one tokenizer add to a text.

    Args:
        spec: the tokenizer's backend, of `read_backend`.
        name: the model's, for messages.

    Raises:
        MemberError: a decoder of no known family.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spec: Spec, name: str) -> None:
        self.family = family_of(spec, name)
        self._special = special_ids(tokenizer, spec)
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self._decoder: Tokenizer = build(decoder=spec["decoder"])
        self._added = {token["id"]: token["content"] for token in spec["added_tokens"]}
        self._bytes = byte_alphabet()
        self._known: dict[int, tuple[str | bytes, str | bytes] | None] = {}

    def read(self, reading: Reading, token: int) -> tuple[str, bool, Reading]:
        """Read one id: the text that it adds, whether it then closes the segment, and where the reading stands now.

        Raises:
            ConfigurationError: the id is negative.
        """
        if token not in self._known:
            self._known[token] = self._piece(token)
        known = self._known[token]
        if known is None:
            return self._given_up(reading.pending), True, Reading(first=reading.first and not reading.opened)
        strips = self.family.strip != "nothing" and (self.family.everywhere or reading.first)
        at_start = not reading.opened and (strips or self.family.kind == "words")
        piece = known[0] if at_start else known[1]
        if isinstance(piece, bytes):
            text, pending = self._decoded(reading.pending + piece)
        else:
            text, pending = self._given_up(reading.pending) + piece, b""
        written = reading.written or bool(text)
        if strips and self.family.strip == "space" and not reading.written and text.startswith(" "):
            text = text[1:]
        return text, False, Reading(pending, True, written, reading.first)

    def _piece(self, token: int) -> tuple[str | bytes, str | bytes] | None:
        """What an id adds as the first of a segment, and later in one; None for an id without text."""
        if token < 0:
            raise ConfigurationError(
                f"{token} is no token id. Leave out labels that are ignored, and padding, before rows are aligned."
            )
        string = None if token in self._special else self._backend.id_to_token(token)
        if string is None:
            return None
        family = self.family
        if family.kind == "words":
            return self._decoder.decoder.decode([string]) if self._decoder.decoder else string, self._later_word(string)
        if family.kind == "bytes":
            # An added token is spelled as in the text, even where its characters are also some of the alphabet.
            if token in self._added or any(character not in self._bytes for character in string):
                return string.encode(), string.encode()
            piece = bytes(self._bytes[character] for character in string)
            return piece, piece
        if family.byte_fallback and (byte := fallback_byte(string)) is not None:
            return bytes([byte]), bytes([byte])
        later, first = string, string
        for old, new in family.replaced:
            later = later.replace(old, new)
            first = first.replace(old, "" if family.strip == "marks" else new)
        return first, later

    def _later_word(self, string: str) -> str:
        if self._decoder.decoder is None:
            return " " + string
        return self._decoder.decoder.decode(["a", string])[1:]

    def _decoded(self, data: bytes) -> tuple[str, bytes]:
        """The characters that are certain, and the bytes that may still become one."""
        if self.family.kind == "bytes":
            text, used = codecs.utf_8_decode(data, "replace", False)
            return text, data[used:]
        text = ""
        while data:
            try:
                more, used = codecs.utf_8_decode(data, "strict", False)
            except UnicodeDecodeError as error:
                text += data[: error.start].decode() + REPLACEMENT
                data = data[error.start + 1 :]
            else:
                return text + more, data[used:]
        return text, b""

    def _given_up(self, pending: bytes) -> str:
        """What stands for bytes that will be no character, since something else follows."""
        if self.family.kind == "bytes":
            return pending.decode("utf-8", "replace")
        return REPLACEMENT * len(pending)


def fallback_byte(token: str) -> int | None:
    """The byte that a token of byte fallback stands for ("<0xE2>"); None for any other token."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def family_of(spec: Spec, name: str) -> Family:
    """The family that the decoder of a tokenizer belongs to.

    Raises:
        MemberError: it is none that is known here.
    """
    steps = flat(spec["decoder"], "decoders")
    types = [step["type"] for step in steps]
    if types in ([], ["WordPiece"]):
        return Family("words")
    if types == ["ByteLevel"]:
        return Family("bytes")
    replaced: list[tuple[str, str]] = []
    strip: Literal["nothing", "space", "marks"] = "nothing"
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "Metaspace":
            replaced.append((step["replacement"], " "))
            strip = "nothing" if step.get("prepend_scheme", "always") == "never" else "marks"
        elif step["type"] == "Strip" and step["content"] == " " and step["start"] <= 1 and step["stop"] == 0:
            strip = "space" if step["start"] else strip
        elif step["type"] not in ("ByteFallback", "Fuse"):
            raise MemberError(
                f"The tokenizer of '{name}' puts texts together in a way that is not known here (its decoder is "
                f"{' + '.join(types)}). {_FAMILIES} Choose an anchor with one of these, or an augmenting model with "
                "the anchor's own tokenizer."
            )
    return Family("text", tuple(replaced), "ByteFallback" in types, strip, _every_segment(spec))


def _every_segment(spec: Spec) -> bool:
    """Whether the tokenizer puts its space before every segment: only a Metaspace says that it does not."""
    schemes = [
        step.get("prepend_scheme", "always")
        for step in flat(spec["pre_tokenizer"], "pretokenizers")
        if step["type"] == "Metaspace"
    ]
    return all(scheme != "first" for scheme in schemes)
