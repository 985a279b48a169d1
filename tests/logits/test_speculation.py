"""Who drafts, what is counted, how often each member runs, and what cannot be decoded in drafts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.architecture import CACHE_ARGUMENT, count_parameters
from lmcompose.decoding.speculative import Speculation
from lmcompose.errors import CacheError, ConfigurationError
from lmcompose.logits.speculation import POSITION_COST, choose_drafter, drafting_cost
from tests.decoding.drafted import BATCH, GREEDY, ROW, assert_same_text, drafted, texts
from tests.tiny import VOCAB_SIZE, random_ids, tiny_model

ROOT = Path(__file__).parents[2]

FIXED = Speculation(draft_length=4, adaptive=False)


@pytest.fixture(scope="module")
def model() -> LogitForCausalLM:
    return drafted("llama")


# ---------------------------------------------------------------------------------------------------- the drafter


@pytest.mark.parametrize(
    ("formula", "alpha", "given", "drafter"),
    [
        ("base + alpha * (expert - antiexpert)", 1.0, None, "expert"),
        ("base + alpha * (expert - antiexpert)", 1.0, 0.0, "expert"),  # the composition's own alpha decides
        ("base + alpha * (expert - antiexpert)", 1.0, -0.5, "antiexpert"),
        ("base + alpha * (expert - antiexpert)", 1.0, torch.tensor([0.5, -2.0]), "antiexpert"),  # by the mean
        ("base + alpha * (expert - antiexpert)", 1.0, lambda step: -1.0 if step == 0 else 1.0, "antiexpert"),
        ("2 * base + alpha * expert + 0.3 * antiexpert", 0.2, None, "antiexpert"),
        ("2 * base + alpha * expert + 0.3 * antiexpert", 0.2, 0.4, "expert"),
    ],
)
def test_the_drafter_is_the_member_of_the_largest_weight(formula: str, alpha: float, given: Any, drafter: str) -> None:
    model = drafted("llama", formula=formula, alpha=alpha)
    assert choose_drafter(model, Speculation(), model.values(given), rows=2) == drafter


def test_a_drafter_that_is_named_comes_first() -> None:
    model = drafted("llama", drafter="antiexpert")
    for named, drafter in ((None, "antiexpert"), ("base", "base"), ("expert", "expert")):
        assert choose_drafter(model, Speculation(drafter=named), model.values(), rows=1) == drafter
        assert assert_same_text(model, ROW, Speculation(drafter=named)).speculation["drafter"] == drafter


def test_drafters_that_cannot_be(model: LogitForCausalLM) -> None:
    def refused(model: LogitForCausalLM, match: str, speculative: Any = True) -> None:
        with pytest.raises(ConfigurationError, match=match):
            texts(model, speculative, ROW)

    refused(model, "Did you mean 'expert'", Speculation(drafter="expret"))
    refused(drafted("llama", terms=2, formula="2 * base - expert"), r"Name one: .*drafter='expert'")
    refused(lmcompose.combine("base", {"base": tiny_model("llama")}), "Name one")
    alone = lmcompose.combine("base", {"base": tiny_model("llama")})
    refused(alone, "cannot draft for itself", Speculation(drafter="base"))


def test_the_cost_of_a_drafter_is_the_share_of_its_weights(model: LogitForCausalLM) -> None:
    sizes = {role: count_parameters(model.member(role)) for role in model.members}
    expected = sizes["expert"] / (sizes["base"] + sizes["antiexpert"])
    assert drafting_cost(model, ("expert",)) == pytest.approx(expected + POSITION_COST)


# ------------------------------------------------------------------------------------------------ passes and counts


@contextmanager
def counted(model: LogitForCausalLM) -> Iterator[Counter[str]]:
    """How often each member runs, over how many new tokens, and at most at once: "role", "role tokens", "role most"."""
    counts: Counter[str] = Counter()
    handles = []
    for role in model.members:

        def count(module: Any, args: Any, kwargs: dict[str, Any], role: str = role) -> None:
            counts[role] += 1
            new = kwargs["input_ids"].shape[1]
            counts[f"{role} tokens"] += new
            counts[f"{role} most"] = max(counts[f"{role} most"], new)

        handles.append(model.member(role).register_forward_pre_hook(count, with_kwargs=True))
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("inputs", [BATCH, ROW], ids=["batch", "row"])
def test_every_member_runs_as_often_as_it_must(model: LogitForCausalLM, inputs: dict[str, Any]) -> None:
    """The drafter once per drafted token, the others once per block; each reads every token once, drafted or not."""
    with counted(model) as counts:
        found = assert_same_text(model, inputs, FIXED).speculation
    plain = found["tokens"]
    prompt = inputs["input_ids"].shape[1]
    assert found["tokens"] == 18
    assert counts["base"] - plain == counts["antiexpert"] - plain == found["passes"] == 1 + found["rounds"]
    assert counts["expert"] - plain == 1 + found["drafter_passes"] == 1 + found["positions"]
    read = prompt + found["positions"]
    assert all(counts[f"{role} tokens"] - (prompt + plain - 1) == read for role in model.members)
    assert found["passes_per_token"] == found["passes"] / 18 < 1
    assert found["draft_length"] == found["positions"] / found["rounds"] <= 4
    rows = len(inputs["input_ids"])
    assert found["drafted"] == rows * found["positions"]
    assert 0 < found["acceptance"] == found["accepted"] / found["drafted"] < 1


def test_a_drafter_that_is_always_right_saves_all_it_can() -> None:
    """Two copies of one model: every draft is kept, and without scores of the drafter after it, none is wasted."""
    model = lmcompose.combine("base + expert", {"base": tiny_model("llama", 1), "expert": tiny_model("llama", 1)})
    for options in ({}, {"no_repeat_ngram_size": 2, "bad_words_ids": [[13], [34]]}):  # it drafts what may be written
        found = assert_same_text(model, BATCH, FIXED, max_new_tokens=17, **options).speculation
        assert (found["acceptance"], found["rounds"], found["passes"], found["drafter_passes"]) == (1.0, 4, 5, 16)


def test_a_drafter_outside_gives_one_token_more_per_pass() -> None:
    model = lmcompose.combine(
        "base", {"base": tiny_model("llama", 1), "small": tiny_model("llama", 1)}, drafter="small"
    )
    with counted(model) as counts:
        found = assert_same_text(model, ROW, FIXED, max_new_tokens=16).speculation
    assert (found["acceptance"], found["rounds"], found["passes"], found["drafter_passes"]) == (1.0, 3, 4, 12)
    assert counts["small"] == 12  # none for plain decoding, and none for the prompt beyond the first draft
    assert counts["small tokens"] == ROW["input_ids"].shape[1] + 14


def test_lengths_follow_the_acceptance() -> None:
    def mean_length(seed: int) -> float:
        members = {"base": tiny_model("llama", 1), "expert": tiny_model("llama", seed)}
        model = lmcompose.combine("base + 0.01 * expert", members)
        return assert_same_text(model, ROW, Speculation(cost=0.1), max_new_tokens=40).speculation["draft_length"]

    assert mean_length(1) > 4
    assert mean_length(2) < 3


def test_tokens_that_are_looked_up() -> None:
    """A model that repeats itself is guessed right; its drafter makes fewer passes, and without one there is none."""
    members = {"base": tiny_model("llama", 1), "expert": tiny_model("llama", 1)}
    model = lmcompose.combine("base + expert", members)
    row = {"input_ids": ROW["input_ids"].repeat(1, 4)}
    with counted(model) as counts:
        found = assert_same_text(model, row, Speculation(drafter="lookup"), max_new_tokens=40).speculation
    assert (found["drafter"], found["drafter_passes"]) == ("lookup", 0)
    assert (found["guessed"], found["right"]) == (found["drafted"], found["accepted"])
    assert counts["base"] == counts["expert"] == 40 + found["passes"]
    with counted(model) as counts:
        speculative = Speculation(draft_length=6, adaptive=False, prompt_lookup_num_tokens=4)
        found = assert_same_text(model, row, speculative, max_new_tokens=40).speculation
    assert counts["expert"] == 40 + 1 + found["drafter_passes"]
    assert counts["base"] == 40 + found["passes"]
    assert found["guessed"] > 0
    assert found["positions"] == found["drafter_passes"] + found["right"]


def test_a_member_may_be_called_lookup() -> None:
    members = {"base": tiny_model("llama", 0), "lookup": tiny_model("llama", 1)}
    model = lmcompose.combine("0.4 * base + lookup", members)
    found = assert_same_text(model, ROW, Speculation(drafter="lookup")).speculation
    assert found["drafter_passes"] > 0


def test_a_composition_without_a_drafter_may_look_up() -> None:
    model = lmcompose.combine("base", {"base": tiny_model("llama", 1)})
    row = {"input_ids": ROW["input_ids"].repeat(1, 3)}
    speculative = Speculation(drafter="lookup", adaptive=False, draft_length=3)
    assert assert_same_text(model, row, speculative).speculation["drafter"] == "lookup"


def test_statistics_come_with_the_result_and_with_the_settings(model: LogitForCausalLM) -> None:
    speculation = Speculation(drafter="expert", draft_length=3)
    written = texts(model, speculation, ROW)
    assert isinstance(written, torch.Tensor)
    assert speculation.statistics is not None
    result = model.generate(**ROW, **GREEDY, speculative=speculation, return_dict_in_generate=True)
    assert json.loads(json.dumps(result.speculation)) == {
        "drafter": "expert", **speculation.statistics.to_dict(), "fallback": None,
    }  # fmt: skip
    with pytest.raises(ConfigurationError):
        texts(model, speculation, ROW, num_beams=2)
    assert speculation.statistics is None  # of the last call
    plain = model.generate(**ROW, **GREEDY, return_dict_in_generate=True)
    assert not hasattr(plain, "speculation")


# ---------------------------------------------------------------------------------------- plainly, and not at all


def test_a_static_cache_decodes_plainly(model: LogitForCausalLM) -> None:
    plain = texts(model, None, BATCH)
    speculation = Speculation()
    with pytest.warns(UserWarning, match="its cache is static"):
        result = model.generate(
            **BATCH, **GREEDY, speculative=speculation, cache_implementation="static", disable_compile=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    assert result.sequences.tolist() == plain.tolist()
    assert (result.speculation["fallback"], result.speculation["rounds"]) == ("its cache is static", 0)
    assert speculation.statistics is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_beams": 2}, "not by beam search"),
        ({"prompt_lookup_num_tokens": 3}, "not by assisted generation"),
        ({"use_cache": False}, "needs a cache"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
        ({"custom_generate": lambda model, input_ids, **others: input_ids}, "custom_generate"),
        ({"speculative": "expert"}, "give True, or Speculation"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_ways_of_decoding_without_drafts(model: LogitForCausalLM, options: dict[str, Any], match: str) -> None:
    with counted(model) as counts, pytest.raises(ConfigurationError, match=match):
        model.generate(**(ROW | GREEDY | {"speculative": True} | options))
    assert not counts  # before anything is computed
    assert_same_text(model, ROW, max_new_tokens=4)  # and nothing of the failed call is left


def test_a_disabled_composition_does_not_draft(model: LogitForCausalLM) -> None:
    with model.disable(), pytest.raises(ConfigurationError, match="disabled"):
        texts(model, True, ROW)
    assert texts(model, False, ROW).tolist() == texts(model, None, ROW).tolist()


@pytest.mark.parametrize(
    "wrong",
    [{"drafter": 3}, {"draft_length": 0}, {"draft_length": 2.5}, {"draft_length": True}, {"adaptive": 1},
     {"cost": "much"}, {"cost": -1.0}, {"cost": float("nan")}, {"prompt_lookup_num_tokens": -1},
     {"prompt_lookup_num_tokens": 1.5}, {"prompt_lookup_num_tokens": False}, {"max_matching_ngram_size": 0},
     {"drafter": "lookup", "prompt_lookup_num_tokens": 0}],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"[Gg]ive|Leave it out"):
        Speculation(**wrong)


def test_a_drafter_that_missed_the_text_of_a_cache() -> None:
    """It can read what is in input_ids, and nothing else."""
    model = drafted("llama", more={"small": tiny_model("llama", 1)}, drafter="small")
    first = model.generate(**ROW, **GREEDY, return_dict_in_generate=True)
    cache = {CACHE_ARGUMENT: getattr(first, CACHE_ARGUMENT)}
    whole = {"input_ids": torch.cat([first.sequences, random_ids(1, 2, seed=1)], dim=1)}
    plain = texts(model, None, whole)
    assert texts(model, FIXED, whole | cache).tolist() == plain.tolist()
    first = model.generate(**ROW, **GREEDY, return_dict_in_generate=True)
    cache = {CACHE_ARGUMENT: getattr(first, CACHE_ARGUMENT)}
    new = {"input_ids": whole["input_ids"][:, -3:], "attention_mask": torch.ones_like(whole["input_ids"])}
    with pytest.raises(CacheError, match="has read 0 of the 31 columns"):
        texts(model, FIXED, new | cache)


def linear(kind: str) -> Any:
    """A model whose first layer has a convolution's state, which can be cropped, or a recurrent one, which cannot."""
    kinds: dict[str, dict[str, Any]] = {
        "lfm2": {
            "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
        },
        "qwen3_next": {
            "layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        },
    }  # fmt: skip
    config = AutoConfig.for_model(
        kind, vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **kinds[kind],
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("role", ["base", "expert"])
def test_states_that_cannot_be_cropped_decode_plainly(role: str) -> None:
    other = {"base": "expert", "expert": "base"}[role]
    for kind in ("lfm2", "qwen3_next"):
        models = {role: linear(kind), other: tiny_model("llama", 1)}
        model = lmcompose.combine("0.5 * base + expert", {name: models[name] for name in ("base", "expert")})
        if kind == "lfm2":
            assert_same_text(model, BATCH, FIXED)
            continue
        plain = texts(model, None, BATCH)
        with pytest.warns(UserWarning, match=rf"its member '{role}' \(LinearAttentionLayer\) cannot be cropped"):
            result = model.generate(**BATCH, **GREEDY, speculative=True, return_dict_in_generate=True)
        assert result.sequences.tolist() == plain.tolist()
        counts = result.speculation
        assert (counts["rounds"], counts["passes"], counts["tokens"]) == (0, 18, 18)
        assert "cannot be cropped" in counts["fallback"]


def test_a_drafter_that_cannot_be_cropped_does_not_draft() -> None:
    model = drafted("llama", more={"small": tiny_model("bamba", 7)}, drafter="small")
    with pytest.warns(UserWarning, match=r"its member 'small' \(LinearAttention\w*\) cannot be cropped"):
        written = texts(model, True, BATCH)
    assert written.tolist() == texts(model, None, BATCH).tolist()
    assert_same_text(model, BATCH, Speculation(drafter="expert"))


# ------------------------------------------------------------------------------------------------ several processes

PROCESS = """
import json, sys
import torch
from torch import distributed
from lmcompose.decoding.speculative import Speculation
from tests.decoding.drafted import GREEDY, ROWS, drafted, texts
from tests.logits.test_speculation import counted

torch.set_num_threads(1)
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
model, row = drafted("mistral"), {"input_ids": ROWS[rank][None]}
new = {"max_new_tokens": 8 + 9 * rank}
plain = texts(model, None, row, **new)
with counted(model) as counts:
    speculative = Speculation(draft_length=5)
    written = texts(model, speculative, row, synced_gpus=True, **new)
distributed.destroy_process_group()
found = {"passes": {role: counts[role] for role in model.members}, "rounds": speculative.statistics.rounds}
print(json.dumps({"same": written.tolist() == plain.tolist(), **found}))
"""


@pytest.mark.slow
def test_processes_that_must_run_the_same_passes(tmp_path: Path) -> None:
    """`synced_gpus`: a process whose text is done goes on with the others, and all draft as much as the shortest."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    commands = [[sys.executable, "-c", PROCESS, str(rank), "2", str(tmp_path / "s")] for rank in range(2)]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    found = []
    for process in processes:
        printed, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors
        found.append(json.loads(printed.splitlines()[-1]))
    assert all(one["same"] for one in found)
    assert all(one["passes"] == found[0]["passes"] for one in found)
    assert found[0]["rounds"] < found[1]["rounds"]
