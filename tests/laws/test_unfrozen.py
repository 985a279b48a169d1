"""The laws where layers of the members are unfrozen. Law 5 is exempt for these layers' copies, and for nothing else."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import CompileConfig

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import decoder_layers, hidden_states_of
from lmcompose.errors import WrongBaseError
from lmcompose.training.packing import Collator, packed_row
from tests.compositions import (
    DIFFERENT,
    anchor_of,
    assert_same_logits,
    augmenting_of,
    plain_logits,
    random_composition,
    randomise,
    untrained_composition,
)
from tests.tiny import PAIRS, Pair, padded, random_ids, tiny_model, valid_rows

PAIR_NAMES = ("llama+gpt2", "gemma3+llama", "qwen2_sliding+qwen3_wide", "starcoder2+mixtral")
PAIR_PARAMS = [pytest.param(PAIRS[name], id=name) for name in PAIR_NAMES]
UNFREEZE = {"anchor": [1, 3], "augmenting": [2]}
IDS = random_ids(2, 12)
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def _attributes(model: nn.Module) -> dict[str, set[str]]:
    """What every module has of its own: a `forward` among it would be a trace of a composition."""
    return {name: set(vars(module)) for name, module in model.named_modules()}


def _train(model: CalmForCausalLM, steps: int = 3, lr: float = 1e-2) -> CalmForCausalLM:
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=lr, weight_decay=0.1)
    model.train()
    for step in range(steps):
        ids = random_ids(2, 12, seed=step)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_untrained_it_is_the_anchor_bit_for_bit(pair: Pair, dtype: torch.dtype) -> None:
    model, anchor = untrained_composition(pair, dtype, unfreeze=UNFREEZE), anchor_of(pair, dtype)
    assert torch.equal(plain_logits(model, IDS), plain_logits(anchor, IDS))
    assert torch.equal(model(IDS, labels=IDS).loss, anchor(IDS, labels=IDS).loss)
    arguments: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 2}
    assert torch.equal(model.generate(IDS, **arguments), anchor.generate(IDS, **arguments))


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_training_changes_copies_of_the_named_layers_and_no_member(pair: Pair) -> None:
    anchor, augmenting = anchor_of(pair), augmenting_of(pair)
    attributes, bare = [_attributes(member) for member in (anchor, augmenting)], plain_logits(anchor, IDS)
    model = compose(anchor, augmenting, connections=[(3, 1), (2, 2), (0, 0)], unfreeze=UNFREEZE)
    layers = [decoder_layers(anchor)[0], decoder_layers(anchor)[2], decoder_layers(augmenting)[1]]
    copies = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    assert sum(parameter.numel() for parameter in model.unfrozen.parameters()) == copies, "one copy of these layers"
    own, members = _tensors(model), [_tensors(member) for member in (anchor, augmenting)]
    _train(model)
    for name, parameter in model.composition_parameters():
        assert not torch.equal(parameter, own[name]), f"{name} did not train: this test could not fail"
    composed = plain_logits(model, IDS)
    assert (composed - bare).abs().max() > DIFFERENT
    with model.disable():
        assert torch.equal(plain_logits(model, IDS), bare)
    assert torch.equal(plain_logits(anchor, IDS), bare), "a direct caller of the anchor saw the trained layers"
    assert torch.equal(plain_logits(model.detach(), IDS), bare)
    for member, before, attribute in zip((anchor, augmenting), members, attributes, strict=True):
        assert _same(before, _tensors(member))
        assert _attributes(member) == attribute, "something stayed behind on the member"
    assert torch.equal(plain_logits(model.attach(), IDS), composed)


def test_what_is_left_out_of_a_pass_leaves_the_anchors_own_layers_in() -> None:
    """`without` leaves out an augmenting model, and the anchor's unfrozen layers are not that model's."""
    pair = PAIRS["llama+gpt2"]
    model = random_composition(pair, unfreeze={"anchor": [2]})
    with model.without("augmenting"):
        alone = plain_logits(model, IDS)
    assert (alone - plain_logits(anchor_of(pair), IDS)).abs().max() > DIFFERENT
    changed = anchor_of(pair)
    decoder_layers(changed)[1].load_state_dict(model.unfrozen["anchor_2"].state_dict())
    assert torch.equal(alone, plain_logits(changed, IDS))


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_the_copies_do_what_the_layers_would_if_they_were_changed_in_place(pair: Pair) -> None:
    """Logits and gradients are those of a composition whose anchor's own layers are trained."""
    model = random_composition(pair, unfreeze={"anchor": [1, 3]})
    other = untrained_composition(pair)
    own = {name: parameter for name, parameter in model.composition_parameters() if name.startswith("bridges.")}
    for name, parameter in other.composition_parameters():
        parameter.data.copy_(own[name])
    for layer in (1, 3):
        module = decoder_layers(other.anchor)[layer - 1]
        module.load_state_dict(model.unfrozen[f"anchor_{layer}"].state_dict(), strict=False)
        module.requires_grad_(True)
    losses = [each.train()(IDS, labels=IDS).loss for each in (model, other)]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-6, rtol=1e-6)
    for loss in losses:
        loss.backward()
    for layer in (1, 3):
        theirs = dict(decoder_layers(other.anchor)[layer - 1].named_parameters())
        for name, parameter in model.unfrozen[f"anchor_{layer}"].named_parameters():
            assert theirs[name].grad.abs().max() > 0, name
            torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("pair", PAIR_PARAMS[:3])
