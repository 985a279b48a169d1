"""Training runs as sections: what was learned, for what it cost, and the loss on the way."""

from pathlib import PurePath
from typing import Any

from lmcompose.reporting.report.charts import Block, Curves, Line, Section
from lmcompose.reporting.report.estimates import Estimate
from lmcompose.reporting.tables import Grid, count, duration

Result = dict[str, Any]

ONE_RUN = "One run: its losses have no interval, and say nothing of other seeds."


def training(result: Result) -> Section:
    """What `lmcompose train` wrote as result.json."""
    results = result["results"]
    before, after = results["validation_loss_untrained"], results["validation_loss"]
    rows = [
        ["steps", f"{results['steps']:,}"],
        ["epochs", f"{results['epochs']:.2f}"],
        ["trained parameters", count(results["trained_parameters"])],
        ["time", duration(results["seconds"])],
        ["training loss, last", _loss(results["train_loss_last"])],
        ["validation loss before", _loss(before)],
        ["validation loss after", _loss(after)],
    ]
    notes = ["Losses: nats per learned token."]
    if results.get("stopped_early"):
        notes.append(f"Stopped early; the parameters are those of step {results.get('best_step')}.")
    data = [
        [PurePath(str(s["source"])).name, s["kind"], f"{s['train_examples']:,}", f"{s['learned_tokens']:,}"]
        for s in results.get("data") or []
    ]
    blocks: list[Block] = [
        Grid("The run", ["", "figure"], [row for row in rows if row[1]], notes),
        Grid("The data", ["source", "kind", "examples to train on", "tokens learned"], data),
    ]
    output = PurePath(str((result.get("recipe") or {}).get("output") or "")).name
    change = f"Validation loss {_loss(before)} to {_loss(after)} nats per token" if after is not None else "Trained"
    return Section(
        f"Training run {output}".strip(),
        [block for block in blocks if not isinstance(block, Grid) or block.rows],
        headline=f"{change}, {duration(results['seconds'])}, {count(results['trained_parameters'])} parameters "
        "(one run, no interval).",
        caveat=ONE_RUN,
    )


def loss_curve(result: Result) -> Section:
    """What `lmcompose train` wrote as loss_curve.json."""
    names = [name for name in ("train", "validation") if result[name]]
    lines = [
        Line(
            {"train": "training"}.get(name, name),
            [(float(point["step"]), Estimate(float(point["loss"]))) for point in result[name]],
            colour=1 - index,
        )
        for index, name in enumerate(names)
    ]
    if not lines:
        raise ValueError("it has no point")
    few = all(len(line.points) <= 60 for line in lines)
    curve = Curves("Loss by step", "optimizer step", f"loss, {result['unit']}", lines, digits=4, points=few)
    return Section("Loss curve", [curve])


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
