"""The whole of what a composition costs, counted from two configurations: parameters, training FLOPs, decoding FLOPs.

Models are built on the meta device, so no weight is read and no memory is taken.
"""

from collections.abc import Sequence
from typing import Any

from transformers import BertConfig, PreTrainedConfig

from lmcompose.architecture import meta_model
from lmcompose.calm import connections as layers
from lmcompose.errors import ConfigurationError
from lmcompose.experiments.overhead import flops
from lmcompose.experiments.overhead.matrices import Connection, Decoder, bridge_matrices, decoder_matrices
from lmcompose.experiments.overhead.parameters import parameter_rows, row, sizes
from lmcompose.training.lora import nearest_rank

LENGTH = 256
"""Tokens in a row of training, and in the text that a token is decoded after, unless said otherwise."""

PAPER_SHARES = (
    {"name": "paper", "data": 0.02, "augmenting": 0.10, "step": 1.0},
    {"name": "rebuttal", "data": 0.05, "augmenting": 0.10, "step": 1.0},
)
"""What the CALM paper's figures of 2 and 12 % assume (arXiv 2401.02412, appendix C.2), and what gives the rebuttal's of
5 and 15 %: a share of the data, m_A's parameters over m_B's, and a step of CALM at the price of one of tuning m_B."""


def overhead_report(
    anchor_config: PreTrainedConfig,
    augmenting_config: PreTrainedConfig,
    n: int | None = None,
    every: int = 4,
    rank: int | None = None,
    length: int = LENGTH,
    augmenting_tokens: float = 1.0,
) -> dict[str, Any]:
    """What composing the two models costs, ready for JSON and for `reporting.overhead_tables`.

    `n` connections, or as many as `compose` makes by default with `every`. All FLOPs are for one token of the anchor.

    Args:
        rank: count bridges of this low rank as well (beyond the paper).
        length: tokens in a row of training, and in a text that is decoded.
        augmenting_tokens: tokens that m_A reads for each of the anchor's: other than 1 with a tokenizer of its own.

    Raises:
        ConfigurationError: n < 1, every < 1, a rank that no bridge can have, a length that is none, or a configuration
            that no model can be built from.
        MemberError: the decoder layers of one of the two are not found.
    """
    anchor, augmenting = sizes(anchor_config), sizes(augmenting_config)
    if n is not None and n < 1:
        raise ConfigurationError(f"n = {n}: a composition has at least one connection.")
    if length < 1 or augmenting_tokens <= 0:
        raise ConfigurationError("A text has at least one token, in the tokens of either model.")
    narrower = min(anchor["width"], augmenting["width"])
    if rank is not None and not 1 <= rank <= narrower:
        raise ConfigurationError(
            f"rank = {rank}: choose one from 1 to {narrower}, the width of the narrower of the two models."
        )
    depths = (augmenting["layers"], anchor["layers"])
    pairs = layers.default_connections(*depths, every) if n is None else layers.spread_connections(n, *depths)
    models = {
        "anchor": decoder_matrices(meta_model(anchor_config)),
        "augmenting": decoder_matrices(meta_model(augmenting_config)),
    }
    anchor["parameters"], augmenting["parameters"] = models["anchor"].parameters, models["augmenting"].parameters
    bridges = {
        name: [bridge_matrices(augmenting["width"], anchor["width"], layer, rank=of) for _, layer in pairs]
        for name, of in (("calm", None), ("low_rank", rank))
        if name == "calm" or of is not None
    }
    training = _training(models["anchor"], models["augmenting"], bridges, length, augmenting_tokens)
    return {
        "what": "overhead",
        "anchor": anchor,
        "augmenting": augmenting,
        "connections": len(pairs),
        "pairs": [list(pair) for pair in pairs],
        **({} if rank is None else {"rank": rank}),
        "rows": parameter_rows(anchor, augmenting, len(pairs), rank),
        "length": length,
        "augmenting_tokens": augmenting_tokens,
        "uncounted_parameters": {role: model.uncounted for role, model in models.items()},
        "training": training,
        "decoding": _decoding(models["anchor"], models["augmenting"], bridges["calm"], length, augmenting_tokens),
        "shares": _shares(anchor, augmenting, training),
    }


