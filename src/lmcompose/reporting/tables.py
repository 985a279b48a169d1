"""Result dicts as tables, for the terminal (rich) and for Markdown.

Every table is first a `Grid`, plain strings that both renderers share. Intervals and counts are read from the result;
nothing is computed here but rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmcompose.errors import DataError, nearest
from lmcompose.reporting.paper import KV_MODELS, KV_TABLE_1, KV_TASKS

Result = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """A table of strings: the first column names the row, the others hold figures. `notes` are printed below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    strong: Sequence[int] = ()
    faint: Sequence[int] = ()

    def to_rich(self) -> Group:
        """The table for a terminal; rows whose index is in `strong` are bold, those in `faint` dim."""
        table = Table()
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for index, row in enumerate(self.rows):
            style = "bold" if index in self.strong else "dim" if index in self.faint else None
            table.add_row(*(Text(cell) for cell in row), style=style)  # Text: an interval's brackets are no markup
        return Group(Text(self.title, style="bold"), table, *(Text(note, style="dim") for note in self.notes), "")

    def to_markdown(self) -> str:
        """The table in GitHub's Markdown, its title above and its notes below."""
        rule = ["---:" if index else "---" for index in range(len(self.columns))]
        rows = [
            [f"**{cell}**" if index in self.strong and cell else cell for cell in row]
            for index, row in enumerate(self.rows)
        ]
        lines = [f"| {' | '.join(_escaped(cells))} |" for cells in (self.columns, rule, *rows)]
        return "\n".join([f"**{self.title}**", "", *lines, "", "\n\n".join(self.notes)]).rstrip() + "\n"


def grids(result: Result) -> list[Grid]:
    """All tables of a result, by its "what".

    Raises:
        DataError: the result is of a kind that has no table.
    """
    what = str(result.get("what"))
    if what not in _GRIDS:
        raise DataError(f"There is no table for a result of kind '{what}'.{nearest(what, _GRIDS)}")
    return [grid for build in _GRIDS[what] if (grid := build(result)).rows]


def markdown(result: Result) -> str:
    """All tables of a result in Markdown, and the command that made it."""
    command = [f"Made by `{result['command']}`.\n"] if result.get("command") else []
    return "\n".join([*(grid.to_markdown() for grid in grids(result)), *command])


# ------------------------------------------------------------------------------------------------ key-value arithmetic


def kv_grid(result: Result) -> Grid:
    """Table 1: exact match of each model on each task, the paper's figures under ours."""
    results = result["results"]
    rows: list[list[str]] = []
    strong, faint = [], []
    for name in [
        *(name for name in KV_MODELS if name in results),
        *(name for name in results if name not in KV_MODELS),
    ]:
        if name == "composition":
            strong.append(len(rows))
        rows.append(
            [KV_MODELS.get(name, name.replace("_", " ")), *(accuracy(results[name].get(task)) for task in KV_TASKS)]
        )
        if name in KV_TABLE_1:
            faint.append(len(rows))
            rows.append(["  paper", *(f"{KV_TABLE_1[name][task]:.1f}" for task in KV_TASKS)])
    return Grid(
        f"Key-value arithmetic, {result.get('profile', 'one')} profile: exact match, %",
        ["model", *KV_TASKS.values()],
        rows,
        notes=["Brackets: 95 % Wilson intervals.", *_seed_note(result)],
        strong=strong,
        faint=faint,
    )


def probe_grid(result: Result) -> Grid:
    """How well a linear probe reads each digit of a key's value from the augmenting model, by layer."""
    probe = result.get("probe") or {}
    digits = max((len(scores) for scores in probe.values()), default=0)
    return Grid(
        "Linear probe of m_A at the key: accuracy per digit, %",
        ["read from", *(f"digit {index}" for index in range(digits))],
        [[layer, *(f"{100 * value:.1f}" for value in scores)] for layer, scores in probe.items()],
        notes=["Digit 0 is the least significant. A linear f_proj can carry only what such a probe can read."],
    )


def stages_grid(result: Result) -> Grid:
    """The wall time of each stage."""
    stages = result.get("stages") or []
    rows = [[stage["name"], duration(stage["seconds"])] for stage in stages]
    if len(rows) > 1:
        rows.append(["total", duration(sum(stage["seconds"] for stage in stages))])
    return Grid("Wall time", ["stage", "time"], rows, strong=[len(rows) - 1] if len(rows) > 1 else [])


# ---------------------------------------------------------------------------------------------------------- benchmarks