def test_the_gradient_through_the_augmenting_model_is_the_slope_of_the_loss(pair: Pair) -> None:
    """m_A runs with a graph above its unfrozen layer; its gradient is compared with differences of losses."""
    model = random_composition(pair, torch.float64, bridge_dtype=torch.float64, unfreeze={"augmenting": [1]}).train()

    def loss() -> torch.Tensor:
        logits = model(IDS, use_cache=False).logits[:, :-1].double()
        return nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten())

    loss().backward()
    weights = list(model.unfrozen["augmenting_1"].parameters())
    size = sum(float(weight.grad.square().sum()) for weight in weights) ** 0.5
    directions = [weight.grad / size for weight in weights]
    losses, step = [], 1e-2  # norms compute in float32, so a small step would show their rounding
    for sign in (1, -2):
        with torch.no_grad():
            for weight, way in zip(weights, directions, strict=True):
                weight += sign * step * way
            losses.append(float(loss()))
    assert size > 1e-2
    assert size == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-2)


def test_there_is_a_graph_from_the_lowest_unfrozen_layer_on_and_no_further_down() -> None:
    model = compose(
        tiny_model("llama", num_hidden_layers=5),
        tiny_model("llama", seed=1, num_hidden_layers=5),
        connections=[(4, 4)],
        unfreeze={"anchor": [2], "augmenting": [3]},
    ).train()
    graph: dict[str, bool] = {}
    for role, member in model.members.items():
        for number, layer in enumerate(decoder_layers(member), start=1):
            layer.register_forward_hook(
                lambda _m, _i, out, key=f"{role} {number}": graph.update({key: hidden_states_of(out).requires_grad})
            )
    model(IDS, labels=IDS).loss.backward()
    assert sorted(key for key, has in graph.items() if has) == [
        *(f"anchor {number}" for number in (2, 3, 4, 5)), *(f"augmenting {number}" for number in (3, 4, 5))
    ]  # fmt: skip


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_gradient_checkpointing_changes_no_gradient(pair: Pair) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = random_composition(pair, unfreeze=UNFREEZE)
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        for ids in (IDS, random_ids(3, 7, seed=21)):  # two passes before one backward
            model(ids, labels=ids).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.composition_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("pair", PAIR_PARAMS)
def test_cache_padding_and_packing(pair: Pair) -> None:
    model = random_composition(pair, unfreeze=UNFREEZE)
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        logits = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
        for row, got in zip(ROWS, valid_rows(logits, mask), strict=True):
            assert_same_logits(got, plain_logits(model, row[None])[0])
    batch = Collator(0)([packed_row([(row.numpy(), row.numpy()) for row in ROWS])])
    with torch.no_grad():
        packed = model.train()(**batch).logits[0]
    for row, got in zip(ROWS, packed.split([len(row) for row in ROWS]), strict=True):
        assert_same_logits(got, plain_logits(model, row[None])[0])
    model.eval()
    ids, mask, _ = padded(ROWS, "left")
    settings: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False, "no_repeat_ngram_size": 2}
    settings |= {"eos_token_id": None}
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    expected = model.generate(**inputs, use_cache=False, **settings)
    for arguments in ({}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(**inputs, **settings, **arguments), expected), arguments
    beams = model.generate(**inputs, use_cache=False, num_beams=2, **settings)
    assert torch.equal(model.generate(**inputs, num_beams=2, **settings), beams)
    one: dict[str, Any] = {"input_ids": ids[1:2], "attention_mask": mask[1:2]}
    expected = model.generate(**one, use_cache=False, **settings)
    assert torch.equal(model.generate(**one, prompt_lookup_num_tokens=2, **settings), expected)