def _training(
    anchor: Decoder,
    augmenting: Decoder,
    bridges: dict[str, list[Connection]],
    length: int,
    augmenting_tokens: float,
) -> dict[str, Any]:
    """A training step by every method, FLOPs per anchor token, and what CALM leaves out of them."""
    full = flops.full_tuning(anchor, length)
    methods: dict[str, Any] = {}
    for name, connections in bridges.items():
        step = flops.calm(anchor, augmenting, connections, length, augmenting_tokens)
        parts = {part: getattr(step, part).total for part in ("augmenting", "anchor", "bridges")}
        trained = sum(bridge.weights for bridge in connections)
        methods[name] = {**_method(step.total, full, trained), "parts": parts}
    rank = nearest_rank(anchor.per_rank, methods["calm"]["trained"])
    methods["lora"] = {**_method(flops.lora(anchor, rank, length), full, rank * anchor.per_rank), "rank": rank}
    methods["full"] = _method(full, full, anchor.parameters)
    tuned = flops.full_tuning(augmenting, augmenting_tokens * length).times(augmenting_tokens)
    return {
        "methods": methods,
        "augmenting_tuned": tuned.total,
        "skipped": _skipped(anchor, augmenting, bridges["calm"], length, augmenting_tokens),
    }


def _method(step: flops.Flops, full: flops.Flops, trained: int) -> dict[str, Any]:
    return {
        "trained": trained,
        "forward": step.forward,
        "to_inputs": step.to_inputs,
        "to_weights": step.to_weights,
        "total": step.total,
        "over_full": step.total / full.total,
    }


def _skipped(
    anchor: Decoder, augmenting: Decoder, bridges: Sequence[Connection], length: int, augmenting_tokens: float
) -> dict[str, float]:
    """FLOPs per token that a step of CALM does without, beside one in which both models learned whole."""
    first = min(bridge.anchor_layer for bridge in bridges)
    theirs = augmenting_tokens * length
    whole = flops.pass_of(augmenting.layers, augmenting.head, theirs).times(augmenting_tokens)
    below = flops.pass_of(anchor.layers[:first], 0, length)
    return {
        "augmenting_head": 2 * augmenting.head * augmenting_tokens,
        "augmenting_backward": whole.to_inputs + whole.to_weights,
        "anchor_below": below.to_inputs,
        "anchor_weights": 2 * (anchor.body + anchor.head),
    }


def _decoding(
    anchor: Decoder, augmenting: Decoder, bridges: list[Connection], length: int, augmenting_tokens: float
) -> dict[str, float]:
    """One decoded token, FLOPs."""
    alone = flops.decoding(anchor, length)
    context = augmenting_tokens * length
    parts = {
        "anchor": alone,
        "augmenting": augmenting_tokens * flops.decoding(augmenting, context, head=False),
        "bridges": flops.decoding_bridges(bridges, length, augmenting_tokens),
    }
    # alone, the augmenting model has a head to run as well
    members = alone + augmenting_tokens * flops.decoding(augmenting, context)
    total = sum(parts.values())
    return {**parts, "total": total, "over_anchor": total / alone, "over_members": total / members}


def _shares(anchor: dict[str, Any], augmenting: dict[str, Any], training: dict[str, Any]) -> list[dict[str, Any]]:
    """CALM alone and with the training of m_A, in percent of tuning m_B on all of the data."""
    full = training["methods"]["full"]["total"]
    own = (
        ("paper_here", augmenting["parameters"] / anchor["parameters"], 1.0),
        ("counted", training["augmenting_tuned"] / full, training["methods"]["calm"]["over_full"]),
    )
    assumed = [
        *PAPER_SHARES,
        *(
            {"name": name, "data": paper["data"], "augmenting": cost, "step": step}
            for paper in PAPER_SHARES
            for name, cost, step in own
        ),
    ]
    found = []
    for each in assumed:
        alone, both = flops.training_shares(each["data"], each["augmenting"], each["step"])
        found.append({**each, "calm_percent": 100 * alone, "both_percent": 100 * both})
    return found


def worked_example() -> dict[str, Any]:
    """The paper's own example, BERT-small composed with BERT-large over all four layers of the former: its printed
    figures (15M of 1B, 1.5 %) above the rows of `overhead_report` for the same two models.

    The paper rounds the vocabulary to 30,000; so do the formulas here, and the model that is counted.
    """
    large = BertConfig(
        vocab_size=30_000, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    small = BertConfig(
        vocab_size=30_000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )
    report = overhead_report(large, small, n=4)
    report["anchor"]["name"], report["augmenting"]["name"] = "BERT-large", "BERT-small"
    report["rows"].insert(0, row("printed", 15_000_000, 1_000_000_000))
    return report
