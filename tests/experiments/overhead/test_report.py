"""The overhead formulas against the paper's printed example, hand arithmetic, and models that are really built."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig

from lmcompose.architecture import exact_parameters
from lmcompose.calm.bridge import Bridge
from lmcompose.errors import ConfigurationError
from lmcompose.experiments.overhead import composition_parameters, overhead_report, worked_example
from lmcompose.reporting.overhead_tables import overhead_grids


def rows_of(report):
    return {row["name"]: row for row in report["rows"]}


def test_worked_example_prints_the_papers_figure_beside_the_corrected_ones():
    rows = rows_of(worked_example())
    assert list(rows) == ["printed", "formula", "corrected", "corrected_with_output", "exact"]
    # By hand: 4 (512 * 1024 + 3 * 1024^2) = 14,680,064; 24 (30,000 * 1024 + 11 * 1024^2) = 1,014,104,064.
    assert rows["formula"]["composition"] == 14_680_064
    assert rows["formula"]["anchor"] == 1_014_104_064
    # 30,000 * 1024 + 24 * 12 * 1024^2.
    assert rows["corrected"]["anchor"] == 332_709_888
    assert rows["corrected_with_output"]["composition"] == 18_874_368
    percents = [round(row["percent"], 1) for row in rows.values()]
    assert percents == [1.5, 1.4, 4.4, 5.7, 5.6]


def test_exact_count_of_bert_large_by_hand():
    # What the corrected formula leaves out: 512 position and 2 type embeddings, their norm; per layer the biases
    # (4 + 1 + 4 + ... = 9 D + 4 norm vectors = 13 D in all); the prediction head's dense layer, norm and output bias.
    width, layers, vocabulary = 1024, 24, 30_000
    left_out = (512 + 2 + 2) * width + layers * 13 * width + width**2 + 3 * width + vocabulary
    assert rows_of(worked_example())["exact"]["anchor"] == 332_709_888 + left_out


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(
            hidden_size=32, intermediate_size=88, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=101,
        ),
        GPT2Config(n_embd=32, n_layer=6, n_head=4, vocab_size=101, n_positions=64),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_exact_equals_the_model_as_built(config):
    assert exact_parameters(config) == AutoModelForCausalLM.from_config(config).num_parameters()


def test_tied_embeddings_count_once():
    tied, untied = (
        LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=500,
            tie_word_embeddings=tie,
        )
        for tie in (True, False)
    )  # fmt: skip
    assert exact_parameters(untied) - exact_parameters(tied) == 500 * 32


def test_composition_formula_equals_the_bridge():
    bridge = Bridge(augmenting_size=24, anchor_size=32, num_heads=4)
    assert composition_parameters(3, 24, 32) == 3 * sum(parameter.numel() for parameter in bridge.parameters())
    assert composition_parameters(3, 24, 32, with_output=False) == 3 * (24 * 32 + 3 * 32 * 32)


def test_counting_takes_no_memory_and_leaves_the_default_device():
    # 70 billion parameters: if any of it were real, this test would die.
    big = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128_256,
    )  # fmt: skip
    assert exact_parameters(big) == 70_553_706_496
    assert torch.empty(1).device.type == "cpu"


def test_connections_default_to_every_fourth_layer():
    anchor = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=12, num_attention_heads=4)
    augmenting = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=8, num_attention_heads=4)
    assert overhead_report(anchor, augmenting)["connections"] == 2
    assert overhead_report(anchor, augmenting, every=2)["connections"] == 4
    assert overhead_report(anchor, augmenting, n=5)["connections"] == 5


def test_mlp_multiplier_is_read_where_each_architecture_keeps_it():
    gpt2 = GPT2Config(n_embd=32, n_layer=2, n_head=4)  # n_inner is None: four times the width
    opt = AutoConfig.for_model("opt", hidden_size=32, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4)
    report = overhead_report(gpt2, opt)
    assert report["anchor"]["mlp_multiplier"] == 4
    assert report["augmenting"]["mlp_multiplier"] == 3


def test_report_is_json():
    assert json.loads(json.dumps(worked_example())) == worked_example()


def test_no_connection_is_refused():
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4)
    with pytest.raises(ConfigurationError, match="at least one connection"):
        overhead_report(config, config, n=0)


def shares_of(report):
    return {(share["name"], share["data"]): share for share in report["shares"]}


def test_the_papers_shares_follow_from_what_they_assume():
    """Appendix C.2: 2 % of the data, m_A a tenth of m_B; the rebuttal's two figures need 5 % of the data."""
    shares = shares_of(worked_example())
    found = {name: (shares[name, data]["calm_percent"], shares[name, data]["both_percent"])
             for name, data in (("paper", 0.02), ("rebuttal", 0.05))}  # fmt: skip
    assert found["paper"] == pytest.approx((2, 12))
    assert found["rebuttal"] == pytest.approx((5, 15))


def test_our_shares_divide_by_tuning_the_anchor():
    report = worked_example()
    full = report["training"]["methods"]["full"]["total"]
    share = shares_of(report)["counted", 0.05]
    alone = 0.05 * report["training"]["methods"]["calm"]["total"] / full
    assert share["calm_percent"] == pytest.approx(100 * alone)
    assert share["both_percent"] == pytest.approx(100 * (alone + report["training"]["augmenting_tuned"] / full))
    rule = shares_of(report)["paper_here", 0.05]
    assert rule["both_percent"] == pytest.approx(
        5 + 100 * report["augmenting"]["parameters"] / report["anchor"]["parameters"]
    )


def test_what_is_skipped_is_what_is_missing_from_tuning_both_models():
    """Both models learning whole, less what is skipped, plus the bridges, is CALM."""
    report = overhead_report(*(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
                               num_attention_heads=4, vocab_size=101) for layers in (8, 4)))  # fmt: skip
    training = report["training"]
    whole = training["methods"]["full"]["total"] + training["augmenting_tuned"]
    calm = training["methods"]["calm"]
    assert whole - sum(training["skipped"].values()) + calm["parts"]["bridges"] == calm["total"]


def test_a_low_rank_is_cheaper_than_the_whole_bridge():
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4)
    methods = overhead_report(config, config, rank=2)["training"]["methods"]
    assert methods["low_rank"]["trained"] == 2 * (32 + 9 * 32)
    assert methods["low_rank"]["total"] < methods["calm"]["total"]
    assert methods["low_rank"]["parts"]["anchor"] == methods["calm"]["parts"]["anchor"]


@pytest.mark.parametrize(("option", "message"), [({"length": 0}, "at least one token"), ({"rank": 33}, "from 1 to 32")])
def test_sizes_that_cannot_be_are_refused(option, message):
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4)
    with pytest.raises(ConfigurationError, match=message):
        overhead_report(config, config, **option)


PAGE = Path(__file__).parents[3] / "docs" / "overhead.md"
REAL = Path(__file__).parents[3] / "results" / "overhead" / "smollm-gemma.json"


def test_the_documentation_shows_todays_tables():
    page = PAGE.read_text(encoding="utf-8")
    for grid in overhead_grids(worked_example()):
        assert grid.to_markdown() in page


def test_the_documentation_shows_the_measured_pair():
    page, result = PAGE.read_text(encoding="utf-8"), json.loads(REAL.read_text(encoding="utf-8"))
    for grid in overhead_grids(result)[1:]:
        assert grid.to_markdown() in page
