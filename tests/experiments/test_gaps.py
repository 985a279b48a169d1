"""The figures, against numbers that were worked out by hand."""

import numpy as np
import pytest

from lmcompose.errors import DataError
from lmcompose.experiments.gaps import Documents, best, figure, figures, gap_closed, interval

TOKENS = [10, 30]


def measured(base: list[float], proxy: list[float], tuned: list[float]) -> dict:
    nats = {"base": base, "proxy": proxy, "tuned": tuned}
    return {
        "tokens": TOKENS,
        "nats": nats,
        "alpha": {"proxy@0": base, "proxy@0.5": tuned, "proxy@1": proxy},
        "temperature": {"proxy@1": proxy},
        "kl": {"tuned proxy": [1.0, 3.0]},
        "agreement": {"tuned proxy": [5.0, 30.0]},
    }


def test_a_long_document_counts_for_more() -> None:
    loss = Documents(TOKENS, resamples=10).per_token([20.0, 30.0])
    assert loss.shape == (11,)
    assert loss[0] == 50 / 40
    assert set(np.round(loss[1:], 9)) <= {1.25, 2.0, 1.0}, "both documents, the first twice, or the second twice"


def test_the_gap_closed() -> None:
    assert gap_closed(np.array(3.0), np.array(1.5), np.array(1.0)) == 0.75
    assert gap_closed(np.array(3.0), np.array(3.0), np.array(1.0)) == 0
    assert gap_closed(np.array(3.0), np.array(1.0), np.array(1.0)) == 1
    assert gap_closed(np.array(3.0), np.array(3.5), np.array(1.0)) == -0.25


def test_figures_of_two_seeds_by_hand() -> None:
    # per token: base 120/40 = 3, proxy 80/40 = 2, tuned 60/40 = 1.5; then base 3, proxy 70/40 = 1.75, tuned 1.5
    parts = [
        measured([30.0, 90.0], [20.0, 60.0], [15.0, 45.0]),
        measured([30.0, 90.0], [17.5, 52.5], [15.0, 45.0]),
    ]
    found = figures(parts)
    gap = found["models"]["proxy"]["gap_closed"]
    assert gap["mean"] == pytest.approx((1 / 1.5 + 1.25 / 1.5) / 2)
    assert [estimate for estimate, *_ in gap["by_seed"]] == pytest.approx([2 / 3, 5 / 6])
    assert gap["documents"] == pytest.approx([0.75, 0.75]), "every document closes the same share"
    # Student's: mean +- t(0.975, 1) * sd / sqrt(2) with sd = (5/6 - 2/3) / sqrt(2), so 12.706 * (1/6) / 2
    assert gap["seeds"] == pytest.approx([0.75 - 12.7062 / 12, 0.75 + 12.7062 / 12], abs=1e-4)
    assert found["models"]["proxy"]["minus_base"]["mean"] == pytest.approx(-1.125)
    assert found["models"]["tuned"]["gap_closed"]["mean"] == 1
    assert found["kl"]["tuned proxy"]["mean"] == 0.1
    assert found["agreement"]["tuned proxy"]["mean"] == 0.875
    assert (found["documents"], found["tokens"]) == (2, 40)
    assert [row["value"] for row in found["alpha"]["proxy"]] == [0, 0.5, 1]
    assert best(found["alpha"]["proxy"]) == {"value": 0.5, "by_seed": [0.5, 0.5]}


def test_documents_are_drawn_together_for_all_models() -> None:
    """Two models that differ by the same amount on every token have a difference without any spread."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 50, 40)
    base = generator.normal(3, 1, 40) * tokens
    documents = Documents(tokens, resamples=200)
    difference = interval(documents.per_token(base - 0.5 * tokens) - documents.per_token(base))
    assert difference == pytest.approx([-0.5, -0.5, -0.5])
    loss = interval(documents.per_token(base))
    assert loss[1] < loss[0] < loss[2]
    assert loss[2] - loss[1] == pytest.approx(2 * 1.96 / np.sqrt(40), rel=0.5)


def test_one_seed_has_no_interval_over_seeds() -> None:
    assert figure(np.ones((1, 5)))["seeds"] is None


def test_one_document_is_refused() -> None:
    with pytest.raises(DataError, match="hold out more"):
        Documents([12])
