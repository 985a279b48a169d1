"""The figures, against numbers that were worked out by hand."""

import numpy as np
import pytest

from lmcompose.experiments.gaps import best, figures, gap_closed

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
