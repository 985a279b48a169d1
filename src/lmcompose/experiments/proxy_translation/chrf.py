"""chrF of translations with intervals, from sacrebleu's own counts."""

from typing import Any

import numpy as np
from sacrebleu.metrics import CHRF

from lmcompose.evaluation.chrf import BETAS, chrf_counts
from lmcompose.evaluation.statistics import corpus_scores, percentiles
from lmcompose.experiments.gaps import gap_closed


def chrf(written: dict[str, list[str]], references: list[str], resamples: int = 1_000, seed: int = 0) -> dict[str, Any]:
    """chrF of every model with beta 1 and 2, by sacrebleu, and the gap closed, each with its interval.

    The intervals are a bootstrap over sentences, in which one sentence is drawn with what all models made of it.

    Returns:
        By model, `chrf1` and `chrf2` as [estimate, low, high], and the share of translations that are `empty`; and
        under `gap_closed`, by model, the same of the share of the gap between base and tuned, in chrF1; None where
        base and tuned may score alike, so that there is no gap to close.
    """
    count = len(references)
    found: dict[str, Any] = {}
    scores: dict[str, np.ndarray] = {}
    for name, lines in written.items():
        found[name] = {"empty": sum(not line for line in lines) / count}
        for metric, beta in BETAS.items():
            scorer = CHRF(beta=beta)
            statistics = chrf_counts(list(zip(references, lines, strict=True)), beta)
            values = corpus_scores(statistics, scorer._compute_f_score, resamples=resamples, seed=seed)
            found[name][metric] = list(percentiles(values))
            if metric == "chrf1":
                scores[name] = values
    inner = [name for name in written if name not in ("base", "tuned")]
    with np.errstate(divide="ignore", invalid="ignore"):
        closed = {name: gap_closed(scores["base"], scores[name], scores["tuned"]) for name in inner}
    return {"models": found, "gap_closed": {name: _interval(values) for name, values in closed.items()}}


def _interval(values: np.ndarray) -> list[float] | None:
    return list(percentiles(values)) if np.isfinite(values).all() else None
