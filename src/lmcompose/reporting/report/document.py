"""The report as HTML and as Markdown, from one and the same blocks.

The page needs nothing beside itself: no scripts, no fonts and no addresses, and its policy forbids the browser to fetch
any. All texts are escaped.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import jinja2

from lmcompose.reporting.report.charts import Block, Curves, Line, Section
from lmcompose.reporting.report.collecting import Collection, NotShown, Shown
from lmcompose.reporting.report.estimates import Estimate
from lmcompose.reporting.report.kinds import KINDS
from lmcompose.reporting.tables import Grid

RECORD = (
    "seed",
    "seeds",
    "versions",
    "machine",
    "threads",
    "device",
    "settings",
    "members",
    "models",
    "model",
    "recipe",
)
TEXT = 40
"""A column with a longer cell than this holds texts, and is set as text and not as figures."""


@dataclass(frozen=True)
class Run:
    """Neighbouring blocks of one sort: charts stand side by side where there is room, tables below each other."""

    charts: bool
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Entry:
    """A section in its place: where a link finds it, and where its file is."""

    anchor: str
    path: str
    href: str
    section: Section
    runs: Sequence[Run]
    command: str
    record: str


def to_html(found: Collection, title: str, output: str | os.PathLike[str]) -> str:
    """The report as one page; links to the files are written as they are seen from `output`."""
    groups = _groups(found, Path(output).parent)
    return _ENVIRONMENT.get_template("report.html").render(
        title=title,
        introduction=_introduction(found),
        groups=groups,
        headlines=_headlines(groups),
        broken=_named(found.broken, Path(output).parent),
        left_out=_by_reason(found.skipped, Path(output).parent),
    )


def to_markdown(found: Collection, title: str, output: str | os.PathLike[str]) -> str:
    """The same in Markdown: a chart is there as the table of its figures."""
    groups = _groups(found, Path(output).parent)
    parts = [f"# {_line(title)}\n", f"{_introduction(found)}\n"]
    if found.broken:
        faults = [
            f"- {_code(each['path'])}: {_line(each['reason'])}" for each in _named(found.broken, Path(output).parent)
        ]
        parts += ["## Files that could not be read\n", *faults, ""]
    headlines = _headlines(groups)
    if headlines.rows:
        parts.append(_as_markdown(headlines))
    for group, entries in groups:
        parts.append(f"## {group}\n")
        for entry in entries:
            parts.append(f"### {_line(entry.section.title)}\n")
            parts.append(f"[{_line(entry.path)}]({entry.href})\n")
            parts += [f"{_line(text)}\n" for text in (entry.section.headline, entry.section.caveat) if text]
            parts += [_as_markdown(_table(block)) for block in (*entry.section.blocks, *entry.section.more)]
            if entry.command:
                parts.append(f"Made by {_code(entry.command)}\n")
            parts.append(f"<details><summary>How this was made</summary>\n\n{_fenced(entry.record)}\n</details>\n")
    left_out = _by_reason(found.skipped, Path(output).parent)
    if left_out:
        parts.append("## Files that are not shown\n")
        parts += [f"- {_line(reason)}: {', '.join(map(_code, paths))}" for reason, paths in left_out]
    return "\n".join(parts).rstrip() + "\n"


def _groups(found: Collection, beside: Path) -> list[tuple[str, list[Entry]]]:
    """The results by their groups, in the order of the kinds; each with an anchor of its own."""
    order = list(KINDS)
    ordered = sorted(found.shown, key=lambda each: (order.index(each.what), str(each.path)))
    titles = [each.section.title for each in ordered]
    taken: set[str] = set()
    groups: dict[str, list[Entry]] = {}
    for each in ordered:
        several = titles.count(each.section.title) > 1
        groups.setdefault(KINDS[each.what].group, []).append(_entry(each, beside, taken, several))
    return list(groups.items())


def _entry(shown: Shown, beside: Path, taken: set[str], several: bool) -> Entry:
    section, result = shown.section, shown.result
    path = _seen_from(shown.path, beside)
    if several:
        title = f"{section.title}, {shown.path.resolve().parent.name}/{shown.path.name}"
        section = replace(section, title=title)
    stem = re.sub(r"[^a-z0-9]+", "-", path.removesuffix(".json").lower()).strip("-") or "result"
    anchor = next(name for name in _numbered(f"r-{stem}") if name not in taken)
    taken.add(anchor)
    record = {key: result[key] for key in RECORD if result.get(key) is not None}
    return Entry(
        anchor=anchor,
        path=path,
        href=f"./{quote(path)}",  # ./: no name of a file is taken for the scheme of an address
        section=section,
        runs=[Run(charts, list(run)) for charts, run in itertools.groupby(section.blocks, _is_chart)],
        command=str(result.get("command") or ""),
        record=json.dumps(record, indent=2, ensure_ascii=False, default=str),
    )


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def _introduction(found: Collection) -> str:
    def counted(number: int, what: str) -> str:
        return f"{number} {what}{'s' if number != 1 else ''}"

    parts = [counted(len(found.shown), "result")]
    parts += [f"{counted(len(found.broken), 'file')} that could not be read"] if found.broken else []
    parts += [f"{counted(len(found.skipped), 'file or folder')} not shown"] if found.skipped else []
    return f"{'; '.join(parts)}. Brackets and whiskers are 95 % intervals; where a figure has none, that is said."


def _headlines(groups: Sequence[tuple[str, Sequence[Entry]]]) -> Grid:
    entries = [entry for _, each in groups for entry in each if entry.section.headline]
    return Grid("At a glance", ["result", "what it says"], [[e.section.title, e.section.headline] for e in entries])


def _named(left: Sequence[NotShown], beside: Path) -> list[dict[str, str]]:
    return [{"path": _seen_from(each.path, beside), "reason": each.reason} for each in left]


def _by_reason(left: Sequence[NotShown], beside: Path) -> list[tuple[str, list[str]]]:
    reasons: dict[str, list[str]] = {}
    for each in left:
        reasons.setdefault(each.reason, []).append(_seen_from(each.path, beside))
    return list(reasons.items())


def _seen_from(path: Path, beside: Path) -> str:
    return Path(os.path.relpath(path, beside)).as_posix()


def _is_chart(block: Block) -> bool:
    return not isinstance(block, Grid)


def _table(block: Block) -> Grid:
    return block if isinstance(block, Grid) else block.table


def _line(text: str) -> str:
    """A text that stays on its line in Markdown and becomes no markup there."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _as_markdown(grid: Grid) -> str:
    """A table whose texts become no HTML; a line that ends within a cell is the one tag that is meant."""
    return re.sub(r"<(?!br>)(?=[A-Za-z/!?])", "&lt;", grid.to_markdown())


