"""The proxy-tuning experiment as tables, for the terminal and for Markdown; see `tables.Grid`."""

from collections.abc import Sequence
from typing import Any

from lmcompose.reporting.tables import Grid, accuracy, count, duration, signed_interval
from lmcompose.reporting.trace_tables import classes_grid

Result = dict[str, Any]

MODELS = {
    "base": "base",
    "antiexpert": "antiexpert",
    "expert": "expert",
    "proxy": "proxy-tuned base",
    "tuned": "directly tuned base",
    "expert_only": "base + expert",
}
PAIRS = {"": "the base's stories", "other ": "other stories", "code ": "Python code"}
"""The pairs, by what their antiexpert has read; the keys stand before "expert" and "antiexpert"."""


def proxy_grids(result: Result) -> list[Grid]:
    """All tables of the experiment."""
    tasks = result["tasks"]
    grids = [
        *(losses_grid(task) for task in tasks.values()),
        pairs_grid(tasks),
        seeds_grid(tasks, result["seeds"]),
        alike_grid(tasks),
        alphas_grid(tasks),
        *(temperatures_grid(task) for task in tasks.values()),
        style_grid(result),
        family_grid(result),
        stages_grid(result),
    ]
    return [grid for grid in grids if grid.rows]


def proxy_markdown(result: Result) -> str:
    """All tables, what the models wrote side by side, the comparison by class of token, and the command."""
    parts = [grid.to_markdown() for grid in proxy_grids(result)]
    for task, compared in result["comparison"].items():
        grid = classes_grid(compared)
        title = f"Directly tuned and proxy-tuned by class of token, {result['tasks'][task]['title']}"
        parts.append(Grid(title, grid.columns, grid.rows, grid.notes).to_markdown())
        parts.append(cases_grid(task, result).to_markdown())
    parts += samples(result)
    return "\n".join([*parts, f"Made by `{result['command']}`.\n"])


def losses_grid(task: Result, unit: str = "nats per token") -> Grid:
    """The five models of one task, and the expert added alone: loss, and how much of the gap is closed."""
    texts = f"{task['tokens']:,} tokens of {task['documents']} documents"
    rows = []
    for name, title in MODELS.items():
        model = task["models"][name]
        inner = name not in ("base", "tuned")
        rows.append(
            [
                title,
                f"{model['loss']['mean']:.3f}",
                ""
                if name == "base"
                else signed_interval([model["minus_base"]["mean"], *model["minus_base"]["documents"]]),
                percent(model["gap_closed"]) if inner else "",
            ]
        )
    return Grid(
        f"Held-out loss, {task['title']}, {unit}",
        ["model", "loss", "minus base", "gap closed, %"],
        rows,
        notes=[
            f"Means over the seeds; {texts}. Brackets: 95 % bootstrap intervals over the documents.",
            "gap closed: (model - base) / (directly tuned base - base).",
        ],
        strong=[list(MODELS).index("proxy")],
    )


def pairs_grid(tasks: Result) -> Grid:
    """Must the antiexpert have read what the base has read?"""
    rows = []
    for key, task in tasks.items():
        for before, read in PAIRS.items():
            kl = task["kl"][f"base {before}antiexpert"]["mean"]
            proxy, expert = (task["models"][f"{before}{name}"]["gap_closed"] for name in ("proxy", "expert"))
            rows.append([key, read, f"{kl:.2f}", f"{100 * expert['mean']:.1f}", percent(proxy)])
    return Grid(
        "Must the antiexpert have read what the base has read?",
        ["tuned on", "antiexpert has read", "KL", "expert", "gap closed, %"],
        rows,
        notes=[
            "KL: KL(base || antiexpert) on the held-out text, nats per token; expert: the gap that it closes alone, %; "
            "gap closed: by the proxy-tuned base."
        ],
    )


def seeds_grid(tasks: Result, seeds: Sequence[int]) -> Grid:
    """The gap closed, with the seeds as the thing that varies."""
    rows = []
    for key, task in tasks.items():
        for name in ("proxy", "other proxy", "code proxy", "expert"):
            gap = task["models"][name]["gap_closed"]
            interval = "" if gap["seeds"] is None else " [{:.1f}, {:.1f}]".format(*(100 * end for end in gap["seeds"]))
            by_seed = ", ".join(f"{100 * estimate:.1f}" for estimate, *_ in gap["by_seed"])
            title = MODELS.get(name) or f"proxy, {PAIRS[name.split()[0] + ' ']}"
            rows.append([key, title, f"{100 * gap['mean']:.1f}{interval}", by_seed])
    return Grid(
        "Gap closed by seed, %",
        ["tuned on", "model", "mean over seeds", "by seed"],
        rows,
        notes=[f"Brackets: 95 % Student's intervals over seeds {', '.join(map(str, seeds))}."],
    )


