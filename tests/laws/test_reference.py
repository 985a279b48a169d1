"""The composition is the paper's equations: it equals a second, slow implementation that shares no code with it.

CALM, section 3.1: at a connection (i, j), H_B_j + softmax(Q K^T / sqrt(d)) V W_O with Q = H_B_j W_Q,
K = f_proj(H_A_i) W_K and V = f_proj(H_A_i) W_V, head by head and, for a causal model, over the tokens up to one's own.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lmcompose import CalmForCausalLM
from tests.compositions import (
    anchor_of,
    assert_same_logits,
    augmenting_of,
    crossed_connections,
    pair_params,
    plain_logits,
    random_composition,
)
from tests.tiny import Pair, random_ids

LENGTH = 12


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    """Decoder layers, found by their names (``architecture.py`` finds them in another way)."""
    for path in (
        "model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers", "transformer.blocks",
        "bert.encoder.layer", "electra.encoder.layer", "ernie.encoder.layer", "roformer.encoder.layer",
        "rembert.encoder.layer", "biogpt.layers", "gpt_neox_japanese.layers",
    ):  # fmt: skip
        try:
            return list(model.get_submodule(path))  # type: ignore[call-overload]
        except AttributeError:
            continue
    raise AssertionError(f"where does {type(model).__name__} keep its layers?")


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def _states(model: PreTrainedModel, ids: torch.Tensor) -> list[torch.Tensor]:
    """What enters the first layer, then the output of every layer."""
    states: list[torch.Tensor] = []
    layers = _layers(model)
    handles = [
        layers[0].register_forward_pre_hook(
            lambda module, args, kwargs: states.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    ]
    handles += [layer.register_forward_hook(lambda m, args, output: states.append(_first(output))) for layer in layers]
    plain_logits(model, ids)
    for handle in handles:
        handle.remove()
    return states


def _attend(weights: dict[str, torch.Tensor], heads: int, h_a: torch.Tensor, h_b: torch.Tensor) -> torch.Tensor:
    """One text at a time, one head at a time, one token at a time: [B, L, D_A], [B, L, D_B] -> [B, L, D_B]."""
    width = h_b.shape[-1] // heads
    result = torch.zeros_like(h_b)
    for row in range(len(h_b)):
        projected = h_a[row] @ weights["projection.weight"].T
        query, key = h_b[row] @ weights["q_proj.weight"].T, projected @ weights["k_proj.weight"].T
        value = projected @ weights["v_proj.weight"].T
        for t in range(len(query)):
            seen = slice(0, t + 1)
            joined = []
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                scores = key[seen, part] @ query[t, part] / math.sqrt(width)
                joined.append(scores.softmax(dim=0) @ value[seen, part])
            result[row, t] = torch.cat(joined) @ weights["o_proj.weight"].T
    return result


def _reference_logits(composition: CalmForCausalLM, pair: Pair, ids: torch.Tensor) -> torch.Tensor:
    """The logits from fresh plain members and the composition's weights."""
    anchor, augmenting = anchor_of(pair), augmenting_of(pair)
    states, heads = _states(augmenting, ids), anchor.config.num_attention_heads
    weights = {name: parameter.detach() for name, parameter in composition.composition_parameters()}
    added = {}
    for i, j in crossed_connections(augmenting, anchor):
        prefix = f"bridges.augmenting_{i}_{j}."
        added[j] = (states[i], {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)})

    def add(j: int, hidden: torch.Tensor) -> torch.Tensor:
        h_a, own = added[j]
        return hidden + _attend(own, heads, h_a, hidden)

    def on_input(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if args:
            return (add(0, args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": add(0, kwargs["hidden_states"])}

    layers = _layers(anchor)
    layers[0].register_forward_pre_hook(on_input, with_kwargs=True)
    for j in added.keys() - {0}:

        def on_output(module: nn.Module, args: tuple, output: Any, j: int = j) -> Any:
            return (add(j, output[0]), *output[1:]) if isinstance(output, tuple) else add(j, output)

        layers[j - 1].register_forward_hook(on_output)
    return plain_logits(anchor, ids)


@pytest.mark.parametrize("pair", pair_params())
def test_logits_are_those_of_the_papers_equations(pair: Pair) -> None:
    composition, ids = random_composition(pair), random_ids(2, LENGTH)
    assert_same_logits(plain_logits(composition, ids), _reference_logits(composition, pair, ids))


@pytest.mark.parametrize("pair", pair_params(["llama+gpt2", "gemma3+llama", "gpt2+llama_wide_deep", "granite+bloom"]))
def test_hidden_states_are_returned_with_what_the_bridges_added(pair: Pair) -> None:
    composition, ids = random_composition(pair), random_ids(2, LENGTH)
    with torch.no_grad():
        output = composition(ids, output_hidden_states=True)
        bare = composition.anchor(ids, output_hidden_states=True).hidden_states
    assert len(output.hidden_states) == composition.anchor.config.num_hidden_layers + 1
    for k in range(1, len(bare)):
        assert (output.hidden_states[k] - bare[k]).abs().max() > 1e-3
    last, head = output.hidden_states[-1], composition.get_output_embeddings()
    assert head is not None
    if pair.anchor in ("llama", "gpt2"):  # heads that neither scale nor cap
        assert_same_logits(head(last), output.logits)
