"""Real text that every machine with Python has: English prose and Python code of the standard library.

The prose is the language reference (`pydoc_data.topics`) and the docstrings of the top-level modules; the code is
those modules without docstrings and comments, so the two share no sentence. Which text it is depends on the version
of Python. Nothing is imported but read and parsed.

    python -m lmcompose.experiments.standard_library data

writes both as composition data: `python-train.jsonl`, the sources of whole modules, `python-heldout.jsonl`, a passage
of each of some modules that the first file does not have, and the same of the prose.
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
"""The share of the documents that `write_texts` holds out."""
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


def write_texts(folder: str | Path, seed: int = 0) -> list[Path]:
    """Write composition data as JSON lines, {"document", "text"}: `python-*.jsonl` of the modules' sources and
    `prose-*.jsonl` of `prose()`, each as whole documents to train on and passages of others that are held out.

    Documents shorter than a passage are left out. The split and where a passage begins are drawn with `seed`.
    """
    sources = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in _paths()}
    written: list[Path] = []
    for kind, texts in (("python", sources), ("prose", {f"{at}": text for at, text in enumerate(prose())})):
        draw = random.Random(seed)
        names = [name for name, text in texts.items() if len(text) >= PASSAGE]
        draw.shuffle(names)
        cut = round(len(names) * HELD_OUT)
        parts = {
            "train": {name: texts[name] for name in names[cut:]},
            "heldout": {name: _passage(texts[name], draw) for name in names[:cut]},
        }
        for part, documents in parts.items():
            lines = [
                json.dumps({"document": name, "text": text}, ensure_ascii=False) for name, text in documents.items()
            ]
            written.append(Path(folder) / f"{kind}-{part}.jsonl")
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(written[-1], "\n".join(lines) + "\n")
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
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--seed", type=int, default=0, help="of what is held out (default 0)")
    options = parser.parse_args()
    print("\n".join(f"Written: {path}" for path in write_texts(options.folder, options.seed)))


if __name__ == "__main__":
    main()
