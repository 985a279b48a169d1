"""Result dicts as figures (PNG). Draws on matplotlib's Agg canvas directly, so no display and no global state."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def curve_figure(
    points: Sequence[Mapping[str, float]],
    path: str | Path,
    *,
    series: Mapping[str, str] | None = None,
    x: str = "step",
    title: str = "Training",
    y_label: str = "loss",
) -> Path:
    """Curves over training steps, such as a Trainer's log history.

    points: dicts that hold `x` and any of the keys of `series` (key -> label; by default "loss" and "eval_loss");
    a point without a key is skipped in that curve. Raises DataError when nothing can be drawn.
    """
    series = series or {"loss": "training", "eval_loss": "held-out"}
    curves = {
        label: [(point[x], point[key]) for point in points if x in point and point.get(key) is not None]
        for key, label in series.items()
    }
    if not any(curves.values()):
        raise DataError(f"No point has both '{x}' and one of {', '.join(series)}: there is no curve to draw.")
    with _figure(path, (6.4, 3.6)) as axes:
        for (label, curve), colour in zip(curves.items(), CYCLE * len(curves), strict=False):
            if curve:
                marker = "o" if len(curve) <= 30 else None
                axes.plot(*zip(*curve, strict=True), color=colour, lw=1.6, marker=marker, ms=3.5, label=label)
        axes.set_xlabel(x.replace("_", " "))
        axes.set_ylabel(y_label)
        axes.grid()
        axes.set_title(title)
        axes.legend()
    return Path(path)


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


@contextmanager
def _figure(path: str | Path, size: tuple[float, float]) -> Iterator[Axes]:
    """One set of axes in the house style; what was drawn is written to `path` when the block ends."""
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.add_subplot()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
