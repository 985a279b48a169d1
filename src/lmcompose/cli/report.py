"""`lmcompose report FOLDER...`: the results in folders as one page that needs nothing beside itself."""

from pathlib import Path
from typing import Annotated

import typer

from lmcompose.errors import ConfigurationError


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of results, with all folders inside: what evaluate, train and the experiments wrote.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page, an .html; by default report.html in the first FOLDER."),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="What stands on top of it.")] = None,
) -> None:
    """Draw results as one HTML page with charts and tables, and as Markdown beside it.

    Every figure has its interval, or is said to be of one run. Files that are not shown are listed with the reason.

    Examples:

      lmcompose report runs
      lmcompose report results runs/evaluate --output report.html --title "Our compositions"
    """
    from lmcompose.folders import write_text_atomic
    from lmcompose.reporting.report.collecting import collect
    from lmcompose.reporting.report.document import to_html, to_markdown

    first = folders[0]
    page = output or (first if first.is_dir() else first.parent) / "report.html"
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigurationError(f"--output {page} is not the name of a page. Give one that ends in .html.")
    found = collect(folders)
    name = title or f"Report on {', '.join(folder.resolve().name for folder in folders)}"
    texts = {page: to_html(found, name, page), page.with_suffix(".md"): to_markdown(found, name, page)}
    for path, text in texts.items():
        write_text_atomic(path, text)
    for broken in found.broken:
        typer.echo(f"{broken.path}: {broken.reason}", err=True)
    typer.echo(
        f"Shown: {len(found.shown)}, broken: {len(found.broken)}, left out: {len(found.skipped)}. Written to "
        f"{page} and {page.with_suffix('.md')}"
    )
