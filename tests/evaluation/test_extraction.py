"""Answers are found in awkward outputs, and none is made up where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmcompose.evaluation.extraction import NO_ANSWER, first_lines, number, numbers, short_answer, short_answers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # GSM8K's own form, and what comes after it
        ("She sells 9 for $2: 9 * 2 = $<<9*2=18>>18.\n#### 18", "18"),
        ("####18 eggs, of which 3 are eaten", "18"),
        ("#### $1,234.50.", "1234.5"),
        ("#### -3", "-3"),
        ("#### no idea, and the answer is 7", "7"),
        # sentences that state an answer, with more numbers before and behind
        ("4 + 5 is 9. The answer is 18 dollars for 3 days. That took 2 steps.", "18"),
        ("The answer is 3 * 6 = 18.", "18"),
        ("The final answer is: **12**", "12"),
        ("Answer: 1/2", "0.5"),
        ("The answer is unclear. She has 4.", "4"),
        (r"so \boxed{12} of the 30", "12"),
        # thousands separators of several kinds, and lists that only look like them
        ("It was $1,234,567 in all", "1234567"),
        ("12,34,567 rupees", "1234567"),
        ("1\u202f234 euros", "1234"),
        ("1'000", "1000"),
        ("10, 20, 30", "30"),
        ("1,2,3", "3"),
        # units, currencies, signs
        ("18kg", "18"),
        ("about 50%", "50"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("\u22123 degrees", "-3"),
        ("20-5", "5"),
        ("20 - 5 = 15", "15"),
        ("3 million people", "3000000"),
        ("70.00 dollars", "70"),
        (".5", "0.5"),
        ("1e3", "1000"),
        # other scripts
        ("\u09e7\u09ec \u099f\u09be\u0995\u09be", "16"),
        ("\u0661\u066c\u0662\u0663\u0664", "1234"),
        # code fences: what stands outside counts, then what stands inside
        ("```\n18\n```", "18"),
        ("The total is 18.\n```python\nx = 5\n```", "18"),
        ("```python\nprint(42)\n", "42"),
        # nothing
        ("I do not know.", None),
        ("", None),
        ("####", None),
        ("```\n```", None),
    ],
)
def test_the_number_is_found(text: str, expected: str | None) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Paris.\n\nQ: who else?", "Paris"),
        ("The answer is **Paris**.", "Paris"),
        ("So, the final answer is: Paris!", "Paris"),
        ("A: St. Louis, Missouri", "St. Louis, Missouri"),
        ("A is for apple", "A is for apple"),
        ("Answering is hard", "Answering is hard"),
        ("\u201cParis\u201d", "Paris"),
        ("```\nParis\n```", "Paris"),
        ("```text\nLondon\n```\nParis it is.", "Paris it is"),
        ("Answer: 14 December 1972", "14 December 1972"),
        ("\n\n", None),
        ("...", None),
        ("", None),
    ],
)
def test_the_short_answer_is_found(text: str, expected: str | None) -> None:
    assert short_answer(text) == expected


def test_filters_keep_every_response() -> None:
    responses = [["The answer is 4", "none"], [""]]
    assert numbers(responses, []) == [["4", NO_ANSWER], [NO_ANSWER]]
    assert short_answers(responses, []) == [["4", "none"], [NO_ANSWER]]
    assert first_lines([["\n  A line. \nAnother", ""]], []) == [["A line.", ""]]


def test_the_table_of_the_docs_is_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    table = text.partition("| what the model writes | the number |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(.+)` \| (.+) \|$", table, re.MULTILINE)
    assert len(found) > 5
    for written, expected in found:
        assert number(written) == (None if expected.startswith("none") else expected)
