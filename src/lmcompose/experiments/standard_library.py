"""Real text that every machine with Python has: English prose and Python code of the standard library.

The prose is the language reference (`pydoc_data.topics`) and the docstrings of the top-level modules; the code is
those modules without docstrings and comments, so the two share no sentence. Which text it is depends on the version
of Python. Nothing is imported but read and parsed.

    python -m lmcompose.experiments.standard_library data

writes both as composition data: `python-train.jsonl`, the sources of whole modules, `python-heldout.jsonl`, a passage
of each of some modules that the first file does not have, and the same of the prose. With `--pairs` it writes functions
with their docstrings instead, `code_to_text-train.jsonl` and `code_to_text-heldout.jsonl`, of the same modules.
"""

import argparse
import ast
import random
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from lmcompose.evaluation.docstrings import first_paragraph, without_docstring
from lmcompose.folders import write_json_lines

HELD_OUT = 0.2
"""The share of the documents that `write_texts` holds out."""
PASSAGE = 1_600
"""Characters of a held-out passage, at most."""
LONGEST_FUNCTION, SHORTEST_DOCSTRING = 1_200, 4
"""Characters of a function in a pair, at most, and words of its docstring's first paragraph, at least."""

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


def write_texts(folder: str | Path, seed: int = 0) -> list[Path]:
    """Write composition data as JSON lines, {"document", "text"}: `python-*.jsonl` of the modules' sources and
    `prose-*.jsonl` of `prose()`, each as whole documents to train on and passages of others that are held out.

    Documents shorter than a passage are left out. The split and where a passage begins are drawn with `seed`.
    """
    sources = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in _paths()}
    written: list[Path] = []
    for kind, texts in (("python", sources), ("prose", {f"{at}": text for at, text in enumerate(prose())})):
        draw = random.Random(seed)
        train, held_out = _split(texts, draw)
        parts = {
            "train": {name: texts[name] for name in train},
            "heldout": {name: _passage(texts[name], draw) for name in held_out},
        }
        for part, documents in parts.items():
            rows = [{"document": name, "text": text} for name, text in documents.items()]
            written.append(write_json_lines(Path(folder) / f"{kind}-{part}.jsonl", rows))
    return written


def write_pairs(folder: str | Path, seed: int = 0) -> list[Path]:
    """Write functions with their docstrings as JSON lines, {"module", "function", "code", "docstring"}, for the task
    code_to_text: `code_to_text-train.jsonl` and `code_to_text-heldout.jsonl`.

    With one seed the modules are split as in `write_texts`, so that what was trained on the one is tested on the other.
    The docstring is its first paragraph, and is no part of the code. A held-out pair has neither the code nor the
    docstring of a pair to train on.
    """
    sources = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in _paths()}
    train, held_out = (
        [pair for name in sorted(names) for pair in _pairs(name, sources[name])]
        for names in _split(sources, random.Random(seed))
    )
    seen = {pair[key] for pair in train for key in ("code", "docstring")}
    held_out = [pair for pair in held_out if not {pair["code"], pair["docstring"]} & seen]
    parts = {"train": train, "heldout": held_out}
    return [write_json_lines(Path(folder) / f"code_to_text-{part}.jsonl", pairs) for part, pairs in parts.items()]


def _pairs(module: str, source: str) -> Iterator[dict[str, str]]:
    """The functions of a module that have a docstring in words, and are not long."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            parted = without_docstring("\n".join(lines[first - 1 : node.end_lineno]))
            if parted is None:
                continue
            code, docstring = parted[0], first_paragraph(parted[1])
            if len(code) <= LONGEST_FUNCTION and len(docstring.split()) >= SHORTEST_DOCSTRING and docstring not in code:
                yield {"module": module, "function": node.name, "code": code, "docstring": docstring}


def _split(texts: Mapping[str, str], draw: random.Random) -> tuple[list[str], list[str]]:
    """The names of the documents to train on, and of those held out; one that is shorter than a passage is neither."""
    names = [name for name, text in texts.items() if len(text) >= PASSAGE]
    draw.shuffle(names)
    cut = round(len(names) * HELD_OUT)
    return names[cut:], names[:cut]


def _passage(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    starts = [at for at, line in enumerate(lines) if re.match(r"(async )?(def|class) ", line)]
    starts = [at for at in starts if sum(map(len, lines[at:])) >= PASSAGE / 2] or [0]
    passage = ""
    for line in lines[draw.choice(starts) :]:
        if len(passage) + len(line) > PASSAGE:
            break
        passage += line
    return passage


def _modules(seed: int = 0) -> Iterator[ast.Module]:
    paths = _paths()
    random.Random(seed).shuffle(paths)
    for path in paths:
        yield ast.parse(path.read_bytes())


def _paths() -> list[Path]:
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


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


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--seed", type=int, default=0, help="of what is held out (default 0)")
    parser.add_argument("--pairs", action="store_true", help="functions with their docstrings, for code_to_text")
    options = parser.parse_args()
    write = write_pairs if options.pairs else write_texts
    print("\n".join(f"Written: {path}" for path in write(options.folder, options.seed)))


if __name__ == "__main__":
    main()
