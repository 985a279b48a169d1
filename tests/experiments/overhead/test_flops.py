"""The counts against what `torch.utils.flop_counter` sees of real models, forward and backward, by every method.

Attention is written out ("eager"), since the counter does not know every fast one, and computes nothing twice. Experts
are run one by one for the same reason. So the two agree to the last FLOP, but for what each test names.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import decoder_layers, meta_model
from lmcompose.experiments.overhead import flops, overhead_report
from lmcompose.experiments.overhead.matrices import bridge_matrices, decoder_matrices
from lmcompose.training.lora import matching_rank, with_lora
from tests.tiny import ARCHITECTURES, architecture_params, random_ids, tiny_config

BATCH, LENGTH = 2, 12

STATEFUL = {"bamba", "falcon_h1", "granitemoehybrid", "jamba", "zamba", "zamba2", "nemotron_h", "qwen3_next",
            "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lfm2", "lfm2_moe", "kimi_linear"}  # fmt: skip
"""A recurrent state has a scan, which is left out, and filters over the text, which are applied beyond its ends too and
are called a convolution there: the linear layers are what can be compared."""

OTHERWISE = {
    "llama4_text": "transformers runs every expert on every token there, and multiplies most of it by zero",
    "diffllama": "its heads attend twice",
    "gemma3n_text": "its layers have several states for each token, and cannot be connected to",
    "longcat_flash": "its layers are not found, and cannot be connected to",
    "dbrx": "its experts lie in matrices of two dimensions, which are told as parameters that are not counted",
}


def built(arch: str, seed: int = 0, **sizes: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(arch, **sizes), attn_implementation="eager").eval()
    if any("Expert" in type(module).__name__ for module in model.modules()):
        model.set_experts_implementation("eager")
    return model


def seen(run: Callable[[], object]) -> float:
    """FLOPs per token that the counter sees in `run`."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / (BATCH * LENGTH)


def step(model: nn.Module) -> tuple[float, float]:
    """FLOPs per token of a forward pass with a loss, and of its backward pass."""
    ids = random_ids(BATCH, LENGTH)
    outputs = []
    forward = seen(lambda: outputs.append(model(input_ids=ids, labels=ids, use_cache=False)))
    return forward, seen(outputs[0].loss.backward)


@pytest.mark.parametrize("arch", architecture_params())
def test_a_forward_pass(arch: str) -> None:
    if arch in OTHERWISE:
        pytest.skip(OTHERWISE[arch])
    model = built(arch)
    matrices = decoder_matrices(model)
    ids = random_ids(BATCH, LENGTH)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=False)
    if arch in STATEFUL:
        found = counter.get_flop_counts()["Global"]
        linear = sum(found.get(operation, 0) for operation in (torch.ops.aten.mm, torch.ops.aten.addmm))
        filters = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Conv1d))
        assert 2 * (matrices.body + matrices.head - filters) == linear / (BATCH * LENGTH)
        assert matrices.uncounted < 0.11 * matrices.parameters  # the decay of a state
    else:
        assert flops.full_tuning(matrices, LENGTH).forward == counter.get_total_flops() / (BATCH * LENGTH)
        assert matrices.uncounted == 0
    assert decoder_matrices(meta_model(model.config)) == matrices


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2", "mixtral", "gpt_neox"])
def test_full_tuning(arch: str) -> None:
    model = built(arch).train()
    counted = flops.full_tuning(decoder_matrices(model), LENGTH)
    assert (counted.forward, counted.to_inputs + counted.to_weights) == step(model)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_lora(arch: str) -> None:
    """What first reads the embeddings needs no gradient to its input: 2 FLOPs for each of these numbers."""
    model = built(arch).requires_grad_(False)
    rank = 3
    attention = decoder_layers(model)[0].get_submodule("attn" if arch == "gpt2" else "self_attn")
    names = ["c_attn"] if arch == "gpt2" else ["q_proj", "k_proj", "v_proj"]
    first = [attention.get_submodule(name).weight for name in names]
    # a Conv1D's inputs are its rows
    inputs = [weight.shape[0 if arch == "gpt2" else 1] for weight in first]
    rest = 2 * (sum(weight.numel() for weight in first) + rank * sum(inputs))
    matrices = decoder_matrices(model)
    tuned = with_lora(model, rank, seed=0)
    counted = flops.lora(matrices, rank, LENGTH)
    assert (counted.forward, counted.to_inputs + counted.to_weights - rest) == step(tuned)
    assert rest < 0.04 * counted.total  # of three layers; a thirtieth of that in a real model
    trained = sum(parameter.numel() for parameter in tuned.parameters() if parameter.requires_grad)
    assert trained == rank * matrices.per_rank


