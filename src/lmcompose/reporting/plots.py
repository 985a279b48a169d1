"""Result dicts as figures (PNG). Draws on matplotlib's Agg canvas directly, so no display and no global state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lmcompose.errors import DataError
from lmcompose.reporting.paper import KV_MODELS, KV_TABLE_1, KV_TASKS

Result = dict[str, Any]

# Okabe and Ito's palette: told apart with any colour vision, and in grey.
INK, GREY = "#222222", "#8a8a8a"
COLOURS = {
    "augmenting": "#56B4E9",
    "anchor": "#E69F00",
    "composition": "#009E73",
    "composition_mlp": "#0072B2",
    "random_augmenting": "#BBBBBB",
}
CYCLE = ("#009E73", "#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00")

_STYLE = {
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "savefig.dpi": 160,
}


def kv_figure(result: Result, path: str | Path) -> Path:
    """Table 1 as grouped bars with Wilson intervals; the paper's figures are the diamonds."""
    results = result["results"]
    names = [name for name in KV_MODELS if name in results]
    width = 0.84 / max(1, len(names))
    diamonds: list[tuple[float, float]] = []
    with _figure(path, (7.6, 4.0)) as axes:
        for index, name in enumerate(names):
            for group, task in enumerate(KV_TASKS):
                place = group + (index - (len(names) - 1) / 2) * width
                published = KV_TABLE_1.get(name, {}).get(task)
                if published is not None:
                    diamonds.append((place, published))
                if task in results[name]:
                    _bar(axes, place, width * 0.9, results[name][task], COLOURS.get(name, GREY), avoid=published)
            axes.bar([0], [0], color=COLOURS.get(name, GREY), label=_label(name))
        if diamonds:
            places, heights = zip(*diamonds, strict=True)
            axes.scatter(
                places,
                heights,
                marker="D",
                s=24,
                color="white",
                edgecolor=INK,
                zorder=5,
                clip_on=False,
                label="the paper's",
            )
        axes.set_xticks(range(len(KV_TASKS)), list(KV_TASKS.values()))
        axes.tick_params(axis="x", length=0, pad=7)
        axes.set_ylim(0, 109)
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel("exact match, %")
        axes.grid(axis="y")
        axes.set_title(f"Key-value arithmetic, {result.get('profile', 'one')} profile")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=5 if len(names) < 5 else 3)
    return Path(path)


def _label(name: str) -> str:
    """The name of a model as a legend has it, m_A with its index set as one."""
    return KV_MODELS[name].strip().replace("m_A", "$m_A$").replace("m_B", "$m_B$")


