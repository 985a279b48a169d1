"""Which kinds of result have a section. A new kind is one entry: what its JSON says that it is, and what draws it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmcompose.reporting.report import (
    ablations,
    benchmarks,
    evaluations,
    judging,
    key_value_arms,
    key_values,
    proxies,
    runs,
    traces,
)
from lmcompose.reporting.report.charts import Section

Result = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of result: the heading that it stands under, and what makes a section of it.

    `build` may raise what reading a malformed dict raises; the file is then named as broken.
    """

    group: str
    build: Callable[[Result], Section]


KINDS: dict[str, Kind] = {
    "evaluation": Kind("Evaluations", evaluations.evaluation),
    "pairwise judging": Kind("Evaluations", judging.pairwise),
    "toxicity": Kind("Evaluations", judging.toxicity),
    "back-translation": Kind("Evaluations", judging.back_translation),
    "ablations": Kind("Ablations", ablations.ablations),
    "stories": Kind("Ablations", ablations.stories),
    "kv_arithmetic": Kind("Key-value arithmetic", key_values.arithmetic),
    "kv_ablations": Kind("Key-value arithmetic", key_value_arms.ablations),
    "kv_roads": Kind("Key-value arithmetic", key_value_arms.roads),
    "proxy_tuning": Kind("Proxy-tuning", proxies.tuning),
    "proxy_translation": Kind("Proxy-tuning", proxies.translation),
    "sweep": Kind("Sweeps, comparisons and traces", traces.sweep),
    "comparison": Kind("Sweeps, comparisons and traces", traces.comparison),
    "trace": Kind("Sweeps, comparisons and traces", traces.trace),
    "training": Kind("Training", runs.training),
    "loss_curve": Kind("Training", runs.loss_curve),
    "overhead": Kind("Speed, memory and size", benchmarks.overhead),
    "decode_benchmark": Kind("Speed, memory and size", benchmarks.decoding),
    "train_benchmark": Kind("Speed, memory and size", benchmarks.training),
    "logits_benchmark": Kind("Speed, memory and size", benchmarks.logits),
    "own_tokens_benchmark": Kind("Speed, memory and size", benchmarks.own_tokens),
    "alignment_fuzz": Kind("Servers, versions and tokenizers", benchmarks.fuzz),
    "remote_check": Kind("Servers, versions and tokenizers", benchmarks.remote),
    "compatibility": Kind("Servers, versions and tokenizers", benchmarks.compatibility),
}
"""By "what"; groups and kinds come in this order."""

PARTS = {
    "evaluation task": "One model on one task, with its examples; results.json has its scores",
    "plan": "What a dry run found",
}
"""What belongs to another result, or is none, and why it is not shown."""


def kind_of(result: Any) -> str:
    """The kind of a result: its "what", or for the few that have none, by their keys; "" for anything else."""
    if not isinstance(result, dict):
        return ""
    if isinstance(result.get("what"), str):
        return str(result["what"])
    if {"unit", "train", "validation"} <= result.keys():
        return "loss_curve"
    if result and all(isinstance(each, dict) and {"passed", "versions"} <= each.keys() for each in result.values()):
        return "compatibility"
    return ""
