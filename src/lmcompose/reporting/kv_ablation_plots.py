"""The ablations of the key-value composition as a figure: the ladder, and a curve for each sweep."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lmcompose.reporting.paper import KV_TASKS
from lmcompose.reporting.plots import CYCLE, GREY, panels

Result = dict[str, Any]


def ablations_figure(result: Result, path: str | Path) -> Path:
    """Exact match of every arm with its Wilson intervals, the composition's KV-MATH as a line through all panels."""
    curves = list(result["curves"])
    height = max(3.6, 1.2 + 0.36 * len(result["ladder"]))
    with panels(path, (4.6 + 2.9 * len(curves), height), 1 + len(curves)) as (ladder, *others):
        _ladder(result, ladder)
        for axes, name in zip(others, curves, strict=True):
            _curve(result, name, axes)
    return Path(path)


def _cells(result: Result, arms: list[str], task: str) -> tuple[list[float], list[list[float]]]:
    """Accuracies in percent, and how far their intervals reach below and above."""
    cells = [result["results"][arm][task] for arm in arms]
    heights = [100 * cell["accuracy"] for cell in cells]
    ends = [[100 * end for end in cell["interval"]] for cell in cells]
    below = [max(0.0, height - low) for height, (low, _) in zip(heights, ends, strict=True)]
    above = [max(0.0, high - height) for height, (_, high) in zip(heights, ends, strict=True)]
    return heights, [below, above]


def _ladder(result: Result, axes: Axes) -> None:
    arms = result["ladder"]
    for index, (task, title) in enumerate(KV_TASKS.items()):
        heights, spread = _cells(result, arms, task)
        places = [place + 0.22 * (index - 1) for place in range(len(arms))]
        axes.errorbar(heights, places, xerr=spread, fmt="o", ms=4, lw=1, color=CYCLE[index], label=title)
    axes.axvline(100 * result["results"]["composition"]["kv_math"]["accuracy"], color=GREY, lw=0.8, ls=(0, (4, 3)))
    axes.set_xlim(-4, 104)
    axes.set_xlabel("exact match, %")
    axes.set_title("The ladder")
    axes.set_yticks(range(len(arms)), [_set(result["titles"][arm]) for arm in arms])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=3, columnspacing=1.0, handletextpad=0.3)


def _curve(result: Result, name: str, axes: Axes) -> None:
    """The values stand at even distances, as each is about twice the one before."""
    curve = result["curves"][name]
    values, arms = (list(each) for each in zip(*curve["points"], strict=True))
    for index, task in enumerate(KV_TASKS):
        heights, (below, above) = _cells(result, arms, task)
        places = range(len(arms))
        axes.plot(places, heights, color=CYCLE[index], lw=1.6, marker="o", ms=4)
        lows = [height - low for height, low in zip(heights, below, strict=True)]
        highs = [height + high for height, high in zip(heights, above, strict=True)]
        axes.fill_between(places, lows, highs, color=CYCLE[index], alpha=0.2, lw=0)
    axes.axvline(arms.index("composition"), color=GREY, lw=0.8, ls=(0, (4, 3)))
    axes.set_xticks(range(len(arms)), list(map(str, values)))
    axes.set_ylim(-4, 104)
    axes.set_xlabel(_set(curve["title"]))
    axes.set_title(f"Sweep of {name}")
    axes.grid(axis="y")


def _set(title: str) -> str:
    """A title with the indices of m_A, m_B and N_H set as such."""
    for name in ("m_A", "m_B", "N_H"):
        title = title.replace(name, f"${name}$")
    return title
