"""How many parameters a composition adds: the CALM paper's formulas beside exact counts.

Works on configurations alone; exact anchor counts come from building the model on the meta device, so no weight is
read and no memory is taken.

The formulas are those of the paper's rebuttal (also its appendix), with D_A and D_B the widths of the augmenting and
the anchor model, N_B the anchor's layers, V_B its vocabulary, K_B its MLP width over D_B, and n the connections:

    composition  n (D_A D_B + 3 D_B^2)
    anchor       N_B (V_B D_B + 3 D_B^2 + 2 D_B^2 K_B)

Both differ from what is there: see `REASONS`.
"""

from typing import Any

from transformers import BertConfig, PreTrainedConfig

from lmcompose.architecture import exact_parameters, text_config
from lmcompose.calm.bridge import bridge_shapes
from lmcompose.calm.connections import default_connections
from lmcompose.errors import ConfigurationError

REASONS = {
    "printed": "rounded before dividing",
    "formula": "counts the anchor's embedding matrix once per layer, and no W_O in either attention",
    "corrected": "the embedding once and W_O of self-attention: V_B D_B + N_B (4 + 2 K_B) D_B^2",
    "corrected_with_output": "W_O of the cross-attention as well: n (D_A D_B + 4 D_B^2)",
    "low_rank": "the same anchor with bridges of low rank (beyond the paper): n r (D_A + 9 D_B)",
    "exact": (
        "every parameter as built: adds norms, biases, position embeddings, an untied head and gated MLPs where there "
        "are any, and counts grouped keys and values as they are"
    ),
}

# How configurations spell the MLP width; HF's attribute_map covers the other sizes.
_MLP_WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_intermediate_size")


def composition_parameters(
    connections: int, augmenting_width: int, anchor_width: int, *, with_output: bool = True
) -> int:
    """n (D_A D_B + 4 D_B^2): what n connections hold, without biases.

    `with_output=False` is the paper's formula, n (D_A D_B + 3 D_B^2), which leaves out W_O.
    """
    matrices = 4 if with_output else 3
    return connections * (augmenting_width * anchor_width + matrices * anchor_width**2)


def anchor_parameters_formula(layers: int, width: int, vocabulary: int, mlp_multiplier: float) -> int:
    """The paper's formula for the anchor: N_B (V_B D_B + 3 D_B^2 + 2 D_B^2 K_B)."""
    return round(layers * (vocabulary * width + 3 * width**2 + 2 * width**2 * mlp_multiplier))


def anchor_parameters_corrected(layers: int, width: int, vocabulary: int, mlp_multiplier: float) -> int:
    """V_B D_B + N_B (4 D_B^2 + 2 D_B^2 K_B): the embedding once, and W_O of self-attention."""
    return round(vocabulary * width + layers * (4 * width**2 + 2 * width**2 * mlp_multiplier))


def overhead_report(
    anchor_config: PreTrainedConfig,
    augmenting_config: PreTrainedConfig,
    n: int | None = None,
    every: int = 4,
    rank: int | None = None,
) -> dict[str, Any]:
    """What composing the two models adds, counted in four ways, ready for JSON and for `reporting.tables`.

    `n` connections, or as many as `compose` makes by default with `every`. Each entry of "rows" has the parameters of
    the composition and of the anchor, the first in percent of the second, and why it differs from the row above it.
    With `rank`, one more row counts bridges of that rank.

    Raises:
        ConfigurationError: n < 1, every < 1, a rank that no bridge can have, or a configuration that no model can be
            built from.
    """
    anchor, augmenting = _sizes(anchor_config), _sizes(augmenting_config)
    if n is None:
        n = len(default_connections(augmenting["layers"], anchor["layers"], every))
    if n < 1:
        raise ConfigurationError(f"n = {n}: a composition has at least one connection.")
    if rank is not None and not 1 <= rank <= min(anchor["width"], augmenting["width"]):
        raise ConfigurationError(
            f"rank = {rank}: choose one from 1 to {min(anchor['width'], augmenting['width'])}, the width of the "
            "narrower of the two models."
        )
    shape = (anchor["layers"], anchor["width"], anchor["vocabulary"], anchor["mlp_multiplier"])
    widths = (augmenting["width"], anchor["width"])
    anchor["parameters"] = exact_parameters(anchor_config)
    augmenting["parameters"] = exact_parameters(augmenting_config)
    formula = composition_parameters(n, *widths, with_output=False)
    exact = composition_parameters(n, *widths)
    corrected = anchor_parameters_corrected(*shape)
    rows = [
        _row("formula", formula, anchor_parameters_formula(*shape)),
        _row("corrected", formula, corrected),
        _row("corrected_with_output", exact, corrected),
        _row("exact", exact, anchor["parameters"]),
    ]
    report = {"what": "overhead", "anchor": anchor, "augmenting": augmenting, "connections": n, "rows": rows}
    if rank is None:
        return report
    low = n * sum(rows * columns for rows, columns in bridge_shapes(*widths, rank=rank))
    return {**report, "rank": rank, "rows": [*rows, _row("low_rank", low, anchor["parameters"])]}


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
    report["rows"].insert(0, _row("printed", 15_000_000, 1_000_000_000))
    return report


def _row(name: str, composition: int, anchor: int) -> dict[str, Any]:
    return {
        "name": name,
        "composition": composition,
        "anchor": anchor,
        "percent": 100 * composition / anchor,
        "why": REASONS[name],
    }


def _sizes(config: PreTrainedConfig) -> dict[str, Any]:
    """The sizes that the formulas speak of, and a name to show."""
    text = text_config(config)
    width = text.hidden_size
    mlp_width = next((value for name in _MLP_WIDTHS if isinstance(value := getattr(text, name, None), int)), 4 * width)
    return {
        "name": config.name_or_path or config.model_type,
        "model_type": config.model_type,
        "layers": text.num_hidden_layers,
        "width": width,
        "vocabulary": text.vocab_size,
        "mlp_multiplier": mlp_width / width,
    }
