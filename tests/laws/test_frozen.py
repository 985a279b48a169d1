"""Law 5: training changes no base tensor; detaching restores the anchor bit for bit and leaves no hook behind."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lmcompose import CalmForCausalLM, compose
from lmcompose.errors import MemberError, WrongBaseError
from tests.compositions import (
    anchor_of,
    augmenting_of,
    crossed_connections,
    pair_params,
    plain_logits,
    random_composition,
    randomise,
)
from tests.tiny import PAIRS, Pair, random_ids, tiny_model

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _hooks(model: nn.Module) -> dict[str, int]:
    return {f"{name}{kind}": len(getattr(m, kind)) for name, m in model.named_modules() for kind in HOOKS}


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _assert_untouched(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = _tensors(model)
    assert after.keys() == before.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert not changed


def _train(model: CalmForCausalLM, steps: int = 4) -> torch.optim.Optimizer:
    """AdamW with weight decay over all that says that it wants a gradient, as any trainer would choose it."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=1e-2, weight_decay=0.1)
    model.train()
    for step in range(steps):
        ids = random_ids(2, 12, seed=step)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("pair", pair_params())
def test_training_changes_the_composition_parameters_only(pair: Pair) -> None:
    anchor, augmenting = anchor_of(pair).requires_grad_(True), augmenting_of(pair).requires_grad_(True)
    members = {"anchor": _tensors(anchor), "augmenting": _tensors(augmenting)}
    model = compose(anchor=anchor, augmenting=augmenting, connections=crossed_connections(augmenting, anchor))
    composition = {name: parameter.detach().clone() for name, parameter in model.composition_parameters()}
    optimizer = _train(model)
    _assert_untouched(anchor, members["anchor"])
    _assert_untouched(augmenting, members["augmenting"])
    for name, parameter in model.composition_parameters():
        assert not torch.equal(parameter, composition[name]), f"{name} did not train: this test could not fail"
    own = {id(parameter) for _, parameter in model.composition_parameters()}
    assert {id(parameter) for parameter in optimizer.state} == own
    for member in (anchor, augmenting):
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in member.parameters())


@pytest.mark.parametrize("pair", pair_params())
def test_detaching_restores_the_anchor_and_leaves_nothing(pair: Pair) -> None:
    anchor, augmenting = anchor_of(pair), augmenting_of(pair)
    ids = random_ids(2, 12)
    logits, hooks = plain_logits(anchor, ids), (_hooks(anchor), _hooks(augmenting))
    model = compose(anchor=anchor, augmenting=augmenting, connections=crossed_connections(augmenting, anchor))
    randomise(model)
    composed = plain_logits(model, ids)
    assert (_hooks(anchor), _hooks(augmenting)) != hooks
    model.detach()
    assert (_hooks(anchor), _hooks(augmenting)) == hooks
    assert torch.equal(plain_logits(anchor, ids), logits)
    assert anchor.generate(ids, max_new_tokens=3, do_sample=False).shape[0] == 2
    model.attach()
    assert torch.equal(plain_logits(model, ids), composed)


def test_disable_gives_the_anchor_back_exactly_and_only_inside() -> None:
    pair = PAIRS["gpt2+llama_wide_deep"]
    model, ids = random_composition(pair), random_ids(2, 12)
    composed, bare = plain_logits(model, ids), plain_logits(anchor_of(pair), ids)
    with model.disable():
        assert torch.equal(plain_logits(model, ids), bare)
    with pytest.raises(KeyboardInterrupt), model.disable():
        raise KeyboardInterrupt
    assert torch.equal(plain_logits(model, ids), composed)