def alike_grid(tasks: Result) -> Grid:
    """How far each model's predictions are from the directly tuned base's."""
    rows = []
    for key, task in tasks.items():
        for name in ("base", "expert", "proxy", "expert_only"):
            kl, same = task["kl"][f"tuned {name}"], task["agreement"][f"tuned {name}"]
            rows.append([key, MODELS[name], f"{kl['mean']:.3f}", percent(same)])
    return Grid(
        "Do the predictions look like the directly tuned base's?",
        ["tuned on", "model", "KL", "same likeliest token, %"],
        rows,
        notes=["KL: KL(directly tuned || model), nats per token."],
    )


def alphas_grid(tasks: Result) -> Grid:
    """The gap closed at every alpha."""
    sweeps = [(key, name) for key in tasks for name in ("proxy", "expert_only")]
    values = [row["value"] for row in next(iter(tasks.values()))["alpha"]["proxy"]]
    rows = [
        [f"{value:g}", *(f"{100 * tasks[key]['alpha'][name][at]['gap_closed']['mean']:.1f}" for key, name in sweeps)]
        for at, value in enumerate(values)
    ]
    notes = [
        f"Best alpha, {task['title']}: {task['best']['alpha']['proxy']['value']:g} (by seed "
        f"{', '.join(f'{value:g}' for value in task['best']['alpha']['proxy']['by_seed'])}); of base + expert "
        f"{task['best']['alpha']['expert_only']['value']:g}."
        for task in tasks.values()
    ]
    columns = [f"{key}: {MODELS[name]}" for key, name in sweeps]
    return Grid("Gap closed at each alpha, %", ["alpha", *columns], rows, notes=notes)


def temperatures_grid(task: Result) -> Grid:
    """The loss at every temperature."""
    names = [name for name in MODELS if name in task["temperature"]]
    values = [row["value"] for row in task["temperature"]["proxy"]]
    rows = [
        [f"{value:g}", *(f"{task['temperature'][name][at]['loss']['mean']:.3f}" for name in names)]
        for at, value in enumerate(values)
    ]
    best = ", ".join(f"{MODELS[name]} {task['best']['temperature'][name]['value']:g}" for name in names)
    return Grid(
        f"Loss at each temperature, {task['title']}",
        ["temperature", *(MODELS[name] for name in names)],
        rows,
        notes=[f"The scores are divided by it. Best: {best}."],
    )


def style_grid(result: Result) -> Grid:
    """How many of the texts that a model writes from nothing keep to the style."""
    return Grid(
        "Pages written from nothing that are a diary, %",
        ["model", "share"],
        [[MODELS[name], accuracy(cell)] for name, cell in result["style"].items()],
        notes=["Seed 0. Brackets: 95 % Wilson intervals. A diary begins as one and nobody in it is he or she."],
    )


def family_grid(result: Result) -> Grid:
    """The models before any tuning: their size and their loss on stories."""
    return Grid(
        "The family, on held-out stories, nats per token",
        ["model", "parameters", "loss"],
        [
            [
                {"storyteller": "the storyteller"}.get(name, name),
                count(result["parameters"][name]),
                f"{loss['mean']:.3f}",
            ]
            for name, loss in result["stories"].items()
        ],
        notes=["The storyteller's own loss is the floor: the stories are drawn from it."],
    )


def stages_grid(result: Result) -> Grid:
    """The processor time of the stages, added up by seed."""
    seconds: dict[str, float] = {}
    for stage in result["stages"]:
        name = stage["name"].partition(":")[0] if stage["name"].startswith("seed ") else "stories"
        seconds[name] = seconds.get(name, 0.0) + stage["seconds"]
    return Grid("Processor time", ["stage", "time"], [[name, duration(each)] for name, each in seconds.items()])


def cases_grid(task: str, result: Result) -> Grid:
    """Where one of the base and the proxy-tuned base has the true token as its likeliest, and the other has not."""
    compared = result["comparison"][task]
    cases, tokens = compared["cases"], compared["tokens"]
    names = {
        "both": "both right",
        "base_only": "base alone",
        "composition_only": "proxy-tuned base alone",
        "neither": "neither",
    }
    return Grid(
        f"Who is right, {result['tasks'][task]['title']}",
        ["base and proxy-tuned base", "tokens", "%"],
        [[title, f"{cases[name]:,}", f"{100 * cases[name] / tokens:.1f}"] for name, title in names.items()],
    )


def samples(result: Result) -> list[str]:
    """What the models write, side by side: Markdown."""
    parts = []
    for task, written in result["samples"].items():
        parts.append(f"**Written from nothing, tuned on {result['tasks'][task]['title']}** (seed 0)\n")
        for name, texts in written.items():
            shown = "\n\n".join(texts[:2]).replace("```", "'''")
            parts.append(f"{MODELS[name]}:\n\n```text\n{shown}\n```\n")
    return parts


def percent(figure: Result) -> str:
    """`91.2 [89.0, 93.4]`, a share as a percentage with its interval over the documents."""
    low, high = (100 * end for end in figure["documents"])
    return f"{100 * figure['mean']:.1f} [{low:.1f}, {high:.1f}]"