def test_a_compiled_static_cache_decodes_the_same_in_one_graph() -> None:
    """Also where the copies are of another dtype than the members: they are rounded within the graph."""
    compile_config = CompileConfig(fullgraph=True, backend="eager", mode=None)
    compile_config._compile_all_devices = True
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static"}
    for dtype in (torch.float32, torch.bfloat16):
        model = random_composition(PAIRS["llama+gpt2"], dtype, unfreeze=UNFREEZE)
        torch._dynamo.reset()
        captured = torch._dynamo.utils.counters["stats"]
        captured.clear()
        for enabled in (True, False, True):
            with contextlib.nullcontext() if enabled else model.disable():
                expected = model.generate(IDS, disable_compile=True, **settings)
                assert torch.equal(model.generate(IDS, compile_config=compile_config, **settings), expected)
        assert captured["unique_graphs"] > 0, "nothing was compiled"
    torch._dynamo.reset()


def test_small_steps_in_bf16_members_are_not_lost() -> None:
    """The copies are fp32 and are rounded in each pass: many steps below bf16's resolution add up to a change."""
    model = untrained_composition(PAIRS["llama+gpt2"], torch.bfloat16, unfreeze={"anchor": [2]})
    weight = model.unfrozen["anchor_2"].mlp.up_proj.weight
    assert {parameter.dtype for parameter in model.unfrozen.parameters()} == {torch.float32}
    start = weight.detach().clone()
    bare = plain_logits(model, IDS)
    changes = []
    for _ in range(40):
        with torch.no_grad():
            weight += start.abs().clamp(min=1e-3) * 2**-12  # a sixteenth of bf16's step
        changes.append(float((plain_logits(model, IDS) - bare).abs().max()))
    assert changes[0] == 0.0
    assert changes[-1] > 0.0
    model(IDS, labels=IDS).loss.backward()
    assert weight.grad.dtype == torch.float32


# ------------------------------------------------------------------------------------------------ saved = loaded


def test_saved_is_loaded_and_the_base_is_checked_as_ever(tmp_path: Path) -> None:
    pair = PAIRS["llama+gpt2"]
    for dtype in (torch.float32, torch.bfloat16):
        model = _train(untrained_composition(pair, dtype, unfreeze=UNFREEZE))
        model.save_pretrained(tmp_path / "saved")
        saved = load_file(tmp_path / "saved" / "model.safetensors")
        assert saved.keys() == {name for name, _ in model.composition_parameters()}
        loaded = CalmForCausalLM.from_pretrained(
            tmp_path / "saved", anchor=anchor_of(pair, dtype), augmenting=augmenting_of(pair, dtype)
        )
        assert loaded.config.unfreeze == UNFREEZE
        assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
        for name, parameter in loaded.composition_parameters():
            assert parameter.requires_grad
            assert torch.equal(parameter, saved[name])
    rounded = random_composition(pair, torch.bfloat16, unfreeze=UNFREEZE)
    with torch.no_grad():
        for bridge in rounded.bridges.values():
            bridge.o_proj.weight.zero_()
    rounded.save_pretrained(tmp_path / "rounded")
    members = {"anchor": anchor_of(pair, torch.bfloat16), "augmenting": augmenting_of(pair, torch.bfloat16)}
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "rounded", composition_dtype=torch.bfloat16, members=members)
    assert {parameter.dtype for parameter in loaded.unfrozen.parameters()} == {torch.bfloat16}
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(rounded, IDS)), "rounded once, or in each pass"
    with pytest.raises(WrongBaseError, match="other weights"):
        CalmForCausalLM.from_pretrained(
            tmp_path / "saved", anchor=tiny_model("llama", seed=5), augmenting=augmenting_of(pair)
        )
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "Unfrozen layers" in card


