"""Sentence pairs: HornMT to tune on, NTREX to test on, and how one becomes a prompt and an answer.

Both are news, so what stands in both is not tested on. This file knows neither models nor tokens.
"""

import random
import re
from pathlib import Path

from lmcompose.errors import DataError

LANGUAGES = {"som": "Somali", "orm": "Oromo"}
"""The languages that HornMT and NTREX share, by the codes that both use."""

HORNMT = "{language}.txt"
NTREX_ENGLISH, NTREX = "newstest2019-src.eng.txt", "newstest2019-ref.{language}.txt"

Pair = tuple[str, str]
"""An English sentence and its translation."""


def hornmt(folder: str | Path, language: str) -> list[Pair]:
    """All pairs of HornMT in `folder`; see `aligned` for what is raised."""
    return aligned(Path(folder) / HORNMT.format(language="eng"), Path(folder) / HORNMT.format(language=language))


def ntrex(folder: str | Path, language: str) -> list[Pair]:
    """All pairs of NTREX in `folder`; see `aligned` for what is raised."""
    return aligned(Path(folder) / NTREX_ENGLISH, Path(folder) / NTREX.format(language=language))


def aligned(english: Path, other: Path) -> list[Pair]:
    """The lines of two files side by side, without those where one is empty.

    Raises:
        DataError: a file is not there, or they have different numbers of lines.
    """
    try:
        left, right = (path.read_text(encoding="utf-8").splitlines() for path in (english, other))
    except OSError as error:
        raise DataError(f"'{error.filename}' cannot be read. Name the folders of HornMT and NTREX.") from error
    if len(left) != len(right):
        raise DataError(f"{english} has {len(left)} lines and {other} has {len(right)}: they are not line by line.")
    pairs = [(one.strip(), two.strip()) for one, two in zip(left, right, strict=True)]
    return [pair for pair in pairs if all(pair)]


def choose(pairs: list[Pair], count: int, longest: int, seed: int) -> list[Pair]:
    """`count` random pairs whose English has at most `longest` characters, in the order of the file.

    Raises:
        DataError: there are fewer.
    """
    short = [index for index, (english, _) in enumerate(pairs) if len(english) <= longest]
    if len(short) < count:
        raise DataError(
            f"Only {len(short)} of {len(pairs)} sentence pairs have at most {longest} characters of English, and "
            f"{count} are wanted. Take fewer, or longer ones."
        )
    return [pairs[index] for index in sorted(random.Random(seed).sample(short, count))]


def without(pairs: list[Pair], seen: list[Pair]) -> list[Pair]:
    """The pairs of which neither side stands in `seen`, whatever its case, spaces and punctuation."""
    known = {_bare(side) for pair in seen for side in pair}
    return [pair for pair in pairs if not any(_bare(side) in known for side in pair)]


def _bare(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence).strip().lower()


def prompt(english: str, language: str) -> str:
    """What a model reads before it translates."""
    return f"Translate from English to {LANGUAGES[language]}.\nEnglish: {english}\n{LANGUAGES[language]}:"


def answer(translation: str) -> str:
    """What it is to write: one line."""
    return f" {translation}\n"


def first_line(written: str) -> str:
    """The translation in what a model wrote: up to the end of its first line that is not empty."""
    return next((line.strip() for line in written.split("\n") if line.strip()), "")
