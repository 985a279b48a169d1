"""The Python program in what a model wrote. Pure functions on texts: what they find is compiled here, never run.

A model may continue a prompt, or answer it: with the function's body alone or with the whole function, in one code
fence or in several, with prose before and behind, cut short in the middle, and with the first line's indentation lost.
Where nothing that was written defines the function, there is no program, and none is made up.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence

_FENCE = re.compile(r"```(?:[^\n`]*\n)?(.*?)(?:```|\Z)", re.DOTALL)
_TOKEN = re.compile(r"<\|\w+\|>")
_CODE_LINE = re.compile(r"(?:async\s+def|def|class|import|from|@\w)")
_MOST_LINES, _MOST_STARTS = 400, 10
"""Lines of an answer, and places in it where code may begin, that are looked at: cutting costs a compilation a line."""


def completed_function(prompt: str, text: str, function: str) -> str | None:
    """The program that a prompt and its completion make, for HumanEval (Chen et al. 2021, arXiv 2107.03374).

    Args:
        prompt: the beginning of a program up to the docstring of `function`, or up to its signature.
        text: what the model wrote: what comes next, or an answer that has it.
        function: the name of the function.

    Returns:
        The first passage of the text (see `passages`) that compiles and defines the function, behind the prompt with
        its imports and helpers. Without one, the first that can be the function's body: as it stands, with the first
        line indented, or with all lines indented, whichever keeps most. Lines at the end that do not compile are cut
        off, and so is what follows the last definition. None where there is no such passage.
    """
    found = list(passages(text))
    for passage, helpers in found:
        alone = _longest(passage, [function])
        if alone is not None:
            program = "\n\n\n".join([preamble(prompt).rstrip(), *helpers, alone])
            return program if _parsed(program) is not None else alone  # `from __future__` has to be the first line
    repeated = re.compile(rf"^\s*(?:async\s+)?def\s+{re.escape(function)}\b", re.MULTILINE)
    beginnings = [prompt] if prompt.endswith("\n") else [prompt, f"{prompt}\n"]
    for passage, _ in found:
        if not repeated.search(passage):  # the function that was cut short is no body of itself
            bodies = _as_bodies(passage, _margin(prompt))
            texts = [f"{beginning}{body}" for body in bodies for beginning in beginnings]
            programs = [
                (body.count("\n") - kept.count("\n"), kept) for body in texts if (kept := _longest(body, [function]))
            ]
            if programs:
                return min(programs, key=lambda pair: pair[0])[1]
    return None


def written_program(text: str, functions: Sequence[str]) -> str | None:
    """The program that a text has, for MBPP (Austin et al. 2021, arXiv 2108.07732).

    Args:
        text: what the model wrote; what stands before [BEGIN] and from [DONE] on is no part of it.
        functions: the names that the tests use. A program that defines one of them counts: where another is lacking,
            its tests fail.

    Returns:
        The first passage of the text (see `passages`) that compiles and gives one of `functions` a body. Lines at the
        end that do not compile are cut off, and so is what follows the last definition. None where there is no such
        passage.
    """
    for passage, helpers in passages(text.partition("[DONE]")[0].rpartition("[BEGIN]")[2]):
        program = _longest(passage, functions)
        if program is not None:
            return "\n\n\n".join([*helpers, program])
    return None


def passages(text: str) -> Iterator[tuple[str, list[str]]]:
    """The passages of a text that may be code, the likeliest first, each with the helpers that stand in fences before.

    The text before any fence if it begins like code, which is how a prompt is continued; every fence; the text before
    them if it does not; and, without fences, the text from each line on that begins like code. A helper is a fence that
    only imports and defines. What follows a token that a model writes in its own spelling, such as <|file_sep|>, is of
    another text.
    """
    text = _TOKEN.split(text)[0]
    text = "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:_MOST_LINES])
    fences = [match[1] for match in _FENCE.finditer(text) if match[1].strip()]
    before = text.partition("```")[0]
    first_line = before.strip("\n").partition("\n")[0]
    continues = first_line.startswith((" ", "\t")) or _CODE_LINE.match(first_line) is not None
    if before.strip() and continues:
        yield before, []
    for number, fence in enumerate(fences):
        yield fence, [other.strip("\n") for other in fences[:number] if _only_defines(other)]
    if before.strip() and not continues:
        yield before, []
    lines = before.split("\n")
    starts = [at for at, line in enumerate(lines) if at and _CODE_LINE.match(line.lstrip())]
    for start in starts[:_MOST_STARTS]:
        yield "\n".join(lines[start:]), []


def preamble(prompt: str) -> str:
    """A prompt that ends inside a function, as a program that compiles; a function without a docstring gets `pass`."""
    return prompt if _parsed(prompt) is not None else f"{prompt.rstrip()}\n{_margin(prompt)}pass\n"


def _as_bodies(text: str, margin: str) -> Iterator[str]:
    """A text as a function's body, which is indented by `margin`, in the ways that its indentation may be lost."""
    for spelling in dict.fromkeys((text, text.expandtabs(4))):
        yield spelling
        yield margin + spelling.lstrip()
        yield textwrap.indent(textwrap.dedent(spelling.strip("\n")), margin)


def _margin(prompt: str) -> str:
    """How deep the body of the prompt's last function is indented."""
    last = next((line for line in reversed(prompt.split("\n")) if line.strip()), "")
    own = last[: len(last) - len(last.lstrip())]
    return f"{own}    " if last.lstrip().startswith(("def ", "async def ", "class ")) else own or "    "


# ------------------------------------------------------------------------------------------------------- what compiles

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MADE = (*_FUNCTIONS, ast.ClassDef)
_DEFINITIONS = (*_MADE, ast.Import, ast.ImportFrom)
_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)


def _longest(text: str, functions: Sequence[str]) -> str | None:
    """The most first lines of a text that compile and define one of `functions`, up to the last definition.

    What follows the last definition is an example of its use, which may be wrong where the function is right, or the
    beginning of something else.
    """
    text = text.strip("\n")
    lines = (textwrap.dedent(text) if text.startswith((" ", "\t")) else text).rstrip().split("\n")
    while lines:
        tree = _parsed("\n".join(lines))
        if tree is not None:
            if not any(_defines(node, functions) for node in tree.body):
                return None
            kept = [node for node in tree.body if isinstance(node, _MADE) or _defines(node, functions)]
            return "\n".join(lines[: kept[-1].end_lineno]) + "\n"
        lines.pop()
    return None


def _parsed(program: str) -> ast.Module | None:
    """The tree of a program that compiles, or None. A compiler also refuses what a parser lets pass: a lone return."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of "\d" in what a model wrote
            compile(program, "program.py", "exec", dont_inherit=True)
            return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


def _defines(node: ast.stmt, functions: Sequence[str]) -> bool:
    """Whether a statement at the top level gives one of these names something that does anything."""
    if isinstance(node, _FUNCTIONS):
        return node.name in functions and any(map(_does_something, node.body))
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        return any(isinstance(target, ast.Name) and target.id in functions for target in node.targets)
    return isinstance(node, ast.ClassDef) and node.name in functions


def _does_something(node: ast.stmt) -> bool:
    """Whether a statement is more than `pass`, a definition, a docstring or words that happen to compile."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, _EFFECTS)
    return not isinstance(node, (ast.Pass, *_DEFINITIONS)) and not (isinstance(node, ast.AnnAssign) and not node.value)


def _only_defines(program: str) -> bool:
    tree = _parsed(program)
    return tree is not None and bool(tree.body) and all(isinstance(node, _DEFINITIONS) for node in tree.body)
