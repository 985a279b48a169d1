"""The program is found in awkward outputs, and none is made up; what is found is run here, on values by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lmcompose.evaluation.code_extraction import completed_function, passages, preamble, written_program

PROMPT = '''from typing import List


def helper(n: int) -> int:
    """ Add one to n. """
    return n + 1


def total(numbers: List[int]) -> int:
    """ Add one to each number, and return the sum.
    >>> total([1, 2])
    5
    """
'''
BODY = "    result = 0\n    for number in numbers:\n        result += helper(number)\n    return result\n"
WHOLE = "def total(numbers: List[int]) -> int:\n" + BODY
DEDENTED = "result = 0\nfor number in numbers:\n    result += helper(number)\nreturn result\n"
LOST_FIRST = BODY.lstrip()


def run(program: str | None, name: str = "total") -> Any:
    assert program is not None
    names: dict[str, Any] = {}
    exec(program, names)
    return names[name]


COMPLETIONS = {
    "the body": BODY,
    "the body, then prose in a fence that was never opened": f"{BODY}```\nThis function adds one to each number.",
    "the body, then an example that is wrong": f"{BODY}\nprint(total([1, 2]))\nassert total([1]) == 99\n",
    "the body, then another function that was cut short": f"{BODY}\n\ndef other(x):\n    return [x,",
    "the body, then a main block": f'{BODY}\nif __name__ == "__main__":\n    raise SystemExit(1)\n',
    "the body, then an import of what is not there": f"{BODY}\nimport nothing_of_this_name\n",
    "the body, then another file": f"{BODY.rstrip()}<|file_sep|>src/other.py\nimport nothing_of_this_name",
    "the body behind a line end": f"\n{BODY}",
    "the body without the indentation of its first line": LOST_FIRST,
    "the body of one line, which lost it": "return sum(helper(n) for n in numbers)",
    "the body with three spaces before its first line": f"   {LOST_FIRST}",
    "the body without any indentation": DEDENTED,
    "the body without any indentation, in a fence": f"```python\n{DEDENTED}```",
    "the body indented by two": "  result = 0\n  for number in numbers:\n    result += helper(number)\n  return result",
    "the body in tabs": BODY.replace("    ", "\t"),
    "the body, with the line ends of Windows": BODY.replace("\n", "\r\n"),
    "the whole function": WHOLE,
    "the prompt and the body": f"{PROMPT}{BODY}",
    "the whole function in a fence": f"```python\n{WHOLE}```",
    "in a fence without a language": f"```\n{WHOLE}```",
    "in a fence, with prose around": f"Sure, here it is:\n\n```python\n{WHOLE}```\n\nIt adds one to each number.",
    "in a fence, behind prose that happens to compile": f"Answer\n\n```py\n{WHOLE}\n```",
    "in a fence, behind an annotation": f"Code: Python\n```python\n{WHOLE}\n```",
    "in a fence that is indented, as in a list": "1. The code:\n\n   ```python\n"
    + "".join(f"   {line}\n" for line in WHOLE.splitlines())
    + "   ```",
    "in a fence that was cut short behind the function": f"```python\n{WHOLE}\n# Examples\nprint(total([1,",
    "in a fence with no end": f"```python\n{WHOLE}",
    "only the body in a fence": f"The rest of the function:\n```python\n{BODY}```",
    "with a docstring of its own": f'```python\n{WHOLE.replace(BODY, "")}    """Say what it does."""\n{BODY}```',
    "in the second of two fences": f"Run it like this:\n```bash\npython total.py\n```\n```python\n{WHOLE}```",
    "in the second fence, behind an example": f"```python\ntotal([1, 2])  # 5\n```\n```python\n{WHOLE}```",
    "in the first of two, with another version": f"```python\n{WHOLE}```\nShorter:\n```python\n"
    "def total(numbers):\n    return 0\n```",
    "without a fence, behind prose": f"Here is the function from above:\n\n{WHOLE}\nIt adds one to each.",
    "without a fence, behind prose that begins like code": f"Here it is,\nfrom me to you.\n\n{WHOLE}",
    "a body with a variable of the function's name": "    total = 0\n    for number in numbers:\n"
    "        total += number + 1\n    return total\n",
    "as a lambda": "```python\ntotal = lambda numbers: sum(n + 1 for n in numbers)\n```",
    "with an import from the future": f"```python\nfrom __future__ import annotations\n\n\ndef helper(n):\n"
    f"    return n + 1\n\n\n{WHOLE}```",
}


@pytest.mark.parametrize("text", COMPLETIONS.values(), ids=COMPLETIONS)
def test_a_completion_is_found(text: str) -> None:
    assert run(completed_function(PROMPT, text, "total"))([1, 2, 3]) == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "I cannot write this function.",
        "Sure",
        "    pass\n",
        '    """Another docstring."""\n',
        "    # a comment alone\n",
        "```python\n```",
        "```",
        "```python\ndef other():\n    return 1\n```",
        "```python\ndef total(numbers):\n    result = [\n",
        "```python\ndef total(numbers):\n    ...\n```",
        "(" * 5_000,
        "\0",
    ],
)
def test_where_there_is_no_program_none_is_made_up(text: str) -> None:
    assert completed_function(PROMPT, text, "total") is None


def test_a_helper_in_a_fence_before_comes_with_it() -> None:
    whole = WHOLE.replace("+= helper", "+= math.floor(1.5) + int")
    text = f"```python\nimport math\n```\nand\n```python\nprint(total([0]))\n```\n```python\n{whole}```"
    assert run(completed_function(PROMPT, text, "total"))([1, 2, 3]) == 9


def test_a_body_that_was_cut_short_is_kept_up_to_there() -> None:
    program = completed_function(PROMPT, "    result = 0\n    for number in numbers:\n        result += help", "total")
    assert program is not None
    assert program.endswith("        result += help\n")
    cut = completed_function(PROMPT, "    result = 0\n    for number in (numbers", "total")
    assert cut is not None
    assert cut.endswith("    result = 0\n")


def test_the_body_keeps_the_prompt_as_it_is() -> None:
    assert completed_function(PROMPT, BODY, "total") == PROMPT + BODY
    text = PROMPT.replace("5\n", '5\n    \n    and a line of spaces, "\\d"\n')
    assert completed_function(text, BODY, "total") == text + BODY


def test_a_prompt_without_docstring_or_line_end() -> None:
    prompt = "def double(x):"
    assert preamble(prompt) == "def double(x):\n    pass\n"
    assert preamble(PROMPT) == PROMPT
    for text in (
        "\n    return 2 * x\n",
        "    return 2 * x",
        "return 2 * x",
        "```python\nreturn 2 * x\n```",
        " return 2 * x",
    ):
        assert run(completed_function(prompt, text, "double"), "double")(21) == 42


PROGRAMS = {
    "plain, up to the end mark": "def double(x):\n    return 2 * x\n[DONE]\n\nYou are an expert",
    "between marks": "Of course.\n[BEGIN]\ndef double(x):\n    return 2 * x\n[DONE]",
    "in a fence between marks": "[BEGIN]\n```python\ndef double(x):\n    return 2 * x\n```\n[DONE]",
    "with an import": "import math\ndef double(x):\n    return math.floor(2 * x)",
    "an import and a helper in other fences": "```python\nimport math\n```\n"
    "```python\ndef half(x):\n    return x / 2\n```\n"
    "```python\ndef double(x):\n    return math.floor(4 * half(x))\n```",
    "with asserts that are wrong": "def double(x):\n    return 2 * x\n\nassert double(1) == 3",
    "with a decorator": "Like so:\n@staticmethod\ndef double(x):\n    return 2 * x\n",
    "asynchronous helpers behind": "def double(x):\n    return 2 * x\n\nasync def other():\n    await other()\n",
    "a class's constructor": "class double:\n    def __new__(cls, x):\n        return 2 * x\n",
    "a lambda": "double = lambda x: 2 * x\nprint(double(",
    "in a fence on one line": "```def double(x): return 2 * x```",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_is_found(text: str) -> None:
    assert run(written_program(text, ["double"]), "double")(21) == 42


@pytest.mark.parametrize(
    "text", ["", "no code", "[DONE]", "def other(x):\n    return x", "print('def double')", "```\n```"]
)
def test_a_program_of_another_name_is_none(text: str) -> None:
    assert written_program(text, ["double"]) is None


def test_one_of_several_names_is_enough() -> None:
    assert run(written_program("def second():\n    return 2", ["first", "second"]), "second")() == 2


def test_the_order_of_passages() -> None:
    found = [passage.strip() for passage, _ in passages("Prose.\n```\na = 1\n```\nMore.\n```python\nb = 2\n```\n")]
    assert found == ["a = 1", "b = 2", "Prose."]
    assert next(passages("    return 1\n```\nProse."))[0] == "    return 1\n"


def test_the_table_of_the_docs_is_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    table = text.partition("| what the model writes for `triple` | the program |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(.+)` \| (.+) \|$", table, re.MULTILINE)
    assert len(found) == 8
    for written, expected in found:
        program = completed_function(
            'def triple(x):\n    """ Three times x. """\n', written.replace("⏎", "\n"), "triple"
        )
        assert (program is None) == expected.startswith("none"), written
        assert program is None or run(program, "triple")(2) == 6
