"""Docstrings are taken out of functions and found in what a model wrote."""

from __future__ import annotations

import ast

import pytest

from lmcompose.evaluation.docstrings import docstring_of, first_paragraph, without_docstring


@pytest.mark.parametrize(
    ("source", "code", "docstring"),
    [
        ('def add(a, b):\n    """Add two.\n\n    Numbers.\n    """\n    return a + b',
         "def add(a, b):\n    return a + b", "Add two.\n\nNumbers."),
        ("    def add(self):\n        'Add one.'\n        # kept\n\n        return self + 1\n",
         "def add(self):\n    # kept\n\n    return self + 1", "Add one."),
        ('@cache\nasync def f():\n    r"""A \\d."""\n    return 1', "@cache\nasync def f():\n    return 1", "A \\d."),
        ('def f(): "Nothing else."', "def f(): ...", "Nothing else."),
        ('def f():\n    """Nothing else."""\n', "def f():\n    ...", "Nothing else."),
        ('def f():\n    """Short."""; x = 1\n    return x', "def f():\n    x = 1\n    return x", "Short."),
        ('def f(é="é"): "Über."; return é', 'def f(é="é"): return é', "Über."),
        ('def f():\r\n\t"""Tabs."""\r\n\treturn 1', "def f():\n\treturn 1", "Tabs."),
        ("def f():\n    return 1", "def f():\n    return 1", ""),
        ('def f():\n    x = 1\n    """no docstring"""', 'def f():\n    x = 1\n    """no docstring"""', ""),
    ],
)  # fmt: skip
def test_a_docstring_is_taken_out(source: str, code: str, docstring: str) -> None:
    assert without_docstring(source) == (code, docstring)
    ast.parse(code)


@pytest.mark.parametrize("source", ["def f():\n    print 1", "x = 1", "", "class A:\n    'A.'", "def f(:"])
def test_what_is_no_function_is_none(source: str) -> None:
    assert without_docstring(source) is None


def test_the_first_paragraph_is_one_line() -> None:
    assert first_paragraph("\n  Add two\n  numbers.  \n \n  More.") == "Add two numbers."
    assert first_paragraph("") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Add two numbers.", "Add two numbers."),
        (" Add two\n numbers.\n\nArgs: a, b", "Add two numbers."),
        ('"""Add two numbers.\n\n    More."""', "Add two numbers."),
        ("'''Add two numbers.", "Add two numbers."),
        ('```python\n"""Add two numbers."""\n```', "Add two numbers."),
        (
            'Here it is:\n\n```python\ndef add(a, b):\n    """Add two numbers."""\n    return a + b\n```',
            "Add two numbers.",
        ),
        ("Here is what it does:\n\nAdd two numbers.", "Add two numbers."),
        ("Here it is:\n```\nAdd two numbers.\n```", "Add two numbers."),
        ("```text\nAdd two numbers.\n```", "Add two numbers."),
        ("Docstring: `Add two numbers.`", "Add two numbers."),
        ("Returns the following:", "Returns the following:"),
        ("", ""),
        ('"""', ""),
        ("```\n```", ""),
        ("...", ""),
    ],
)
def test_the_docstring_of_an_answer(text: str, expected: str) -> None:
    assert docstring_of(text) == expected
