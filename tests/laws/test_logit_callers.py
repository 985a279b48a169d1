"""Law 10 for logit compositions: models that share a base, and passes that overlap, do not leak into each other."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lmcompose import LogitForCausalLM, combine, compose, proxy_tune
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import ConfigurationError
from tests.compositions import DIFFERENT, assert_same_logits, plain_logits, randomise
from tests.logit_compositions import IDS, TRIOS, Trio, base_of, composition, decode, lora_of, trio_params
from tests.tiny import random_ids, tiny_model


def _two_on_one_base() -> tuple[LogitForCausalLM, LogitForCausalLM, Any]:
    base = base_of(TRIOS["llama+gpt2"])
    first = proxy_tune(base, tiny_model("gpt2", seed=1), tiny_model("gpt2", seed=2))
    second = proxy_tune(base, tiny_model("opt", seed=4), tiny_model("opt", seed=5), alpha=0.5)
    return first, second, base


def _alone() -> tuple[torch.Tensor, torch.Tensor]:
    trio = TRIOS["llama+gpt2"]
    first = proxy_tune(base_of(trio), tiny_model("gpt2", seed=1), tiny_model("gpt2", seed=2))
    second = proxy_tune(base_of(trio), tiny_model("opt", seed=4), tiny_model("opt", seed=5), alpha=0.5)
    return plain_logits(first, IDS), plain_logits(second, IDS)


def test_two_compositions_on_one_base() -> None:
    first, second, base = _two_on_one_base()
    expected = _alone()
    assert (expected[0] - expected[1]).abs().max() > DIFFERENT
    for _ in range(2):
        assert torch.equal(plain_logits(first, IDS), expected[0])
        assert torch.equal(plain_logits(second, IDS), expected[1])
        assert torch.equal(plain_logits(base, IDS), plain_logits(base_of(TRIOS["llama+gpt2"]), IDS))
    with first.disable():
        assert torch.equal(plain_logits(second, IDS), expected[1])
    first.detach()
    assert torch.equal(plain_logits(second, IDS), expected[1])
    assert not any(parameter.requires_grad for parameter in base.parameters()), "the second one still holds it"
    second.detach()


def test_a_logit_and_a_calm_composition_on_one_base() -> None:
    base = tiny_model("llama").requires_grad_(False)
    calm = randomise(compose(anchor=base, augmenting=tiny_model("gpt2", seed=1)))
    expected = plain_logits(calm, IDS)
    model = proxy_tune(base, tiny_model("opt", seed=4), tiny_model("opt", seed=5))
    assert torch.equal(plain_logits(model, IDS, alpha=0.0), plain_logits(tiny_model("llama"), IDS))
    assert torch.equal(plain_logits(calm, IDS), expected)


def test_decoding_in_turns() -> None:
    """Each step of one between two steps of the other, and of the same one with another alpha and other contexts."""
    first, second, _ = _two_on_one_base()
    row = slice(1, 2)
    expected = decode(first, row, alpha=[1.0, 0.2]).sequences
    contexts = {"member_input_ids": random_ids(2, 3, seed=7)[None], "member_attention_mask": torch.ones(1, 2, 3).long()}

    class Interrupt:
        calls = 0

        def put(self, value: torch.Tensor) -> None:
            second.generate(IDS[:1], max_new_tokens=2, do_sample=False)
            first.generate(IDS[:1], max_new_tokens=2, do_sample=False, alpha=2.0, num_beams=2, **contexts)
            Interrupt.calls += 1

        def end(self) -> None:
            pass

    got = decode(first, row, alpha=[1.0, 0.2], streamer=Interrupt()).sequences
    assert Interrupt.calls > 5
    assert torch.equal(got, expected)


@pytest.mark.parametrize("shared", [False, True], ids=["three models", "a shared pair"])
def test_two_forwards_interleaved(shared: bool) -> None:
    """Two texts, each with its own cache, read piece by piece in turns."""
    tuned = lora_of(tiny_model("qwen2", seed=1))
    model = composition(TRIOS["llama+gpt2"])
    if shared:
        model = proxy_tune(tiny_model("llama"), tuned, tuned.get_base_model())
    model = model.double()  # in float32, some processors round so large an adapter's passes 1e-4 apart
    texts = [random_ids(2, 9, seed=20), random_ids(3, 9, seed=21)]
    expected = [plain_logits(model, ids, alpha=alpha) for ids, alpha in zip(texts, (1.0, 0.3), strict=True)]
    states: list[Any] = [None, None]
    got: list[list[torch.Tensor]] = [[], []]
    with torch.no_grad():
        for start, stop in ((0, 4), (4, 5), (5, 9)):
            for index, alpha in enumerate((1.0, 0.3)):
                output = model(
                    texts[index][:, start:stop], use_cache=True, alpha=alpha, **{CACHE_ARGUMENT: states[index]}
                )
                states[index] = output[CACHE_ARGUMENT]
                got[index].append(output.logits)
    for index in range(2):
        assert_same_logits(torch.cat(got[index], dim=1), expected[index])


def test_threads_do_not_meet() -> None:
    first, second, base = _two_on_one_base()
    texts = [random_ids(1, 6 + k, seed=30 + k) for k in range(3)]
    bare = base_of(TRIOS["llama+gpt2"])
    callers: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
        "first": (lambda ids: plain_logits(first, ids), lambda ids: plain_logits(first, ids)),
        "alpha": (lambda ids: plain_logits(first, ids, alpha=0.2), lambda ids: plain_logits(first, ids, alpha=0.2)),
        "second": (lambda ids: plain_logits(second, ids), lambda ids: plain_logits(second, ids)),
        "base": (lambda ids: plain_logits(base, ids), lambda ids: plain_logits(bare, ids)),
    }
    expected = {name: [reference(ids) for ids in texts] for name, (_, reference) in callers.items()}
    wrong: list[str] = []
    barrier = threading.Barrier(len(callers))

    def call(name: str) -> None:
        barrier.wait()
        for _ in range(6):
            for ids, logits in zip(texts, expected[name], strict=True):
                if not torch.equal(callers[name][0](ids), logits):
                    wrong.append(name)

    threads = [threading.Thread(target=call, args=(name,)) for name in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_decode_apart() -> None:
    """`generate` in two threads at once on one composition of a shared pair."""
    tuned = lora_of(tiny_model("qwen2", seed=1))
    model = proxy_tune(tiny_model("llama"), tuned, tuned.get_base_model())
    arguments: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    settings: list[dict[str, Any]] = [{"alpha": 0.5}, {"alpha": [1.0, 0.0]}, {"num_beams": 2}]
    expected = [model.generate(IDS, **arguments, **each) for each in settings]
    got: dict[int, list[torch.Tensor]] = {index: [] for index in range(3)}

    def run(index: int) -> None:
        for _ in range(2):
            got[index].append(model.generate(IDS, **arguments, **settings[index]))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(results) == 2 for results in got.values())
    assert all(torch.equal(result, expected[index]) for index, results in got.items() for result in results)


@pytest.mark.parametrize("trio", trio_params(["llama+gpt2", "gemma3+llama-gemma3", "granite+starcoder2"]))
def test_a_deep_copy_is_a_composition_of_its_own(trio: Trio) -> None:
    model = composition(trio)
    composed = plain_logits(model, IDS)
    twin = copy.deepcopy(model)
    assert torch.equal(plain_logits(twin, IDS), composed)
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in twin.parameters()}
    with torch.no_grad():
        for parameter in model.member("expert").parameters():
            parameter.zero_()
    assert not torch.equal(plain_logits(model, IDS), composed)
    assert torch.equal(plain_logits(twin, IDS), composed)


def test_a_deep_copy_of_a_shared_pair_has_hooks_of_its_own() -> None:
    tuned = lora_of(tiny_model("qwen2", seed=1))
    model = proxy_tune(tiny_model("llama"), tuned, tuned.get_base_model())
    composed = plain_logits(model, IDS)
    twin = copy.deepcopy(model)
    assert twin.member("expert") is twin.member("antiexpert")
    assert twin.member("expert") is not model.member("expert")
    assert torch.equal(plain_logits(twin, IDS), composed)
    model.detach()
    assert torch.equal(plain_logits(twin, IDS), composed)
    assert torch.equal(decode(twin).sequences, decode(model.attach()).sequences)


def test_a_pickled_composition_works() -> None:
    tuned = lora_of(tiny_model("qwen2", seed=1))
    for model in (composition(TRIOS["llama+gpt2"]), proxy_tune(tiny_model("llama"), tuned, tuned.get_base_model())):
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(plain_logits(again, IDS), plain_logits(model, IDS))
        assert torch.equal(decode(again).sequences, decode(model).sequences)


def test_disable_nests_and_survives_errors() -> None:
    model = composition(TRIOS["llama+gpt2"])
    composed, bare = plain_logits(model, IDS), plain_logits(base_of(TRIOS["llama+gpt2"]), IDS)
    with model.disable():
        with model.disable():
            assert torch.equal(plain_logits(model, IDS), bare)
        assert torch.equal(plain_logits(model, IDS), bare)
    with pytest.raises(KeyboardInterrupt), model.disable():
        raise KeyboardInterrupt
    assert torch.equal(plain_logits(model, IDS), composed)


def test_data_parallel_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="accelerate launch"):
        composition(TRIOS["llama+gpt2"])._replicate_for_data_parallel()


def test_one_composition_inside_two_others() -> None:
    inner = composition(TRIOS["llama+gpt2"])
    alone = plain_logits(inner, IDS)
    doubled = combine("2 * inner", {"inner": inner})
    outer = proxy_tune(tiny_model("qwen2"), inner, tiny_model("opt", seed=4))
    assert_same_logits(plain_logits(doubled, IDS), 2 * alone)
    with outer.disable():
        assert torch.equal(plain_logits(inner, IDS), alone)
    with inner.disable():
        assert_same_logits(plain_logits(doubled, IDS), 2 * plain_logits(base_of(TRIOS["llama+gpt2"]), IDS))
    doubled.detach()
    assert torch.equal(plain_logits(inner, IDS), alone)
    assert torch.equal(decode(outer).sequences, decode(outer, use_cache=False).sequences)
