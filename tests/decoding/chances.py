"""A chi-squared test of texts against the law that they should follow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.stats import chi2

SURE = 1e-12
"""Wrong rules must be refused with this p-value; right ones must pass at 0.001."""


def cells(texts: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """A number for each text [rows, length], in the order of `itertools.product`: [rows]."""
    return (texts * vocabulary ** torch.arange(texts.shape[1] - 1, -1, -1)).sum(1)


def p_value(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """Of a chi-squared test of found cells against expected laws, samples added up; 0 for a text that cannot be."""
    statistic, freedom = 0.0, 0
    for chances, sample in zip(expected, found, strict=True):
        counts = torch.bincount(sample, minlength=len(chances)).double()
        if bool((counts[chances == 0] > 0).any()):
            return 0.0
        order = chances.argsort()
        wanted, counts = (chances * len(sample))[order], counts[order]
        # the rarest texts are one cell together: all that are expected less than 5 times, and enough of them to be 5
        rare = max(int((wanted < 5).sum()), int((wanted.cumsum(0) < 5).sum()) + 1)
        wanted = torch.cat([wanted[:rare].sum()[None], wanted[rare:]])
        counts = torch.cat([counts[:rare].sum()[None], counts[rare:]])
        statistic += float(((counts - wanted) ** 2 / wanted).sum())
        freedom += len(wanted) - 1
    return float(chi2.sf(statistic, freedom))
