"""Models beside the first on the same examples: differences that are there are said, and no others."""

import random
from typing import Any

import pytest

from lmcompose.evaluation.chrf import chrf1
from lmcompose.evaluation.paired import paired
from lmcompose.evaluation.statistics import NO_DIFFERENCE, mcnemar_test
from lmcompose.reporting.evaluation_tables import minus_first_grids


def answers(right: list[int]) -> dict[str, Any]:
    """A task's result of answers that are right (1) or wrong (0)."""
    return {"examples": [{"id": number, "values": {"acc,none": value}} for number, value in enumerate(right)]}


def translations(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """A task's result of (reference, translation)."""
    return {
        "examples": [
            {"id": number, "target": target, "answers": {"first_line": written}, "values": {}}
            for number, (target, written) in enumerate(pairs)
        ]
    }


def test_answers_are_compared_example_by_example() -> None:
    first = [1] * 40 + [0] * 60
    more = [1] * 60 + [0] * 40
    same = [0] * 5 + [1] * 40 + [0] * 55
    models = {name: {"quiz": answers(right)} for name, right in (("m_B", first), ("more", more), ("same", same))}
    found = paired(models, {"quiz": "acc,none"})["quiz"]
    assert list(found) == ["more", "same"]
    assert found["more"]["mean"] == pytest.approx(0.2)
    assert found["more"]["verdict"] == "better"
    assert found["more"]["p"] == pytest.approx(mcnemar_test(more, first))
    assert found["more"]["adjusted_p"] == pytest.approx(2 * found["more"]["p"])  # Holm over both models
    assert found["same"]["mean"] == 0
    assert found["same"]["verdict"] == NO_DIFFERENCE


def test_chrf_is_compared_as_that_of_the_corpus() -> None:
    draw = random.Random(0)
    words = [str(7**number) for number in range(20)]
    references = [" ".join(draw.sample(words, 7)) for _ in range(60)]
    poor = [(line, " ".join(line.split()[:3])) for line in references]
    good = [(line, " ".join(line.split()[:6])) for line in references]
    models = {"m_B": {"ntrex_som": translations(poor)}, "mine": {"ntrex_som": translations(good)}}
    found = paired(models, {"ntrex_som": "chrf1,first_line"})["ntrex_som"]["mine"]
    assert found["mean"] == pytest.approx(chrf1(good) - chrf1(poor))
    low, high = found["documents"]
    assert 0 < low < found["mean"] < high
    assert found["verdict"] == "better"


def test_of_a_perplexity_less_is_better() -> None:
    ours, theirs = ([{"id": n, "values": {"perplexity,none": n + add}} for n in range(30)] for add in (0.0, 1.0))
    found = paired(
        {"m_B": {"text": {"examples": theirs}}, "mine": {"text": {"examples": ours}}}, {"text": "perplexity,none"}
    )
    assert found["text"]["mine"]["mean"] == pytest.approx(-1)
    assert found["text"]["mine"]["verdict"] == "better"


def test_what_cannot_be_paired_is_left_out() -> None:
    whole, partly, one = answers([1, 0, 1]), answers([1, 0, 1]), answers([1])
    del partly["examples"][1]["values"]["acc,none"]
    scores = {"a": "acc,none", "b": "acc,none"}
    assert paired({"m_B": {"a": whole, "b": one}, "mine": {"a": partly, "b": one}}, scores) == {}
    assert paired({"m_B": {"a": whole, "b": whole}}, scores) == {}


def test_the_table_has_one_row_for_each_task_and_model_by_unit() -> None:
    models = {name: {"quiz": answers(right)} for name, right in (("m_B", [0] * 50), ("mine", [1] * 30 + [0] * 20))}
    result = {
        "models": {"m_B": {}, "mine": {}},
        "headlines": {"quiz": "acc,none"},
        "scores": {"quiz": {"acc,none": {"m_B": {"unit": "share"}}}},
        "minus_first": paired(models, {"quiz": "acc,none"}),
    }
    (grid,) = minus_first_grids(result)
    assert grid.title == "Minus m_B, percentage points"
    assert grid.rows[0][:2] == ["quiz: mine", "+60.0"]
    assert grid.rows[0][-1] == "better"
    assert minus_first_grids({**result, "minus_first": {}}) == []