def _bar(axes: Axes, place: float, width: float, cell: Result, colour: str, avoid: float | None) -> None:
    """One bar with its interval and its figure, which is put above the diamond at `avoid` where the two would meet."""
    height = 100 * cell["correct"] / cell["total"]
    top = height
    axes.bar([place], [height], width, color=colour)
    if "interval" in cell:
        low, high = (100 * end for end in cell["interval"])
        axes.errorbar(place, height, [[max(0, height - low)], [max(0, high - height)]], color=INK, capsize=2.5, lw=1)
        top = max(top, high)
    if avoid is not None and top - 3 < avoid < top + 7:
        top = max(top, avoid + 2)
    axes.annotate(f"{height:.1f}", (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=8)


def benchmark_figure(result: Result, path: str | Path, aim: float = 1.10) -> Path:
    """The decode benchmark: the composition's time per token over the sum of its members', against the aim."""
    rows = result["results"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    shapes = list(dict.fromkeys((row["prompt"], row["batch"]) for row in rows))
    width = 0.8 / len(dtypes)
    with _figure(path, (6.4, 3.6)) as axes:
        for index, dtype in enumerate(dtypes):
            own = [row for row in rows if row["dtype"] == dtype]
            places = [
                shapes.index((row["prompt"], row["batch"])) + (index - (len(dtypes) - 1) / 2) * width for row in own
            ]
            bars = axes.bar(
                places, [row["ratio"] for row in own], width * 0.92, color=CYCLE[index % len(CYCLE)], label=dtype
            )
            axes.bar_label(bars, fmt="%.2f", fontsize=8.5, label_type="center", color="white", fontweight="bold")
        axes.axhline(1, color=GREY, lw=1)
        axes.axhline(aim, color=INK, lw=1, ls=(0, (4, 3)), label=f"aim {aim:.2f}")
        axes.set_xticks(range(len(shapes)), [f"prompt {prompt}\nbatch {batch}" for prompt, batch in shapes])
        axes.tick_params(axis="x", length=0)
        axes.set_ylim(0, max(1.3, 1.15 * max(row["ratio"] for row in rows)))
        axes.set_ylabel("composition / sum of members")
        axes.set_title("Decoding: time per token")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(dtypes) + 1)
    return Path(path)


def sweep_figure(results: Result | Sequence[Result], path: str | Path) -> Path:
    """One or several sweeps of one parameter: a curve with its band of 95 % intervals for each task and temperature.

    Where the parameter has one value only, the temperature is on the x axis.

    Raises DataError when there is nothing to draw, or when the sweeps have no axis in common.
    """
    results = [results] if isinstance(results, dict) else list(results)
    curves = [curve for result in results for curve in _sweep_curves(result)]
    if not curves:
        raise DataError("No sweep has a finite score: there is nothing to draw.")
    axis = curves[0].axis
    if len({(result["parameter"], result["score"]) for result in results}) > 1 or {curve.axis for curve in curves} != {
        axis
    }:
        raise DataError(
            "These sweeps are not of one parameter and one score, so one figure cannot hold them: draw several."
        )
    with _figure(path, (6.4, 3.6)) as axes:
        for index, curve in enumerate(curves):
            colour = CYCLE[index % len(CYCLE)]
            xs, means = [row[curve.axis] for row in curve.rows], [row["mean"] for row in curve.rows]
            axes.plot(xs, means, color=colour, lw=1.6, marker="o", ms=3.5, label=curve.label)
            lows, highs = zip(*(row["interval"] or (row["mean"], row["mean"]) for row in curve.rows), strict=True)
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.18, lw=0)
            best = (max if curve.better == "higher" else min)(range(len(means)), key=means.__getitem__)
            axes.scatter(xs[best], means[best], marker="D", s=34, color="white", edgecolor=colour, zorder=5)
        axes.set_xlabel(results[0]["parameter"] if axis == "value" else "temperature")
        axes.set_ylabel(results[0]["score"])
        axes.grid()
        axes.set_title(f"Sweep of {axes.get_xlabel()}")
        axes.scatter([], [], marker="D", s=34, color="white", edgecolor=GREY, label="the best of its curve")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return Path(path)


class _Curve(NamedTuple):
    """The rows of a sweep that make one curve, and which of their keys is on the x axis."""

    label: str
    axis: str
    better: str
    rows: list[Result]


def _sweep_curves(result: Result) -> list[_Curve]:
    rows = [row for row in result["results"] if row["mean"] is not None]
    axis, other = ("value", "temperature") if len({row["value"] for row in rows}) > 1 else ("temperature", "value")
    curves = []
    for fixed in dict.fromkeys(row[other] for row in rows):
        own = sorted((row for row in rows if row[other] == fixed), key=lambda row: row[axis])
        name = "temperature" if other == "temperature" else result["parameter"]
        label = ", ".join([*([result["task"]] if result.get("task") else []), f"{name} {fixed:g}"])
        curves.append(_Curve(label, axis, result["better"], own))
    return curves


@contextmanager
def _figure(path: str | Path, size: tuple[float, float]) -> Iterator[Axes]:
    """One set of axes in the house style; what was drawn is written to `path` when the block ends."""
    with panels(path, size, 1) as (axes,):
        yield axes


@contextmanager
def panels(path: str | Path, size: tuple[float, float], count: int) -> Iterator[list[Axes]]:
    """Several sets of axes side by side in the house style, written to `path` when the block ends."""
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield [figure.add_subplot(1, count, place + 1) for place in range(count)]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
