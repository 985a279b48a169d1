"""How a score changes with a parameter of the formula, such as alpha, and with the temperature of the composition.

A sweep is a dict that JSON can hold; `reporting.plots.sweep_figure` draws it, several of them in one figure.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lmcompose.card import run_record
from lmcompose.errors import ConfigurationError, DataError, nearest
from lmcompose.evaluation.positions import Text, score_text, split
from lmcompose.evaluation.scoring import finite, log_probabilities, standing
from lmcompose.evaluation.statistics import BETTER, ratio_bootstrap
from lmcompose.evaluation.trace import describe
from lmcompose.logits.arithmetic import check_temperature
from lmcompose.logits.model import LogitForCausalLM

Score = Callable[[LogitForCausalLM, float], float | Sequence[float]]
"""Called with the composition, whose parameter has the value to try, and with a temperature; returns one score for each
item, in the same order every time, or one score in all (which gives no interval)."""

RESAMPLES = 2_000


def sweep(
    model: LogitForCausalLM,
    values: Sequence[float],
    temperatures: Sequence[float],
    score: Score,
    *,
    parameter: str = "alpha",
    better: str = "higher",
    name: str = "score",
    task: str | None = None,
    seed: int = 0,
    command: str | None = None,
) -> dict[str, Any]:
    """Score a composition at every value of a parameter and every temperature.

    Args:
        model: a logit composition; its own value of the parameter is there again afterwards.
        values: of the parameter.
        temperatures: handed on to `score`, which divides the composition's logits by it (`generate(temperature=...)`).
        score: see `Score`.
        parameter: of the formula.
        better: "higher" or "lower" scores.
        name: of the score, with its unit, for the figure.
        task: what was scored, to tell several sweeps apart.
        seed: of the intervals.
        command: what to record as the command.

    Returns:
        A dict of plain values with the run record. `results` has a row for each setting: the parameter's `value`, the
        `temperature`, the `mean` of the scores, its 95 % `interval` (a bootstrap over the items; None with fewer than
        two), the number of `items`, and `minus_best`, the mean difference from the best row with its interval over the
        same items. `best` has the value and temperature of the best mean; a row whose `minus_best` holds 0 may be as
        good.

    Raises:
        ConfigurationError: no values, a parameter that the formula does not have, a temperature that cannot be.
        DataError: the scores are of different items, or there are none.
    """
    _check(model, values, temperatures, parameter, better)
    scores = []
    for value in values:
        with _set(model, parameter, value):
            scores += [np.atleast_1d(np.asarray(score(model, t), dtype=float)) for t in temperatures]
    if len({row.shape for row in scores}) > 1 or scores[0].size == 0:
        raise DataError(
            f"The score function gave {sorted({row.size for row in scores})} scores at different settings. It is to "
            "give one for each item, of the same items every time."
        )
    settings = [(value, temperature) for value in values for temperature in temperatures]
    return {
        **_header(model, parameter, better, name, task, seed, command),
        **_rows(settings, scores, np.ones(scores[0].size), better, seed),
    }


def sweep_loss(
    model: LogitForCausalLM,
    values: Sequence[float],
    temperatures: Sequence[float] = (1.0,),
    *,
    texts: Sequence[Text],
    parameter: str = "alpha",
    task: str | None = None,
    max_length: int | None = None,
    seed: int = 0,
    command: str | None = None,
) -> dict[str, Any]:
    """`sweep` of the loss on texts, in nats per token: the members run once for each text, whatever is tried.

    Args:
        texts: texts, (prompt, completion) pairs or ids, as in `compare`.
        max_length: only so many first tokens of each text.

    Returns, raises: see `sweep`; `items` counts texts, and means and intervals are over their tokens.
    """
    _check(model, values, temperatures, parameter, "lower")
    settings = [(value, temperature) for value in values for temperature in temperatures]
    losses: list[list[float]] = [[] for _ in settings]
    tokens: list[int] = []
    for text in texts:
        before, ids = split(model, text, max_length)
        if not ids:
            continue
        tokens.append(len(ids))
        scores = score_text(model, None, before + ids, len(ids), None, None)
        true = torch.tensor(ids, device=scores.composition.device)
        members = {role: member[None] for role, member in scores.members.items()}
        for index, value in enumerate(values):
            with torch.no_grad():
                logits = model.composed_logits(members, model.values(parameters={parameter: value}))[0]
            for other, temperature in enumerate(temperatures):
                chosen = standing(log_probabilities(logits / temperature), true)[0]
                losses[index * len(temperatures) + other].append(-float(chosen.double().sum()))
    if not tokens:
        raise DataError(f"Of {len(texts)} texts, none has a token to score. Give texts of two tokens at least.")
    return {
        **_header(model, parameter, "lower", "loss, nats per token", task, seed, command),
        **_rows(settings, [np.asarray(row) for row in losses], np.asarray(tokens, dtype=float), "lower", seed),
    }


def _check(
    model: LogitForCausalLM, values: Sequence[float], temperatures: Sequence[float], parameter: str, better: str
) -> None:
    if not isinstance(model, LogitForCausalLM):
        raise ConfigurationError("Only a logit composition has parameters to sweep: lmcompose.combine, proxy_tune.")
    if better not in BETTER:
        raise ConfigurationError(f"better = {better!r} is none of {', '.join(BETTER)}.{nearest(str(better), BETTER)}")
    if len(values) == 0 or len(temperatures) == 0:
        raise ConfigurationError("There is nothing to sweep: give one value and one temperature at least.")
    for value in values:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigurationError(f"{value!r} is no number: a sweep tries one number at a time.")
        model.values(parameters={parameter: value})
    for temperature in temperatures:
        check_temperature(temperature)


@contextmanager
def _set(model: LogitForCausalLM, parameter: str, value: float) -> Iterator[None]:
    """Within the block, `value` is what the parameter is when a call says nothing."""
    before = model.config.parameters
    model.config.parameters = {**(before or {}), parameter: value}
    try:
        yield
    finally:
        model.config.parameters = before


def _header(
    model: LogitForCausalLM,
    parameter: str,
    better: str,
    name: str,
    task: str | None,
    seed: int,
    command: str | None,
) -> dict[str, Any]:
    return {
        "what": "sweep",
        **run_record(None, seed, command),
        "model": describe(model),
        "parameter": parameter,
        "score": name,
        "better": better,
        "task": task,
    }


def _rows(
    settings: Sequence[tuple[float, float]],
    scores: Sequence[np.ndarray],
    weights: np.ndarray,
    better: str,
    seed: int,
) -> dict[str, Any]:
    """The rows, from the sum of each item's scores at each setting and the items' weights."""
    means = [float(row.sum() / weights.sum()) for row in scores]
    known = [index for index, mean in enumerate(means) if np.isfinite(mean)]
    if not known:
        raise DataError("No score is a finite number. Look at what the score function returns.")
    best = (max if better == "higher" else min)(known, key=means.__getitem__)
    rows = []
    for index, (value, temperature) in enumerate(settings):
        rows.append(
            {
                "value": value,
                "temperature": temperature,
                "mean": finite(means[index]),
                "interval": _interval(scores[index], weights, seed),
                "items": len(weights),
                "minus_best": _difference(scores[index], scores[best], weights, seed),
            }
        )
    value, temperature = settings[best]
    return {"results": rows, "best": {"value": value, "temperature": temperature, "mean": means[best]}}


def _interval(sums: np.ndarray, weights: np.ndarray, seed: int) -> list[float] | None:
    if len(sums) < 2 or not np.isfinite(sums).all():
        return None
    return list(ratio_bootstrap(sums, weights, resamples=RESAMPLES, seed=seed)[1:])


def _difference(sums: np.ndarray, best: np.ndarray, weights: np.ndarray, seed: int) -> dict[str, Any]:
    """The mean difference from the best setting, and the interval of it over the same items."""
    with np.errstate(invalid="ignore"):  # two infinite losses have no difference
        difference = sums - best
    return {
        "mean": finite(float(difference.sum() / weights.sum())),
        "interval": _interval(difference, weights, seed),
    }
