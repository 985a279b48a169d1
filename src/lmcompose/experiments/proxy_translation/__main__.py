"""Run from the command line: `python -m lmcompose.experiments.proxy_translation --base FOLDER --small FOLDER ...`.

Prints the tables, and writes the result as JSON, as Markdown and as a figure. Adapters and what was measured are kept
in a folder of their own, so that a run that was stopped goes on where it was.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from lmcompose.experiments.commands import carry_out, command_of, conclude, write_files
from lmcompose.experiments.proxy_translation.pairs import LANGUAGES
from lmcompose.experiments.proxy_translation.run import run
from lmcompose.reporting.proxy_plots import proxy_figure
from lmcompose.reporting.translation_tables import translation_grids, translation_markdown


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--base", required=True, help="the large model: a folder or a hub id")
    options.add_argument("--small", required=True, help="the small model, with the same tokenizer")
    options.add_argument("--hornmt", required=True, type=Path, help="the folder of HornMT: eng.txt, som.txt, orm.txt")
    options.add_argument("--ntrex", required=True, type=Path, help="the folder of NTREX: newstest2019-src.eng.txt, ...")
    options.add_argument("--language", choices=LANGUAGES, default="som")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--models", type=Path, default=Path("runs/proxy_translation"), help="where adapters are kept")
    options.add_argument("--output", type=Path, help="default: results/proxy_translation/<language>.json")
    return options


def write_report(result: dict[str, Any], path: Path) -> list[Path]:
    """Write `path` (JSON), and beside it the same as Markdown and the figure."""
    tasks = {"tasks": {result["language"]: result}}
    return write_files(result, path, translation_markdown(result), lambda _, place: proxy_figure(tasks, place))


def main() -> None:
    """Run from the command line."""
    options = parser().parse_args()
    command = command_of("proxy_translation", sys.argv[1:])
    result = carry_out(
        "proxy_translation",
        command,
        lambda: run(
            options.base,
            options.small,
            hornmt=options.hornmt,
            ntrex=options.ntrex,
            language=options.language,
            seed=options.seed,
            folder=options.models,
            command=command,
        ),
    )
    path = options.output or Path("results/proxy_translation") / f"{options.language}.json"
    conclude(translation_grids(result), write_report(result, path))


if __name__ == "__main__":
    main()
