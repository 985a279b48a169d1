"""In what order examples are seen: which are held out, and how a mixture is drawn from its sources.

Pure functions of sizes, weights, an epoch and a seed; they know neither text nor tokens. Because the order of the
whole run is a function of its arguments, a resumed run sees exactly what the uninterrupted one would have.
"""

from collections.abc import Sequence

import numpy as np

ExampleId = tuple[int, int]
"""(source, example within the source)."""


def held_out(size: int, fraction: float, seed: int) -> np.ndarray:
    """The examples of one source that are held out for validation: sorted indices, at least 1 and at most size - 1.

    Raises:
        ValueError: fewer than two examples, which cannot be split.
    """
    if size < 2:
        raise ValueError("fewer than two examples")
    count = min(max(1, round(size * fraction)), size - 1)
    return np.sort(np.random.default_rng([seed, size]).permutation(size)[:count])


def shares(sizes: Sequence[int], weights: Sequence[float] | None) -> list[int]:
    """How many examples of each source one epoch holds; in all, as many as there are examples.

    Without weights that is each source's own size. With weights the total is divided in proportion to them (largest
    remainder): a source may then be seen more than once in an epoch, or only in part.
    """
    if weights is None:
        return list(sizes)
    total = sum(sizes)
    exact = np.array(weights, dtype=np.float64) / sum(weights) * total
    counts = np.floor(exact).astype(int)
    for source in np.argsort(-(exact - counts), kind="stable")[: total - int(counts.sum())]:
        counts[source] += 1
    return counts.tolist()


def epoch_order(sizes: Sequence[int], weights: Sequence[float] | None, epoch: int, seed: int) -> list[ExampleId]:
    """The examples of one epoch, in the order in which they are seen.

    Each source is a stream of its own shuffled passes that goes on from epoch to epoch, so a source that an epoch
    shows only in part shows its rest in the next. The streams are merged evenly: every stretch of the epoch holds the
    sources close to their shares.

    Args:
        sizes: examples of each source.
        weights: the share of each source, or None for every example once.
        epoch: counted from 0.
        seed: of the whole run.
    """
    counts = shares(sizes, weights)
    generator = np.random.default_rng([seed, epoch])
    drawn = [(source, stream_slice(size, epoch * n, n, [seed, source])) for source, (size, n) in
             enumerate(zip(sizes, counts, strict=True))]  # fmt: skip
    places: list[np.ndarray] = []
    order: list[ExampleId] = []
    for source, examples in drawn:
        # The k-th of n examples falls somewhere in the k-th of n equal parts of the epoch.
        places.append((np.arange(len(examples)) + generator.random(len(examples))) / max(1, len(examples)))
        order.extend((source, int(example)) for example in examples)
    ranks = np.argsort(np.concatenate(places), kind="stable")
    return [order[rank] for rank in ranks]


def stream_slice(size: int, start: int, count: int, seed: Sequence[int]) -> np.ndarray:
    """`count` items from place `start` of an endless stream of shuffled passes over `range(size)`."""
    parts, place = [], start
    while place < start + count:
        turn, offset = divmod(place, size)
        take = min(size - offset, start + count - place)
        parts.append(np.random.default_rng([*seed, turn]).permutation(size)[offset : offset + take])
        place += take
    return np.concatenate(parts) if parts else np.empty(0, dtype=int)
