"""Each claim of the papers beside what was measured here: `python -m` this module writes docs/evidence.md anew.

Reads every result that stands in the results' folder; nothing is measured here but what takes no time, the paper's
worked example of parameters.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lmcompose.errors import DataError
from lmcompose.experiments.commands import carry_out, command_of, conclude
from lmcompose.experiments.overhead import worked_example
from lmcompose.folders import write_text_atomic
from lmcompose.reporting.claims import CLAIMS
from lmcompose.reporting.evidence import evidence_grid
from lmcompose.reporting.marked import with_marked


def read_results(folder: Path) -> dict[str, Any]:
    """Every JSON file under `folder` by its path without the ending, and the paper's worked example.

    Raises:
        DataError: there is no such folder, or a file is not JSON.
    """
    if not folder.is_dir():
        raise DataError(f"There is no folder '{folder}'. Name the one that the experiments wrote their results to.")
    results: dict[str, Any] = {"overhead/worked_example": worked_example()}
    for path in sorted(folder.rglob("*.json")):
        try:
            results[path.relative_to(folder).with_suffix("").as_posix()] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"'{path}' is not JSON ({error}). Run the command again that wrote it.") from error
    return results


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where results are read (default: results)"
    )
    parser.add_argument("--page", type=Path, help="a page whose marked part is written anew, such as docs/evidence.md")
    options = parser.parse_args()
    command = command_of("evidence", sys.argv[1:])
    results = carry_out("evidence", command, lambda: read_results(options.results))
    grid = evidence_grid(results, CLAIMS)
    places = [] if options.page is None else [options.page]
    for page in places:
        write_text_atomic(page, with_marked(page.read_text(encoding="utf-8"), grid.to_markdown()))
    conclude([grid], places)


if __name__ == "__main__":
    main()
