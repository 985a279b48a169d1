"""chrF of translations, by sacrebleu, and its interval.

The CALM paper's "chrF1" is chrF with beta = 1 (arXiv 2401.02412); sacrebleu's default is beta = 2 (Popovic 2017).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import CHRF

from lmcompose.evaluation.statistics import Interval

BETAS = {"chrf1": 1, "chrf2": 2}
"""The metrics by name, with their beta."""

Pairs = Sequence[tuple[str, str]]
"""(reference, translation) of every sentence."""


def sentence(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, tuple[str, str]]:
    """What one sentence adds to each metric, as lm-eval's `process_results`: its reference and its translation."""
    return dict.fromkeys(BETAS, (doc["english"], results[0]))


def docstring(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The same of one function: its docstring and what was written for it."""
    return dict.fromkeys(BETAS, (doc["docstring"], results[0]))


def chrf1(pairs: Pairs) -> float:
    """Corpus chrF with beta = 1, from 0 to 100."""
    return _corpus(pairs, 1)


def chrf2(pairs: Pairs) -> float:
    """Corpus chrF with beta = 2, from 0 to 100."""
    return _corpus(pairs, 2)


def chrf_interval(
    pairs: Pairs, beta: int, *, confidence: float = 0.95, resamples: int = 1_000, seed: int = 0
) -> Interval:
    """Corpus chrF and its percentile bootstrap interval over sentences (Koehn 2004), from 0 to 100."""
    scorer, counts = CHRF(beta=beta), chrf_counts(pairs, beta)
    drawn = np.random.default_rng(seed).multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), size=resamples)
    values = [scorer._compute_f_score(list(sums)) for sums in drawn @ counts]
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(scorer._compute_f_score(list(counts.sum(axis=0)))), float(low), float(high))


def chrf_counts(pairs: Pairs, beta: int) -> np.ndarray:
    """sacrebleu's own counts of n-grams [sentences, 3 * orders], of whose sums chrF is made."""
    references, translations = [reference for reference, _ in pairs], [translation for _, translation in pairs]
    return np.array(CHRF(beta=beta)._extract_corpus_statistics(translations, [references]))


def _corpus(pairs: Pairs, beta: int) -> float:
    references, translations = [reference for reference, _ in pairs], [translation for _, translation in pairs]
    return float(CHRF(beta=beta).corpus_score(translations, [references]).score)