def test_members_stay_in_evaluation_mode() -> None:
    """An anchor with dropout is still frozen in every sense: two passes in training mode agree."""
    anchor = tiny_model("gpt2", embd_pdrop=0.5, resid_pdrop=0.5, attn_pdrop=0.5)
    augmenting = tiny_model("opt", seed=1, dropout=0.5, attention_dropout=0.5)
    assert not torch.equal(anchor.train()(random_ids(2, 12)).logits, anchor(random_ids(2, 12)).logits)
    model = randomise(compose(anchor=anchor, augmenting=augmenting))
    model.train()
    assert model.training
    assert not any(module.training for member in model.members.values() for module in member.modules())
    ids = random_ids(2, 12)
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_no_graph_reaches_below_the_first_connection_or_into_the_augmenting_model() -> None:
    """m_A runs without a graph, and so does the anchor up to the first connected layer."""
    pair = PAIRS["llama+gemma3"]  # an anchor of five layers
    anchor, augmenting = anchor_of(pair), augmenting_of(pair)
    model = randomise(compose(anchor=anchor, augmenting=augmenting, connections=[(1, 3), (3, 5)]))
    graph: dict[str, bool] = {}

    def watch(name: str) -> object:
        def hook(module: nn.Module, args: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            graph[name] = bool(tensor.requires_grad)

        return hook

    handles = [layer.register_forward_hook(watch(f"B{k}")) for k, layer in enumerate(anchor.model.layers, 1)]
    handles += [layer.register_forward_hook(watch(f"A{k}")) for k, layer in enumerate(augmenting.model.layers, 1)]
    ids = random_ids(2, 12)
    model.train()
    model(ids, labels=ids).loss.backward()
    for handle in handles:
        handle.remove()
    with_graph = {name for name, has_graph in graph.items() if has_graph}
    assert with_graph == {"B3", "B4", "B5"}
    assert graph.keys() == with_graph | {"B1", "B2", "A1", "A2", "A3"}


@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama", "gpt_neo+phi3_wide", "starcoder2+mixtral"])
def test_gradient_checkpointing_gives_the_same_gradients(name: str) -> None:
    """Reentrant checkpoints would silently give the bridges none; asking for them must not bring that back."""

    def gradients(kwargs: dict[str, bool] | None, checkpoint: bool) -> dict[str, torch.Tensor]:
        model = random_composition(PAIRS[name])
        if checkpoint:
            model.gradient_checkpointing_enable(kwargs)
        model.train()
        ids = random_ids(2, 12)
        model(ids, labels=ids, use_cache=False).loss.backward()
        return {n: p.grad.clone() for n, p in model.composition_parameters() if p.grad is not None}

    expected = gradients(None, checkpoint=False)
    assert len(expected) == len(list(random_composition(PAIRS[name]).composition_parameters()))
    assert min(gradient.norm() for gradient in expected.values()) > 1e-6
    for kwargs in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        got = gradients(kwargs, checkpoint=True)
        assert got.keys() == expected.keys()
        for key, gradient in expected.items():
            torch.testing.assert_close(got[key], gradient, atol=1e-6, rtol=1e-4)


def test_asking_for_input_gradients_gives_the_augmenting_model_no_graph() -> None:
    """Trainers call this before checkpointing; on m_A it would build a graph that nobody reads."""
    model = random_composition(PAIRS["llama+gpt2"])
    model.enable_input_require_grads()
    (augmenting,) = model.augmenting.values()
    seen: list[bool] = []
    handle = augmenting.get_input_embeddings().register_forward_hook(
        lambda module, args, output: seen.append(output.requires_grad)
    )
    ids = random_ids(2, 8)
    model(ids, labels=ids).loss.backward()
    handle.remove()
    assert seen == [False]


def test_a_detached_composition_lets_its_members_go() -> None:
    anchor = tiny_model("llama")
    model = compose(anchor=anchor, augmenting=tiny_model("gpt2", seed=1))
    reference = weakref.ref(model)
    model.detach()
    del model
    gc.collect()
    assert reference() is None
    assert _hooks(anchor) == _hooks(tiny_model("llama"))


def _tuned(seed: int = 4) -> Any:
    """A LoRA of a tiny llama whose every adapter weight is random."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny_model("llama", seed=1), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("role", ["anchor", "augmenting"])
def test_peft_members_keep_their_trained_weights(role: str) -> None:
    """Trap: a LoRA's B matrix starts at zero, and re-initialising a member would put it back there."""
    tuned, ids = _tuned(), random_ids(1, 8)
    before = _tensors(tuned)
    members = {"anchor": tiny_model("gpt2"), "augmenting": tiny_model("gpt2")}
    model = randomise(compose(**(members | {role: tuned})))
    with_lora = plain_logits(model, ids)
    _train(model, steps=1)
    _assert_untouched(tuned, before)
    without = randomise(compose(**(members | {role: tiny_model("llama", seed=1)})))
    assert (plain_logits(without, ids) - with_lora).abs().max() > 1e-3


def test_a_saved_composition_knows_its_members_adapters(tmp_path: Path) -> None:
    ids, anchor = random_ids(1, 8), tiny_model("gpt2")
    model = randomise(compose(anchor=anchor, augmenting=_tuned()))
    model.save_pretrained(tmp_path / "saved")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=anchor, augmenting=_tuned())
    assert torch.equal(plain_logits(loaded, ids), plain_logits(model, ids))
    for other in (tiny_model("llama", seed=1), _tuned(seed=5)):
        with pytest.raises(WrongBaseError, match="other weights"):
            CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=anchor, augmenting=other)


def test_prompt_tuned_members_are_refused() -> None:
    """Their virtual tokens live outside the layers, so a composition would silently leave them out."""
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    prompted = peft.get_peft_model(tiny_model("llama", seed=1), config)
    with pytest.raises(MemberError, match="PROMPT_TUNING"):
        compose(anchor=tiny_model("gpt2"), augmenting=prompted)