def _code(text: str) -> str:
    """A text set as code on its line, between more backticks than are in it."""
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks} {' '.join(text.split())} {ticks}" if "`" in text else f"`{' '.join(text.split())}`"


def _fenced(text: str) -> str:
    """A block of code, in a fence that is longer than any in the text."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}json\n{text}\n{ticks}\n"


def _text_columns(grid: Grid) -> list[int]:
    """The columns that hold texts; the first names the rows and is set as text anyhow."""
    return [index for index in range(1, len(grid.columns)) if any(len(row[index]) > TEXT for row in grid.rows)]


def _coloured(names: Sequence[str]) -> list[tuple[str, int, str]]:
    return [(name, index % 6 + 1, "") for index, name in enumerate(names)]


def _line_colours(chart: Curves) -> list[tuple[str, int, str]]:
    def colour(index: int, line: Line) -> int:
        return (index if line.colour is None else line.colour) % 6 + 1

    lines = [
        (line.name, colour(index, line), "dashed" if line.dashed else "") for index, line in enumerate(chart.lines)
    ]
    return [*lines, *((level.name, level.colour % 6 + 1, "dotted") for level in chart.levels)]


def _finite(points: Sequence[tuple[float, Estimate]]) -> list[tuple[float, Estimate]]:
    return [point for point in points if point[1].is_finite]


def _banded(points: Sequence[tuple[float, Estimate]]) -> bool:
    return any(estimate.has_interval for _, estimate in points)


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_ENVIRONMENT.filters |= {
    "text_columns": _text_columns,
    "coloured": _coloured,
    "line_colours": _line_colours,
    "finite": _finite,
    "banded": _banded,
}
