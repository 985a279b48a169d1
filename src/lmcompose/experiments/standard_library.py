"""Real text that every machine with Python has: English prose and Python code of the standard library.

The prose is the language reference (`pydoc_data.topics`) and the docstrings of the top-level modules; the code is
those modules without docstrings and comments, so the two share no sentence. Which text it is depends on the version
of Python. Nothing is imported but read and parsed.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose() -> list[str]:
    """English documents, one per topic of the language reference and one per module: paragraphs, one on a line."""
    from pydoc_data.topics import topics

    documents = [_paragraphs(topics[name]) for name in sorted(topics)]
    for tree in _modules():
        nodes = (node for node in ast.walk(tree) if isinstance(node, _WITH_DOCSTRING))
        documents.append([line for node in nodes for line in _paragraphs(ast.get_docstring(node) or "")])
    seen: set[str] = set()  # inherited docstrings repeat, and a repeat must not stand in two documents
    unique = []
    for lines in documents:
        fresh = [line for line in dict.fromkeys(lines) if line not in seen]
        seen.update(fresh)
        if fresh:
            unique.append("\n".join(fresh))
    return unique


def code(seed: int = 0) -> Iterator[str]:
    """Python modules, without docstrings and comments, in an order drawn with `seed`."""
    for tree in _modules(seed):
        for node in ast.walk(tree):
            if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        yield ast.unparse(tree)


def _modules(seed: int = 0) -> Iterator[ast.Module]:
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    random.Random(seed).shuffle(paths)
    for path in paths:
        yield ast.parse(path.read_bytes())


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of `text` that read as prose: not indented (examples are), 12 words or more, mostly letters."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        letters = sum(character.isalpha() for character in paragraph)
        if (
            not block.startswith((" ", "\t", ">>>"))
            and len(paragraph.split()) >= 12
            and letters > 0.75 * len(paragraph)
        ):
            found.append(paragraph)
    return found
