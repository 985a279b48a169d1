"""From what lm-eval logs of a task's examples to scores with intervals, and to rows that can be paired later.

Numbers and texts in, plain values out; this file runs no model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmcompose.evaluation.bounded import AtMost
from lmcompose.evaluation.chrf import BETAS, chrf_interval
from lmcompose.evaluation.statistics import ratio_bootstrap, wilson_interval

Sample = Mapping[str, Any]
"""One example as one filter of lm-eval sees it."""


def scores(samples: Sequence[Sample], aggregated: Mapping[str, Any], seed: int = 0) -> dict[str, dict[str, Any]]:
    """Every score of a task, by "metric,filter" as lm-eval spells it.

    The estimate is lm-eval's own. Its 95 % interval is Wilson's where every example is right or wrong, a bootstrap over
    the examples for other means and for chrF, and None where the score is neither.

    Args:
        samples: as `lm_eval.evaluator.evaluate` logs them, of one task.
        aggregated: what it makes of them: "metric,filter" -> number.
        seed: of the bootstraps.

    Returns:
        For each score `estimate`, `interval`, `examples` (how many) and `unit`: "share" from 0 to 1, "chrF" from 0 to
        100, or None.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in _names(samples):
        if name not in aggregated:
            continue
        metric, _, chosen = name.partition(",")
        values = [sample[metric] for sample in samples if sample["filter"] == chosen and metric in sample]
        estimate, interval, unit = float(aggregated[name]), None, None
        if metric in BETAS:
            unit = "chrF"
            if len(values) > 1:
                interval = chrf_interval(values, BETAS[metric], seed=seed)[1:]
        elif all(isinstance(value, int | float) for value in values) and _is_mean(values, estimate):
            unit = "share" if all(0 <= value <= 1 for value in values) else None
            if all(value in (0, 1) for value in values):
                interval = wilson_interval(int(sum(values)), len(values))[1:]
            elif len(values) > 1:
                interval = ratio_bootstrap(values, [1.0] * len(values), seed=seed)[1:]
        found[name] = {
            "estimate": estimate,
            "interval": None if interval is None else list(interval),
            "examples": len(values),
            "unit": unit,
        }
    return found


def examples(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The examples in the order of the data, one row each.

    Returns:
        Of each, `id`, `target`, `responses` (what the model wrote, or log-likelihoods of the choices; of one that is
        only bounded, `{"at_most": bound}`), `answers` by filter, and `values` by
        "metric,filter", where they are numbers.
    """
    rows: dict[int, dict[str, Any]] = {}
    for sample in samples:
        row = rows.setdefault(
            sample["doc_id"],
            {
                "id": sample["doc_id"],
                "target": sample["target"],
                "responses": [_plain(response[0] if len(response) == 1 else response) for response in sample["resps"]],
                "answers": {},
                "values": {},
            },
        )
        if sample["filter"] != "none":
            row["answers"][sample["filter"]] = sample["filtered_resps"][0]
        for metric in sample["metrics"]:
            if isinstance(sample[metric], int | float):
                row["values"][f"{metric},{sample['filter']}"] = float(sample[metric])
    return [rows[number] for number in sorted(rows)]


def _plain(response: Any) -> Any:
    """A response with every bound as what JSON can tell from a number."""
    if isinstance(response, list | tuple):
        return [_plain(part) for part in response]
    return {"at_most": float(response)} if isinstance(response, AtMost) else response


def _names(samples: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(f"{metric},{sample['filter']}" for sample in samples for metric in sample["metrics"]))


def _is_mean(values: Sequence[float], estimate: float) -> bool:
    return bool(values) and abs(sum(values) / len(values) - estimate) < 1e-9 * max(1.0, abs(estimate))
