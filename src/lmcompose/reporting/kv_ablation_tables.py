"""The ablations of the key-value composition as tables, and the part of their page that is made of them."""

from typing import Any

from lmcompose.reporting.marked import with_marked
from lmcompose.reporting.paper import KV_TASKS
from lmcompose.reporting.tables import Grid, accuracy, count, duration, points, seeds_of

Result = dict[str, Any]


def ablations_grids(result: Result) -> list[Grid]:
    """All tables of the experiment."""
    curves = [curve_grid(result, name) for name in result["curves"]]
    return [accuracy_grid(result), differences_grid(result), seeds_grid(result), *curves, routing_grid(result)]


def ablations_markdown(result: Result) -> str:
    """All tables, and the command that made them."""
    return "\n".join([*(grid.to_markdown() for grid in ablations_grids(result)), f"Made by `{result['command']}`.\n"])


def with_section(page: str, result: Result, figure: str = "ablations.png") -> str:
    """`page` with its marked part made anew from `result`; raises DataError where no part is marked.

    Args:
        figure: the name of the figure in results/kv_arithmetic.
    """
    image = f"![Exact match of every arm](../results/kv_arithmetic/{figure})\n"
    return with_marked(page, f"{ablations_markdown(result)}\n{image}")


def accuracy_grid(result: Result) -> Grid:
    """Exact match of every rung on the three tasks, pooled over the seeds, with what was trained and how long."""
    rows = []
    for arm in result["ladder"]:
        times = result["seconds"].get(arm)
        rows.append(
            [
                result["titles"][arm],
                *(accuracy(result["results"][arm][task]) for task in KV_TASKS),
                count(result["parameters"][arm]) if arm in result["parameters"] else "",
                duration(sum(times) / len(times)) if times else "",
            ]
        )
    return Grid(
        f"The ladder, {result['profile']} profile: exact match, %",
        ["arm", *KV_TASKS.values(), "trained", "time"],
        rows,
        notes=[
            "Brackets: 95 % Wilson intervals of the answers of all seeds together.",
            f"trained: parameters; time: of training, mean over {seeds_of(result)}.",
        ],
        strong=[result["ladder"].index("composition")],
    )


def differences_grid(result: Result) -> Grid:
    """Every arm minus the composition, on the same expressions; what is not shown to differ is said to be so."""
    rows = [
        [result["titles"][arm], *(difference(cells[task]) for task in KV_TASKS)]
        for arm in result["ladder"]
        if (cells := result["differences"].get(arm))
    ]
    correction = next(iter(result["differences"].values()))["kv_math"]["correction"]
    return Grid(
        "Minus the composition, percentage points",
        ["arm", *KV_TASKS.values()],
        rows,
        notes=[
            "Brackets: 95 % paired bootstrap intervals over the test expressions, for these seeds.",
            f"(=): no difference shown, over the expressions and, with several seeds, over these ({correction}).",
        ],
    )


def seeds_grid(result: Result) -> Grid:
    """The same difference on KV-MATH, with the seeds as the thing that varies."""
    rows = []
    for arm, cells in result["differences"].items():
        found = cells["kv_math"]
        by_seed = ", ".join(f"{100 * estimate:+.1f}" for estimate, *_ in found["by_seed"])
        mde = "" if found["mde"] is None else f"{100 * found['mde']:.1f}"
        rows.append([result["titles"][arm], points(found["mean"], found["seeds"]), by_seed, mde])
    several = len(result["seeds"]) > 1
    return Grid(
        "Minus the composition on KV-MATH by seed, percentage points",
        ["arm", "mean over seeds", "by seed", "detectable"],
        rows,
        notes=[
            *([f"Brackets: 95 % paired t-intervals over {seeds_of(result)}."] if several else []),
            "detectable: the smallest difference that would be found four times in five.",
        ],
    )


def curve_grid(result: Result, name: str) -> Grid:
    """Exact match along one sweep."""
    curve = result["curves"][name]
    return Grid(
        f"Sweep of {curve['title']}: exact match, %",
        [curve["title"], *KV_TASKS.values()],
        [
            [str(value), *(accuracy(result["results"][arm][task]) for task in KV_TASKS)]
            for value, arm in curve["points"]
        ],
        strong=[index for index, (_, arm) in enumerate(curve["points"]) if arm == "composition"],
    )


def routing_grid(result: Result) -> Grid:
    """The composition on KV-MATH beside what routing between the two members could reach."""
    routing = result["routing"]
    both = routing["product"], routing["minus"]
    return Grid(
        "Routing, KV-MATH, %",
        ["", "mean over seeds", "by seed"],
        [
            ["either member alone", accuracy(routing["either"]), ""],
            ["m_A's KV-SUBS x m_B's NUM-MATH", *_figure(both[0], signed=False)],
            ["composition minus this product", *_figure(both[1], signed=True)],
        ],
        notes=[
            "either: the questions that m_A or m_B answers right by itself.",
            "Brackets: 95 % bootstrap intervals over the expressions, Wilson's for the first row.",
        ],
    )


def difference(cell: Result) -> str:
    """`-3.0 [-4.1, -2.0]`, with `(=)` where no difference was shown."""
    verdict = "" if cell["verdict"] in ("better", "worse") else " (=)"
    return points(cell["mean"], cell["documents"]) + verdict


def _figure(found: Result, signed: bool) -> list[str]:
    sign = "+" if signed else ""
    low, high = found["documents"]
    shown = f"{100 * found['mean']:{sign}.1f} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return [shown, ", ".join(f"{100 * estimate:{sign}.1f}" for estimate, *_ in found["by_seed"])]
