"""Small traces, comparisons and sweeps in the form that `lmcompose.evaluation` writes."""

from lmcompose.evaluation.statistics import score


def standing(probability, rank):
    return {"probability": probability, "log_probability": None, "rank": rank}


def token(text, before, after, shift, base_choice=None, composition_choice=None, spelling=None):
    return {
        "id": len(text),
        "text": text,
        "spelling": spelling or text,
        "members": {"base": standing(before, 2), "expert": standing(0.5, 1)},
        "composition": standing(after, 1),
        "base_choice": {"id": 1, "text": base_choice or text, "probability": 0.6},
        "composition_choice": {"id": 1 if composition_choice is None else 2, "text": composition_choice or text,
                               "probability": 0.7},
        "shift": shift,
        "kl": 0.25,
    }  # fmt: skip


def trace_result(**changes):
    tokens = [
        token(" the", 0.2, 0.2, 0.0),
        token(" cat", 0.1, 0.4, 1.386, " dog", " cat"),
        token("\n", 0.4, 0.1, -1.386),
        token(" sat", 0.001, 0.9, 6.8, " lay", " sat"),
    ]
    return {
        "what": "trace",
        "command": "lmcompose trace my-proxy 'Once'",
        "recipe": None,
        "seed": 0,
        "versions": {"torch": "2.13"},
        "machine": {"threads": 1},
        "model": {"model_type": "logit_composition", "formula": "base + alpha * expert", "parameters": {"alpha": 1.5}},
        "base": "base",
        "members": {"base": "models/large", "expert": "models/small"},
        "tuned": None,
        "prompt": "Once upon",
        "prompt_ids": [1, 2],
        "text": " the cat\n sat",
        "source": "generated",
        "tokens": tokens,
        "outputs": {"composition": {"text": "the cat\n sat", "ids": [1]}, "base": {"text": "the dog", "ids": [2]}},
        "summary": {"tokens": 4, "changed": 2, "shift": 1.7, "kl": 0.25,
                    "log_probability": {"members": {"base": -9.1, "expert": -2.8}, "composition": -4.9}},
        **changes,
    }  # fmt: skip


def with_tuned(trace):
    for entry in trace["tokens"]:
        entry["tuned"] = standing(0.3, 3)
    trace["summary"]["log_probability"]["tuned"] = -7.0
    trace["outputs"]["tuned"] = {"text": "the bird", "ids": [3]}
    return {**trace, "tuned": "models/large-tuned"}


def figure(mean, low=None, high=None):
    return {"mean": mean, "interval": None if low is None else [low, high], "tokens": 120}


def pair(first, second):
    figures = {"kl": figure(0.5, 0.4, 0.6), "reverse_kl": figure(None), "agreement": figure(0.875, 0.8, 0.95)}
    return {"first": first, "second": second, **figures, "classes": {"digits": figures}}


def comparison_result(**changes):
    return {
        "what": "comparison",
        "base": "base",
        "members": {"base": "models/large"},
        "tuned": "models/large-tuned",
        "texts": 10,
        "tokens": 1200,
        "losses": {"members": {"base": figure(2.5, 2.4, 2.6)}, "composition": figure(2.1), "tuned": figure(2.0)},
        "gap_closed": figure(0.8, 0.7, 0.9),
        "pairs": [pair("tuned", "composition"), pair("tuned", "members.base")],
        "classes": {"digits": "a digit and no letter"},
        "accuracy": {"members": {"base": score(30, 120)}, "composition": score(40, 120), "tuned": score(60, 120)},
        "cases": {"both": 25, "base_only": 5, "composition_only": 15, "neither": 75},
        "examples": {"base_only": [], "composition_only": []},
        **changes,
    }


def sweep_result(task="stories", better="lower", temperatures=(1.0, 2.0), values=(0.0, 1.0, 2.0)):
    rows = []
    for value in values:
        for temperature in temperatures:
            mean = 2 + (value - 1) ** 2 + temperature
            rows.append({"value": value, "temperature": temperature, "mean": mean, "interval": [mean - 0.1, mean + 0.1],
                         "items": 20, "minus_best": figure(mean - 3, mean - 3.1, mean - 2.9)})  # fmt: skip
    best = min(rows, key=lambda row: row["mean"])
    return {
        "what": "sweep",
        "parameter": "alpha",
        "score": "loss, nats per token",
        "better": better,
        "task": task,
        "results": rows,
        "best": {key: best[key] for key in ("value", "temperature", "mean")},
    }