def composed(anchor: str, augmenting: str, pairs: list[tuple[int, int]], rank: int | None = None) -> CalmForCausalLM:
    members = built(anchor, num_hidden_layers=4), built(augmenting, 1, hidden_size=24)
    model = compose(anchor=members[0], augmenting=members[1], connections=pairs, rank=rank)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            parameter.normal_(std=0.1)  # a zero would not change a FLOP; but a trained composition has none
    return model.train()


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("pairs", [[(1, 2), (3, 4)], [(0, 0), (3, 2)], [(2, 1), (3, 1)]], ids=str)
@pytest.mark.parametrize(("anchor", "augmenting"), [("llama", "gpt2"), ("mixtral", "llama")])
def test_calm(anchor: str, augmenting: str, pairs: list[tuple[int, int]], rank: int | None) -> None:
    model = composed(anchor, augmenting, pairs, rank)
    bridges = [bridge_matrices(24, 32, layer, rank=rank) for _, layer in pairs]
    matrices = [decoder_matrices(member) for member in (model.anchor, model.augmenting["augmenting"])]
    counted = flops.calm(*matrices, bridges, LENGTH).total
    assert (counted.forward, counted.to_inputs + counted.to_weights) == step(model)
    assert sum(bridge.weights for bridge in bridges) == model.num_composition_parameters()


def test_decoding() -> None:
    """One token after a cache, of each member and of the composition; a window hides what is beyond it."""
    model = composed("mistral", "llama", [(1, 2), (3, 4)]).eval()
    anchor, augmenting = model.anchor, model.augmenting["augmenting"]
    ids = random_ids(1, LENGTH)

    def last_token(of: PreTrainedModel) -> float:
        with torch.no_grad():
            cache = of(input_ids=ids[:, :-1], use_cache=True)
            past = getattr(cache, "cache", None) or cache.past_key_values
            name = "cache" if hasattr(cache, "cache") else "past_key_values"
            with FlopCounterMode(display=False) as counter:
                of(input_ids=ids[:, -1:], use_cache=True, **{name: past})
        return counter.get_total_flops()

    matrices = decoder_matrices(anchor), decoder_matrices(augmenting)
    bridges = [bridge_matrices(24, 32, layer) for layer in (2, 4)]
    assert {layer.window for layer in matrices[0].layers} == {6}
    assert flops.decoding(matrices[0], LENGTH) == last_token(anchor)
    assert flops.decoding(matrices[1], LENGTH) == last_token(augmenting)
    whole = flops.decoding(matrices[0], LENGTH) + flops.decoding(matrices[1], LENGTH, head=False)
    assert whole + flops.decoding_bridges(bridges, LENGTH) == last_token(model)


def test_the_report_counts_what_the_counter_sees() -> None:
    """From configurations alone, with the connections and the rank that it chooses itself."""
    configs = [tiny_config("llama", num_hidden_layers=8), tiny_config("gpt2", num_hidden_layers=8, hidden_size=24)]
    report = overhead_report(*configs, length=LENGTH)
    methods, pairs = report["training"]["methods"], [tuple(pair) for pair in report["pairs"]]
    anchor, augmenting = built("llama", num_hidden_layers=8), built("gpt2", num_hidden_layers=8, hidden_size=24)
    model = compose(anchor=anchor, augmenting=augmenting).train()
    model.set_attn_implementation("eager")
    assert pairs == model.config.pairs("augmenting")
    assert sum(step(model)) == methods["calm"]["total"]
    assert model.num_composition_parameters() == methods["calm"]["trained"]
    model.detach()
    rank = matching_rank(anchor, methods["calm"]["trained"])
    assert rank == methods["lora"]["rank"]
    assert sum(step(with_lora(anchor.requires_grad_(False), rank, 0))) == pytest.approx(methods["lora"]["total"], 0.02)
    assert sum(step(built("llama", num_hidden_layers=8).train())) == methods["full"]["total"]


def test_a_tokenizer_of_its_own_counts_augmenting_tokens() -> None:
    """Twice the tokens: twice the matrices of m_A, and four times its attention."""
    anchor, augmenting = (decoder_matrices(built(arch)) for arch in ("llama", "gpt2"))
    bridges = [bridge_matrices(32, 32, 2)]
    one, two = (flops.calm(anchor, augmenting, bridges, LENGTH, tokens) for tokens in (1, 2))
    quadratic = sum(flops.attention(layer.attention, LENGTH).forward for layer in augmenting.layers)
    assert one.augmenting.total == 2 * augmenting.body + quadratic
    assert two.augmenting.total == 2 * 2 * augmenting.body + 4 * quadratic
    assert two.anchor == one.anchor
    assert two.bridges.total > one.bridges.total


def test_active_experts_alone_are_counted() -> None:
    few, many = (decoder_matrices(meta_model(tiny_config("mixtral", num_local_experts=of))) for of in (4, 8))
    assert many.parameters > few.parameters
    # of eight experts' weights the router's rows are all that a token meets beside those of two
    assert many.body - few.body == 3 * 4 * 32


def test_every_exception_is_an_architecture() -> None:
    assert ARCHITECTURES.keys() >= STATEFUL | OTHERWISE.keys()
