"""Which members run together, and whose adapters each row of a batch has."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from lmcompose.calls import CallSlot
from lmcompose.errors import MemberError
from lmcompose.logits.shared import (
    adapted_modules,
    check_switchable,
    hook_adapters,
    mixes_adapters,
    mixing_roles,
    passes_of,
    row_adapters,
    switched_to,
)
from lmcompose.reference import BARE
from tests.compositions import plain_logits
from tests.logit_compositions import IDS, lora_of
from tests.tiny import tiny_model

peft = pytest.importorskip("peft")

MODELS: dict[str, Any] = dict(zip("xyz", (object(), object(), object()), strict=True))


def passes(roles: str, adapters: dict[str, str] | None = None, mixing: str = "", share: bool = True) -> list[str]:
    """Passes of roles named a, b, ... that are played by the models in `roles`, the first one leading."""
    models = {chr(ord("a") + i): MODELS[name] for i, name in enumerate(roles)}
    return ["".join(each) for each in passes_of(models, adapters or {}, set(mixing), "a", share)]


def test_who_runs_together() -> None:
    assert passes("xyz") == ["a", "b", "c"]
    assert passes("xyy") == ["a", "bc"]
    assert passes("xyxy") == ["a", "bd", "c"], "the leader runs alone"
    assert passes("xyy", share=False) == ["a", "b", "c"]
    adapters = {"b": "default", "c": BARE}
    assert passes("xyy", adapters, mixing="bc") == ["a", "bc"]
    assert passes("xyy", adapters) == ["a", "b", "c"], "its layers cannot mix adapters"
    assert passes("xxx", {"a": BARE, "b": "default", "c": BARE}, mixing="abc") == ["a", "bc"]
    assert passes("x") == ["a"]


def test_the_adapter_of_each_row() -> None:
    adapters = {"expert": "default", "antiexpert": BARE}
    assert row_adapters(["expert", "antiexpert"], adapters, 6) == ["default"] * 3 + [BARE] * 3
    assert row_adapters(["antiexpert"], adapters, 2) == [BARE] * 2


def test_each_row_has_its_own_adapter() -> None:
    tuned, plain = lora_of(tiny_model("llama")), tiny_model("llama")
    model = tuned.get_base_model()
    expected = torch.cat([plain_logits(tuned, IDS), plain_logits(plain, IDS)])
    slot = CallSlot()
    handles = hook_adapters(model, slot)
    assert len(handles) == len(adapted_modules(model)) == 6
    with slot.during(["default"] * 3 + [BARE] * 3):
        got = plain_logits(model, torch.cat([IDS, IDS]))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert torch.equal(plain_logits(model, IDS), plain_logits(tuned, IDS)), "outside of the slot nothing changes"
    for handle in handles:
        handle.remove()
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arch", "settings", "mixes"),
    [
        ("llama", {}, True),
        ("llama", {"targets": ["embed_tokens", "lm_head"]}, True),
        ("llama", {"modules_to_save": ["lm_head"]}, True),
        ("llama", {"use_dora": True}, False),
        ("gpt2", {"targets": ["c_attn"]}, True),
        ("mixtral", {}, True),
        ("opt", {}, True),
        ("opt", {"targets": ["fc1"]}, False),
        ("llama", {"targets": [], "target_parameters": ["q_proj.weight"]}, False),
    ],
)
def test_which_models_mix_adapters_in_a_batch(arch: str, settings: dict[str, Any], mixes: bool) -> None:
    model = lora_of(tiny_model(arch), **settings).get_base_model()
    before = plain_logits(model, IDS)
    assert mixes_adapters(model, ["default"]) is mixes
    assert torch.equal(plain_logits(model, IDS), before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    models = {"a": tiny_model("gpt2"), "b": model, "c": model}
    assert mixing_roles(models, {"b": "default", "c": BARE}) == ({"b", "c"} if mixes else set())
    assert mixing_roles(models, {}) == set()


def test_rows_that_only_look_like_the_batch_are_not_mixed() -> None:
    """A mixture of experts can hand a layer as many tokens as there are rows, and none of them from its row."""

    class Gathering(nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.expert = nn.Embedding(97, 8), nn.Linear(8, 8)

        def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
            return self.expert(self.embed(input_ids).flatten(0, 1)[: len(input_ids)])

    model: Any = Gathering()
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["expert"]), model)
    assert not mixes_adapters(model.eval(), ["default"])


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_switching_and_back(settings: dict[str, Any]) -> None:
    tuned, plain = lora_of(tiny_model("llama"), **settings), tiny_model("llama")
    model = tuned.get_base_model()
    logits = plain_logits(model, IDS)
    with switched_to(model, BARE):
        assert torch.equal(plain_logits(model, IDS), plain_logits(plain, IDS))
        with switched_to(model, "default"):
            assert torch.equal(plain_logits(model, IDS), logits)
        assert torch.equal(plain_logits(model, IDS), plain_logits(plain, IDS))
    assert torch.equal(plain_logits(model, IDS), logits)
    with pytest.raises(KeyboardInterrupt), switched_to(model, BARE):
        raise KeyboardInterrupt
    assert torch.equal(plain_logits(model, IDS), logits)
    assert any(parameter.requires_grad for parameter in tuned.parameters())


def test_one_thread_switches_at_a_time() -> None:
    model = lora_of(tiny_model("llama")).get_base_model()
    inside, entered = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        with switched_to(model, "default"):
            entered.set()

    thread = threading.Thread(target=other)
    thread.start()
    with switched_to(model, BARE):
        inside.set()
        assert not entered.wait(0.2), "two threads were inside at once"
    thread.join()
    assert entered.is_set()


def test_what_switches_cannot_undo() -> None:
    tuned = lora_of(tiny_model("qwen2"))
    check_switchable(tuned.get_base_model(), "small")
    tuned.merge_adapter()
    with pytest.raises(MemberError, match=r"merged into the weights of 'small'.*unmerge_adapter"):
        check_switchable(tuned.get_base_model(), "small")
    biased = lora_of(tiny_model("qwen2"), bias="all")
    with pytest.raises(MemberError, match=r"'default' was trained with the biases of 'small' \(bias='all'\)"):
        check_switchable(biased.get_base_model(), "small")
