"""The roads that the paper left open as a figure."""

from pathlib import Path
from typing import Any

from lmcompose.reporting.paper import KV_TASKS
from lmcompose.reporting.plots import CYCLE, GREY, INK, panels
from lmcompose.reporting.road_tables import road_title

Result = dict[str, Any]


def roads_figure(result: Result, path: str | Path) -> Path:
    """Exact match of every road on the three tasks; and on KV-MATH what it gains over the default, seed by seed."""
    roads = list(result["results"])
    with panels(path, (9.0, 0.9 + 0.36 * len(roads)), 2) as (left, right):
        for index, (task, title) in enumerate(KV_TASKS.items()):
            cells = [result["results"][road][task] for road in roads]
            heights = [100 * cell["accuracy"] for cell in cells]
            ends = [[100 * end for end in cell["interval"]] for cell in cells]
            spread = [
                [max(0.0, height - low) for height, (low, _) in zip(heights, ends, strict=True)],
                [max(0.0, high - height) for height, (_, high) in zip(heights, ends, strict=True)],
            ]
            places = [place + 0.2 * (index - 1) for place in range(len(roads))]
            left.errorbar(heights, places, xerr=spread, fmt="o", ms=4, lw=1, color=CYCLE[index], label=title)
        left.set_xlim(-4, 104)
        left.set_xlabel("exact match, %")
        left.set_title("All three tasks")
        left.set_yticks(range(len(roads)), [road_title(result, road) for road in roads])
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
        for place, road in enumerate(roads):
            if road not in result["differences"]:
                continue
            found = result["differences"][road]["kv_math"]
            low, high = (100 * end for end in found["documents"])
            right.plot([low, high], [place, place], color=INK, lw=1.2, solid_capstyle="butt")
            right.scatter([100 * found["mean"]], [place], color=CYCLE[2], s=30, zorder=4)
            seeds = [100 * estimate for estimate, *_ in found["by_seed"]]
            right.scatter(seeds, [place] * len(seeds), marker="|", s=46, color=GREY, zorder=3)
        right.axvline(0, color=GREY, lw=1)
        right.set_yticks(range(len(roads)), [""] * len(roads))
        right.set_ylim(left.get_ylim())
        right.set_xlabel("minus the default, percentage points")
        right.set_title("KV-MATH, seed by seed")
        for axes in (left, right):
            axes.invert_yaxis()  # the default at the top, as in the table
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x")
    return Path(path)
