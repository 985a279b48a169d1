"""Folders of results as their commands write them, and a page as a browser reads it."""

import json
from typing import Any

import numpy as np

from lmcompose.evaluation.statistics import adjusted, compare, figure
from tests.reporting.results import decode_result, kv_result, stories_result, train_result
from tests.reporting.test_page import Page as Elements
from tests.reporting.test_road_tables import result_of
from tests.reporting.traces import comparison_result, sweep_result, trace_result

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;"\'{{ 7 * 7 }}|`</svg></td></details><style>'


def evaluation_result(first: str = "anchor", second: str = "mine") -> dict[str, Any]:
    """Two models on one task in three languages and two others: Somali gained, GSM8K lost, the rest not shown."""

    def cells(unit: str, ours: tuple[float, ...], theirs: tuple[float, ...]) -> dict[str, Any]:
        return {
            label: {"estimate": found[0], "interval": list(found[1:]) or None, "examples": 50, "unit": unit}
            for label, found in ((first, ours), (second, theirs))
        }

    languages = {
        "ntrex_cym": ((40.25, 38.0, 42.5), (41.0, 39.0, 43.0)),
        "ntrex_som": ((10.0, 9.0, 11.0), (21.125, 20.0, 22.0)),
        "ntrex_orm": ((12.0, 11.0, 13.0), (12.5, 11.5, 13.5)),
    }
    scores = {task: {"chrf1,first_line": cells("chrF", *found)} for task, found in languages.items()}
    scores |= {"gsm8k": {"exact_match,number": cells("share", (0.5, 0.45, 0.55), (0.31, 0.26, 0.36))}}
    scores |= {"wikitext": {"byte_perplexity,none": cells("", (2.5,), (2.25,))}}
    for task in scores.values():
        for each in task.values():
            for cell in each.values():
                cell["unit"] = cell["unit"] or None
    scores["gsm8k"]["exact_match,strict-match"] = cells("share", (0.4, 0.35, 0.45), (0.2, 0.15, 0.25))
    family = {
        "tasks": list(languages),
        "mean": {first: 20.75, second: 24.875},
        "beats": {second: 3},
    }
    return {
        "what": "evaluation",
        "scores": scores,
        "headlines": {task: next(iter(each)) for task, each in scores.items()},
        "families": {"ntrex": family},
        "cut": {f"{second}, gsm8k": 2},
        "models": {first: {"name": "models/large"}, second: {"name": "runs/mine/model"}},
        "settings": {"shots": None, "limit": 50},
        **record("lmcompose evaluate models/large runs/mine/model --tasks ntrex,gsm8k,wikitext"),
    }


def ablations_result() -> dict[str, Any]:
    """Three arms and the anchor; a random m_A that is worth as much as the anchor alone, and something forgotten."""
    rng = np.random.default_rng(0)
    bits = {"anchor": 100.0, "composition": 80.0, "random": 100.0, "lora": 70.0}
    noise = {name: rng.normal(0, 4, (2, 30)) for name in bits}
    noise["anchor"][1] = noise["anchor"][0]
    scored = {name: value + noise[name] for name, value in bits.items()}
    old = {name: values + (40 if name == "lora" else 0) + rng.normal(0, 2, (2, 30)) for name, values in scored.items()}
    seconds = {"composition": [60.0, 80.0], "random": [61.0, 79.0], "lora": [30.0, 40.0]}
    work = {
        name: {
            "parameters": 1000 * len(name),
            "steps": [5, 5],
            "tokens": [160, 160],
            "resumed": [None, 3],
            "seconds": each,
        }
        for name, each in seconds.items()
    }
    return {
        "what": "ablations",
        "recipe_name": "mine.yaml",
        "seeds": [0, 1],
        "arms": {"composition": "m_A as it is", "random": "m_A with random weights", "lora": "LoRA on the anchor"},
        "held_out": {"documents": 30, "tokens": 1200, "bytes": 3000},
        "work": work,
        **_by_unit(scored),
        "forgetting": {"English": _by_unit(old)},
        "refused": {"weight averaging": "the shapes differ."},
        "stages": [{"name": "all of it", "seconds": 300.0}],
        **record("python -m lmcompose.experiments.ablations mine.yaml"),
        "recipe": {"training": {"batch_size": 2, "max_length": 16}},
    }


def _by_unit(scored: dict[str, np.ndarray]) -> dict[str, Any]:
    def figures(values: np.ndarray) -> dict[str, Any]:
        means = [values.mean(axis=1)] + [np.roll(values, shift, 1)[:, :20].mean(axis=1) for shift in range(50)]
        return figure(np.stack(means, axis=1))

    def minus(first: str, second: str) -> Any:
        return compare(scored[first] / 100, scored[second] / 100, better="lower", resamples=200)

    others = [name for name in scored if name != "composition"]
    gains = adjusted({name: minus(name, "anchor") for name in scored if name != "anchor"})
    differences = adjusted({name: minus("composition", name) for name in others})
    per_byte = {
        "arms": {name: figures(values / 100) for name, values in scored.items()},
        "minus": {name: each.to_json() for name, each in differences.items()},
        "gains": {name: each.to_json() for name, each in gains.items()},
    }
    return {"per_byte": per_byte, "per_token": per_byte}


