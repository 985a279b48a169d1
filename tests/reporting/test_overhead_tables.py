"""What the tables of overhead say, and that they fit a terminal."""

import io

import pytest
from rich.console import Console

from lmcompose.experiments.overhead import worked_example
from lmcompose.reporting.overhead_tables import flops, ordinal, overhead_grids, overhead_markdown, percent


def measured_result():
    """The example as if it had been measured: 2 s a step for CALM, 4 s for full tuning."""
    result = worked_example()
    found = {"peak_bytes": 3 * 2**30, "step_bytes": 2**30}
    times = {name: {"seconds_per_token": seconds, "peak_bytes": 2**30} for name, seconds in
             (("anchor", 0.02), ("augmenting", 0.005), ("composition", 0.024))}  # fmt: skip
    result["measured"] = {
        "command": "lmcompose overhead small large --measure",
        "machine": {"threads": 2},
        "device": "cpu",
        "clock": "wall time",
        "dtype": {"anchor": "bfloat16", "augmenting": "bfloat16"},
        "batch": 2, "length": 256, "prompt": 64, "new_tokens": 16, "repetitions": 3,
        "training": {
            "calm": {**found, "seconds_per_step": 2.0, "over_full": 0.5},
            "full": {**found, "seconds_per_step": 4.0, "over_full": 1.0},
        },
        "decoding": {**times, "over_anchor": 1.2, "over_members": 0.96},
    }  # fmt: skip
    return result


def test_no_figure_is_broken_in_a_terminal_of_80():
    for grid in overhead_grids(measured_result()):
        console = Console(file=io.StringIO(), width=80)
        console.print(grid.to_rich())
        for row in grid.rows:
            for cell in row:
                assert cell in console.file.getvalue(), f"{cell!r} was wrapped"


def test_measured_ratios_stand_beside_the_counted_ones():
    text = overhead_markdown(measured_result())
    counted = percent(worked_example()["training"]["methods"]["calm"]["over_full"])
    assert f"| **CALM** | **2** | **50 %** | **{counted}** | **3,072** | **1,024** |" in text
    assert "| **composition** | **24** | **120 %** |" in text
    assert text.endswith("Made by `lmcompose overhead small large --measure`.\n")


def test_without_full_tuning_there_is_no_measured_ratio():
    result = measured_result()
    del result["measured"]["training"]["full"], result["measured"]["training"]["calm"]["over_full"]
    assert "| **CALM** | **2** |  | **67" in overhead_markdown(result)


def test_shares_put_the_papers_figures_above_ours():
    text = overhead_markdown(worked_example())
    assert "| CALM paper, C.2 | 2 % | 10 % | 100 % | 2 % | 12 % |" in text
    assert "| its rebuttal | 5 % | 10 % | 100 % | 5 % | 15 % |" in text


def test_what_is_not_counted_is_said():
    result = worked_example()
    assert "not counted" not in overhead_markdown(result)
    result["uncounted_parameters"]["anchor"] = 5_000_000
    result["augmenting_tokens"] = 1.5
    text = overhead_markdown(result)
    assert "5 M parameters of m_B are in matrices of other kinds, which are not counted." in text
    assert "m_A reads 1.5 tokens of its own for each of m_B's." in text


@pytest.mark.parametrize(("number", "text"), [(1_437_696_000, "1.44 G"), (999_600_000, "1,000 M"), (12, "12")])
def test_flops_read_well(number, text):
    assert flops(number) == text


@pytest.mark.parametrize(("number", "text"), [(1, "1st"), (2, "2nd"), (12, "12th"), (256, "256th"), (63, "63rd")])
def test_ordinals(number, text):
    assert ordinal(number) == text