def decode_grid(result: Result) -> Grid:
    """Decoding: the composition's seconds per token over the sum of its members', and how they grow with the text."""
    rows = [
        [
            *_shape(row),
            *(f"{1000 * row['seconds_per_token'][name]:.2f}" for name in ("anchor", "augmenting", "composition")),
            f"{row['ratio']:.3f}",
            f"{row['step_ratio']:.3f}",
            f"{row['growth']['composition']:.2f}/{row['growth']['members']:.2f}",
        ]
        for row in result["results"]
    ]
    return Grid(
        f"Decoding {result['new_tokens']} tokens, milliseconds per token",
        ["dtype", "prompt", "batch", "m_B", "m_A", "both", "ratio", "steps", "growth"],
        rows,
        notes=[
            "m_B, m_A: each member alone; both: the composition; ratio: both / (m_B + m_A), the prompt included.",
            "steps: the same ratio of the decoding steps alone, without the prompt.",
            "growth: median step of the last quarter over that of the first, composition / members.",
            *_machine_note(result),
        ],
    )


def train_grid(result: Result) -> Grid:
    """Training: one CALM step beside one LoRA step with as many parameters."""
    results = result["results"]
    names = {"calm": "CALM", "lora": f"LoRA, rank {results['lora'].get('rank', '?')}"}
    rows = [
        [
            title,
            count(results[name]["parameters"]),
            f"{results[name]['seconds_per_step']:.3f}",
            f"{results[name]['peak_bytes'] / 2**20:,.0f}",
            f"{results[name]['step_bytes'] / 2**20:,.0f}",
        ]
        for name, title in names.items()
    ]
    ratios = (results["ratio"][key] for key in ("seconds_per_step", "peak_bytes", "step_bytes"))
    rows.append(["CALM over LoRA", "", *(f"{ratio:.2f}" for ratio in ratios)])
    return Grid(
        f"One training step, {result['batch']} x {result['length']} tokens, {result['dtype']} members",
        ["", "trained", "seconds", "peak, MiB", "step, MiB"],
        rows,
        notes=["trained: parameters; peak: memory of a process that does nothing else;",
               "step: what a training step adds to the loaded models.", *_machine_note(result)],
        strong=[2],
    )  # fmt: skip


def own_tokens_grid(result: Result) -> Grid:
    """A tokenizer of its own: the same two models with and without alignment."""
    rows = [
        [row["what"], *(f"{1000 * row['seconds'][arm]:.2f}" for arm in ("shared", "own")), f"{row['ratio']:.3f}"]
        for row in result["results"]
    ]
    lag = result["lag"]
    return Grid(
        "The same two models with one tokenizer, and aligned as if they had two, milliseconds",
        ["", "shared", "aligned", "ratio"],
        rows,
        notes=[
            f"Lag on the text: {lag['tokens']:.2f} augmenting tokens, {lag['characters']:.2f} characters.",
            *_machine_note(result),
        ],
    )


def logits_grid(result: Result) -> Grid:
    """A logit composition: seconds per token over the sum of its members'."""
    names = [name for name in ("base", "expert", "antiexpert", "plain", "shared")
             if any(name in row["seconds_per_token"] for row in result["results"])]  # fmt: skip
    texts = _several_texts(result)
    rows = [
        [
            *_shape(row, texts),
            *(f"{1000 * row['seconds_per_token'][name]:.2f}" for name in names),
            f"{row['ratio']:.3f}",
            *([f"{row['shared_ratio']:.3f}"] if "shared" in names else []),
        ]
        for row in result["results"]
    ]
    shared = "shared" in names
    return Grid(
        f"Decoding {result['new_tokens']} tokens, milliseconds per token",
        [*["text"][:texts], "dtype", "prompt", "batch", "base", "expert", "anti", *names[3:],
         "plain/sum", *["shared/sum"][:shared]],
        rows,
        notes=[
            "base, expert, anti(expert): each alone, and their sum; plain: the composition of the three.",
            *(["shared: expert and antiexpert are one model, with an adapter and without."] if shared else []),
            *_machine_note(result),
        ],
    )  # fmt: skip


def speculation_grid(result: Result) -> Grid:
    """The same with speculation, over plain decoding and over the base alone."""
    texts = _several_texts(result)
    rows = [
        [
            *_shape(row, texts),
            f"{1000 * row['seconds_per_token']['speculative']:.2f}",
            f"{found['over_plain']:.3f}",
            f"{found['over_base']:.3f}",
            f"{100 * found['acceptance']:.0f} %",
            f"{found['passes_per_token']:.2f}",
            f"{found['drafter_passes_per_token']:.2f}" if "drafter_passes_per_token" in found else "",
            f"{100 * found['guessed_right']:.0f} %" if "guessed_right" in found else "",
            f"{found['draft_length']:.1f}",
            f"{100 * found['same_text']:.0f} %",
        ]
        for row in result["results"]
        if (found := row.get("speculative"))
    ]
    return Grid(
        "With speculation",
        [*["text"][:texts], "dtype", "prompt", "batch", "ms", "over plain", "over base", "accepted", "passes",
         "drafter", "looked up", "length", "same text"],
        rows,
        notes=[
            "accepted: of the drafted tokens; passes: of the other members, per token; drafter: its passes, per token.",
            "looked up: the share of these tokens that was right; length: of a draft, on average.",
            "same text: texts that equal those of plain decoding (in 16 bits, near ties may be rounded apart).",
        ],
    )  # fmt: skip


