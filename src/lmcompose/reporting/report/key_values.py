"""Key-value arithmetic as sections: the paper's Table 1, and the roads that it left open."""

from typing import Any

from lmcompose.reporting.paper import KV_MODELS, KV_TABLE_1, KV_TASKS
from lmcompose.reporting.report.charts import ONE_SEED, Block, Costs, Curves, Line, Mark, Point, Row, Rows, Section
from lmcompose.reporting.report.estimates import Estimate, from_count, from_figure, seeds_of
from lmcompose.reporting.road_tables import differences_grid, road_title, seeds_grid
from lmcompose.reporting.tables import Grid, accuracy, count, duration, kv_grid, probe_grid, stages_grid

Result = dict[str, Any]


def arithmetic(result: Result) -> Section:
    """Exact match by task and model with the paper's figures, by seed, the training curve, and what a probe reads."""
    results = result["results"]
    names = [*(name for name in KV_MODELS if name in results), *(name for name in results if name not in KV_MODELS)]
    chart = Rows(
        "Exact match by task",
        "exact match, %",
        [
            Row(
                title,
                [
                    Mark(
                        from_count(results[name][task]),
                        _model(name),
                        by_seed=_seeds(result, name, task),
                        published=KV_TABLE_1.get(name, {}).get(task),
                    )
                    for name in names
                    if task in results[name]
                ],
            )
            for task, title in KV_TASKS.items()
        ],
        first_column="task",
        notes=["Whiskers: 95 % Wilson intervals over the answers of all seeds together."],
        table_instead=kv_grid(result),
    )
    blocks: list[Block] = [chart]
    if result.get("curve"):
        points = [(float(point["step"]), Estimate(float(point["loss"]))) for point in result["curve"]]
        line = Line("composition", points)
        blocks.append(
            Curves("Training of the composition", "step", "loss, nats per token", [line], digits=3, points=False)
        )
    more = [_by_seed(result), _sizes(result), probe_grid(result), _example(result), stages_grid(result)]
    several = len(result.get("seeds") or []) > 1
    return Section(
        f"Key-value arithmetic, {result.get('profile', 'one')} profile",
        blocks,
        headline=_headline(result),
        caveat="The intervals are over the answers of these seeds; how far seeds differ is shown by the small ticks."
        if several
        else ONE_SEED,
        more=[grid for grid in more if grid.rows],
    )


def roads(result: Result) -> Section:
    """Every road beside the default: all tasks, the differences on KV-MATH, and what each costs."""
    results, differences = result["results"], result["differences"]
    default, *others = results
    ordered = [default, *sorted(others, key=lambda road: -results[road]["kv_math"]["accuracy"])]
    tasks = Rows(
        "Exact match of every road",
        "exact match, %",
        [
            Row(
                road_title(result, road),
                [Mark(from_count(results[road][task]), title) for task, title in KV_TASKS.items()],
                strong=road == default,
            )
            for road in ordered
        ],
        first_column="road",
        bars=False,
        notes=["Whiskers: 95 % Wilson intervals. The default is first, then the best on KV-MATH."],
    )
    minus = Rows(
        f"KV-MATH minus the default ({road_title(result, default)})",
        "percentage points; above 0 the road is better",
        [
            Row(road_title(result, road), [_difference(differences[road]["kv_math"])])
            for road in ordered
            if road in differences
        ],
        first_column="road",
        bars=False,
        differences=True,
        notes=["Whiskers: 95 % paired bootstrap intervals over the test expressions, for these seeds."],
    )
    quality = {road: from_count(results[road]["kv_math"]) for road in ordered}
    seconds = {road: sum(times) / len(times) for road, times in result["seconds"].items()}
    parameters = result["parameters"]
    trained = Costs(
        "Trained parameters against quality",
        "trained parameters, thousands",
        "KV-MATH, %",
        [Point(road_title(result, r), parameters[r] / 1000, count(parameters[r]), quality[r]) for r in ordered],
        log=True,
    )
    time = Costs(
        "Time of training against quality",
        "minutes of training",
        "KV-MATH, %",
        [Point(road_title(result, r), seconds[r] / 60, duration(seconds[r]), quality[r]) for r in ordered],
    )
    seeds = len(result["seeds"])
    better, worse = (
        [road_title(result, road) for road in others if minus_said(differences[road]["kv_math"]) == word]
        for word in ("better", "worse")
    )
    return Section(
        f"Roads beside the paper's, {result['profile']} profile",
        [tasks, minus, trained, time, differences_grid(result)],
        headline=f"On KV-MATH {len(better)} of {len(others)} roads are better than the default"
        + (f" ({', '.join(better)})" if better else "")
        + f" and {len(worse)} worse; for the others no difference is shown.",
        caveat=ONE_SEED if seeds == 1 else "",
        more=[seeds_grid(result)],
    )


def minus_said(found: Result) -> str:
    """What may be said of the difference of a road, of which higher is better."""
    estimate = from_figure(found)
    return "" if estimate.holds_zero else "better" if estimate.value > 0 else "worse"


def _difference(found: Result) -> Mark:
    return Mark(from_figure(found, 100), by_seed=seeds_of(found, 100), said=minus_said(found))


def _model(name: str) -> str:
    return KV_MODELS.get(name, name.replace("_", " ")).strip()


def _headline(result: Result) -> str:
    cell = result["results"].get("composition", {}).get("kv_math")
    if cell is None:
        return ""
    seeds = ", ".join(f"{value:.1f}" for value in _seeds(result, "composition", "kv_math"))
    return (
        f"KV-MATH, keys to results: the composition answers {from_count(cell).text()} %"
        + (f" (by seed {seeds})" if seeds else "")
        + f"; the paper's, at its own scale, {KV_TABLE_1['composition']['kv_math']:.1f} %."
    )


def _seeds(result: Result, name: str, task: str) -> list[float]:
    """The same score of each seed, where there are several."""
    found = [each["results"].get(name, {}).get(task) for each in result.get("by_seed") or []]
    return [from_count(cell).value for cell in found if cell] if len(found) > 1 else []


def _by_seed(result: Result) -> Grid:
    """The composition's answers seed by seed."""
    seeds, found = result.get("seeds") or [], result.get("by_seed") or []
    rows = [
        [f"seed {seed}", *(accuracy(each["results"]["composition"].get(task)) for task in KV_TASKS)]
        for seed, each in zip(seeds, found, strict=False)
    ]
    return Grid(
        "The composition by seed, exact match, %",
        ["", *KV_TASKS.values()],
        rows if len(rows) > 1 else [],
        notes=["By seed there is no interval; those of all seeds together are in the chart."],
    )


def _example(result: Result) -> Grid:
    example = result.get("example") or {}
    titles = {"prompt": "prompt", "meaning": "which means", "answer": "right", **KV_MODELS}
    rows = [[title.strip(), str(example[key])] for key, title in titles.items() if key in example]
    return Grid("One expression of the test", ["", "text"], rows)


def _sizes(result: Result) -> Grid:
    names = {"composition": "the composition's own", "anchor": "anchor m_B", "augmenting": "augmenting m_A"}
    found = result.get("parameters") or {}
    return Grid(
        "Parameters", ["", "parameters"], [[title, count(found[n])] for n, title in names.items() if n in found]
    )
