"""Law 10: models that share an anchor object, and passes that overlap, do not leak state into each other."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from io import BytesIO

import pytest
import torch

from lmcompose import CalmForCausalLM, compose
from lmcompose.errors import ConfigurationError
from tests.compositions import (
    DIFFERENT,
    anchor_of,
    assert_same_logits,
    augmenting_of,
    pair_params,
    plain_logits,
    random_composition,
    randomise,
)
from tests.tiny import PAIRS, Pair, random_ids, tiny_model

IDS = random_ids(2, 10)
SHARED = PAIRS["llama+gpt2"]


def _two_on_one_anchor() -> tuple[CalmForCausalLM, CalmForCausalLM, torch.nn.Module]:
    """Two compositions that write into the same layers of one live anchor, and that anchor."""
    anchor = anchor_of(SHARED)
    first = randomise(compose(anchor=anchor, augmenting=augmenting_of(SHARED), connections=[(1, 1), (3, 3)]), seed=1)
    second = randomise(
        compose(anchor=anchor, augmenting=tiny_model("opt", seed=4), connections=[(2, 1), (3, 3)]), seed=2
    )
    return first, second, anchor


def _alone() -> tuple[torch.Tensor, torch.Tensor]:
    """Their logits when each has an anchor of its own."""
    first = compose(anchor=anchor_of(SHARED), augmenting=augmenting_of(SHARED), connections=[(1, 1), (3, 3)])
    second = compose(anchor=anchor_of(SHARED), augmenting=tiny_model("opt", seed=4), connections=[(2, 1), (3, 3)])
    return plain_logits(randomise(first, seed=1), IDS), plain_logits(randomise(second, seed=2), IDS)


def test_two_compositions_on_one_anchor() -> None:
    first, second, anchor = _two_on_one_anchor()
    expected = _alone()
    assert (expected[0] - expected[1]).abs().max() > DIFFERENT
    for _ in range(2):
        assert torch.equal(plain_logits(first, IDS), expected[0])
        assert torch.equal(plain_logits(second, IDS), expected[1])
        assert torch.equal(plain_logits(anchor, IDS), plain_logits(anchor_of(SHARED), IDS))  # type: ignore[arg-type]
    with first.disable():
        assert torch.equal(plain_logits(second, IDS), expected[1])
    first.detach()
    assert torch.equal(plain_logits(second, IDS), expected[1])


def test_two_compositions_decode_in_turns() -> None:
    """Each step of one between two steps of the other: caches and passes are their own."""
    first, second, _ = _two_on_one_anchor()
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "no_repeat_ngram_size": 2}
    expected = first.generate(IDS, **settings)

    class Interrupt:
        """A streamer runs between two steps of the decoding that it listens to."""

        calls = 0

        def put(self, value: torch.Tensor) -> None:
            second.generate(IDS[:1], max_new_tokens=2, do_sample=False)
            Interrupt.calls += 1

        def end(self) -> None:
            pass

    got = first.generate(IDS[:1], streamer=Interrupt(), **settings)
    assert Interrupt.calls == 7
    assert torch.equal(got, expected[:1])


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("pair", pair_params(["llama+gpt2", "gemma3+llama", "starcoder2+mixtral"]))
def test_two_forwards_before_one_backward(pair: Pair, checkpointing: bool) -> None:
    """Gradients of a sum are sums of gradients, also where a checkpoint recomputes the first pass after the second."""
    texts = [random_ids(2, 10, seed=20), random_ids(3, 7, seed=21)]

    def gradients(losses: Callable[[CalmForCausalLM], list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        model = random_composition(pair)
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        for loss in losses(model):
            loss.backward()
        return {name: parameter.grad for name, parameter in model.composition_parameters()}  # type: ignore[misc]

    together = gradients(lambda model: [sum(model(ids, labels=ids).loss for ids in texts)])  # type: ignore[list-item]
    one_by_one = [gradients(lambda model, ids=ids: [model(ids, labels=ids).loss]) for ids in texts]
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, one_by_one[0][name] + one_by_one[1][name], atol=1e-5, rtol=1e-4)
        assert gradient.abs().max() > 1e-6


def test_a_disabled_pass_between_forward_and_backward() -> None:
    """As in a preference loss, whose reference is the bare anchor."""
    model = random_composition(SHARED)
    model.train()
    model.gradient_checkpointing_enable()
    loss = model(IDS, labels=IDS).loss
    with torch.no_grad(), model.disable():
        model(random_ids(1, 5))
    loss.backward()
    got = {name: parameter.grad.clone() for name, parameter in model.composition_parameters()}
    model.zero_grad()
    model(IDS, labels=IDS).loss.backward()
    for name, parameter in model.composition_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


def test_threads_do_not_meet() -> None:
    """One model in several threads, one of them with it disabled, another with the anchor alone."""
    first, second, anchor = _two_on_one_anchor()
    texts = [random_ids(1, 6 + k, seed=30 + k) for k in range(4)]
    bare = anchor_of(SHARED)
    callers: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
        "first": (lambda ids: plain_logits(first, ids), lambda ids: plain_logits(first, ids)),
        "second": (lambda ids: plain_logits(second, ids), lambda ids: plain_logits(second, ids)),
        "anchor": (lambda ids: plain_logits(anchor, ids), lambda ids: plain_logits(bare, ids)),  # type: ignore[arg-type]
    }
    expected = {name: [reference(ids) for ids in texts] for name, (_, reference) in callers.items()}
    wrong: list[str] = []
    barrier = threading.Barrier(len(callers))

    def call(name: str) -> None:
        barrier.wait()
        for _ in range(15):
            for ids, logits in zip(texts, expected[name], strict=True):
                if not torch.equal(callers[name][0](ids), logits):
                    wrong.append(name)

    threads = [threading.Thread(target=call, args=(name,)) for name in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_disable_nests() -> None:
    model = random_composition(SHARED)
    composed, bare = plain_logits(model, IDS), plain_logits(anchor_of(SHARED), IDS)
    with model.disable():
        with model.disable():
            assert torch.equal(plain_logits(model, IDS), bare)
        assert torch.equal(plain_logits(model, IDS), bare), "the inner block switched the composition on again"
    assert torch.equal(plain_logits(model, IDS), composed)


def test_an_error_inside_a_pass_leaves_no_pass_behind() -> None:
    model = random_composition(SHARED)
    composed = plain_logits(model, IDS)
    armed = True

    def fail(module: torch.nn.Module, args: object, output: object) -> None:
        if armed:
            raise RuntimeError("in the middle of the anchor")

    handle = model.anchor.get_output_embeddings().register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        model(IDS)
    armed = False
    handle.remove()
    assert torch.equal(plain_logits(model.anchor, IDS), plain_logits(anchor_of(SHARED), IDS))
    assert torch.equal(plain_logits(model, IDS), composed)


@pytest.mark.parametrize("pair", pair_params(["llama+gpt2", "gemma3+llama", "granite+bloom"]))
def test_a_deep_copy_is_a_composition_of_its_own(pair: Pair) -> None:
    """Trap: hooks that are closures do not survive a copy, which then silently equals the bare anchor."""
    model = random_composition(pair)
    composed = plain_logits(model, IDS)
    twin = copy.deepcopy(model)
    assert torch.equal(plain_logits(twin, IDS), composed)
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            parameter.zero_()
    assert torch.equal(plain_logits(twin, IDS), composed)
    assert torch.equal(plain_logits(model, IDS), plain_logits(anchor_of(pair), IDS))
    twin.detach()
    assert torch.equal(plain_logits(twin.anchor, IDS), plain_logits(anchor_of(pair), IDS))
    model.disable()
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert not own & {parameter.data_ptr() for parameter in twin.parameters()}


def test_data_parallel_is_refused() -> None:
    """Its replicas would share the hooks of one anchor. `nn.DataParallel` asks every module for a replica."""
    with pytest.raises(ConfigurationError, match="accelerate launch"):
        random_composition(SHARED)._replicate_for_data_parallel()


def test_a_pickled_composition_works() -> None:
    model = random_composition(SHARED)
    composed = plain_logits(model, IDS)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(plain_logits(again, IDS), composed)
    buffer = BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(plain_logits(torch.load(buffer, weights_only=False), IDS), composed)
    ids = again.generate(IDS, max_new_tokens=3, do_sample=False)
    assert torch.equal(ids, model.generate(IDS, max_new_tokens=3, do_sample=False))


def test_one_model_as_both_members() -> None:
    """The anchor as its own augmenting model: the same live object is read and written in one pass."""
    shared = tiny_model("llama")
    model = randomise(compose(anchor=shared, augmenting=shared, connections=[(2, 1), (3, 2)]))
    apart = randomise(compose(anchor=tiny_model("llama"), augmenting=tiny_model("llama"), connections=[(2, 1), (3, 2)]))
    assert torch.equal(plain_logits(model, IDS), plain_logits(apart, IDS))
    ids = model.generate(IDS, max_new_tokens=6, do_sample=False, no_repeat_ngram_size=2)
    assert torch.equal(ids, apart.generate(IDS, max_new_tokens=6, do_sample=False, no_repeat_ngram_size=2))


def test_moving_a_shared_anchors_composition_is_seen_by_both() -> None:
    """`.to` moves members too; logits follow within the tolerance of fp32."""
    first, second, _ = _two_on_one_anchor()
    expected = plain_logits(second, IDS)
    first.to(torch.float64)
    first.to(torch.float32)
    assert_same_logits(plain_logits(second, IDS), expected)
