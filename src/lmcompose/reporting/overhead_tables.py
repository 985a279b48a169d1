"""What a composition costs as tables: parameters, training, decoding, the paper's shares, and what was measured."""

from typing import Any

from lmcompose.reporting.tables import Grid, count

Result = dict[str, Any]

METHODS = {"calm": "CALM", "low_rank": "CALM, rank {rank}", "lora": "LoRA, rank {rank}", "full": "full tuning"}
PARTS = {"augmenting": "  m_A", "anchor": "  m_B", "bridges": "  bridges"}
SHARES = {
    "paper": "CALM paper, C.2",
    "rebuttal": "its rebuttal",
    "paper_here": "its rule, these models",
    "counted": "FLOPs, these models",
}


def overhead_grids(result: Result) -> list[Grid]:
    """All tables of `overhead_report`; with "measured", those of what was measured last."""
    found = [overhead_grid(result), training_grid(result), decoding_grid(result), shares_grid(result)]
    if "measured" in result:
        found += [measured_training_grid(result), measured_decoding_grid(result)]
    return [grid for grid in found if grid.rows]


def overhead_grid(result: Result) -> Grid:
    """The paper's figure, the corrected one and the exact count, one above the other."""
    anchor, augmenting = result["anchor"], result["augmenting"]
    names = {
        "printed": "paper, as printed",
        "formula": "paper's formulas",
        "corrected": "corrected",
        "corrected_with_output": "corrected, with W_O",
        "exact": "exact count",
        "low_rank": f"exact, rank {result.get('rank')}",
    }
    notes = [f"{names[row['name']]}: {row['why']}." for row in result["rows"] if row["why"]]
    return Grid(
        f"{augmenting['name']} composed with the anchor {anchor['name']}: n = {result['connections']} connections",
        ["how it is counted", "composition", "anchor", "overhead"],
        [
            [names[row["name"]], count(row["composition"]), count(row["anchor"]), f"{row['percent']:.2g} %"]
            for row in result["rows"]
        ],
        notes=[*notes, f"The augmenting model itself has {count(augmenting['parameters'])} parameters."],
        strong=[len(result["rows"]) - 1],
    )


def overhead_markdown(result: Result) -> str:
    """The same in Markdown, and the command that measured."""
    command = result.get("measured", {}).get("command")
    made = [f"Made by `{command}`.\n"] if command else []
    return "\n".join([*(grid.to_markdown() for grid in overhead_grids(result)), *made])


def training_grid(result: Result) -> Grid:
    """FLOPs of a training step by every method, in parts for CALM."""
    rows, faint = [], []
    for name, method in result["training"]["methods"].items():
        rows.append(
            [
                _method(name, method, result),
                count(method["trained"]),
                *(flops(method[kind]) for kind in ("forward", "to_inputs", "to_weights", "total")),
                percent(method["over_full"]),
            ]
        )
        if name == "calm":
            for part, title in PARTS.items():
                faint.append(len(rows))
                rows.append([title, "", "", "", "", flops(method["parts"][part]), ""])
    skipped = result["training"]["skipped"]
    return Grid(
        f"A training step: FLOPs for each token of m_B, in rows of {result['length']}",
        ["", "trained", "forward", "inputs", "weights", "FLOPs", "of full"],
        rows,
        notes=[
            "trained: parameters; inputs, weights: the backward pass to the inputs of the matrices, and to themselves;",
            "of full: of full tuning.",
            f"CALM does without m_A's backward pass ({flops(skipped['augmenting_backward'])}) and head "
            f"({flops(skipped['augmenting_head'])}), the gradient below m_B's first connection "
            f"({flops(skipped['anchor_below'])}), and the weight gradients of m_B "
            f"({flops(skipped['anchor_weights'])}).",
            *_tokens_note(result),
            *_uncounted_note(result),
        ],
        strong=[0],
        faint=faint,
    )


def decoding_grid(result: Result) -> Grid:
    """FLOPs of one decoded token, of each member and of the bridges."""
    decoding = result["decoding"]
    names = {"anchor": "m_B", "augmenting": "m_A, without its head", "bridges": "bridges", "total": "composition"}
    return Grid(
        f"Decoding: FLOPs for each token of m_B, the {ordinal(result['length'])} of a text",
        ["", "FLOPs", "of m_B"],
        [[title, flops(decoding[name]), percent(decoding[name] / decoding["anchor"])] for name, title in names.items()],
        notes=[f"The composition takes {decoding['over_members']:.3f} of its members alone, m_A's head included."],
        strong=[3],
    )


