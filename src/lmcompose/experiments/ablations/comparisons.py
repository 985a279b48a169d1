"""From bits by document to figures and differences. Numbers in, numbers out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmcompose.evaluation.statistics import Documents, adjusted, compare, figure

ANCHOR_ALONE = "anchor"
"""The name of the anchor by itself among what is scored."""

BySeed = Sequence[Sequence[float]]


def compared(scored: Mapping[str, BySeed], sizes: Mapping[str, Sequence[int]], first: str) -> dict[str, Any]:
    """The figures of every arm and their differences, in bits per byte and per token.

    Args:
        scored: arm -> for each seed, bits by document; the models alone are among them. Bits per token are all per
            token of the anchor.
        sizes: "bytes" and "tokens" by document.
        first: the arm that is compared with all others.

    Returns:
        `per_byte` and `per_token`: `arms`, name -> `statistics.figure`; `minus`, name -> the first arm minus that one;
        and `gains`, name -> that one minus the anchor by itself. Both are `statistics.Comparison`s, their p-values
        corrected for how many there are (Holm).
    """
    result: dict[str, Any] = {}
    for unit in ("bytes", "tokens"):
        weights = Documents(sizes[unit])
        losses = {name: np.stack([weights.per_token(seed) for seed in by_seed]) for name, by_seed in scored.items()}
        minus = {
            name: compare(scored[first], by_seed, weights=sizes[unit], better="lower")
            for name, by_seed in scored.items()
            if name != first and first in scored
        }
        anchor = scored[ANCHOR_ALONE]
        gains = {
            name: compare(*_once(by_seed, anchor), weights=sizes[unit], better="lower")
            for name, by_seed in scored.items()
            if name != ANCHOR_ALONE
        }
        result[f"per_{unit.removesuffix('s')}"] = {
            "arms": {name: figure(values) for name, values in losses.items()},
            "minus": {name: each.to_json() for name, each in adjusted(minus).items()},
            "gains": {name: each.to_json() for name, each in adjusted(gains).items()},
        }
    return result


def _once(ours: BySeed, theirs: BySeed) -> tuple[BySeed, BySeed]:
    """Both by seed; or, where no seed is in either of them, once: then nothing can be said of other seeds."""
    if all(list(seed) == list(by_seed[0]) for by_seed in (ours, theirs) for seed in by_seed):
        return ours[:1], theirs[:1]
    return ours, theirs
