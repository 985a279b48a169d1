"""The laws where members are quantised: a tiny anchor and a tiny augmenting model in 4 and in 8 bits, on the CPU.

LLM.int8 sets outliers apart by what all tokens of a pass have in common, so that in 8 bits a token's numbers depend on
its neighbours, in a plain model as in a composition. `threshold` is 0 where a law is about neighbours.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

import lmcompose
from lmcompose import CalmForCausalLM, LogitForCausalLM, combine, compose, extend, proxy_tune
from lmcompose.architecture import CACHE_ARGUMENT
from tests.compositions import assert_same_logits, plain_logits, randomise
from tests.tiny import random_ids, save_tiny

bitsandbytes = pytest.importorskip("bitsandbytes")

IDS = random_ids(2, 9)
KINDS: dict[str, Any] = {
    "4bit": "4bit",
    "8bit": BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("quantised")
    anchor = save_tiny(root / "anchor", "llama", hidden_size=64, intermediate_size=128)
    return anchor, save_tiny(root / "augmenting", "gpt2", seed=1, hidden_size=64)


def quantised(folder: Path, kind: str) -> PreTrainedModel:
    """The plain model in `folder`, as somebody else would load it."""
    config = KINDS[kind]
    if isinstance(config, str):
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config).eval()


def random_composition(folders: tuple[Path, Path], kind: str) -> CalmForCausalLM:
    return randomise(compose(*folders, connections=[(0, 0), (3, 1), (1, 3)], quantization=KINDS[kind]))


def layers_of(model: Any) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt))]


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@kinds
def test_untrained_it_is_the_anchor(kind: str, folders: tuple[Path, Path]) -> None:
    model = compose(*folders, quantization=KINDS[kind])
    assert [len(layers_of(member)) for member in model.members.values()] == [21, 12]
    plain = quantised(folders[0], kind).requires_grad_(False)
    with torch.enable_grad():  # as in training; without a gradient a plain 4-bit model takes other kernels on some CPUs
        expected = plain(inputs_embeds=plain.get_input_embeddings()(IDS).requires_grad_()).logits
        assert torch.equal(model(IDS).logits, expected)
    assert torch.equal(plain_logits(model, IDS), plain_logits(model.anchor, IDS))


@kinds
def test_cached_is_uncached_and_a_batch_is_its_rows(kind: str, folders: tuple[Path, Path]) -> None:
    model = random_composition(folders, kind)
    whole, pieces, cache = plain_logits(model, IDS), [], None
    with torch.no_grad():
        for part in (IDS[:, :5], *IDS[:, 5:].split(1, dim=1)):
            output = model(part, cache=cache, use_cache=True)
            cache = getattr(output, CACHE_ARGUMENT)
            pieces.append(output.logits)
    assert_same_logits(torch.cat(pieces, dim=1), whole)
    assert_same_logits(torch.cat([plain_logits(model, row[None]) for row in IDS]), whole)
    changed = IDS.clone()
    changed[:, 6] += 1
    assert_same_logits(plain_logits(model, changed)[:, :6], whole[:, :6])


@kinds
def test_training_moves_the_bridges_alone(kind: str, folders: tuple[Path, Path]) -> None:
    model = random_composition(folders, kind)
    members, bridges = weights_of(model.members), weights_of(model.bridges)
    optimizer = torch.optim.SGD([parameter for _, parameter in model.composition_parameters()], lr=0.1)
    losses = []
    for _ in range(3):
        plain_logits(model, IDS)  # an evaluation between two steps
        optimizer.zero_grad()
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(value, members[name]) for name, value in model.members.named_parameters())
    assert all(parameter.grad is None for parameter in model.members.parameters())
    assert all(not torch.equal(value, bridges[name]) for name, value in model.bridges.named_parameters())
    assert {value.dtype for value in model.bridges.parameters()} == {torch.float32}


@kinds
def test_the_gradient_passes_through_quantised_layers(kind: str, folders: tuple[Path, Path]) -> None:
    """After an evaluation too, where bitsandbytes would have laid the weights out for a kernel without a gradient."""
    model = compose(quantised(folders[0], kind), folders[1], connections=[(1, 0)])
    randomise(model)
    plain_logits(model, IDS)
    states: list[torch.Tensor] = []
    handle = model.anchor.model.layers[0].mlp.down_proj.register_forward_hook(
        lambda _, __, output: states.append(output)
    )
    loss = model(IDS, labels=IDS).loss
    handle.remove()
    assert states[0].requires_grad, "what the first layer's last matrix gives has lost the bridge below it"
    loss.backward()
    bridge = model.bridge("augmenting", 1, 0).o_proj.weight
    assert bridge.grad is not None
    direction = bridge.grad / bridge.grad.norm()
    ends = []
    for step in (2e-2, -2e-2):
        with torch.no_grad():
            bridge.add_(step * direction)
            ends.append(float(model(IDS, labels=IDS).loss))
            bridge.sub_(step * direction)
    # eight bits round what comes in as well, so that the loss has steps
    assert (ends[0] - ends[1]) / 4e-2 == pytest.approx(float(bridge.grad.norm()), rel=0.02 if kind == "4bit" else 0.3)


@kinds
def test_a_live_model_that_has_run_is_itself_and_is_given_back(kind: str, folders: tuple[Path, Path]) -> None:
    live = quantised(folders[0], kind).requires_grad_(False)
    before = plain_logits(live, IDS)  # on some CPUs this lays 4-bit weights out anew, and computes in bfloat16
    model = compose(live, folders[1])
    near = (plain_logits(model, IDS) - before).abs().max()
    assert near < 0.2, f"the weights were not laid out as they were: {near}"
    assert torch.equal(plain_logits(model, IDS), plain_logits(live, IDS))
    randomise(model)
    model.detach()
    assert torch.equal(plain_logits(live, IDS), before)


@kinds
def test_what_is_saved_says_how_and_is_loaded_so(kind: str, folders: tuple[Path, Path], tmp_path: Path) -> None:
    model = random_composition(folders, kind)
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved")
    assert [len(layers_of(member)) for member in loaded.members.values()] == [21, 12]
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert f", {'4-bit nf4' if kind == '4bit' else '8-bit'} |" in (tmp_path / "saved" / "README.md").read_text()
    again = lmcompose.load(tmp_path / "saved", quantization={"anchor": "none"})
    assert [len(layers_of(member)) for member in again.members.values()] == [0, 12]
    loaded.save_pretrained(tmp_path / "again")
    first, second = ((tmp_path / name / "config.json").read_text() for name in ("saved", "again"))
    assert first == second


def test_a_live_quantised_member_is_saved_as_such(folders: tuple[Path, Path], tmp_path: Path) -> None:
    model = randomise(compose(quantised(folders[0], "8bit"), folders[1]))
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved")
    assert [len(layers_of(member)) for member in loaded.members.values()] == [21, 0]
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))


def test_bf16_weights_beside_4_bits(folders: tuple[Path, Path]) -> None:
    model = randomise(compose(*folders, quantization="4bit", dtype="bfloat16"))
    assert model.dtype == torch.bfloat16
    assert {value.dtype for value in model.bridges.parameters()} == {torch.float32}
    loss = model(IDS, labels=IDS).loss
    loss.backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.bridges.parameters())


def test_an_extension_quantises_what_it_adds(folders: tuple[Path, Path], tmp_path: Path) -> None:
    compose(folders[0], {"first": folders[1]}, quantization={"anchor": "4bit"}).save_pretrained(tmp_path / "saved")
    model = extend(tmp_path / "saved", {"second": folders[1]}, quantization="8bit")
    kinds_of = [{type(layer).__name__ for layer in layers_of(member)} for member in model.members.values()]
    assert kinds_of == [{"Linear4bit"}, set(), {"Linear8bitLt"}]


# ------------------------------------------------------------------------------------------------ logit compositions


@kinds
def test_arithmetic_of_quantised_members(kind: str, folders: tuple[Path, Path], tmp_path: Path) -> None:
    large, small = folders
    word = KINDS[kind]
    model = proxy_tune(large, small, small, quantization=word)
    assert torch.equal(plain_logits(model, IDS), plain_logits(model.leader, IDS)), "expert = antiexpert is the base"
    model = combine("base + alpha * expert", {"base": large, "expert": small}, alpha=0.5, quantization={"base": word})
    assert [len(layers_of(member)) for member in model.members.values()] == [21, 0]
    expected = plain_logits(model.member("base"), IDS) + 0.5 * plain_logits(model.member("expert"), IDS)
    assert_same_logits(plain_logits(model, IDS), expected)
    model.save_pretrained(tmp_path / "saved")
    loaded = LogitForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert [len(layers_of(member)) for member in loaded.members.values()] == [21, 0]
    changed = LogitForCausalLM.from_pretrained(tmp_path / "saved", quantization={"base": "none", "expert": word})
    assert [len(layers_of(member)) for member in changed.members.values()] == [0, 12]


@kinds
def test_decoding_with_a_quantised_base(kind: str, folders: tuple[Path, Path]) -> None:
    for model in (
        proxy_tune(*folders, quantization=KINDS[kind]),
        random_composition(folders, kind),
    ):
        options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        with_cache = model.generate(IDS, **options)
        assert torch.equal(with_cache, model.generate(IDS, use_cache=False, **options))


def test_copies_of_a_composition_are_as_good(folders: tuple[Path, Path]) -> None:
    model = random_composition(folders, "4bit")
    assert torch.equal(plain_logits(copy.deepcopy(model), IDS), plain_logits(model, IDS))
