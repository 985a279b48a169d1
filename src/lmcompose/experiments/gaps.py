"""The figures of proxy-tuning: losses per token, their differences, the gap closed, each with its two intervals.

Numbers in, numbers out; the intervals are those of `evaluation.statistics`, over the documents and over the seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lmcompose.evaluation.statistics import Documents, figure

Array = np.ndarray


def gap_closed(base: Array, proxy: Array, tuned: Array) -> Array:
    """The share of the way from the base's loss to the tuned base's that the composition goes: 0 the base, 1 the tuned.

    (proxy - base) / (tuned - base), the figure that proxy-tuning reports (arXiv 2401.08565, section 3) for accuracies.
    """
    return (proxy - base) / (tuned - base)


def figures(measured: Sequence[Mapping[str, Any]], seed: int = 0, unit: str = "tokens") -> dict[str, Any]:
    """The figures of one task from what `measure` gave for each seed.

    Args:
        unit: what the losses are divided by, a list by document in `measured`: "tokens" or "characters". Divergences
            and agreement are always per token.

    Returns:
        `models`: name -> `loss`, `minus_base` and `gap_closed`; `alpha` and `temperature`: model -> a list of the same
        with the `value` of each; `best`, the value of each sweep with the lowest loss; `kl` and `agreement`: pair ->
        figure.
    """
    documents = Documents(measured[0]["tokens"], seed=seed)
    units = documents if unit == "tokens" else Documents(measured[0][unit], seed=seed)

    def losses(kind: str, name: str) -> Array:
        return np.stack([units.per_token(part[kind][name]) for part in measured])

    def per_token(kind: str, name: str) -> Array:
        return np.stack([documents.per_token(part[kind][name]) for part in measured])

    base, tuned = losses("nats", "base"), losses("nats", "tuned")

    def compared(loss: Array) -> dict[str, Any]:
        return {
            "loss": figure(loss),
            "minus_base": figure(loss - base),
            "gap_closed": figure(gap_closed(base, loss, tuned)),
        }

    sweeps: dict[str, dict[str, list[Any]]] = {"alpha": {}, "temperature": {}}
    for kind, sweep in sweeps.items():
        for name in measured[0][kind]:
            model, _, value = name.partition("@")
            sweep.setdefault(model, []).append({"value": float(value), **compared(losses(kind, name))})
    return {
        "documents": len(documents.tokens),
        "tokens": int(documents.tokens.sum()),
        **({} if unit == "tokens" else {unit: int(units.tokens.sum())}),
        "models": {name: compared(losses("nats", name)) for name in measured[0]["nats"]},
        **sweeps,
        "best": {kind: {model: best(rows) for model, rows in sweep.items()} for kind, sweep in sweeps.items()},
        **{kind: _each(measured, kind, per_token) for kind in ("kl", "agreement")},
    }


def _each(measured: Sequence[Mapping[str, Any]], kind: str, losses: Callable[[str, str], Array]) -> dict[str, Any]:
    return {name: figure(losses(kind, name)) for name in measured[0][kind]}


def best(sweep: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The value of a sweep with the lowest mean loss, and the best value of each seed."""
    losses = np.array([[estimate for estimate, *_ in row["loss"]["by_seed"]] for row in sweep])
    values = [row["value"] for row in sweep]
    return {
        "value": values[int(losses.mean(axis=1).argmin())],
        "by_seed": [values[at] for at in losses.argmin(axis=0).tolist()],
    }


def plain_losses(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The loss of each model on plain stories, from what `measure.sums_on` gave for each seed."""
    documents = Documents(measured[0]["tokens"])
    names = measured[0]["nats"]
    return {name: figure(np.stack([documents.per_token(part["nats"][name]) for part in measured])) for name in names}
