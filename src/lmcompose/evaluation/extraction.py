"""The answer in what a model wrote: a number, or a few words. Pure functions on texts.

What a model writes around its answer is no part of it: currencies and units, separators of thousands, code fences,
Markdown, a sentence that introduces it. Where there is no answer, none is made up.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction

NO_ANSWER = "[no answer]"
"""What stands for an answer that is not there; it equals no right answer."""

_SEPARATORS = ",'\u2019\u00a0\u202f\u2009"
_WHOLE = rf"(?:\d{{1,3}}(?:[{_SEPARATORS}]\d{{3}})+(?!\d)|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?!\d)|\d+)"
_PLAIN = rf"(?:{_WHOLE}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?!\w))?"
_CURRENCY = r"[$£€¥₹]"
_NUMBER = re.compile(
    rf"(?<![\w.])(?P<sign>(?<![\d)])-)?\s?{_CURRENCY}?\s?(?P<inner>-)?(?P<above>{_PLAIN})"
    rf"(?:/(?P<below>\d+)(?![\d/]))?(?:\s(?P<scale>thousand|million|billion)\b)?"
    rf"|(?P<bare>\d+)",
    re.IGNORECASE,
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_FENCE = re.compile(r"```[^\n`]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_MARKED = re.compile(r"####\s*(.*)")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_STATED = re.compile(r"\banswer\b\s*(?:is|was|would be|will be|:|=)+\s*:?(.*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_LEAD = re.compile(
    r"^(?:(?:(?:so|therefore|thus|hence),?\s+)?(?:the\s+|my\s+|final\s+)*answer\s*(?:is\b\s*:?|:)|a:)\s*", re.IGNORECASE
)
_EMPHASIS = "*_`\"'\u201c\u201d\u2018\u2019"


def number(text: str) -> str | None:
    """The number that `text` gives as its answer, in one spelling: "1234", "-3", "0.5"; None where it gives none.

    The first of these that is there:

    1. what follows `####`, as in GSM8K's own solutions;
    2. what stands in the last `\\boxed{}`;
    3. what follows the last "answer is" or "answer:", up to the end of its sentence;
    4. the last number outside code fences;
    5. the last number inside them.

    In 1 to 3 that is the first number of the passage, or the first after its last `=`.
    """
    text = _ascii_digits(text)
    marked = _MARKED.search(text)
    passages = [marked[1]] if marked else []
    passages += [match[1] for match in list(_BOXED.finditer(text))[-1:]]
    passages += [_SENTENCE_END.split(match[1])[0] for match in list(_STATED.finditer(text))[-1:]]
    for passage in passages:
        found = next(_values(passage.rpartition("=")[2]), None)
        if found is not None:
            return _spelling(found)
    for part in (_FENCE.sub(" ", text), text):
        every = list(_values(part))
        if every:
            return _spelling(every[-1])
    return None


def short_answer(text: str) -> str | None:
    """The few words that `text` gives as its answer; None where it says nothing.

    The first line with a word on it, outside code fences if there is one, without "The answer is", Markdown's
    emphasis, quotation marks and an end of sentence.
    """
    for part in (_FENCE.sub("\n", text), *(match[1] for match in _FENCE.finditer(text))):
        for line in part.splitlines():
            words = _bare(_LEAD.sub("", _bare(line)))
            if any(character.isalnum() for character in words):
                return words
    return None


def numbers(responses: Sequence[Sequence[str]], docs: Sequence[dict]) -> list[list[str]]:
    """`number` of every response, as a filter of lm-eval."""
    return [[number(text) or NO_ANSWER for text in texts] for texts in responses]


def short_answers(responses: Sequence[Sequence[str]], docs: Sequence[dict]) -> list[list[str]]:
    """`short_answer` of every response, as a filter of lm-eval."""
    return [[short_answer(text) or NO_ANSWER for text in texts] for texts in responses]


def first_lines(responses: Sequence[Sequence[str]], docs: Sequence[dict]) -> list[list[str]]:
    """The first line with a word on it of every response, or an empty text, as a filter of lm-eval."""
    return [
        [next((line.strip() for line in text.splitlines() if line.strip()), "") for text in texts]
        for texts in responses
    ]


def _values(text: str) -> Iterator[Fraction]:
    """The numbers of a text, in order."""
    for match in _NUMBER.finditer(text):
        if match["bare"] is not None:  # digits that are a part of a word, such as 18kg's; no sign can be told there
            yield Fraction(int(match["bare"]))
            continue
        value = Fraction(Decimal(re.sub(f"[{_SEPARATORS}]", "", match["above"])))
        if match["below"] and int(match["below"]):
            value /= int(match["below"])
        value *= _SCALES.get((match["scale"] or "").lower(), 1)
        yield -value if match["sign"] or match["inner"] else value


def _spelling(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _ascii_digits(text: str) -> str:
    """Digits of every script as 0 to 9, with the ASCII minus, point and comma."""
    text = text.translate({0x2212: "-", 0x066B: ".", 0x066C: ",", 0xFF0C: ",", 0xFF0D: "-"})
    return "".join(
        str(unicodedata.decimal(character)) if character.isdecimal() and not character.isascii() else character
        for character in text
    )


def _bare(line: str) -> str:
    return line.strip().strip(_EMPHASIS).strip().rstrip(".!").strip().strip(_EMPHASIS).strip()
