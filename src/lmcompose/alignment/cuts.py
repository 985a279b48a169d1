"""Where a text may be cut, so that no later text moves the cut and the tokens on its two sides do not depend on each
other. Two kinds of tokenizers, by what decides a cut:

- **Neighbours**: white space, punctuation and digits are told by single characters, and merges join neighbours. There
  is a cut between two characters where the pre-tokenizer always cuts between these two, or where no merge of a BPE
  vocabulary joins a token that ends in the first with one that begins with the second (no chain of merges can cross
  such a place). Sentencepiece BPE without a pre-tokenizer (Llama 2, Gemma) is cut before its words by that rule,
  since no merge there puts a space mark behind another character, and at rare pairs of characters too.
- **Patterns**: a regular expression cuts the text (GPT-2, Llama 3, Qwen). Such a pattern looks one character past a
  pre-token, or goes back over one: the last two pre-tokens wait. And no pattern in use goes from a printed character
  on to a space, so there is a cut between these at once. Both are tried out on texts made for it when a tokenizer is
  read; a pattern that looks behind or far ahead is refused, and so is one that fails the trial.
"""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from tokenizers import Tokenizer

from lmcompose.alignment.backend import Spec, flat
from lmcompose.alignment.pieces import byte_alphabet, fallback_byte
from lmcompose.errors import MemberError

_LOCAL = {
    "WhitespaceSplit",
    "Whitespace",
    "BertPreTokenizer",
    "Digits",
    "Punctuation",
    "CharDelimiterSplit",
    "Metaspace",
}
_SAFE_AHEAD = ("(?!\\S)", "(?!\\s)", "(?=\\s)", "(?=\\S)")
_PATTERN_PARTS = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\(\?(?:<[=!]|[=!])(?:\\.|[^)\\])*\)?|.", re.DOTALL
)
_ADVICE = "Choose an augmenting model with another tokenizer, or with the anchor's own."
_KEPT_PAIRS = 1 << 17


class Cut(NamedTuple):
    """Where a text is cut.

    Attributes:
        place: characters before the cut; 0 where there is none.
        known: how many characters after it are known to have no cut between them.
        words: how many pre-tokens of the text these are; None where what is before the cut may be read by itself. A
            pattern may cut white space otherwise where a text ends with it.
    """

    place: int
    known: int
    words: int | None


def cuts_of(spec: Spec, inner: Tokenizer, at_start: Tokenizer, name: str) -> "Neighbours | Patterns":
    """The rule of a tokenizer.

    Args:
        inner: its pre-tokenizer, which puts nothing before a text.
        at_start: the same with what it puts before a text; `inner` where that is nothing.

    Raises:
        MemberError: no rule is known, or the text would never be cut.
    """
    parts = flat(spec["pre_tokenizer"], "pretokenizers")
    patterns: list[str] = []
    for i, part in enumerate(parts):
        kind = part["type"]
        if kind == "ByteLevel" and i and part["use_regex"] and _prefixes(part):
            raise MemberError(
                f"The tokenizer of '{name}' puts a space before pieces of a text and cuts them again (ByteLevel with "
                f"add_prefix_space behind another step), which is not known here. {_ADVICE}"
            )
        if kind == "ByteLevel":
            patterns += ["GPT-2"] if part["use_regex"] else []
        elif kind == "Split" and "String" in part["pattern"]:
            patterns += [] if len(part["pattern"]["String"]) == 1 else [part["pattern"]["String"]]
        elif kind == "Split":
            check_pattern(part["pattern"]["Regex"], name)
            patterns.append(part["pattern"]["Regex"])
        elif kind not in _LOCAL:
            raise MemberError(
                f"The tokenizer of '{name}' cuts texts in a way that is not known here ({kind}). {_ADVICE}"
            )
    if patterns:
        return Patterns(inner, at_start, name)
    # Where each piece begins with a space of its own, it is read from its beginning or not at all.
    merges = None if any(map(_prefixes, parts[1:])) else Merges.of(spec, parts)
    if merges is None and all(part["type"] == "ByteLevel" or part.get("split") is False for part in parts):
        raise MemberError(
            f"The tokenizer of '{name}' reads a text as one piece ({spec['model']['type']} without a pre-tokenizer), "
            f"so any token may change with later text. {_ADVICE}"
        )
    return Neighbours(inner, merges)


def _prefixes(part: Spec) -> bool:
    """Whether a step puts a space before each piece that it is given."""
    return bool(part.get("add_prefix_space")) or part.get("prepend_scheme") == "always"


