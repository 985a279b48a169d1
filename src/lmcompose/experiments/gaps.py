"""The figures: losses per token, their differences, the gap closed, each with its interval. Numbers in, numbers out.

Two things could have come out otherwise, and each has an interval of its own: which documents were held out (a
bootstrap, in which one document is drawn with all that all models and all seeds say about it), and how the models were
initialised and their data ordered (Student's interval over the seeds, since three are too few for a bootstrap).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lmcompose.errors import DataError
from lmcompose.evaluation.statistics import Interval, paired_t_interval

RESAMPLES = 5_000

Array = np.ndarray


class Documents:
    """Held-out documents, drawn again and again.

    Args:
        tokens: [documents], how long each is.
        resamples, seed: of the bootstrap.

    Raises:
        DataError: fewer than two documents.
    """

    def __init__(self, tokens: Sequence[float], resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.tokens = np.asarray(tokens, dtype=float)
        count = len(self.tokens)
        if count < 2:
            raise DataError(f"{count} held-out document(s) give no interval: hold out more stories.")
        draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
        # The first row is the documents as they are; the others are how often each is drawn.
        self._weights = np.concatenate([np.ones((1, count)), draws.astype(float)])

    def per_token(self, sums: Sequence[float] | Array) -> Array:
        """Sums by document [..., documents] as means per token [..., 1 + resamples]; the first is the real one.

        All tokens of the documents weigh the same, so that a long document counts for more than a short one.
        """
        return np.asarray(sums, dtype=float) @ self._weights.T / (self._weights @ self.tokens)


def gap_closed(base: Array, proxy: Array, tuned: Array) -> Array:
    """The share of the way from the base's loss to the tuned base's that the composition goes: 0 the base, 1 the tuned.

    (proxy - base) / (tuned - base), the figure that proxy-tuning reports (arXiv 2401.08565, section 3) for accuracies.
    """
    return (proxy - base) / (tuned - base)


def interval(values: Array, confidence: float = 0.95) -> list[float]:
    """Estimate, low and high of `values` [1 + resamples]: the first value, and the percentiles of the others."""
    low, high = np.quantile(values[1:], [(1 - confidence) / 2, (1 + confidence) / 2])
    return [float(values[0]), float(low), float(high)]


def figure(by_seed: Array) -> dict[str, Any]:
    """One figure of `by_seed` [seeds, 1 + resamples]: the mean over the seeds with both intervals, and each seed's own.

    Returns:
        `mean`; `documents` and `seeds`, low and high of its two intervals; and `by_seed`, lists [estimate, low, high]
        over the documents. One seed alone has no interval over seeds.
    """
    estimate, low, high = interval(by_seed.mean(axis=0))
    points = by_seed[:, 0].tolist()
    seeds: Interval | None = paired_t_interval(points, [0.0] * len(points)) if len(points) > 1 else None
    return {
        "mean": estimate,
        "documents": [low, high],
        "seeds": None if seeds is None else [seeds.low, seeds.high],
        "by_seed": [interval(values) for values in by_seed],
    }


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
