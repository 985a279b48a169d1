"""Measurements of speed, memory and size, of a server, and of the versions that pass the tests, as sections."""

from collections.abc import Sequence
from typing import Any

from lmcompose.reporting.overhead_tables import overhead_grids
from lmcompose.reporting.remote_tables import remote_grids
from lmcompose.reporting.report.charts import Mark, Row, Rows, Section
from lmcompose.reporting.report.estimates import Estimate
from lmcompose.reporting.tables import Grid, duration, grids

Result = dict[str, Any]

AIM = 1.10
"""What a composition may take of time, over the sum of its members."""


def decoding(result: Result) -> Section:
    """A composition's time per token over the sum of its members'."""
    rows = [
        (_shape(row), {"with the prompt": row["ratio"], "steps alone": row["step_ratio"]}) for row in result["results"]
    ]
    chart = _ratios("Time per token", "composition / sum of its members", rows, (AIM, f"aim {AIM:.2f}"))
    return Section(
        "Decoding, CALM",
        [chart, *grids(result)],
        _span(result, "the composition takes", "its members' time"),
        _single(result),
    )


def logits(result: Result) -> Section:
    """The same of a logit composition, with speculation beside it."""
    rows = []
    for row in result["results"]:
        found = row.get("speculative") or {}
        ratios = {"plain, over all members": row["ratio"]}
        if found:
            ratios |= {"speculative, over plain": found["over_plain"], "speculative, over the base": found["over_base"]}
        rows.append((_shape(row), ratios))
    chart = _ratios("Time per token", "ratio; below 1 it is faster", rows, (1.0, "as fast"))
    return Section(
        "Decoding, logit composition",
        [chart, *grids(result)],
        _span(result, "the composition takes", "its members' time"),
        _single(result),
    )


def own_tokens(result: Result) -> Section:
    """What it costs that a member has a tokenizer of its own."""
    rows = [(str(row["what"]), {"aligned / shared": row["ratio"]}) for row in result["results"]]
    chart = _ratios("Time with a tokenizer of its own", "aligned / shared tokenizer", rows, (1.0, "as fast"))
    return Section(
        "A tokenizer of its own",
        [chart, *grids(result)],
        _span(result, "aligned models take", "the time of shared tokens"),
        _single(result),
    )


def training(result: Result) -> Section:
    """One CALM step beside one LoRA step with as many parameters."""
    names = {"seconds_per_step": "time of a step", "peak_bytes": "peak memory", "step_bytes": "memory of a step"}
    ratio = result["results"]["ratio"]
    rows = [(title, {"CALM / LoRA": ratio[key]}) for key, title in names.items()]
    chart = _ratios("CALM over LoRA", "ratio; below 1 CALM takes less", rows, (1.0, "the same"))
    said = ", ".join(f"{title} {ratio[key]:.2f}" for key, title in names.items())
    return Section(
        "A training step, CALM beside LoRA",
        [chart, *grids(result)],
        f"CALM over LoRA with as many parameters: {said} (no interval).",
        _single(result),
    )


def overhead(result: Result) -> Section:
    """What a composition costs; counts have no interval."""
    measured = "Counts, and times of one run." if "measured" in result else "Counts, not measurements."
    return Section(
        f"What a composition costs: {result['augmenting']['name']} with {result['anchor']['name']}",
        overhead_grids(result),
        caveat=measured,
    )


def remote(result: Result) -> Section:
    """A base behind a real server, and what of its texts is proved."""
    exact = sum(row["certificate"]["unproved"] == 0 for row in result["results"])
    return Section(
        f"A base behind {result['server']}",
        remote_grids(result),
        f"{exact} of {len(result['results'])} ways of asking gave texts that are proved exact.",
        "Times and requests are of one run, without an interval.",
    )


def compatibility(result: Result) -> Section:
    """The tests under the oldest and the newest versions that are supported."""
    rows, notes = [], []
    for name, found in result.items():
        counts = [f"{found[key]:,}" for key in ("passed", "failed", "error", "skipped")]
        rows.append([name, *counts, duration(found["seconds"])])
        versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
        notes.append(f"{name}: {versions}.")
        notes += [f"{name}, not passed: {test}" for test in found.get("not_passed") or []]
    failed = sum(found["failed"] + found["error"] for found in result.values())
    return Section(
        "Supported versions",
        [Grid("The test suite", ["with", "passed", "failed", "error", "skipped", "time"], rows, notes)],
        f"Tests fail in {failed} cases." if failed else f"All tests pass with {' and '.join(result)}.",
    )


def fuzz(result: Result) -> Section:
    """Random texts through pairs of tokenizers, and compositions of them against recomputation."""
    rows = [[name, f"{found['pairs']:,}", f"{found['tokens']:,}"] for name, found in result["checked"].items()]
    failures = result["failures"]
    return Section(
        "Random texts through pairs of tokenizers",
        [Grid("Checked", ["what", "pairs", "tokens"], rows, [f"Failed: {failure}" for failure in failures])],
        f"{len(failures)} failures." if failures else "Nothing failed.",
    )


def _ratios(title: str, axis: str, rows: Sequence[tuple[str, dict[str, float]]], reference: tuple[float, str]) -> Rows:
    drawn = [
        Row(name, [Mark(Estimate(float(ratio)), series) for series, ratio in ratios.items()]) for name, ratios in rows
    ]
    return Rows(title, axis, drawn, digits=3, reference=reference)


def _shape(row: Result) -> str:
    text = f"{row['text']}, " if row.get("text") else ""
    return f"{text}{row['dtype']}, prompt {row['prompt']}, batch {row['batch']}"


def _span(result: Result, who: str, what: str) -> str:
    ratios = [row["ratio"] for row in result["results"]]
    return f"{who[0].upper()}{who[1:]} {min(ratios):.2f} to {max(ratios):.2f} times {what} (one run each, no interval)."


def _single(result: Result) -> str:
    repetitions = result.get("repetitions")
    clock = f", {result['clock']}" if result.get("clock") else ""
    times = f", {repetitions} repetitions" if repetitions else ""
    return f"One measurement on one machine{times}{clock}: its figures have no intervals."