def kv_ablations_result() -> dict[str, Any]:
    """Two arms, and the composition with 1, 20 and 50 % of the keys held in."""
    roads = result_of([0, 1])
    cell = {"correct": 1, "total": 4, "accuracy": 0.25, "interval": [0.046, 0.699]}
    names = {"augmenting": "m_A alone", "default": "composition", "gate": "random m_A"}
    names |= {"fraction_1": "1 % held in", "fraction_50": "50 % held in", "connections_all": "n = all"}
    tasks = ("kv_subs", "num_math", "kv_math")
    found = roads["differences"]["gate"]
    trained = [name for name in names if name != "augmenting"]
    return {
        "what": "kv_ablations",
        "profile": "demo",
        "seeds": [0, 1],
        "titles": names,
        "ladder": ["augmenting", "default", "gate"],
        "curves": {
            "fraction": {
                "title": "keys held in, %",
                "points": [[1, "fraction_1"], [20, "default"], [50, "fraction_50"]],
            },
            "connections": {
                "title": "connections n",
                "points": [[1, "default"], [2, "gate"], ["all", "connections_all"]],
            },
        },
        "results": {name: {task: cell for task in tasks} for name in names},  # noqa: C420
        "differences": {name: found for name in names if name != "default"},
        "parameters": dict.fromkeys(trained, 20480),
        "seconds": {name: [60.0, 70.0] for name in trained},
        **record("python -m lmcompose.experiments.kv_arithmetic.ablations"),
    }


def judging_result() -> dict[str, Any]:
    share = {"estimate": 0.5625, "interval": [0.4375, 0.6875], "count": 40}
    return {
        "what": "pairwise judging",
        "systems": ["mine", "theirs"],
        "win_rate": share,
        "position": None,
        "flips": {"estimate": 0.25, "interval": [0.125, 0.375], "count": 40},
        "comparison": {"verdict": "no difference shown"},
        "counts": {"wins": 20, "losses": 10, "ties": 10},
        **record("lmcompose judge"),
    }


def training_result() -> dict[str, Any]:
    results = {
        "steps": 6,
        "epochs": 1.5,
        "stopped_early": False,
        "best_step": None,
        "train_loss_last": 2.125,
        "validation_loss": 2.25,
        "validation_loss_untrained": 4.5,
        "trained_parameters": 12345,
        "seconds": 61.5,
        "data": [{"source": "x/data.jsonl", "kind": "text", "train_examples": 90, "learned_tokens": 1234}],
    }
    return {"what": "training", **record("lmcompose train recipe.yaml"), "recipe": {"output": "runs/first"},
            "results": results}  # fmt: skip


def curve_result() -> dict[str, Any]:
    train = [{"step": step, "loss": 4.5 - step / 50, "learning_rate": 0.001} for step in range(1, 101)]
    return {"unit": "nats per learned token", "train": train, "validation": [{"step": 100, "loss": 2.75}]}


def compatibility_result() -> dict[str, Any]:
    counts = {"passed": 1954, "failed": 0, "error": 0, "skipped": 1, "seconds": 274, "not_passed": []}
    return {f"transformers {version}": counts | {"versions": {"torch": "2.13"}} for version in ("5.19.0", "5.24.0")}


def record(command: str) -> dict[str, Any]:
    return {"command": command, "recipe": None, "seed": 7, "versions": {"torch": "2.13.0"}, "machine": {"threads": 1}}


def roads_result() -> dict[str, Any]:
    result = result_of([0])
    result["recipe"]["roads"]["default"]["title"] = "as in the paper"
    return {"what": "kv_roads", **result}


EVERY = {
    "evaluation": evaluation_result,
    "judging": judging_result,
    "ablations": ablations_result,
    "stories": stories_result,
    "kv": kv_result,
    "kv_ablations": kv_ablations_result,
    "roads": roads_result,
    "sweep": sweep_result,
    "comparison": comparison_result,
    "trace": trace_result,
    "training": training_result,
    "loss_curve": curve_result,
    "decode": decode_result,
    "train": train_result,
    "compatibility": compatibility_result,
}
"""Small results by the name of their file; those of the proxy-tuning experiments are in results/."""


def write_all(folder: Any) -> Any:
    for name, make in EVERY.items():
        write(folder, name, make())
    return folder


def write(folder: Any, name: str, result: Any) -> Any:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), encoding="utf-8")
    return path


class Page(Elements):
    """A report: its tables as lists of cells, and the figures that its marks carry."""

    def tables(self) -> dict[str, list[list[str]]]:
        """By title, head and rows."""
        found: dict[str, list[list[str]]] = {}
        rows: list[list[str]] = []
        for element in self.elements:
            if element["tag"] == "table":
                rows = found.setdefault(element["aria-label"], [])
                rows.clear()
            elif element["tag"] == "tr":
                rows.append([])
            elif element["tag"] in ("th", "td"):
                rows[-1].append(element["text"])
        return found

    def marks(self) -> list[tuple[float, float | None, float | None]]:
        """Value, low and high of everything that is drawn."""
        drawn = [element for element in self.elements if "data-value" in element]
        ends = ("data-low", "data-high")
        return [(float(e["data-value"]), *(float(e[end]) if end in e else None for end in ends)) for e in drawn]