class Merges:
    """Which characters the merges of a BPE vocabulary join: the ends of their left and the beginnings of their right
    parts.

    Args:
        units: how a character is spelled in the vocabulary where that is not the character itself.
        lone: the characters that the vocabulary has, where unknown ones beside each other become one token.
    """

    def __init__(self, pairs: set[tuple[str, str]], units: Callable[[str], str], lone: frozenset[str] | None) -> None:
        self._pairs, self._units, self._lone = pairs, units, lone

    @classmethod
    def of(cls, spec: Spec, parts: list[Spec]) -> "Merges | None":
        """The merges of a tokenizer; None where they do not decide (another model, or whole words looked up)."""
        model = spec["model"]
        marks = [model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")]
        if model["type"] != "BPE" or model.get("ignore_merges") or any(marks):
            return None
        pairs = set()
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            if model.get("byte_fallback") and fallback_byte(left) is not None and fallback_byte(right) is not None:
                return None
            pairs.add((left[-1], right[0]))
        vocabulary = model["vocab"]
        complete = model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        fused = model.get("fuse_unk") and not complete
        lone = frozenset(token for token in vocabulary if len(token) == 1) if fused else None
        return cls(pairs, _Units(parts), lone)

    def apart(self, left: str, right: str) -> bool:
        """Whether no token can hold the one character followed by the other."""
        left, right = self._units(left)[-1], self._units(right)[0]
        if self._lone is not None and left not in self._lone and right not in self._lone:
            return False
        return (left, right) not in self._pairs


class _Units:
    """How a pre-tokenizer spells a character: a space mark for a space, one character for each byte."""

    def __init__(self, parts: list[Spec]) -> None:
        self._space = next((part["replacement"] for part in parts if part["type"] == "Metaspace"), " ")
        self._bytes: dict[int, str] = {}
        if any(part["type"] == "ByteLevel" for part in parts):
            self._bytes = {byte: character for character, byte in byte_alphabet().items()}

    def __call__(self, character: str) -> str:
        if character == " ":
            character = self._space
        if not self._bytes:
            return character
        return "".join(self._bytes[byte] for byte in character.encode())


class Neighbours:
    """Cuts that two neighbouring characters decide."""

    def __init__(self, tokenizer: Tokenizer, merges: Merges | None) -> None:
        self._tokenizer, self._merges = tokenizer, merges
        self._known: dict[str, bool] = {}

    def last(self, text: str, known: int, at_start: bool) -> Cut:
        """The last cut in a text.

        Args:
            known: how many characters of the text are known to have no cut between them.
            at_start: whether the text begins here.
        """
        for at in range(len(text) - 1, max(known, 1) - 1, -1):
            if self._between(text[at - 1 : at + 1]):
                return Cut(at, len(text) - at, None)
        return Cut(0, len(text), None)

    def _between(self, pair: str) -> bool:
        if pair not in self._known:
            if len(self._known) >= _KEPT_PAIRS:
                self._known.clear()
            splitter = self._tokenizer.pre_tokenizer
            cut = splitter is not None and not any(a < 1 < b for _, (a, b) in splitter.pre_tokenize_str(pair))
            self._known[pair] = cut or (self._merges is not None and self._merges.apart(*pair))
        return self._known[pair]


class Patterns:
    """Cuts that a regular expression decides.

    Raises:
        MemberError: on texts made for it, the cuts of a part are not those of the whole.
    """

    def __init__(self, inner: Tokenizer, at_start: Tokenizer, name: str) -> None:
        self._inner, self._at_start = inner, at_start
        self._at_spaces = True
        if not self._holds():
            self._at_spaces = False
            if not self._holds():
                raise MemberError(
                    f"The tokenizer of '{name}' has a pre-tokenizer of which more than the last two pieces change with "
                    f"later text, so nothing says which of its tokens are final. {_ADVICE}"
                )

    def last(self, text: str, known: int, at_start: bool) -> Cut:
        """The last cut in a text; the arguments are those of `Neighbours.last`."""
        spans = self._spans(text, at_start)
        words = max(len(spans) - 2, 0)
        # The space that is put before a text can be a pre-token of its own, with the place of the next one.
        while words and spans[words - 1][1] == spans[words][1]:
            words -= 1
        if self._at_spaces:
            space = _last_space(text, spans[words - 1][1] if words else 0)
            words = max(words, sum(end <= space for _, end in spans))
        return Cut(spans[words - 1][1] if words else 0, 0, words)

    def _spans(self, text: str, at_start: bool) -> list[tuple[int, int]]:
        splitter = (self._at_start if at_start else self._inner).pre_tokenizer
        return [span for _, span in splitter.pre_tokenize_str(text)] if splitter is not None else []

    def _holds(self) -> bool:
        starts = (False,) if self._at_start is self._inner else (False, True)
        return all(self._grown(text, start) == self._spans(text, start) for text in trial_texts() for start in starts)

    def _grown(self, text: str, at_start: bool) -> list[tuple[int, int]]:
        """The pre-tokens of a text that is read character by character."""
        found: list[tuple[int, int]] = []
        start = 0
        for end in range(1, len(text) + 1):
            place, _, words = self.last(text[start:end], 0, at_start)
            if place:
                found += [(start + a, start + b) for a, b in self._spans(text[start:end], at_start)[:words]]
                start, at_start = start + place, False
        return found + [(start + a, start + b) for a, b in self._spans(text[start:], at_start)]


def _last_space(text: str, start: int) -> int:
    """The last place after `start` where a space follows a printed character; 0 where there is none."""
    at = text.rfind(" ", start + 1)
    while at > 0:
        if text[at - 1] != " " and text[at - 1].isprintable():
            return at
        at = text.rfind(" ", start + 1, at)
    return 0


def check_pattern(pattern: str, name: str) -> None:
    """Refuse a pattern that looks behind, or further ahead than one character.

    Raises:
        MemberError: it does.
    """
    for part in _PATTERN_PARTS.findall(pattern):
        looks = part.startswith(("(?=", "(?!", "(?<")) and part not in _SAFE_AHEAD
        if looks or part in ("^", "$", "\\b", "\\B", "\\A", "\\z", "\\Z", "\\G", "\\K"):
            raise MemberError(
                f"The tokenizer of '{name}' cuts texts by a pattern that looks behind or far ahead ({part}), so "
                f"nothing says which of its tokens are final. {_ADVICE}"
            )


def trial_texts(count: int = 150, seed: int = 0) -> list[str]:
    """Texts of characters that the patterns tell apart, in random order: the same at every call."""
    generator = random.Random(seed)
    alphabet = [
        *"aaBé你アب\u0301\u093f11२  \n\r\t'(-/!。😀_%<\u00a0\u3000\u200d",
        "re",
        "'s",
        "  ",
        "\n\n",
        "123",
        "ab",
    ]
    return ["".join(generator.choices(alphabet, k=generator.randint(3, 14))) for _ in range(count)]
