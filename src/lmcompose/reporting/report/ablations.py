"""What an augmenting model is worth, as a section: the ladder of arms, their differences, cost against quality."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmcompose.reporting.ablation_tables import differences_grid, titles, work_grid
from lmcompose.reporting.comparison_tables import verdict
from lmcompose.reporting.report.charts import Block, Costs, Mark, Point, Row, Rows, Section
from lmcompose.reporting.report.estimates import Estimate, from_figure, from_triple, seeds_of
from lmcompose.reporting.tables import Grid, count, duration, stages_grid, stories_grid

Result = dict[str, Any]


def ablations(result: Result) -> Section:
    """The arms from the best to the worst, and the first arm minus each other."""
    names, arms, minus = titles(result), result["per_byte"]["arms"], result["per_byte"]["minus"]
    held = result["held_out"]
    first = next(iter(result["arms"]))
    notes = [
        f"Whiskers: 95 % intervals over {held['documents']} held-out documents ({held['tokens']:,} tokens, "
        f"{held['bytes']:,} bytes). Lower is better."
    ]
    ladder = Rows(
        "The ladder: held-out loss, the best first",
        "bits per byte",
        [
            Row(names[name], [Mark(from_figure(arms[name]), by_seed=_seeds(arms[name]))], strong=name == first)
            for name in sorted(arms, key=lambda name: arms[name]["mean"])
        ],
        first_column="model",
        digits=4,
        bars=False,
        notes=notes,
    )
    blocks: list[Block] = [ladder]
    if minus:
        blocks.append(_differences(minus, f"{names[first][:1].upper()}{names[first][1:]}: minus the others", names))
    for source, figures in (result.get("by_source") or {}).items():
        blocks.append(_differences(figures["per_byte"]["gains"], f"{source}: minus the anchor by itself", names, ""))
    for forgotten, figures in {None: result, **(result.get("forgetting") or {})}.items():
        gains = figures["per_byte"].get("gains")
        if gains:
            where = "Gained: on what was held out" if forgotten is None else f"Kept or forgotten: {forgotten}"
            blocks.append(_differences(gains, f"{where}, minus the anchor by itself", names, prefix=""))
    blocks += _costs(result, names)
    more = [_per_token(result, names), work_grid(result), stages_grid(result)]
    refused = result.get("refused") or {}
    return Section(
        f"Ablations of {result['recipe_name']}",
        [*blocks, differences_grid(result)],
        headline=_headline(minus, names),
        caveat=" ".join(f"{title} was not run: {why}" for title, why in refused.items()),
        more=[grid for grid in more if grid.rows],
    )


def _differences(
    comparisons: Mapping[str, Result], title: str, names: Mapping[str, str], prefix: str = "minus "
) -> Rows:
    """Differences in bits per byte, the best first."""
    return Rows(
        title,
        "bits per byte; below 0 it is better",
        [
            Row(f"{prefix}{names[name]}", [Mark(from_figure(each), by_seed=_seeds(each), said=verdict(each))])
            for name, each in sorted(comparisons.items(), key=lambda item: item[1]["mean"])
        ],
        digits=4,
        bars=False,
        differences=True,
        notes=["Whiskers: 95 % intervals, a paired bootstrap over the documents."],
    )


def stories(result: Result) -> Section:
    """One composition with the pretrained augmenting model and with others of its shape."""
    rows, minus = [], []
    for name, entry in result["results"].items():
        losses = entry["losses"]
        title = str(entry.get("title", name.replace("_", " ")))
        mean = Estimate(sum(losses) / len(losses))
        several = losses if len(set(losses)) > 1 else []
        rows.append((mean.value, Row(title, [Mark(mean, by_seed=several)], strong=name == "pretrained")))
        if entry.get("minus_pretrained"):
            minus.append((title, from_triple(entry["minus_pretrained"])))
    ladder = Rows(
        f"Held-out loss on {result['text']}, the best first",
        "nats per token, mean over seeds",
        [row for _, row in sorted(rows, key=lambda each: each[0])],
        first_column="model",
        digits=3,
        bars=False,
        no_interval="The mean over the seeds has no interval here; the differences between the models have.",
    )
    differences = Rows(
        "Minus the pretrained m_A, over the same seeds",
        "nats per token; above 0 the pretrained one is better",
        [
            Row(
                title, [Mark(estimate, said="" if estimate.holds_zero else "worse" if estimate.value > 0 else "better")]
            )
            for title, estimate in minus
        ],
        first_column="model",
        digits=3,
        bars=False,
        differences=True,
        notes=["Whiskers: 95 % paired t-intervals over the seeds."],
    )
    parts = [f"{title} minus the pretrained one: {each.text(3, signed=True)} nats per token" for title, each in minus]
    blocks: list[Block] = [ladder, *([differences] if minus else [])]
    more = [grid for grid in (stories_grid(result), stages_grid(result)) if grid.rows]
    return Section(f"Stories: {result['text']}", blocks, f"{'; '.join(parts)}." if parts else "", more=more)


def _headline(minus: Mapping[str, Result], names: Mapping[str, str]) -> str:
    parts = [
        f"{from_figure(each).text(4, signed=True)} bits per byte against {names[name]}: {verdict(each)}"
        for name, each in minus.items()
    ]
    return f"The composition: {'; '.join(parts)}." if parts else ""


def _seeds(figure: Result) -> list[float]:
    """The seeds of an arm that was trained; a model alone has the same figure for all."""
    seeds = seeds_of(figure)
    return seeds if len(set(seeds)) > 1 else []


def _costs(result: Result, names: Mapping[str, str]) -> list[Costs]:
    """Time of training and, where it is known by arm, trained parameters against the held-out loss."""
    arms, work = result["per_byte"]["arms"], _work(result)
    trained = {name: each for name, each in work.items() if name in arms}

    def chart(
        title: str, axis: str, costs: Mapping[str, float], texts: Mapping[str, str], notes: Sequence[str]
    ) -> Costs:
        points = [
            Point(names[name], costs.get(name, 0.0), texts.get(name, "none"), from_figure(arms[name]))
            for name in [*trained, *(name for name in arms if name not in trained)]
        ]
        return Costs(title, axis, "bits per byte", points, digits=4, notes=notes)

    seconds = {name: sum(each["seconds"]) / len(each["seconds"]) for name, each in trained.items()}
    charts = [
        chart(
            "Time of training against quality",
            "minutes of training, mean over the seeds",
            {name: each / 60 for name, each in seconds.items()},
            {name: duration(each) for name, each in seconds.items()},
            ["Lower and further left is better. What was not trained is at 0."],
        )
    ]
    parameters = {name: each["parameters"] for name, each in trained.items() if "parameters" in each}
    if parameters:
        charts.append(
            chart(
                "Trained parameters against quality",
                "trained parameters, millions",
                {name: number / 1e6 for name, number in parameters.items()},
                {name: count(number) for name, number in parameters.items()},
                ["Lower and further left is better. What was not trained is at 0."],
            )
        )
    return charts


def _work(result: Result) -> Mapping[str, Result]:
    """Seconds by seed and, in results that say it by arm, the parameters that were trained."""
    if "work" in result:
        work: Mapping[str, Result] = result["work"]
        return work
    return {name: {"seconds": seconds} for name, seconds in result["trained"]["seconds"].items()}


def _per_token(result: Result, names: Mapping[str, str]) -> Grid:
    arms = result["per_token"]["arms"]
    return Grid(
        "The same losses in bits per token of the anchor",
        ["model", "bits per token"],
        [[names[name], from_figure(arms[name]).text(4)] for name in sorted(arms, key=lambda name: arms[name]["mean"])],
        notes=["Brackets: 95 % intervals over the documents."],
    )
