"""Verdicts follow from results: they turn when the figures do, and the committed page is what the results say."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from lmcompose.errors import DataError
from lmcompose.experiments.evidence import read_results
from lmcompose.reporting.claims import (
    CLAIMS,
    best_alpha,
    better_than,
    few_parameters,
    gap_closed,
    joint_skill,
    kept_before,
    more_chrf,
)
from lmcompose.reporting.evidence import (
    NOT_SHOWN,
    OPEN,
    OTHERWISE,
    SHOWN,
    VERDICTS,
    WEAKER,
    Claim,
    Finding,
    evidence_grid,
    verdict,
)
from lmcompose.reporting.marked import BEGIN, END, with_marked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence.md"


@pytest.mark.parametrize(
    ("interval", "theirs", "expected"),
    [
        ((0.1, 0.3), None, SHOWN),
        ((-0.1, 0.3), None, NOT_SHOWN),
        ((0.0, 0.3), 0.2, NOT_SHOWN),
        ((-0.3, -0.1), 0.2, OTHERWISE),
        ((0.1, 0.3), 0.4, WEAKER),
        ((0.1, 0.3), 0.3, SHOWN),
    ],
)
def test_verdicts_by_their_intervals(interval: tuple[float, float], theirs: float | None, expected: str) -> None:
    assert verdict(interval, theirs) == expected


def scores(composition: list[float], member: list[float]) -> dict[str, Any]:
    cells = {"composition": composition, "anchor": [0.0, 0.001], "augmenting": member}
    return {
        "results": {name: {"kv_math": {"accuracy": sum(ends) / 2, "interval": ends}} for name, ends in cells.items()}
    }


def test_a_joint_skill_is_above_both_members_and_measured_by_the_papers_figure() -> None:
    assert joint_skill(scores([0.86, 0.88], [0.0, 0.1])) == Finding("87.0 [86.0, 88.0] %, members at most 10.0", SHOWN)
    assert joint_skill(scores([0.60, 0.70], [0.0, 0.1])).verdict == WEAKER
    assert joint_skill(scores([0.60, 0.70], [0.5, 0.6])).verdict == NOT_SHOWN


def test_what_was_forgotten_is_said_and_what_is_not_shown_is_no_proof() -> None:
    def result(ends: list[float]) -> dict[str, Any]:
        change = {"mean": sum(ends) / 2, "documents": ends, "seeds": None}
        return {"forgetting": {"prose": {"per_byte": {"gains": {"composition": change}}}}}

    assert kept_before("prose")(result([0.01, 0.03])) == Finding("+0.020 [+0.010, +0.030] bits per byte", OTHERWISE)
    assert kept_before("prose")(result([-0.01, 0.03])).verdict == NOT_SHOWN
    assert kept_before("prose")(result([-0.03, -0.01])).verdict == SHOWN


def test_chrf_is_judged_by_the_paired_difference() -> None:
    def result(ends: list[float]) -> dict[str, Any]:
        return {"minus_first": {"code_to_text": {"mine": {"mean": sum(ends) / 2, "documents": ends}}}}

    assert more_chrf("code_to_text", "mine")(result([1.0, 3.0])) == Finding("+2.000 [+1.000, +3.000] chrF1", SHOWN)
    assert more_chrf("code_to_text", "mine")(result([-1.0, 3.0])).verdict == NOT_SHOWN
    assert more_chrf("code_to_text", "mine")(result([-3.0, -1.0])).verdict == OTHERWISE


def test_losses_whose_intervals_touch_show_no_difference() -> None:
    def result(ours: list[float], theirs: list[float]) -> dict[str, Any]:
        return {
            "models": {
                name: {"loss": {"mean": sum(ends) / 2, "documents": ends}}
                for name, ends in (("proxy", ours), ("expert", theirs))
            }
        }

    rule = better_than("expert", "bits")
    assert rule(result([1.0, 1.2], [1.3, 1.5])) == Finding("1.100 against 1.400 bits", SHOWN)
    assert rule(result([1.0, 1.3], [1.3, 1.5])).verdict == NOT_SHOWN
    assert rule(result([1.6, 1.7], [1.3, 1.5])).verdict == OTHERWISE


def test_the_gap_is_judged_by_the_wider_interval() -> None:
    gap = {"mean": 0.5, "documents": [0.45, 0.55], "seeds": [-0.1, 1.1]}
    assert gap_closed(0.4)({"models": {"proxy": {"gap_closed": gap}}}).verdict == NOT_SHOWN
    assert gap_closed(0.4)({"models": {"proxy": {"gap_closed": gap | {"seeds": [0.6, 0.8]}}}}).verdict == SHOWN
    nested = {"a": {"models": {"proxy": {"gap_closed": gap | {"seeds": None, "documents": [0.55, 0.65]}}}}}
    assert gap_closed(0.9, "a")(nested) == Finding("50.0 [55.0, 65.0] %", WEAKER)


def test_less_than_half_of_the_gap_is_not_most_of_it() -> None:
    def judged(interval: list[float]) -> str:
        gap = {"mean": sum(interval) / 2, "documents": interval, "seeds": None}
        return gap_closed(0.9)({"models": {"proxy": {"gap_closed": gap}}}).verdict

    assert (judged([0.3, 0.4]), judged([0.45, 0.55])) == (OTHERWISE, NOT_SHOWN)


def test_counts_say_otherwise() -> None:
    rows = [{"name": "printed", "percent": 1.5}, {"name": "exact", "percent": 5.7}]
    assert few_parameters({"rows": rows}) == Finding("5.7 %, counted in the same two models", OTHERWISE)
    assert best_alpha()({"best": {"alpha": {"proxy": {"value": 0.5}}}}) == Finding("best alpha 0.5", OTHERWISE)


def test_what_was_not_measured_is_open_and_its_rule_is_not_asked() -> None:
    def never(*_: Any) -> Finding:
        raise AssertionError

    claim = Claim("paper", "it works", "99 %", "tiny", ("there", "not/there"), never)
    assert evidence_grid({"there": {}}, (claim,)).rows == [["it works", "paper", "99 %", "–", "tiny", OPEN]]


def test_the_page_is_what_the_committed_results_say() -> None:
    page, results = PAGE.read_text(encoding="utf-8"), read_results(ROOT / "results")
    grid = evidence_grid(results, CLAIMS)
    assert with_marked(page, grid.to_markdown()) == page
    assert all(row[-1] in VERDICTS for row in grid.rows)


def test_every_rule_reads_its_file_and_turns_with_the_figures() -> None:
    """A rule that ignored its result would keep its verdict on a result whose intervals are all turned round."""
    results = read_results(ROOT / "results")
    measured = [claim for claim in CLAIMS if claim.finding(results).verdict != OPEN]
    assert len(measured) > 10
    for claim in measured:
        turned = {name: _turned(copy.deepcopy(results[name])) for name in claim.files}
        assert claim.finding(turned) != claim.finding(results), claim


def _turned(value: Any) -> Any:
    """The same with every number moved: 7 minus it."""
    if isinstance(value, dict):
        return {key: _turned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_turned(each) for each in value]
    return 7 - value if isinstance(value, int | float) and not isinstance(value, bool) else value


def test_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        read_results(tmp_path / "none")
    (tmp_path / "half.json").write_text('{"what":')
    with pytest.raises(DataError, match=r"half\.json"):
        read_results(tmp_path)
    (tmp_path / "half.json").write_text(json.dumps({"what": "it"}))
    assert read_results(tmp_path)["half"] == {"what": "it"}


def test_a_page_without_its_marks_is_refused() -> None:
    assert with_marked(f"a\n{BEGIN}\nold\n{END}\nb", "new\n") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb"
    with pytest.raises(DataError, match="Put both there"):
        with_marked(f"a\n{BEGIN}\n", "new")
