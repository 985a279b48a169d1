"""What is drawn, as plain values: rows of bars or points, curves, and cost against quality. Each is also a table.

How they look is written in charts.html; where a figure is on its axis, in scales.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lmcompose.reporting.report.estimates import Estimate
from lmcompose.reporting.report.scales import Scale, linear, logarithmic, without_far
from lmcompose.reporting.tables import Grid

NO_INTERVAL = "A figure without brackets is of one run, without an interval."
ONE_SEED = "One seed: nothing here says how much another seed would change."
FAR_AWAY = "An arrow: the figure is so far away that an axis for it would hide how the others differ."
NO_DIFFERENCE = "no difference shown"
TICKS = "Small ticks: each seed by itself."
DIAMONDS = "Diamonds: the paper's figures."
MOST_ROWS = 24
"""The rows of a table of a curve; of a longer one every so many-th point is shown."""


@dataclass(frozen=True)
class Mark:
    """One figure of a row: whose it is, and what may stand beside it."""

    estimate: Estimate
    series: str = ""
    by_seed: Sequence[float] = ()
    published: float | None = None
    said: str = ""

    @property
    def reach(self) -> list[float]:
        """All numbers that the axis should hold."""
        more = [] if self.published is None else [self.published]
        return [self.estimate.value, *self.estimate.ends, *self.by_seed, *more]


@dataclass(frozen=True)
class Row:
    """What stands beside one name."""

    label: str
    marks: Sequence[Mark]
    strong: bool = False


@dataclass(frozen=True)
class Rows:
    """Figures with their intervals, one below the other: bars from zero, or points where zero is nothing special.

    Args:
        axis: what the figures are, with the unit.
        differences: the figures are differences, and one whose interval holds 0 is said to show none.
        reference: a line to compare with, and what it is.
        no_interval: what is said where a figure has no interval.
        table: in place of the one that would be made of the rows.
    """

    title: str
    axis: str
    rows: Sequence[Row]
    first_column: str = ""
    digits: int = 1
    bars: bool = True
    differences: bool = False
    reference: tuple[float, str] | None = None
    notes: Sequence[str] = ()
    no_interval: str = NO_INTERVAL
    table_instead: Grid | None = None
    kind: str = field(default="rows", init=False)

    @cached_property
    def series(self) -> list[str]:
        return list(dict.fromkeys(mark.series for row in self.rows for mark in row.marks))

    @cached_property
    def scale(self) -> Scale:
        groups = [[value for mark in row.marks for value in mark.reach] for row in self.rows]
        include = [*([0.0] if self.bars or self.differences else []), *([self.reference[0]] if self.reference else [])]
        values = [value for group in groups for value in group] if self.bars else without_far(groups, include)
        return linear(values, include=include)

    @cached_property
    def all_notes(self) -> list[str]:
        marks = [mark for row in self.rows for mark in row.marks]
        seeds = [TICKS] if any(mark.by_seed for mark in marks) else []
        published = [DIAMONDS] if any(mark.published is not None for mark in marks) else []
        beyond = [mark for mark in marks if not self.scale.holds(mark.estimate.value)]
        far = [FAR_AWAY] if beyond else []
        single = [self.no_interval] if any(not mark.estimate.has_interval for mark in marks) else []
        return [*self.notes, *published, *seeds, *far, *single]

    def text(self, mark: Mark) -> str:
        return mark.estimate.text(self.digits, signed=self.differences)

    def said(self, mark: Mark) -> str:
        """What may be said of a mark: as it was concluded, or that its interval holds 0."""
        return mark.said or (NO_DIFFERENCE if self.differences and mark.estimate.holds_zero else "")

    def tone(self, mark: Mark) -> str:
        """How a mark is drawn: a difference that is not shown is hollow."""
        return "none" if self.differences and self.said(mark) == NO_DIFFERENCE else ""

    @cached_property
    def table(self) -> Grid:
        """The figures as a table: one column for each series, or one for all that is known of the only one."""
        strong = [index for index, row in enumerate(self.rows) if row.strong]
        if self.table_instead is not None:
            return self.table_instead
        if len(self.series) > 1:
            cells = [{mark.series: self.text(mark) for mark in row.marks} for row in self.rows]
            rows = [
                [row.label, *(texts.get(name, "") for name in self.series)]
                for row, texts in zip(self.rows, cells, strict=True)
            ]
            columns = [self.first_column, *self.series]
            return Grid(f"{self.title}: {self.axis}", columns, rows, _of_table(self.all_notes), strong)
        marks = [row.marks[0] for row in self.rows]
        form = f"{'+' if self.differences else ''}.{self.digits}f"
        seeds = [", ".join(format(value, form) for value in mark.by_seed) for mark in marks]
        said = [self.said(mark) for mark in marks]
        more = [(name, cells) for name, cells in (("by seed", seeds), ("", said)) if any(cells)]
        rows = [
            [row.label, self.text(marks[index]), *(cells[index] for _, cells in more)]
            for index, row in enumerate(self.rows)
        ]
        columns = [self.first_column, self.axis, *(name for name, _ in more)]
        return Grid(self.title, columns, rows, _of_table(self.all_notes), strong)


@dataclass(frozen=True)
class Line:
    """A curve: its points from left to right."""

    name: str
    points: Sequence[tuple[float, Estimate]]
    dashed: bool = False
    colour: int | None = None


@dataclass(frozen=True)
class Level:
    """A straight line to compare curves with; its colour is that of the curve of this number."""

    value: float
    name: str
    colour: int


@dataclass(frozen=True)
class Curves:
    """Curves over one axis, with bands where their points have intervals.

    Args:
        levels: straight lines to compare with.
        floor: the y axis goes no further down.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    digits: int = 1
    levels: Sequence[Level] = ()
    floor: float | None = None
    log: bool = False
    points: bool = True
    notes: Sequence[str] = ()
    kind: str = field(default="curves", init=False)

    @cached_property
    def x(self) -> Scale:
        values = [x for line in self.lines for x, _ in line.points]
        return logarithmic(values) if self.log else linear(values, wanted=5)

    @cached_property
    def y(self) -> Scale:
        values = [value for line in self.lines for _, each in line.points if each.is_finite for value in each.ends]
        found = linear([*values, *(level.value for level in self.levels)])
        if self.floor is None or found.low >= self.floor:
            return found
        return Scale(self.floor, found.high, wanted=found.wanted)

    @cached_property
    def all_notes(self) -> list[str]:
        each = [estimate for line in self.lines for _, estimate in line.points]
        bands = ["Bands: 95 % intervals."] if any(estimate.has_interval for estimate in each) else []
        below = [estimate for estimate in each if not self.y.holds(estimate.value)]
        cut = [f"Below the axis, and in the table: {len(below)} of {len(each)} points."] if below else []
        single = [NO_INTERVAL] if any(not estimate.has_interval for estimate in each) else []
        return [*self.notes, *bands, *cut, *single]

    @cached_property
    def table(self) -> Grid:
        """The figures by their place on the x axis; of long curves every so many-th."""
        places = sorted({x for line in self.lines for x, _ in line.points})
        every = max(1, -(-len(places) // MOST_ROWS))
        chosen = [x for index, x in enumerate(places) if index % every == 0 or index == len(places) - 1]
        by_line = [dict(line.points) for line in self.lines]
        rows = [[f"{x:g}", *(points[x].text(self.digits) if x in points else "" for points in by_line)] for x in chosen]
        some = [f"One of every {every} points is in the table; the file has all."] if every > 1 else []
        columns = [self.x_label, *(line.name for line in self.lines)]
        return Grid(f"{self.title}: {self.y_label}", columns, rows, [*_of_table(self.all_notes), *some])


@dataclass(frozen=True)
class Point:
    """What something costs and how good it is; `cost_text` is the cost as one reads it."""

    name: str
    cost: float
    cost_text: str
    estimate: Estimate


LABEL_WIDTH, LABEL_HEIGHT = 6.0, 8.0
"""What one number takes of a narrow drawing, in percent."""


@dataclass(frozen=True)
class Label:
    """Numbers of points, and where they stand; `anchor` is the end of the text that is there."""

    x: float
    y: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Costs:
    """Cost on the x axis against quality on the y axis: numbered points, and a list that names them."""

    title: str
    x_label: str
    y_label: str
    items: Sequence[Point]
    digits: int = 1
    log: bool = False
    notes: Sequence[str] = ()
    kind: str = field(default="costs", init=False)

    @cached_property
    def x(self) -> Scale:
        costs = [item.cost for item in self.items]
        return logarithmic(costs) if self.log else linear(costs, include=[0.0] if 0.0 in costs else [])

    @cached_property
    def y(self) -> Scale:
        return linear(without_far([item.estimate.ends for item in self.items]))

    @cached_property
    def labels(self) -> list["Label"]:
        """Where the numbers stand: a number that would be written over others joins them."""
        shared: list[tuple[float, list[float], list[int]]] = []
        placed = [
            (self.x.at(item.cost), self.y.at(item.estimate.value), number) for number, item in enumerate(self.items, 1)
        ]
        for x, y, number in sorted(placed):
            for up, across, numbers in shared:
                if abs(up - y) < LABEL_HEIGHT and x - across[0] < LABEL_WIDTH * (len(numbers) + 1):
                    across.append(x)
                    numbers.append(number)
                    break
            else:
                shared.append((y, [x], [number]))
        labels = []
        for up, across, numbers in shared:
            fits = across[0] + LABEL_WIDTH * len(numbers) < 100
            text = " ".join(map(str, sorted(numbers)))
            labels.append(Label(across[0] if fits else across[-1], up, text, "start" if fits else "end"))
        return labels

    @cached_property
    def all_notes(self) -> list[str]:
        single = [NO_INTERVAL] if any(not item.estimate.has_interval for item in self.items) else []
        return [*self.notes, *([FAR_AWAY] if any(map(self.is_far, self.items)) else []), *single]

    def is_far(self, item: Point) -> bool:
        """Whether a point is beyond the y axis."""
        return not self.y.holds(item.estimate.value)

    @cached_property
    def table(self) -> Grid:
        """The points by name."""
        rows = [[item.name, item.cost_text, item.estimate.text(self.digits)] for item in self.items]
        return Grid(self.title, ["", self.x_label, self.y_label], rows, _of_table(self.all_notes))


Chart = Rows | Curves | Costs
Block = Chart | Grid


@dataclass(frozen=True)
class Section:
    """What is shown of one result.

    Args:
        headline: what it found, in a sentence; with its interval, or with no figure.
        caveat: what holds for all of its figures.
        more: tables that only some readers want; they are folded up.
    """

    title: str
    blocks: Sequence[Block]
    headline: str = ""
    caveat: str = ""
    more: Sequence[Grid] = ()

    def settle(self) -> None:
        """Compute every axis and table, so that a malformed result is found out here and not while it is drawn."""
        for block in (*self.blocks, *self.more):
            if isinstance(block, Grid):
                _check_cells(block)
                continue
            _check_cells(block.table)
            if isinstance(block, Rows):
                _ = block.scale.ticks, [block.tone(mark) for row in block.rows for mark in row.marks]
            else:
                _ = block.x.ticks, block.y.ticks


def _of_table(notes: Sequence[str]) -> list[str]:
    """The notes of a chart that hold for its figures, where nothing is drawn."""
    said = [note for note in notes if note not in (TICKS, DIAMONDS, FAR_AWAY)]
    return [re.sub("(Whiskers|Bands):", "Brackets:", note) for note in said]


def _check_cells(grid: Grid) -> None:
    for row in grid.rows:
        if len(row) != len(grid.columns) or not all(
            isinstance(cell, str) for cell in (grid.title, *grid.columns, *row)
        ):
            raise TypeError(f"a row of the table '{grid.title}' has other cells than texts, or too few")
