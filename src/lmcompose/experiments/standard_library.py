"""Real text that every machine with Python has: English prose and Python code of the standard library.

The prose is the language reference (`pydoc_data.topics`) and the docstrings of the top-level modules; the code is
those modules without docstrings and comments, so the two share no sentence. Which text it is depends on the version
of Python. Nothing is imported but read and parsed.

    python -m lmcompose.experiments.standard_library data

writes the sources as composition data: `python-train.jsonl`, whole modules, and `python-heldout.jsonl`, a passage of
each of some modules that the first file does not have.
"""

import argparse
import ast
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lmcompose.folders import write_text_atomic

HELD_OUT = 0.2
"""The share of the modules that `write_sources` holds out."""
PASSAGE = 1_600
"""Characters of a held-out passage, at most."""

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


def write_sources(folder: str | Path, seed: int = 0) -> tuple[Path, Path]:
    """Write the modules' sources as JSON lines, {"module", "text"}: those to train on, and passages of the others.

    A held-out passage begins at a definition of its module, drawn with `seed`, as the split is.
    """
    draw = random.Random(seed)
    paths = _paths()
    draw.shuffle(paths)
    texts = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in paths}
    texts = {name: text for name, text in texts.items() if len(text) >= PASSAGE}  # the others hold next to nothing
    names = list(texts)
    cut = round(len(names) * HELD_OUT)
    passages = {name: _passage(texts[name], draw) for name in names[:cut]}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "python-train.jsonl", folder / "python-heldout.jsonl"
    for path, chosen in zip(written, ({name: texts[name] for name in names[cut:]}, passages), strict=True):
        lines = [json.dumps({"module": name, "text": text}, ensure_ascii=False) for name, text in chosen.items()]
        write_text_atomic(path, "\n".join(lines) + "\n")
    return written


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
    parser.add_argument("folder", type=Path, help="where the two files are written")
    parser.add_argument("--seed", type=int, default=0, help="of the modules that are held out (default 0)")
    options = parser.parse_args()
    print("\n".join(f"Written: {path}" for path in write_sources(options.folder, options.seed)))


if __name__ == "__main__":
    main()
