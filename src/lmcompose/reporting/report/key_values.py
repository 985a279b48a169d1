"""Key-value arithmetic as a section: the paper's Table 1."""

from typing import Any

from lmcompose.reporting.paper import KV_MODELS, KV_TABLE_1, KV_TASKS
from lmcompose.reporting.report.charts import ONE_SEED, Block, Curves, Line, Mark, Row, Rows, Section
from lmcompose.reporting.report.estimates import Estimate, from_count
from lmcompose.reporting.tables import Grid, accuracy, count, kv_grid, probe_grid, stages_grid

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
        caveat="The intervals are over the answers of these seeds; how far seeds differ stands beside them."
        if several
        else ONE_SEED,
        more=[grid for grid in more if grid.rows],
    )


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
