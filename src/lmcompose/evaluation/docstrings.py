"""Docstrings of Python functions: taken out of the source, and found in what a model wrote. Pure functions on texts."""

import ast
import re
import textwrap
import warnings
from collections.abc import Sequence

_QUOTED = re.compile(r'("""|\'\'\')(.*?)(?:\1|\Z)', re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_LABEL = re.compile(r"^(?:docstring|description|answer)\s*:\s*", re.IGNORECASE)


def without_docstring(source: str) -> tuple[str, str] | None:
    """The source of a function without its docstring, and the docstring, cleaned as `inspect.cleandoc` does.

    Comments and layout stay as they are. A function that has nothing but its docstring gets an ellipsis in its place.

    Args:
        source: one function, also an indented one, with or without a docstring, which is then an empty text.

    Returns:
        None where the source does not parse, such as Python 2, or does not begin with a function.
    """
    source = textwrap.dedent(source.replace("\r\n", "\n")).strip("\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of "\d" in a source of old
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    function = tree.body[0]
    docstring = ast.get_docstring(function)
    if docstring is None:
        return source, ""
    node, lines = function.body[0], source.split("\n")
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    head = lines[first].encode()[: node.col_offset].decode()  # columns are counted in bytes
    tail = lines[last - 1].encode()[node.end_col_offset :].decode().lstrip(" ;")
    rest = "..." if len(function.body) == 1 else tail
    kept = [head + rest] if (head + rest).strip() else []
    return "\n".join([*lines[:first], *kept, *lines[last:]]), docstring


def first_paragraph(docstring: str) -> str:
    """The first paragraph of a docstring on one line: what the function does."""
    paragraphs = re.split(r"\n[ \t]*\n", docstring.strip())
    return " ".join(paragraphs[0].split())


def docstring_of(text: str) -> str:
    """The docstring in what a model wrote, on one line: an empty text where there is none.

    The first of these that has a word: what stands in triple quotes; the text outside code fences; what stands in them.
    Of it the first paragraph counts, without "Docstring:" and quotation marks; one that ends in a colon introduces the
    next.
    """
    quoted = _QUOTED.search(text)
    outside = _FENCE.sub("\n\n", text)
    for part in (quoted[2] if quoted else "", outside, *(match[1] for match in _FENCE.finditer(text))):
        paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n[ \t]*\n", part)]
        paragraphs = [_LABEL.sub("", paragraph).strip("\"'` ") for paragraph in paragraphs]
        paragraphs = [paragraph for paragraph in paragraphs if any(map(str.isalnum, paragraph))]
        while len(paragraphs) > 1 and paragraphs[0].endswith(":"):
            paragraphs.pop(0)
        introduces_a_fence = part is outside and outside != text and paragraphs[:1] and paragraphs[0].endswith(":")
        if paragraphs and not introduces_a_fence:
            return paragraphs[0]
    return ""


def docstrings(responses: Sequence[Sequence[str]], docs: Sequence[dict]) -> list[list[str]]:
    """`docstring_of` every response, as a filter of lm-eval."""
    return [[docstring_of(text) for text in texts] for texts in responses]