def shares_grid(result: Result) -> Grid:
    """What training costs in percent of tuning the anchor on all of the data: the paper's reckoning, and ours."""
    rows = [
        [
            SHARES[share["name"]],
            percent(share["data"]),
            percent(share["augmenting"]),
            percent(share["step"]),
            f"{share['calm_percent']:.3g} %",
            f"{share['both_percent']:.3g} %",
        ]
        for share in result["shares"]
    ]
    return Grid(
        "Training as a share of tuning m_B on all of the data",
        ["", "data", "m_A/m_B", "step", "CALM", "m_A + CALM"],
        rows,
        notes=[
            "data: what CALM trains on; m_A/m_B: tuning m_A over tuning m_B (the paper: their parameters);",
            "step: CALM's over full tuning's, per token. CALM = data x step; m_A learns on all data.",
        ],
        strong=[index for index, share in enumerate(result["shares"]) if share["name"] == "counted"],
    )


def measured_training_grid(result: Result) -> Grid:
    """Seconds and memory of a training step, the ratio to full tuning beside the counted one."""
    measured, counted = result["measured"], result["training"]["methods"]
    rows = [
        [
            _method(name, counted[name], result),
            f"{found['seconds_per_step']:.3g}",
            percent(found["over_full"]) if "over_full" in found else "",
            percent(counted[name]["over_full"]),
            mebibytes(found["peak_bytes"]),
            mebibytes(found["step_bytes"]),
        ]
        for name, found in measured["training"].items()
    ]
    return Grid(
        f"Measured: one training step, {measured['batch']} x {measured['length']} tokens",
        ["", "seconds", "of full", "counted", "peak, MiB", "step, MiB"],
        rows,
        notes=[
            "peak: memory of a process that does nothing else; step: what steps add to the loaded models.",
            *_machine_notes(measured),
        ],
        strong=[0] if "calm" in measured["training"] else [],
    )


def measured_decoding_grid(result: Result) -> Grid:
    """Milliseconds of a decoded token, the ratio to the anchor alone beside the counted one."""
    measured, decoding = result["measured"]["decoding"], result["decoding"]
    alone = measured["anchor"]["seconds_per_token"]
    names = {"anchor": "m_B alone", "augmenting": "m_A alone, its own tokens", "composition": "composition"}
    counted = {"anchor": percent(1), "composition": percent(decoding["over_anchor"])}
    rows = [
        [
            title,
            f"{1000 * measured[name]['seconds_per_token']:.3g}",
            percent(measured[name]["seconds_per_token"] / alone),
            counted.get(name, ""),
            mebibytes(measured[name]["peak_bytes"]),
        ]
        for name, title in names.items()
    ]
    settings = result["measured"]
    return Grid(
        f"Measured: {settings['new_tokens']} tokens decoded after {settings['prompt']}, one text",
        ["", "ms per token", "of m_B", "counted", "peak, MiB"],
        rows,
        notes=[
            f"The composition over its two members, each alone: {measured['over_members']:.3f} "
            f"(counted {decoding['over_members']:.3f}).",
        ],
        strong=[2],
    )


def flops(number: float) -> str:
    """FLOPs as one reads them: 1,437,696,000 is `1.44 G`."""
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.3g}"


def percent(share: float) -> str:
    """A share in percent, with three digits and no more than they say."""
    return f"{100 * share:.3g} %" if share < 9.995 else f"{100 * share:,.0f} %"


def mebibytes(number: int) -> str:
    """Bytes in MiB."""
    return f"{number / 2**20:,.0f}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _method(name: str, method: Result, result: Result) -> str:
    return METHODS[name].format(rank=method.get("rank", result.get("rank")))


def _tokens_note(result: Result) -> list[str]:
    tokens = result["augmenting_tokens"]
    return [] if tokens == 1 else [f"m_A reads {tokens:.3g} tokens of its own for each of m_B's."]


def _uncounted_note(result: Result) -> list[str]:
    names = {"anchor": "m_B", "augmenting": "m_A"}
    return [
        f"{count(number)} parameters of {names[role]} are in matrices of other kinds, which are not counted."
        for role, number in result["uncounted_parameters"].items()
        if number
    ]


def _machine_notes(measured: Result) -> list[str]:
    threads = measured["machine"]["threads"]
    dtypes = " and ".join(dict.fromkeys(measured["dtype"].values()))
    return [
        f"Median of {measured['repetitions']} after one more; members in {dtypes}, what is trained beside them in "
        f"float32; {measured['clock']}, {threads} thread{'s' if threads != 1 else ''}, {measured['device']}."
    ]