# ------------------------------------------------------------------------------------------------ other callers


def _two_on_one_anchor() -> tuple[CalmForCausalLM, CalmForCausalLM, Any]:
    anchor = anchor_of(PAIRS["llama+gpt2"])
    first = compose(anchor, tiny_model("gpt2", seed=1), connections=[(1, 1)], unfreeze={"anchor": [2, 3]})
    second = compose(anchor, tiny_model("opt", seed=4), connections=[(2, 1)], unfreeze={"anchor": [3]})
    return randomise(first, seed=1), randomise(second, seed=2), anchor


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first", "second"])
def test_two_compositions_unfreeze_a_layer_of_one_anchor(order: tuple[int, int]) -> None:
    *both, anchor = _two_on_one_anchor()
    expected, bare = [plain_logits(model, IDS) for model in both], plain_logits(anchor_of(PAIRS["llama+gpt2"]), IDS)
    assert (expected[0] - expected[1]).abs().max() > DIFFERENT
    _train(both[0])
    assert (plain_logits(both[0], IDS) - expected[0]).abs().max() > DIFFERENT
    assert torch.equal(plain_logits(both[1], IDS), expected[1])
    assert torch.equal(plain_logits(anchor, IDS), bare)
    both[order[0]].detach()
    assert torch.equal(plain_logits(anchor, IDS), bare)
    if order[0] == 0:
        assert torch.equal(plain_logits(both[1], IDS), expected[1])
    both[order[1]].detach()
    assert not any("forward" in vars(module) for module in anchor.modules())


def test_threads_do_not_meet() -> None:
    first, second, anchor = _two_on_one_anchor()
    texts = [random_ids(1, 6 + k, seed=30 + k) for k in range(3)]
    expected = {model: [plain_logits(model, ids) for ids in texts] for model in (first, second, anchor)}
    wrong: list[str] = []
    barrier = threading.Barrier(4)

    def call(model: Any) -> None:
        barrier.wait()
        for _ in range(10):
            for ids, logits in zip(texts, expected[model], strict=True):
                if not torch.equal(plain_logits(model, ids), logits):
                    wrong.append(type(model).__name__)

    threads = [threading.Thread(target=call, args=(model,)) for model in (first, first, second, anchor)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_model_in_both_roles_with_other_layers_unfrozen() -> None:
    shared = tiny_model("llama")
    settings: dict[str, Any] = {"connections": [(2, 1), (3, 2)], "unfreeze": {"anchor": [2], "augmenting": [1, 2]}}
    model = randomise(compose(shared, shared, **settings))
    apart = randomise(compose(tiny_model("llama"), tiny_model("llama"), **settings))
    assert torch.equal(plain_logits(model, IDS), plain_logits(apart, IDS))


def test_copies_and_pickles_are_compositions_of_their_own() -> None:
    model = random_composition(PAIRS["gemma3+llama"], unfreeze=UNFREEZE)
    composed, bare = plain_logits(model, IDS), plain_logits(anchor_of(PAIRS["gemma3+llama"]), IDS)
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            parameter.zero_()
    for twin in twins:
        assert torch.equal(plain_logits(twin, IDS), composed)
        assert torch.equal(plain_logits(twin.detach(), IDS), bare)
        assert not any("forward" in vars(module) for module in twin.anchor.modules())


def test_a_composition_with_unfrozen_layers_is_a_member_like_any_other() -> None:
    inner = random_composition(PAIRS["llama+gpt2"], unfreeze=UNFREEZE)
    outer = compose(inner, tiny_model("opt", seed=2), connections=[(1, 1), (3, 3)])
    composed = plain_logits(inner, IDS)
    assert torch.equal(plain_logits(outer, IDS), composed)
    before = _tensors(inner)
    _train(outer)
    assert _same(before, _tensors(inner)), "the inner composition's unfrozen layers are frozen in the outer one"
    assert (plain_logits(outer, IDS) - composed).abs().max() > DIFFERENT
    assert torch.equal(plain_logits(outer.detach(), IDS), composed)
