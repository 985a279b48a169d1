"""Models on the same examples: how much better or worse each is than the first, task by task, never as a bare mean.

Numbers and texts in, plain values out; this file runs no model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import CHRF

from lmcompose.evaluation.chrf import BETAS, chrf_counts
from lmcompose.evaluation.statistics import Comparison, adjusted, compare, compare_corpus

Result = dict[str, Any]

RESAMPLES = 2_000
LOSSES = ("perplexity", "bits_per_byte", "loss")
"""In the names of scores of which less is better, as lm-eval has them."""


def paired(results: Mapping[str, Mapping[str, Result]], headlines: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Every model but the first, minus the first, in the headline score of every task.

    Args:
        results: by model and task, what the harness writes for each, with `examples`.
        headlines: task -> the score that it is compared by.

    Returns:
        task -> model -> `Comparison.to_json`. Shares are compared by a paired bootstrap and McNemar's test (sign flips
        where they are not 0 or 1), chrF by resampled and swapped sentences; p-values are corrected (Holm) for all
        pairs of task and model. A task is left out whose examples have no such score one by one, or are fewer than two.
    """
    first, *others = results
    found: dict[tuple[str, str], Comparison] = {}
    for task, score in headlines.items():
        for label in others:
            compared = _compared(results[label][task]["examples"], results[first][task]["examples"], score)
            if compared is not None:
                found[task, label] = compared
    tables: dict[str, dict[str, Any]] = {}
    for (task, label), each in adjusted(found).items():
        tables.setdefault(task, {})[label] = each.to_json()
    return tables


def _compared(ours: Sequence[Result], theirs: Sequence[Result], score: str) -> Comparison | None:
    metric, _, chosen = score.partition(",")
    if len(ours) < 2 or [row["id"] for row in ours] != [row["id"] for row in theirs]:
        return None
    if metric in BETAS:
        scorer = CHRF(beta=BETAS[metric])
        first, second = (
            chrf_counts([(str(row["target"]), str(row["answers"][chosen])) for row in rows], BETAS[metric])
            for rows in (ours, theirs)
        )
        return compare_corpus(first, second, lambda sums: scorer._compute_f_score(list(sums)), resamples=RESAMPLES)
    if not all(score in row.get("values", {}) for rows in (ours, theirs) for row in rows):
        return None
    values = [[float(row["values"][score]) for row in rows] for rows in (ours, theirs)]
    if not np.isfinite(values).all():
        return None
    better = "lower" if any(name in metric for name in LOSSES) else "higher"
    return compare(*values, better=better, resamples=RESAMPLES)
