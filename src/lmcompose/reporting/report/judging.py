"""What a judge said of two systems' answers as a section."""

from typing import Any

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
