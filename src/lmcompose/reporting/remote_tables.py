"""The check of a base behind a real server as tables, for the terminal and for Markdown; see `tables.Grid`."""

from typing import Any

from lmcompose.reporting.tables import Grid, duration

Result = dict[str, Any]


def remote_grids(result: Result) -> list[Grid]:
    """All tables of the check."""
    return [ways_grid(result), features_grid(result), probe_grid(result)]


def remote_markdown(result: Result) -> str:
    """All tables in Markdown, and the command and the versions that made them."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    made = f"Made by `{result['command']}` with {result['server']}; the client: {versions}.\n"
    return "\n".join([*(grid.to_markdown() for grid in remote_grids(result)), made])


def ways_grid(result: Result) -> Grid:
    """What was proved, whether it is what the local composition writes, and what it took, by way of asking."""
    rows = []
    for row in result["results"]:
        tokens, unproved = row["certificate"]["tokens"], row["certificate"]["unproved"]
        compared = row["compared"]
        rows.append(
            [
                row["way"],
                "exact" if not unproved else f"{unproved} unproved",
                f"{sum(one['alike'] for one in compared)}/{tokens}",
                f"{sum(one['same'] for one in compared)}/{len(compared)}",
                f"{row['requests'] / tokens:.2f}",
                f"{row['accepted']}/{row['drafted']}",
                duration(row["seconds"]),
            ]
        )
    local = result["local"]
    return Grid(
        f"{result['model']} behind {result['server']}, greedy, {result['new_tokens']} new tokens for each prompt",
        ["asked by", "certificate", "same tokens", "same texts", "requests/token", "drafts kept", "time"],
        rows,
        notes=[
            "same: as the composition of the same models in one process writes, up to the first difference.",
            "no drafts: a request for each token, and more to prove it; the list alone: no more; texts: no token ids.",
            f"Members: the model and two copies of it with noise of {result['noise']:g} standard deviations; they "
            f"change {local['shifted']} of {len(result['prompts'])} texts. In one process: {local['tokens']} tokens, "
            f"{duration(local['seconds'])}.",
            *_differences(result),
        ],
    )


def _differences(result: Result) -> list[str]:
    """A sentence for each text that differs."""
    return [
        f"{row['way']}, prompt {number + 1}: another token after {one['alike']}, "
        f"{'proved' if one['proved'] else 'not proved'}, whose score here is {one['apart']:.2g} lower."
        for row in result["results"]
        for number, one in enumerate(row["compared"])
        if not one["same"]
    ]


def features_grid(result: Result) -> Grid:
    """How many requests used which feature of the server."""
    names = list(dict.fromkeys(name for row in result["results"] for name in row["features"]))
    return Grid(
        "Requests by the feature that they use",
        ["feature", *(row["way"] for row in result["results"])],
        [[name, *(str(row["features"].get(name, 0)) for row in result["results"])] for name in names],
    )


def probe_grid(result: Result) -> Grid:
    """What the probe found, by way of asking, with what it took."""
    ways = [row for row in result["results"] if row["way"] in ("token ids", "texts")] or result["results"][:1]
    found = [row["probe"]["capabilities"] for row in ways]
    rows = [
        ["prompts", *("token ids" if one["token_id_prompts"] else "texts" for one in found)],
        ["tokens in answers", *("ids" if one["token_ids"] else "strings" for one in found)],
        ["top log-probabilities", *(str(one["depth"]) for one in found)],
        ["at most", *(str(one["deepest"]) for one in found)],
        ["of named tokens", *("yes" if one["named_token_ids"] else "no" for one in found)],
        ["of prompts", *(one["prompt_logprobs"] or "no" for one in found)],
        ["logit_bias", *(one["logit_bias"] or "no" for one in found)],
        ["tokens biased at once", *(str(one["biased_at_once"]) if one["logit_bias"] else "" for one in found)],
        ["requests of the probe", *(str(row["probe"]["requests"]) for row in ways)],
        ["its time", *(duration(row["probe"]["seconds"]) for row in ways)],
    ]
    notes = dict.fromkeys(f"{row['way']}: {note}" for row in ways for note in row["probe"]["capabilities"]["notes"])
    return Grid("What the probe found", ["feature", *(row["way"] for row in ways)], rows, notes=list(notes))
