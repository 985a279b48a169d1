"""Leaving augmenting models out at run time: names, nesting, caches, gradients, compilation, lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import CacheError, ConfigurationError
from tests.compositions import DIFFERENT, plain_logits, randomise
from tests.tiny import random_ids, tiny_model

IDS = random_ids(2, 8)


def _model(**sizes: Any) -> CalmForCausalLM:
    """A llama with three augmenting models, two of which write into one layer."""
    names = {"law": "gpt2", "medicine": "opt", "code": "qwen3"}
    model = compose(
        tiny_model("llama", **sizes),
        {name: tiny_model(arch, seed=k, **sizes) for k, (name, arch) in enumerate(names.items(), 1)},
        connections={"law": [(1, 1)], "medicine": [(0, 0), (1, 1)], "code": [(1, 0)]},
    )
    return randomise(model)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    model = _model()
    with (
        pytest.raises(ConfigurationError, match=r"no augmenting model 'laww'.*Did you mean 'law'\?"),
        model.without("medicine", "laww"),
    ):
        raise AssertionError("the block was entered")
    with pytest.raises(ConfigurationError, match="no augmenting model 'anchor'"), model.without("anchor"):
        raise AssertionError("the block was entered")


def test_blocks_add_up_and_end_also_by_an_error() -> None:
    model = _model()
    whole = plain_logits(model, IDS)
    with model.without("law"):
        one = plain_logits(model, IDS)
        with model.without("code"):
            two = plain_logits(model, IDS)
            with model.without("law"):
                assert torch.equal(plain_logits(model, IDS), two)
            assert torch.equal(plain_logits(model, IDS), two)
        assert torch.equal(plain_logits(model, IDS), one)
    with model.without("code", "law"):
        assert torch.equal(plain_logits(model, IDS), two)
    with pytest.raises(KeyboardInterrupt), model.without("law"):
        raise KeyboardInterrupt
    with model.without():
        assert torch.equal(plain_logits(model, IDS), whole)
    for other in (one, two):
        assert (other - whole).abs().max() > DIFFERENT
    assert (one - two).abs().max() > DIFFERENT


def test_what_is_left_out_is_not_run_and_all_out_is_the_anchor() -> None:
    model = _model()
    ran: list[str] = []
    for name, member in model.augmenting.items():
        member.get_input_embeddings().register_forward_hook(lambda *_, name=name: ran.append(name))
    with model.without("medicine"):
        plain_logits(model, IDS)
    assert ran == ["law", "code"]
    ran.clear()
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2}
    with model.without("law", "medicine", "code"):
        bare, decoded = plain_logits(model, IDS), model.generate(IDS, **settings)
    assert ran == []
    anchor = model.detach()
    assert torch.equal(bare, plain_logits(anchor, IDS))
    assert torch.equal(decoded, anchor.generate(IDS, **settings))


@pytest.mark.parametrize("length", [None, 16], ids=["growing", "static"])
def test_a_cache_that_a_model_is_missing_from_is_refused_by_name(length: int | None) -> None:
    model = _model()

    def go_on(cache: Any, start: int, stop: int) -> torch.Tensor:
        with torch.no_grad():
            return model(IDS[:, start:stop], use_cache=True, **{CACHE_ARGUMENT: cache}).logits

    whole = plain_logits(model, IDS)
    with model.without("law"):
        rest = plain_logits(model, IDS)
        cache = model.new_cache(length)
        go_on(cache, 0, 4)
        torch.testing.assert_close(go_on(cache, 4, 6), rest[:, 4:6], atol=5e-5, rtol=0)
        with model.without("code"):  # leaving out one more is no reason to refuse
            go_on(cache, 6, 7)
    with pytest.raises(CacheError, match=r"7 positions of 'anchor' but \{'law': 0, 'code': 6\}.*empty cache"):
        go_on(cache, 7, 8)
    with model.without("law"), pytest.raises(CacheError, match=r"\{'code': 6\}"):
        go_on(cache, 7, 8)
    cache.reset()
    torch.testing.assert_close(go_on(cache, 0, 8), whole, atol=5e-5, rtol=0)
    cache = model.new_cache(length)
    with model.disable():
        go_on(cache, 0, 4)
    with pytest.raises(CacheError, match=r"'law': 0, 'medicine': 0, 'code': 0"):
        go_on(cache, 4, 6)


def test_bridges_that_are_left_out_get_no_gradient() -> None:
    """Also where checkpoints recompute the pass after the block has ended, between passes with other models in."""

    def gradients(checkpointing: bool, *left_out: tuple[str, ...]) -> dict[str, torch.Tensor]:
        model = _model()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        losses = []
        for names in left_out:
            with model.without(*names):
                losses.append(model(IDS, labels=IDS).loss)
        torch.stack(losses).sum().backward()
        return {name: p.grad for name, p in model.composition_parameters() if p.grad is not None}

    one = gradients(False, ("law", "code"))
    assert {name.split(".")[1].split("_")[0] for name in one} == {"medicine"}
    other = gradients(False, ("medicine",))
    assert not one.keys() & other.keys()
    for checkpointing in (False, True):
        both = gradients(checkpointing, ("law", "code"), ("medicine",))
        assert both.keys() == one.keys() | other.keys()
        for name, gradient in both.items():
            torch.testing.assert_close(gradient, (one | other)[name], atol=1e-6, rtol=1e-4)
            assert gradient.abs().max() > 1e-7


def test_a_compiled_forward_notices() -> None:
    model = _model(num_hidden_layers=1)
    forward = torch.compile(model.forward, backend="eager", fullgraph=True, dynamic=False)

    def compiled() -> torch.Tensor:
        with torch.no_grad():
            return forward(IDS, use_cache=False).logits

    torch._dynamo.reset()
    subsets: list[tuple[str, ...]] = [(), ("law",), ("law", "code"), ("law", "medicine", "code")]
    for names in (*subsets, *reversed(subsets)):
        with model.without(*names):
            torch.testing.assert_close(compiled(), plain_logits(model, IDS), atol=1e-6, rtol=0)
    torch._dynamo.reset()


def test_a_text_may_be_longer_than_what_is_left_out_takes() -> None:
    model = compose(
        tiny_model("llama"), {"short": tiny_model("gpt2", n_positions=6), "long": tiny_model("gpt2", seed=1)}
    )
    with pytest.raises(ConfigurationError, match=r"\(the short\) has positions for 6"):
        model(IDS)
    with model.without("short"):
        assert model(IDS).logits.shape[1] == 8