def pair_memory_grid(result: Result) -> Grid:
    """Peak memory of expert and antiexpert as two models, and as one with an adapter."""
    memory = result.get("memory") or {}
    names = {"separate": "two models", "shared": "one model and an adapter"}
    rows = [
        [title, *(f"{memory[name][key] / 2**20:,.0f}" for key in ("peak_bytes", "pair_bytes"))]
        for name, title in names.items()
        if name in memory
    ]
    if "ratio" in memory:
        rows.append(["ratio", *(f"{memory['ratio'][key]:.2f}" for key in ("peak_bytes", "pair_bytes"))])
    return Grid(
        "Memory of expert and antiexpert, MiB", ["", "peak", "beside the base"], rows,
        notes=["peak: of a process that decodes with the composition and does nothing else."],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- stories


def stories_grid(result: Result) -> Grid:
    """Loss on held-out text of one composition with the pretrained and with other augmenting models."""
    rows = []
    for name, entry in result["results"].items():
        losses = entry["losses"]
        difference = entry.get("minus_pretrained")
        rows.append(
            [
                entry.get("title", name.replace("_", " ")),
                f"{sum(losses) / len(losses):.3f}",
                ", ".join(f"{loss:.3f}" for loss in losses),
                "" if difference is None else signed_interval(difference),
            ]
        )
    return Grid(
        f"Held-out loss on {result['text']}, nats per token",
        ["model", "mean", "by seed", "minus pretrained m_A"],
        rows,
        notes=["Brackets: 95 % paired t-intervals over the seeds.", *_seed_note(result)],
        strong=[index for index, name in enumerate(result["results"]) if name == "pretrained"],
    )


# ---------------------------------------------------------------------------------------------------------- formatting


def accuracy(cell: Result | None) -> str:
    """`98.1 [97.8, 98.4]` in percent, from a cell with "correct", "total" and, where it was computed, "interval"."""
    if not cell:
        return ""
    text = f"{100 * cell['correct'] / cell['total']:.1f}"
    if "interval" in cell:
        low, high = cell["interval"]
        text += f" [{100 * low:.1f}, {100 * high:.1f}]"
    return text


def signed_interval(interval: Sequence[float]) -> str:
    """`+0.120 [+0.080, +0.160]`, from estimate, low and high."""
    estimate, low, high = interval
    return f"{estimate:+.3f} [{low:+.3f}, {high:+.3f}]"


def seeds_of(result: Result) -> str:
    """`seed 0` or `seeds 0, 1, 2`."""
    seeds = result["seeds"]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def points(difference: float, ends: Sequence[float] | None) -> str:
    """`+12.5 [-5.0, +30.0]` in percentage points, from a difference of two shares and the ends of its interval."""
    interval = "" if ends is None else " [{:+.1f}, {:+.1f}]".format(*(100 * end for end in ends))
    return f"{100 * difference:+.1f}{interval}"


def count(number: int) -> str:
    """A number of parameters as one reads it: 14,680,064 is `14.7 M`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return str(number)


def duration(seconds: float) -> str:
    """`48.3 s`, `7 min 05 s` or `1 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _several_texts(result: Result) -> bool:
    """Whether the prompts of a benchmark were cut from more than one text."""
    return len({row.get("text") for row in result["results"]}) > 1


def _shape(row: Result, text: bool = False) -> list[str]:
    """The dtype, the length of the prompt and the batch of a row, after the name of its text where that is wanted."""
    dtype = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(row["dtype"], row["dtype"])
    return [*([str(row["text"])] if text else []), str(dtype), str(row["prompt"]), str(row["batch"])]


def _escaped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|").replace("\n", "<br>") for cell in cells]


def _seed_note(result: Result) -> list[str]:
    return [f"{seeds_of(result).capitalize()}."] if result.get("seeds") else []


def _machine_note(result: Result) -> list[str]:
    members = result.get("members")
    threads = result.get("threads")
    note = [f"Members: {members}."] if members else []
    return [
        *note,
        *([f"{threads} thread{'s' if threads != 1 else ''}, {result.get('device', 'cpu')}."] if threads else []),
    ]


_GRIDS: dict[str, list[Callable[[Result], Grid]]] = {
    "kv_arithmetic": [kv_grid, probe_grid, stages_grid],
    "decode_benchmark": [decode_grid],
    "train_benchmark": [train_grid],
    "logits_benchmark": [logits_grid, speculation_grid, pair_memory_grid],
    "own_tokens_benchmark": [own_tokens_grid],
    "stories": [stories_grid, stages_grid],
}
