"""Translation into English as data of a recipe: HornMT to learn from, NTREX to be tested on.

    python -m lmcompose.experiments.translation_data --hornmt FOLDER --ntrex FOLDER --gsm8k FOLDER data/translation

writes, as JSON lines:

    domain.jsonl          {"text"}: pairs of HornMT in Somali and Oromo, from which a small model learns the languages
    train.jsonl           {"prompt", "completion"}: a part of the same pairs, the composition data
    heldout-som.jsonl     {"prompt", "completion"}: the first lines of NTREX, and so on for each of `TESTED`
    gsm8k.jsonl           {"prompt", "completion"}: the first problems of GSM8K's test, which must not be forgotten

Prompts are those of the tasks `ntrex_som` and so on without shots, so that what is learned is what is asked.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmcompose.errors import DataError
from lmcompose.evaluation.tasks.languages import language_name
from lmcompose.experiments.commands import carry_out, command_of
from lmcompose.experiments.proxy_translation.pairs import LANGUAGES, Pair, hornmt, ntrex, without
from lmcompose.folders import write_json_lines

TESTED = ("som", "orm", "cym", "swa")
"""Languages of NTREX: the two that HornMT has, and two that nothing is tuned on."""


def prompt_completion(pair: Pair, language: str) -> dict[str, str]:
    """What is read, and what is learned: a pair in the words of the task of that language."""
    english, other = pair
    return {"prompt": f"{language_name(language)}: {other}\nEnglish:", "completion": f" {english}"}


def write_translation_data(
    folder: str | Path, hornmt_folder: str | Path, ntrex_folder: str | Path,
    gsm8k_folder: str | Path | None = None,
    *, longest: int = 110, share: float = 0.4, tested: int = 500, problems: int = 100, seed: int = 0,
) -> list[Path]:  # fmt: skip
    """Write the files; returns their paths.

    Args:
        longest: characters of the longest English sentence that is taken, of both: hours are counted in tokens.
        share: of HornMT's pairs that are composition data; they are the same ones in both languages.
        tested: lines of NTREX in each language, the first of that length.
        problems: of GSM8K, where its folder is given.
        seed: of the order, and of the choice.

    Raises:
        DataError: a file is not there, or two are not line by line.
    """
    lines = {language: ntrex(ntrex_folder, language) for language in TESTED}
    test = {language: _short(pairs, longest)[:tested] for language, pairs in lines.items()}
    seen = [pair for pairs in lines.values() for pair in pairs]  # of all lines: chrF is asked of longer ones too
    learned = {language: _short(without(hornmt(hornmt_folder, language), seen), longest) for language in LANGUAGES}
    english = sorted({pair[0] for pairs in learned.values() for pair in pairs})
    chosen = set(random.Random(seed).sample(english, round(share * len(english))))
    domain = _shuffled(learned, random.Random(seed))
    files = {
        "domain": [{"text": row["prompt"] + row["completion"]} for row in domain],
        "train": [row for row in domain if row["completion"][1:] in chosen],
        **{f"heldout-{name}": [prompt_completion(pair, name) for pair in pairs] for name, pairs in test.items()},
    }
    if gsm8k_folder is not None:
        files["gsm8k"] = _problems(Path(gsm8k_folder) / "test.jsonl")[:problems]
    return [write_json_lines(Path(folder) / f"{name}.jsonl", rows) for name, rows in files.items()]


def _problems(path: Path) -> list[dict[str, str]]:
    """The problems of GSM8K with their worked answers, in the words of its task."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"GSM8K is not at {path}: {error}. Give --gsm8k the folder of its test.jsonl.") from error
    rows = [json.loads(line) for line in lines]
    return [{"prompt": f"Question: {row['question']}\nAnswer:", "completion": f" {row['answer']}"} for row in rows]


def _short(pairs: Sequence[Pair], longest: int) -> list[Pair]:
    return [pair for pair in pairs if len(pair[0]) <= longest]


def _shuffled(pairs: Mapping[str, Sequence[Pair]], draw: random.Random) -> list[dict[str, str]]:
    rows = [prompt_completion(pair, language) for language, each in pairs.items() for pair in each]
    draw.shuffle(rows)
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--hornmt", type=Path, required=True, help="a folder with eng.txt, som.txt and orm.txt")
    parser.add_argument("--ntrex", type=Path, required=True, help="a folder with newstest2019-src.eng.txt and so on")
    parser.add_argument("--gsm8k", type=Path, help="a folder with test.jsonl, for what must not be forgotten")
    parser.add_argument("--longest", type=int, default=110, help="characters of an English sentence (default 110)")
    parser.add_argument("--share", type=float, default=0.4, help="of the pairs that are composition data (default 0.4)")
    parser.add_argument("--tested", type=int, default=500, help="lines of NTREX (default 500)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    written = carry_out(
        "translation_data",
        command_of("translation_data", sys.argv[1:]),
        lambda: write_translation_data(
            given.folder,
            given.hornmt,
            given.ntrex,
            given.gsm8k,
            longest=given.longest,
            share=given.share,
            tested=given.tested,
            seed=given.seed,
        ),
    )
    print("\n".join(f"Written: {path}" for path in written))


if __name__ == "__main__":
    main()
