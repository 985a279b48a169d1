"""Run from the command line: `python -m lmcompose.experiments.proxy_tuning --stories FOLDER`.

Prints the tables, and writes the result as JSON, as Markdown and as a figure, and one trace as an HTML page. Models are
kept in a folder of their own, so that a run that was stopped goes on where it was.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmcompose.experiments.commands import carry_out, conclude, with_stories, write_files
from lmcompose.experiments.proxy_tuning.run import run
from lmcompose.reporting.page import write_page
from lmcompose.reporting.proxy_plots import proxy_figure
from lmcompose.reporting.proxy_tables import proxy_grids, proxy_markdown


def read_arguments(words: Sequence[str]) -> tuple[argparse.Namespace, str]:
    """The options of the command line, and the command to record, with the model that STORIES names written out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", type=Path, help="the folder of stories260K; by default what STORIES names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", type=Path, default=Path("runs/proxy_tuning"), help="where models are kept")
    parser.add_argument("--output", type=Path, default=Path("results/proxy_tuning/stories.json"))
    return with_stories(parser, "proxy_tuning", words)


def write_report(result: dict[str, Any], path: Path) -> list[Path]:
    """Write `path` (JSON), and beside it the same as Markdown, the figure, and the page of the trace."""
    places = [*write_files(result, path, proxy_markdown(result), proxy_figure), path.with_suffix(".html")]
    write_page(result["trace"], places[-1])
    return places


def main() -> None:
    """Run from the command line."""
    options, command = read_arguments(sys.argv[1:])
    result = carry_out(
        "proxy_tuning",
        command,
        lambda: run(options.stories, seeds=options.seeds, folder=options.models, command=command),
    )
    conclude(proxy_grids(result), write_report(result, options.output))


if __name__ == "__main__":
    main()
