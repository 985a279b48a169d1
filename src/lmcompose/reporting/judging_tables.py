"""Pairwise judging, toxicity and the check of translations as tables; see `tables.Grid`."""

from collections.abc import Mapping
from typing import Any

from lmcompose.reporting.tables import Grid

Result = dict[str, Any]
Figure = Mapping[str, Any] | None

KINDS = {
    "wins": "the first wins in both orders",
    "losses": "the second wins in both orders",
    "ties": "a tie in both orders",
    "half": "one order decides, the other is a tie",
    "flipped": "the order decides",
    "unreadable": "a verdict is unreadable",
}


def judging_grids(result: Result) -> list[Grid]:
    """The win rate, what stands behind it, and the judge's bias."""
    first, second = result["systems"]
    comparison, verdicts = result["comparison"], result["verdicts"]
    rows = [[f"win rate of {first}, %", share(result["win_rate"])]]
    if verdicts["unreadable"]:
        ends = " to ".join(f"{100 * result[end]:.1f}" for end in ("at_least", "at_most"))
        rows.append(["  if every unreadable verdict goes one way, %", ends])
    rows.append(["verdicts for the answer shown first, %", share(result["position"])])
    rows.append(["pairs that flip with the order, %", share(result["flips"])])
    rows.append(["unreadable verdicts", f"{verdicts['unreadable']} of {verdicts['all']}"])
    notes = ["Ties are half a win. Brackets: 95 % intervals, a bootstrap over instructions; Wilson's for flips."]
    if comparison is not None:
        called = comparison["verdict"]
        called = called if called.startswith("no ") else f"{first} is {called}"
        notes.append(f"{first} against {second}: {called} (p = {comparison['p']:.3g}, {comparison['test']}).")
    counts = [[KINDS[kind], str(count)] for kind, count in result["counts"].items()]
    return [
        Grid(f"{first} against {second}, judged by {result['judge']['model']}", ["figure", "value"], rows, notes),
        Grid("Instructions", ["what the judge says", "instructions"], counts),
    ]


def toxicity_grids(result: Result) -> list[Grid]:
    """All measures of all models."""
    names = {
        "expected_maximum": "expected maximum toxicity",
        "probability": f"toxicity probability, at {result['threshold']:g}",
        "perplexity": "perplexity",
    }
    rows = [
        [names.get(name, name), *(_plain(found) for found in by_model.values())]
        for name, by_model in result["scores"].items()
        if name != "empty"
    ]
    rows.append(["continuations without words", *(str(count) for count in result["scores"]["empty"].values())])
    writing = result["writing"]
    notes = [
        f"{writing['samples']} continuations of {result['prompts']} prompts, up to {writing['max_new_tokens']} tokens, "
        f"scored by {result['classifier']['name']} ({result['classifier']['label']}). "
        "Brackets: 95 % intervals over prompts."
    ]
    for label, comparison in result["comparisons"].items():
        called = comparison["verdict"]
        figures = "{:+.3f} [{:+.3f}, {:+.3f}]".format(comparison["mean"], *comparison["documents"])
        notes.append(f"{label} less {next(iter(result['models']))}, expected maximum: {figures}, {called}.")
    return [Grid("Toxicity", ["measure", *result["models"]], rows, notes)]


def translation_check_grids(result: Result) -> list[Grid]:
    """What came back, and what was dropped."""
    direction, texts = result["direction"], result["texts"]
    reasons = {"empty": "no translation", "copied": "not translated at all", "chrf": f"below {result['threshold']:g}"}
    quartiles = ", ".join(f"{value:.1f}" for value in result["chrf"]["quartiles"])
    rows = [
        ["kept", f"{result['kept']} of {texts}"],
        *([f"dropped: {reasons[name]}", str(count)] for name, count in result["dropped"].items()),
        [f"chrF{result['beta']} there and back, mean", f"{result['chrf']['mean']:.1f}"],
        ["  its quartiles", quartiles],
        ["chrF of translations with their originals, mean", f"{result['copied']:.1f}"],
    ]
    title = f"{result['field']}, from {direction['source']} into {direction['target']} and back"
    kept = [[step, str(count)] for step, count in result["kept_at"].items()]
    return [Grid(title, ["figure", "value"], rows), Grid("Kept at other thresholds", ["threshold", "texts"], kept)]


def share(figure: Figure) -> str:
    """`52.0 [47.1, 56.9]`, in per cent."""
    if figure is None:
        return "-"
    ends = figure["interval"]
    shown = "" if ends is None else f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
    return f"{100 * figure['estimate']:.1f}{shown}"


def _plain(figure: Figure) -> str:
    if figure is None:
        return "-"
    ends = figure["interval"]
    return f"{figure['estimate']:.3g}" + ("" if ends is None else f" [{ends[0]:.3g}, {ends[1]:.3g}]")
