"""The proxy-tuning experiments as sections: losses, how much of a tuning comes over, alpha and temperature."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmcompose.reporting.proxy_tables import MODELS, PAIRS, cases_grid
from lmcompose.reporting.proxy_tables import stages_grid as stages_by_seed
from lmcompose.reporting.report.charts import (
    ONE_SEED,
    Block,
    Costs,
    Curves,
    Level,
    Line,
    Mark,
    Point,
    Row,
    Rows,
    Section,
)
from lmcompose.reporting.report.estimates import Estimate, from_count, from_figure, from_triple, seeds_of
from lmcompose.reporting.tables import Grid, count, duration
from lmcompose.reporting.trace_tables import classes_grid
from lmcompose.reporting.translation_tables import members_grid, stages_grid

Result = dict[str, Any]

DOCUMENTS = "Whiskers: 95 % bootstrap intervals over the documents."
LOWEST = -80.0
"""Where the axes of the gap closed end below; a composition far too strong closes far less."""


def tuning(result: Result) -> Section:
    """The experiment on a family of models that was trained for it, for each of its tasks."""
    tasks = result["tasks"]
    blocks: list[Block] = []
    for task in tasks.values():
        blocks += [_losses(task, "nats per token"), _gaps(task)]
    blocks += [_alphas(tasks), *(_temperatures(task, "nats per token") for task in tasks.values())]
    blocks += [_pairs(tasks), _alike(tasks), _agreement(tasks)]
    if result.get("style"):
        rows = [Row(MODELS[name], [Mark(from_count(cell))]) for name, cell in result["style"].items()]
        style = "Pages written from nothing that are a diary"
        blocks.append(Rows(style, "pages, %", rows, notes=["Seed 0. Whiskers: 95 % Wilson intervals."]))
    more = [_family(result)]
    for key, compared in (result.get("comparison") or {}).items():
        grid = classes_grid(compared)
        title = f"Directly tuned and proxy-tuned by class of token, {tasks[key]['title']}"
        more += [Grid(title, grid.columns, grid.rows, grid.notes), cases_grid(key, result)]
    for key, written in (result.get("samples") or {}).items():
        rows_of_texts = [[MODELS[name], texts[0]] for name, texts in written.items() if texts]
        more.append(Grid(f"Written from nothing, tuned on {tasks[key]['title']}", ["model", "text"], rows_of_texts))
    more.append(stages_by_seed(result))
    parts = [f"{_gap(task['models']['proxy'])} % on {task['title']}" for task in tasks.values()]
    return Section(
        "Proxy-tuning, a family trained here",
        blocks,
        headline=f"Of the gap between base and directly tuned base, the proxy-tuned base closes {'; '.join(parts)}.",
        more=[grid for grid in more if grid.rows],
    )


def translation(result: Result) -> Section:
    """The experiment on pretrained models and one language, with the translations that they write."""
    tasks = {result["language"]: result}
    measured = result["chrf"]["models"]
    chrf = Rows(
        f"Quality of the {result['title']}",
        "chrF1",
        [Row(MODELS[name], [Mark(from_triple(each["chrf1"]))], name == "proxy") for name, each in measured.items()],
        first_column="model",
        notes=["Greedy decoding, first line. Whiskers: 95 % bootstrap intervals over the sentences."],
    )
    curves = Curves(
        "Training of the adapters",
        "step",
        "loss, nats per token",
        [
            Line(name, [(float(point["step"]), Estimate(float(point["loss"]))) for point in adapter["curve"]])
            for name, adapter in result["adapters"].items()
        ],
        digits=3,
    )
    chrf2 = [
        [
            MODELS[name],
            from_triple(each["chrf2"]).text(),
            from_triple(closed, 100).text() if (closed := result["chrf"]["gap_closed"].get(name)) else "",
            f"{100 * each['empty']:.0f}",
        ]
        for name, each in measured.items()
    ]
    blocks: list[Block] = [
        chrf,
        _chrf_costs(result),
        _losses(result, "bits per character"),
        _gaps(result),
        _alphas(tasks),
        _temperatures(result, "bits per character"),
        _alike(tasks),
        _agreement(tasks),
        curves,
    ]
    further = Grid(
        "Further figures of the translations",
        ["model", "chrF2", "gap closed in chrF1, %", "empty, %"],
        chrf2,
        notes=["empty: answers without a word, of all."],
    )
    more = [
        further,
        members_grid(result),
        *(_sample(number, texts) for number, texts in enumerate(result["samples"], 1)),
        stages_grid(result),
    ]
    proxy, base, tuned = (from_triple(measured[name]["chrf1"]).text() for name in ("proxy", "base", "tuned"))
    return Section(
        f"Proxy-tuning, {result['title']}",
        blocks,
        headline=f"chrF1 of the proxy-tuned base: {proxy}; of the base {base}, of the directly tuned base {tuned}.",
        caveat=ONE_SEED if _one_seed(result) else "",
        more=more,
    )


def _one_seed(task: Result) -> bool:
    return len(task["models"]["proxy"]["loss"]["by_seed"]) == 1


def _gap(model: Result) -> str:
    return from_figure(model["gap_closed"], 100).text()


def _losses(task: Result, unit: str) -> Rows:
    models = task["models"]
    ordered = sorted((name for name in MODELS if name in models), key=lambda name: models[name]["loss"]["mean"])
    return Rows(
        f"Held-out loss, {task['title']}, the best first",
        unit,
        [
            Row(
                MODELS[name],
                [Mark(from_figure(models[name]["loss"]), by_seed=seeds_of(models[name]["loss"]))],
                strong=name == "proxy",
            )
            for name in ordered
        ],
        first_column="model",
        digits=3,
        bars=False,
        notes=[DOCUMENTS, f"{task['tokens']:,} tokens of {task['documents']} documents. Lower is better."],
    )


def _gaps(task: Result) -> Rows:
    models = task["models"]
    inner = [name for name in MODELS if name in models and name not in ("base", "tuned")]
    return Rows(
        f"Gap closed, {task['title']}",
        "(model - base) / (directly tuned base - base), %",
        [
            Row(
                MODELS[name],
                [Mark(from_figure(models[name]["gap_closed"], 100), by_seed=seeds_of(models[name]["gap_closed"], 100))],
                strong=name == "proxy",
            )
            for name in sorted(inner, key=lambda name: -models[name]["gap_closed"]["mean"])
        ],
        first_column="model",
        reference=(100.0, "directly tuned"),
        notes=[DOCUMENTS],
    )


def _alphas(tasks: Mapping[str, Result]) -> Curves:
    lines, notes = [], []
    for index, (key, task) in enumerate(tasks.items()):
        for name in ("proxy", "expert_only"):
            points = [(float(row["value"]), from_figure(row["gap_closed"], 100)) for row in task["alpha"][name]]
            lines.append(Line(f"{key}: {MODELS[name]}", points, dashed=name == "expert_only", colour=index))
        best = task["best"]["alpha"]
        notes.append(
            f"Best for {key}: {best['proxy']['value']:g}; of base + expert {best['expert_only']['value']:g}. "
            "Chosen on these same texts."
        )
    experts = [task["models"]["expert"]["gap_closed"] for task in tasks.values()]
    return Curves(
        "How strong: alpha",
        "alpha",
        "gap closed, %",
        lines,
        floor=LOWEST,
        levels=[
            Level(100 * expert["mean"], f"{key}: the expert alone, {from_figure(expert, 100).text()}", index)
            for index, (key, expert) in enumerate(zip(tasks, experts, strict=True))
        ],
        notes=notes,
    )


def _temperatures(task: Result, unit: str) -> Curves:
    names = [name for name in MODELS if name in task["temperature"]]
    best = ", ".join(f"{MODELS[name]} {task['best']['temperature'][name]['value']:g}" for name in names)
    return Curves(
        f"Temperature, {task['title']}",
        "temperature, by which the scores are divided",
        f"loss, {unit}",
        [
            Line(MODELS[name], [(float(row["value"]), from_figure(row["loss"])) for row in task["temperature"][name]])
            for name in names
        ],
        digits=3,
        notes=[f"Best: {best}."],
    )


def _pairs(tasks: Mapping[str, Result]) -> Rows:
    """Must the antiexpert have read what the base has read?"""
    rows = [
        Row(
            read,
            [
                Mark(from_figure(task["models"][f"{before}proxy"]["gap_closed"], 100), key)
                for key, task in tasks.items()
                if f"{before}proxy" in task["models"]
            ],
        )
        for before, read in PAIRS.items()
    ]
    return Rows(
        "Must the antiexpert have read what the base has read?",
        "gap closed by the proxy-tuned base, %",
        [row for row in rows if row.marks],
        first_column="the antiexpert has read",
        notes=[DOCUMENTS],
    )


def _alike(tasks: Mapping[str, Result]) -> Rows:
    return _beside_tuned(
        tasks, "kl", 1, 3, "Far from the directly tuned base?", "KL(directly tuned || model), nats per token"
    )


def _agreement(tasks: Mapping[str, Result]) -> Rows:
    return _beside_tuned(
        tasks, "agreement", 100, 1, "The same likeliest token as the directly tuned base?", "tokens, %"
    )


def _beside_tuned(tasks: Mapping[str, Result], key: str, factor: float, digits: int, title: str, axis: str) -> Rows:
    names = [name for name in MODELS if all(f"tuned {name}" in task[key] for task in tasks.values())]
    rows = [
        Row(MODELS[n], [Mark(from_figure(task[key][f"tuned {n}"], factor), name) for name, task in tasks.items()])
        for n in names
    ]
    return Rows(title, axis, rows, first_column="model", digits=digits, notes=[DOCUMENTS])


def _family(result: Result) -> Grid:
    names = {"storyteller": "the storyteller"}
    return Grid(
        "The family, on held-out stories",
        ["model", "parameters", "loss, nats per token"],
        [
            [names.get(name, name), count(result["parameters"][name]), from_figure(loss).text(3)]
            for name, loss in result["stories"].items()
        ],
        notes=["The storyteller's own loss is the floor: the stories are drawn from it."],
    )


def _chrf_costs(result: Result) -> Costs:
    """What was trained for each model and how long, against the quality of its translations."""
    trained_for: dict[str, Sequence[str]] = {"base": [], "expert": ["expert"], "proxy": ["expert"], "tuned": ["tuned"]}
    adapters, measured = result["adapters"], result["chrf"]["models"]
    items = []
    for name in (name for name in measured if name in trained_for):
        own = [adapters[each] for each in trained_for[name]]
        seconds, parameters = (sum(each[key] for each in own) for key in ("seconds", "trained"))
        cost = f"{duration(seconds)}, {count(parameters)} parameters" if own else "nothing trained"
        items.append(Point(MODELS[name], seconds / 60, cost, from_triple(measured[name]["chrf1"])))
    return Costs("Cost of training against quality", "minutes of training", "chrF1", items)


def _sample(number: int, texts: Result) -> Grid:
    named = {"english": "(English)", "reference": "(reference)", **MODELS}
    rows = [[named[name], text] for name, text in texts.items() if name in named]
    return Grid(f"Sentence {number}", ["model", "translation"], rows)
