"""The proxy-tuning experiment as a figure: the gap closed at every alpha and at every temperature."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lmcompose.reporting.plots import CYCLE, GREY, INK, panels

Result = dict[str, Any]


def proxy_figure(result: Result, path: str | Path) -> Path:
    """Two panels: the gap closed over alpha, with the expert alone beside it, and over the temperature."""
    with panels(path, (8.4, 3.9), 2) as (left, right):
        for task, colour in zip(result["tasks"].values(), CYCLE, strict=False):
            _curve(left, task["alpha"]["proxy"], colour, label=task["title"])
            _curve(left, task["alpha"]["expert_only"], colour, label=None, style=(0, (4, 2)))
            expert = 100 * task["models"]["expert"]["gap_closed"]["mean"]
            left.axhline(expert, color=colour, lw=1, ls=":")
            _curve(right, task["temperature"]["proxy"], colour, label=task["title"])
            _curve(right, task["temperature"]["tuned"], colour, label=None, style=(0, (4, 2)))
        left.plot([], [], color=GREY, ls=(0, (4, 2)), label="base + alpha * expert")
        left.plot([], [], color=GREY, ls=":", lw=1, label="the expert alone")
        right.plot([], [], color=GREY, ls=(0, (4, 2)), label="directly tuned base")
        for axes, name in ((left, "alpha"), (right, "temperature")):
            axes.axhline(100, color=INK, lw=1)
            axes.axhline(0, color=GREY, lw=1)
            axes.set_xlabel(name)
            axes.set_ylim(max(-80, min(-10, axes.get_ylim()[0])), 112)
            axes.grid()
            axes.set_title(f"Gap closed over {name}")
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=8.5)
        left.set_ylabel("gap closed, %")
    return Path(path)


def _curve(axes: Axes, rows: list[Result], colour: str, label: str | None, style: Any = "-") -> None:
    """A curve with its band of intervals over the documents; its best value is a diamond."""
    values = [row["value"] for row in rows]
    means = [100 * row["gap_closed"]["mean"] for row in rows]
    lows, highs = zip(*(row["gap_closed"]["documents"] for row in rows), strict=True)
    axes.plot(values, means, color=colour, lw=1.6, ls=style, label=label)
    axes.fill_between(
        values, [100 * low for low in lows], [100 * high for high in highs], color=colour, alpha=0.18, lw=0
    )
    best = max(range(len(means)), key=means.__getitem__)
    axes.scatter(values[best], means[best], marker="D", s=30, color="white", edgecolor=colour, zorder=5)
