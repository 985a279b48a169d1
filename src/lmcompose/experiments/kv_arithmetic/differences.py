"""The answers of several arms to the same expressions, as figures: counts with intervals, and paired differences."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmcompose.evaluation.statistics import adjusted, compare, with_intervals

Answers = Mapping[str, Sequence[int]]
"""Task -> 1 for a right answer and 0 for a wrong one, in the order of the test expressions."""


def figures(answers: Mapping[str, Sequence[Answers]], default: str = "default") -> dict[str, Any]:
    """The figures of all arms from each one's answers by seed, the default's among them.

    Returns:
        `results`: arm -> task -> counts over all seeds with their Wilson interval, and the counts of each seed;
        `differences`: arm -> task -> the accuracy minus the default's with the same seed, on the same expressions, a
        `statistics.Comparison` with one interval over the expressions and one over the seeds; its p-value is corrected
        for the number of arms (Holm).
    """
    tasks = list(answers[default][0])
    counts = {
        arm: {
            task: {
                "correct": sum(sum(seed[task]) for seed in by_seed),
                "total": sum(len(seed[task]) for seed in by_seed),
                "by_seed": [sum(seed[task]) for seed in by_seed],
            }
            for task in tasks
        }
        for arm, by_seed in answers.items()
    }
    return {"results": with_intervals(counts), "differences": _minus_default(answers, tasks, default)}


def _minus_default(
    answers: Mapping[str, Sequence[Answers]], tasks: Sequence[str], default: str
) -> dict[str, dict[str, Any]]:
    differences: dict[str, dict[str, Any]] = {arm: {} for arm in answers if arm != default}
    for task in tasks:
        right = {arm: [seed[task] for seed in by_seed] for arm, by_seed in answers.items()}
        compared = {arm: compare(right[arm], right[default]) for arm in differences}
        for arm, each in adjusted(compared).items():
            differences[arm][task] = each.to_json()
    return differences
