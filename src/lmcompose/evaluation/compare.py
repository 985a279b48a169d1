"""A composition beside a directly tuned model on the same texts: do their predictions look alike, and who is right?

Every text is scored by all models at once, position by position, each with the true tokens before it. This file knows
no method of composition.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmcompose.card import run_record
from lmcompose.composed import ComposedModel
from lmcompose.errors import DataError
from lmcompose.evaluation.positions import (
    COMPOSITION,
    MEMBER,
    TUNED,
    Cases,
    Row,
    Text,
    collect,
    nested,
    rows_of,
    score_text,
    split,
)
from lmcompose.evaluation.scoring import finite, leader_role, tuned_model
from lmcompose.evaluation.statistics import ratio_bootstrap, score
from lmcompose.evaluation.texts import CLASSES
from lmcompose.evaluation.trace import describe
from lmcompose.loading import Source

RESAMPLES = 2_000


def compare(
    model: ComposedModel,
    tuned: Source | None,
    texts: Sequence[Text],
    *,
    alpha: Any = None,
    parameters: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    examples: int = 10,
    context: int = 16,
    seed: int = 0,
    command: str | None = None,
) -> dict[str, Any]:
    """Score the same texts with a composition, its members and a directly tuned model.

    Args:
        model: any composition; the base is its leader. All members read the same texts.
        tuned: the directly tuned model, anything that can be a member; None to look at the members only.
        texts: see `Text`. Intervals resample texts, so give many short ones rather than one long one.
        alpha, parameters: of a logit composition's formula.
        max_length: only so many first tokens of each text.
        examples: how many cases of each kind to show.
        context: how many tokens before a case to show.
        seed: of the intervals.
        command: what to record as the command.

    Returns:
        A dict of plain values, with the run record beside them. A figure is a dict of its `mean` over the tokens, its
        95 % `interval` (a bootstrap over the texts; None with fewer than two) and the number of `tokens`.

        - `losses`: nats per token of the `members` by role, the `composition` and `tuned`;
        - `gap_closed`: (base - composition) / (base - tuned) of these losses; None where tuned is no better;
        - `pairs`: tuned and composition, tuned and base, composition and base, and base and every other member; each
          with `first` and `second` (a member is "members." and its role), `kl` = KL(first || second), `reverse_kl`,
          and `agreement` (how often the likeliest token is the same), over all tokens and by class in `classes`;
        - `classes`: the rule of each class, by the text of the true token;
        - `accuracy`: how often the likeliest token is the true one, with Wilson intervals;
        - `cases`: how often `both`, `base_only`, `composition_only` and `neither` of base and composition were right;
        - `examples`: of `base_only` and `composition_only`, those where the composition moved the true token farthest.

        A mean is None where it is infinite: one model rules out what the other does not. A member that lacks some of
        the leader's tokens is compared with it over those that both have.

    Raises:
        DataError: there is no text, or none with a token to score.
        ConfigurationError: no tokenizer, or parameters that are not there.
        MemberError: `tuned` cannot be read, or reads other tokens.
    """
    beside = tuned_model(tuned, model) if tuned is not None else None
    rows: list[Row] = []
    cases = {"base_only": Cases(examples), "composition_only": Cases(examples)}
    for number, text in enumerate(texts):
        before, ids = split(model, text, max_length)
        if not ids:
            continue
        scores = score_text(model, beside, before + ids, len(ids), alpha, parameters)
        for at, part in scores.log_probabilities():
            found = rows_of(part, number, before + ids, len(before) + at.start, model, beside)
            rows += found
            collect(cases, found, part, before + ids, len(before) + at.start, model, context)
    if not rows:
        raise DataError(f"Of {len(texts)} texts, none has a token to score. Give texts of two tokens at least.")
    base = MEMBER + leader_role(model)
    right = {name: score(sum(row.right[name] for row in rows), len(rows)) for name in rows[0].right}
    both = sum(row.right[base] and row.right[COMPOSITION] for row in rows)
    one = {name: found.total for name, found in cases.items()}
    return {
        "what": "comparison",
        **run_record({"max_length": max_length}, seed, command),
        "model": describe(model, {"alpha": alpha, "parameters": parameters}),
        "base": leader_role(model),
        "members": {role: model.config.references()[role].full_name for role in scores.members},
        "tuned": beside.name if beside else None,
        "texts": len({row.text for row in rows}),
        "tokens": len(rows),
        "losses": nested({name: _loss(rows, name, seed) for name in rows[0].losses}),
        "gap_closed": _gap_closed(rows, base, seed) if beside else None,
        "pairs": [_pair(rows, names, seed) for names in rows[0].pairs],
        "classes": dict(CLASSES),
        "accuracy": nested(right),
        "cases": {"both": both, **one, "neither": len(rows) - both - sum(one.values())},
        "examples": {name: found.examples() for name, found in cases.items()},
    }


def _loss(rows: list[Row], name: str, seed: int) -> dict[str, Any]:
    return _figure(rows, [row.losses[name] for row in rows], seed)


def _pair(rows: list[Row], names: tuple[str, str], seed: int) -> dict[str, Any]:
    kinds = {kind: [row for row in rows if row.kind == kind] for kind in CLASSES}
    return {
        "first": names[0],
        "second": names[1],
        **_pair_figures(rows, names, seed),
        "classes": {kind: _pair_figures(own, names, seed) for kind, own in kinds.items() if own},
    }


def _pair_figures(rows: list[Row], names: tuple[str, str], seed: int) -> dict[str, Any]:
    columns = ("kl", "reverse_kl", "agreement")
    return {column: _figure(rows, [row.pairs[names][at] for row in rows], seed) for at, column in enumerate(columns)}


def _figure(rows: list[Row], values: Sequence[float], seed: int) -> dict[str, Any]:
    """The mean over the tokens; its interval resamples the texts, whose tokens are not independent."""
    sums, tokens = _by_text(rows, values), _by_text(rows, [1] * len(rows))
    mean = finite(float(sums.sum() / tokens.sum()))
    interval = None
    if mean is not None and len(sums) > 1:
        interval = list(ratio_bootstrap(sums, tokens, resamples=RESAMPLES, seed=seed)[1:])
    return {"mean": mean, "interval": interval, "tokens": len(rows)}


def _by_text(rows: list[Row], values: Sequence[float]) -> np.ndarray:
    """The sum of the values of each text that has any."""
    _, text = np.unique([row.text for row in rows], return_inverse=True)
    return np.bincount(text, weights=np.asarray(values, dtype=float))


def _gap_closed(rows: list[Row], base: str, seed: int) -> dict[str, Any] | None:
    closed = _by_text(rows, [row.losses[base] - row.losses[COMPOSITION] for row in rows])
    gap = _by_text(rows, [row.losses[base] - row.losses[TUNED] for row in rows])
    if not (np.isfinite(closed).all() and np.isfinite(gap).all() and gap.sum() > 0):
        return None
    if len(gap) < 2:
        return {"mean": float(closed.sum() / gap.sum()), "interval": None, "tokens": len(rows)}
    mean, low, high = ratio_bootstrap(closed, gap, resamples=RESAMPLES, seed=seed)
    return {"mean": mean, "interval": [low, high], "tokens": len(rows)}
