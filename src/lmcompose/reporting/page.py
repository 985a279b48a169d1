"""A trace as one HTML page: tokens coloured by how far the composition moved them, with everybody's numbers.

The page needs nothing beside itself: no scripts, no fonts and no addresses, and its policy forbids the browser to fetch
any. All texts are escaped. What a trace holds stands in `evaluation.trace`; nothing is computed here but colours.
"""

import json
import math
from pathlib import Path
from typing import Any

import jinja2

from lmcompose.errors import DataError

Result = dict[str, Any]

SATURATION = 3.0
"""The shift in nats, a factor of 20, from which on a token has the strongest colour."""

STRONGEST = 0.6
"""The opacity of the strongest colour, on which text is still easy to read."""

RECORD = ("command", "recipe", "seed", "model", "members", "tuned", "versions", "machine")


def write_page(trace: Result, path: str | Path) -> Path:
    """Write the page of a trace.

    Raises:
        DataError: it is no trace.
    """
    path = Path(path)
    text = page(trace)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def page(trace: Result) -> str:
    """The HTML of a trace, which may come from `evaluation.trace` or from its JSON.

    Raises:
        DataError: it is no trace.
    """
    if not isinstance(trace, dict) or trace.get("what") != "trace" or not trace.get("tokens"):
        raise DataError("This is no trace. Give what lmcompose.evaluation.trace.trace returned, or its JSON.")
    tokens = [_drawn(token, trace["base"]) for token in trace["tokens"]]
    moves = [math.inf if token["shift"] is None else abs(token["shift"]) for token in trace["tokens"]]
    totals = trace["summary"]["log_probability"]
    return _ENVIRONMENT.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).render(
        trace=trace,
        base=trace["base"],
        tokens=tokens,
        opened=moves.index(max(moves)),
        summary=trace["summary"],
        totals=_rows(totals),
        outputs=[
            (title, trace["outputs"][name]["text"])
            for name, title in (
                ("base", f"the {trace['base']} alone"),
                ("composition", "composition"),
                ("tuned", "directly tuned"),
            )
            if name in trace["outputs"]
        ],
        saturation=f"{SATURATION:g}",
        strongest=STRONGEST,
        record=json.dumps({key: trace.get(key) for key in RECORD}, indent=2, ensure_ascii=False, default=str),
    )


def _drawn(token: Result, base: str) -> Result:
    """A token with its colour and the rows of its table."""
    before, after = token["members"][base]["probability"], token["composition"]["probability"]
    shift = token["shift"]
    if shift is None:  # ruled out by one of them
        shift = math.copysign(math.inf, after - before) if after != before else 0.0
    return {
        **token,
        "base": token["members"][base],
        "rows": _rows(token),
        "changed": token["base_choice"]["id"] != token["composition_choice"]["id"],
        "direction": "towards" if shift > 0 else "away" if shift < 0 else "",
        "strength": f"{STRONGEST * min(abs(shift) / SATURATION, 1):.3f}",
        "moved": _moved(shift, base),
    }


def _rows(entry: Result) -> list[tuple[str, Any]]:
    """The members by role, then the composition and the tuned model."""
    tuned = [("directly tuned", entry["tuned"])] if "tuned" in entry else []
    return [*entry["members"].items(), ("composition", entry["composition"]), *tuned]


def _moved(shift: float, base: str) -> str:
    if math.isinf(shift):
        return f"The composition {'allows what the ' + base + ' rules out' if shift > 0 else 'rules this token out'}."
    if shift == 0:
        return f"The composition left it where the {base} had it."
    factor = f"{math.exp(abs(shift)):.3g}" if abs(shift) < math.log(1000) else "more than 1,000"
    where, how = ("towards", "likelier") if shift > 0 else ("away", "less likely")
    return f"Moved {where}: {shift:+.2f} nats, {factor} times {how} than for the {base}."


def _percent(probability: float) -> str:
    """`23 %`, `4.1 %`, `0.052 %`; what is smaller than 0.001 % is said to be so."""
    share = 100 * probability
    if share == 0:
        return "0 %"
    if share < 0.001:
        return "< 0.001 %"
    if share >= 99.95:
        return "100 %"
    return f"{share:.{1 if share >= 10 else 2 if share >= 0.1 else 3}f} %"


def _nats(number: float | None) -> str:
    return "infinite" if number is None else f"{number:.3f} nats"


def _signed(number: float | None) -> str:
    return "infinite" if number is None else f"{number:+.3f} nats"


def _quoted(text: str) -> str:
    """A token with its spaces and line ends for all to see: `" the"`, `"\\n"`."""
    return json.dumps(text, ensure_ascii=False)


_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
_ENVIRONMENT.filters |= {"percent": _percent, "nats": _nats, "signed": _signed, "quoted": _quoted}
