"""How many parameters a composition adds: the CALM paper's formulas beside exact counts.

The formulas are those of the paper's rebuttal (also its appendix), with D_A and D_B the widths of the augmenting and
the anchor model, N_B the anchor's layers, V_B its vocabulary, K_B its MLP width over D_B, and n the connections:

    composition  n (D_A D_B + 3 D_B^2)
    anchor       N_B (V_B D_B + 3 D_B^2 + 2 D_B^2 K_B)

Both differ from what is there: see `REASONS`.
"""

from typing import Any

from transformers import PreTrainedConfig

from lmcompose.architecture import text_config
from lmcompose.calm.bridge import bridge_shapes

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


def parameter_rows(
    anchor: dict[str, Any], augmenting: dict[str, Any], n: int, rank: int | None = None
) -> list[dict[str, Any]]:
    """The parameters of n connections and of the anchor, counted in four ways, for JSON and for tables.

    Each row has the composition's and the anchor's, the first in percent of the second, and why it differs from the
    row above it. With `rank`, one more row counts bridges of that rank.

    Args:
        anchor, augmenting: of `sizes`, with the exact count as "parameters".
    """
    shape = (anchor["layers"], anchor["width"], anchor["vocabulary"], anchor["mlp_multiplier"])
    widths = (augmenting["width"], anchor["width"])
    formula = composition_parameters(n, *widths, with_output=False)
    exact = composition_parameters(n, *widths)
    corrected = anchor_parameters_corrected(*shape)
    rows = [
        row("formula", formula, anchor_parameters_formula(*shape)),
        row("corrected", formula, corrected),
        row("corrected_with_output", exact, corrected),
        row("exact", exact, anchor["parameters"]),
    ]
    if rank is None:
        return rows
    low = n * sum(rows * columns for rows, columns in bridge_shapes(*widths, rank=rank))
    return [*rows, row("low_rank", low, anchor["parameters"])]


def row(name: str, composition: int, anchor: int) -> dict[str, Any]:
    """One way of counting."""
    return {
        "name": name,
        "composition": composition,
        "anchor": anchor,
        "percent": 100 * composition / anchor,
        "why": REASONS[name],
    }


def sizes(config: PreTrainedConfig) -> dict[str, Any]:
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
