"""The loss curve of a run, as JSON and as a picture. Reads a trainer's log; knows nothing of models or data."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lmcompose.folders import write_json_atomic

Curve = dict[str, list[dict[str, float]]]

_TRAIN_FIELDS = {"step": "step", "loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm"}
_EVAL_FIELDS = {"step": "step", "eval_loss": "loss"}


def loss_curve(log_history: Iterable[Mapping[str, Any]]) -> Curve:
    """The points of training and of validation, each once and by step, out of a trainer's `state.log_history`.

    A training point is the mean loss of the steps since the point before; a validation point is the mean loss over
    all learned tokens of the validation data, in nats per token.
    """
    train: dict[int, dict[str, float]] = {}
    validation: dict[int, dict[str, float]] = {}
    for entry in log_history:
        if "loss" in entry:
            train[entry["step"]] = _chosen(entry, _TRAIN_FIELDS)
        if "eval_loss" in entry:
            # The first, since after the run the parameters in place may be those of an earlier step.
            validation.setdefault(entry["step"], _chosen(entry, _EVAL_FIELDS))
    return {
        "train": [train[step] for step in sorted(train)],
        "validation": [validation[step] for step in sorted(validation)],
    }


def _chosen(entry: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, float]:
    return {name: entry[key] for key, name in fields.items() if key in entry}


def write_curve(curve: Curve, folder: Path, title: str) -> tuple[Path, Path]:
    """Write `loss_curve.json` and `loss_curve.png` into `folder`; returns both paths."""
    data, picture = folder / "loss_curve.json", folder / "loss_curve.png"
    write_json_atomic(data, {"unit": "nats per learned token", **curve})
    _draw(curve, picture, title)
    return data, picture


def _draw(curve: Curve, picture: Path, title: str) -> None:
    # matplotlib takes half a second to import, and its Figure needs no display and no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, label, style in (("train", "training", "-"), ("validation", "validation", "o-")):
        points = curve[name]
        if points:
            style = "." if len(points) == 1 else style
            axes.plot([p["step"] for p in points], [p["loss"] for p in points], style, label=label, lw=1.4, ms=4)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per learned token)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    if curve["train"] or curve["validation"]:
        axes.legend(frameon=False)
    partial = picture.with_name(f".{picture.name}.part")
    figure.savefig(partial, dpi=150, format="png")
    partial.replace(picture)
