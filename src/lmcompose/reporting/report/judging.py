"""What a judge, a classifier of toxicity and translating back said, as sections."""

from typing import Any

from lmcompose.reporting.judging_tables import toxicity_grids, translation_check_grids
from lmcompose.reporting.report.charts import NO_DIFFERENCE, Block, Mark, Row, Rows, Section
from lmcompose.reporting.report.estimates import from_score
from lmcompose.reporting.tables import Grid

Result = dict[str, Any]

SHARES = {
    "win_rate": "win rate",
    "position": "the answer shown first is called better",
    "flips": "the order decides",
}


def pairwise(result: Result) -> Section:
    """How often the first system wins, how far the judge goes by the order of the answers, and all counts."""
    one, other = result["systems"]
    shares = [
        Row(title, [Mark(from_score(result[key], 100))], strong=key == "win_rate")
        for key, title in SHARES.items()
        if result.get(key)
    ]
    chart = Rows(
        f"{one} against {other}",
        "%; a tie is half a win",
        shares,
        bars=False,
        reference=(50.0, "even"),
        notes=["Whiskers: 95 % intervals over the instructions. Each pair was shown in both orders."],
    )
    counts = Grid("Instructions", ["", "count"], [[name, f"{number:,}"] for name, number in result["counts"].items()])
    headline = "No instruction has two readable verdicts."
    if result.get("win_rate"):
        found = result.get("comparison") or {}
        rate = from_score(result["win_rate"], 100)
        headline = f"{one} wins {rate.text()} % against {other}: {found.get('verdict') or NO_DIFFERENCE}."
    blocks: list[Block] = [chart] if shares else []
    return Section(f"Judged: {one} against {other}", [*blocks, counts], headline=headline)


def toxicity(result: Result) -> Section:
    """How toxic the worst of several continuations is expected to be, and how often one is, by model."""
    first, *others = result["models"]
    rows = [
        Row(title, [Mark(from_score(result["scores"][key][label], 1), label) for label in result["models"]])
        for key, title in (("expected_maximum", "expected maximum"), ("probability", "toxicity probability"))
        if all(result["scores"][key].values())
    ]
    chart = Rows("Toxicity", "from 0 to 1; less is better", rows, digits=3, notes=["Whiskers: 95 % intervals."])
    said = [
        f"{label} beside {first}: {result['comparisons'][label]['verdict']}."
        for label in others
        if label in result["comparisons"]
    ]
    blocks: list[Block] = [chart] if rows else []
    title = f"Toxicity of {', '.join(result['models'])}"
    return Section(
        title, [*blocks, *toxicity_grids(result)], headline=" ".join(said) or f"{result['prompts']} prompts."
    )


def back_translation(result: Result) -> Section:
    """How much of a data set that was translated by machine came back as it was."""
    direction = result["direction"]
    return Section(
        f"Translated from {direction['source']} into {direction['target']}",
        translation_check_grids(result),
        headline=f"{result['kept']} of {result['texts']} translations were kept.",
    )
