"""What the scores that this project reports can and cannot say: numbers in and numbers out.

Knows nothing about models, tasks or files. `docs/statistics.md` says which interval or test stands where.
"""

from lmcompose.evaluation.statistics.comparison import (
    BETTER,
    NO_DIFFERENCE,
    Comparison,
    adjusted,
    compare,
    compare_corpus,
)
from lmcompose.evaluation.statistics.corrections import CORRECTIONS, benjamini_hochberg, holm
from lmcompose.evaluation.statistics.intervals import (
    Interval,
    paired_t_interval,
    score,
    t_interval,
    wilson_interval,
    with_intervals,
)
from lmcompose.evaluation.statistics.permutation import mcnemar_test, sign_flip_test, swap_test
from lmcompose.evaluation.statistics.power import (
    detectable_mean,
    detectable_proportion,
    items_for_mean,
    items_for_proportion,
)
from lmcompose.evaluation.statistics.resampling import (
    Documents,
    corpus_bootstrap,
    corpus_scores,
    paired_bootstrap,
    percentiles,
    ratio_bootstrap,
    resampled_sums,
)
from lmcompose.evaluation.statistics.seeds import ENOUGH_SEEDS, figure, hierarchical_bootstrap, over_seeds

__all__ = [
    "BETTER",
    "CORRECTIONS",
    "ENOUGH_SEEDS",
    "NO_DIFFERENCE",
    "Comparison",
    "Documents",
    "Interval",
    "adjusted",
    "benjamini_hochberg",
    "compare",
    "compare_corpus",
    "corpus_bootstrap",
    "corpus_scores",
    "detectable_mean",
    "detectable_proportion",
    "figure",
    "hierarchical_bootstrap",
    "holm",
    "items_for_mean",
    "items_for_proportion",
    "mcnemar_test",
    "over_seeds",
    "paired_bootstrap",
    "paired_t_interval",
    "percentiles",
    "ratio_bootstrap",
    "resampled_sums",
    "score",
    "sign_flip_test",
    "swap_test",
    "t_interval",
    "wilson_interval",
    "with_intervals",
]
