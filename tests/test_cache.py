"""The flat cache: one list of layers, views that share them, and refusals."""

import copy
import random
from typing import Any

import pytest
import torch
from transformers import Cache, DynamicCache, Lfm2Config
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, LinearAttentionAndFullAttentionLayer

from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.cache import ComposedCache, GrowingLayer, adopt, adopted_cache, growing_cache, member_cache, realign
from lmcompose.errors import CacheError
from tests.tiny import tiny_config, tiny_model


def states(length: int, fill: float = 0.0, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((rows, 2, length, 4), fill), torch.full((rows, 2, length, 4), fill)


def composed(max_cache_len: int | None = None) -> ComposedCache:
    members = {name: member_cache(tiny_config("llama"), max_cache_len) for name in ("anchor", "augmenting")}
    return ComposedCache(members, {"augmenting": 2}, max_cache_len)


def test_layers_are_the_members_and_then_the_bridges() -> None:
    cache = composed()
    assert len(cache) == 3 + 3 + 2
    assert cache.layers[0] is cache.members["anchor"].layers[0]
    assert cache.layers[4] is cache.members["augmenting"].layers[1]
    assert cache.layers[7] is cache.bridges["augmenting"].layers[1]


def test_operations_on_the_whole_reach_every_view() -> None:
    cache = composed()
    for view in (*cache.members.values(), *cache.bridges.values()):
        for index in range(len(view)):
            view.update(*states(5, rows=2), index)
    cache.layers[7].keys[1] = 1.0
    assert cache.get_seq_length() == 5
    cache.crop(-2)
    assert cache.lengths() == {"anchor": 3, "augmenting": 3}
    assert cache.bridges["augmenting"].get_seq_length(1) == 3
    cache.reorder_cache(torch.tensor([1, 0]))
    assert cache.bridges["augmenting"].layers[1].keys[0].unique().tolist() == [1.0]
    cache.batch_repeat_interleave(2)
    assert all(layer.keys.shape[0] == 4 for layer in cache.layers)
    cache.reset()
    assert cache.get_seq_length() == 0


def test_static_layers_have_their_length_in_every_view() -> None:
    cache = composed(max_cache_len=16)
    assert cache.is_compileable
    assert cache.get_max_length() == 16
    assert not composed().is_compileable


def test_a_member_that_is_a_composition_nests() -> None:
    outer = ComposedCache({"base": composed(), "expert": member_cache(tiny_config("llama"))})
    assert len(outer) == 8 + 3
    assert outer.layers[7] is outer.members["base"].layers[7]


def test_members_out_of_step_are_refused() -> None:
    cache = composed()
    cache.members["anchor"].update(*states(4), 0)
    with pytest.raises(CacheError, match=r"4 positions of 'anchor'.*'augmenting': 0.*empty cache"):
        cache.check_in_step(["augmenting"])


def test_an_empty_cache_is_adopted_and_fills_up_in_the_callers_hands() -> None:
    mine, cache = DynamicCache(), composed()
    assert adopted_cache(mine) is None
    assert adopt(mine, cache) is cache
    cache.members["anchor"].update(*states(3), 0)
    assert mine.get_seq_length() == 3
    assert adopted_cache(mine) is cache


def test_a_filled_cache_is_not_adopted() -> None:
    mine = DynamicCache()
    mine.update(*states(3), 0)
    with pytest.raises(CacheError, match="already holds 3 positions"):
        adopt(mine, composed())


def test_members_that_hold_every_text_several_times_follow_the_texts() -> None:
    def rows(cache: ComposedCache, name: str) -> list[float]:
        return cache.members[name].layers[0].keys[:, 0, 0, 0].tolist()

    def fill(cache: ComposedCache, name: str, count: int) -> None:
        key = torch.arange(float(count)).view(count, 1, 1, 1).expand(count, 2, 5, 4)
        for index in range(3):
            cache.members[name].update(key, key, index)

    members = {name: member_cache(tiny_config("llama")) for name in ("base", "pair")}
    cache = ComposedCache(members, copies={"pair": 2})
    fill(cache, "base", 3)
    cache.reorder_cache(torch.tensor([2, 0, 0]))  # no text for the pair yet, as when the composition is disabled
    fill(cache, "pair", 6)
    cache.reorder_cache(torch.tensor([2, 0, 1]))
    assert (rows(cache, "base"), rows(cache, "pair")) == ([0, 2, 0], [2, 0, 1, 5, 3, 4])
    cache.batch_select_indices(torch.tensor([1]))
    assert (rows(cache, "base"), rows(cache, "pair")) == ([2], [0, 3])


def test_a_member_whose_first_layer_has_no_keys_follows_the_texts() -> None:
    hybrid = Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2)
    members = {"base": member_cache(tiny_config("llama")), "pair": member_cache(hybrid)}
    cache = ComposedCache(members, copies={"pair": 2})
    cache.members["base"].update(*states(5, rows=2), 0)
    cache.members["pair"].update_conv_state(torch.arange(4.0).view(4, 1, 1).expand(4, 2, 3), 0)
    cache.reorder_cache(torch.tensor([1, 1]))
    assert cache.members["pair"].layers[0].conv_states[0][:, 0, 0].tolist() == [1, 1, 3, 3]


def random_states(length: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4)


@pytest.mark.parametrize("seed", range(8))
def test_a_growing_layer_holds_what_a_concatenating_one_does(seed: int) -> None:
    """Whatever is done to it in between, by the cache or by a caller."""
    draw = random.Random(seed)
    ours, theirs = GrowingLayer(), DynamicLayer()
    kept: list[tuple[GrowingLayer, DynamicLayer]] = []
    rows = 2
    for _ in range(60):
        new = random_states(draw.choice([1, 1, 1, 5, 90]), rows)
        returned = ours.update(*new), theirs.update(*new)
        assert all(torch.equal(mine, other) for mine, other in zip(*returned, strict=True))
        action = draw.choice(["nothing", "nothing", "crop", "reorder", "repeat", "select", "copy", "reset", "write"])
        count = draw.randint(1, theirs.get_seq_length())
        order = torch.tensor([draw.randrange(rows) for _ in range(draw.randint(1, 3))])
        if action == "copy":
            kept.append((copy.deepcopy(ours), copy.deepcopy(theirs)))
        for layer in (ours, theirs):
            if action == "crop":
                layer.crop(-count)
            elif action == "reorder":
                layer.reorder_cache(order)
            elif action == "repeat":
                layer.batch_repeat_interleave(2)
            elif action == "select":
                layer.batch_select_indices(order)
            elif action == "reset":
                layer.reset()
            elif action == "write":
                layer.keys = layer.keys[..., count - 1 :, :]
                layer.values = layer.values[..., count - 1 :, :]
        rows = theirs.keys.shape[0] if theirs.is_initialized else rows
        if rows > 6:
            rows = 2
            ours.reset()
            theirs.reset()
        assert ours.get_seq_length() == theirs.get_seq_length()
    for mine, other in kept:  # copies went their own way: what came later did not write into them
        assert torch.equal(mine.keys, other.keys)
        new = random_states(3, mine.keys.shape[0])
        assert all(torch.equal(a, b) for a, b in zip(mine.update(*new), other.update(*new), strict=True))


def test_a_growing_layer_copies_nothing_while_there_is_room() -> None:
    layer = GrowingLayer()
    layer.update(*random_states(10, 2))
    place = layer.keys.data_ptr()
    for _ in range(40):
        layer.update(*random_states(1, 2))
    assert layer.keys.data_ptr() == place
    layer.crop(-7)
    layer.update(*random_states(1, 2))
    assert (layer.keys.data_ptr(), layer.get_seq_length()) == (place, 44)


def test_a_growing_layer_keeps_gradients_and_takes_what_inference_mode_left() -> None:
    layer = GrowingLayer()
    first, second = random_states(3, 1)[0].requires_grad_(), random_states(2, 1)[0]
    layer.update(first, first)
    keys, _ = layer.update(second, second)
    keys.sum().backward()
    assert torch.equal(first.grad, torch.ones_like(first))
    layer = GrowingLayer()
    with torch.inference_mode():
        layer.update(*random_states(3, 1))
    new = random_states(1, 1)
    keys, _ = layer.update(*new)
    assert torch.equal(keys[..., 3:, :], new[0])


def _own_texts_cache(layer: Any) -> ComposedCache:
    """A member of one such layer and one bridge, each with 5 columns of two texts."""
    cache = ComposedCache({"anchor": DynamicCache(), "augmenting": Cache(layers=[layer])}, {"augmenting": 1})
    for view in (cache.members["augmenting"], cache.bridges["augmenting"]):
        view.layers[0].update(torch.arange(5.0).view(1, 1, 5, 1).expand(2, 2, 5, 4), states(5, rows=2)[1])
    return cache


def test_a_layer_with_a_state_beside_its_keys_forgets_no_token() -> None:
    """Trap: it is a layer of keys and values too, and moving those alone leaves the state ahead of them."""
    layer = LinearAttentionAndFullAttentionLayer()
    cache = _own_texts_cache(layer)
    layer.update_recurrent_state(torch.ones(2, 3))
    realign(cache, "augmenting", [0, 0], 3)
    assert cache.bridges["augmenting"].layers[0].keys[0, 0, :, 0].tolist() == [2, 3, 4]
    assert layer.keys[0, 0, :, 0].tolist() == [2, 3, 4]
    with pytest.raises(CacheError, match="LinearAttentionAndFullAttentionLayer, which cannot forget"):
        realign(cache, "augmenting", [1, 0], 2)


def test_a_layer_with_an_index_beside_its_keys_moves_nothing() -> None:
    with pytest.raises(CacheError, match="DynamicIndexedLayer, which cannot forget"):
        realign(_own_texts_cache(DynamicIndexedLayer()), "augmenting", [0, 0], 3)
    realign(_own_texts_cache(DynamicLayer()), "augmenting", [1, 0], 2)


def test_an_empty_state_is_no_reason_not_to_crop() -> None:
    """A disabled composition fills its leader's layers alone."""
    hybrid = Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2)
    cache = ComposedCache({"anchor": member_cache(tiny_config("llama")), "augmenting": member_cache(hybrid)})
    for index in range(3):
        cache.members["anchor"].update(*states(5), index)
    assert cache.is_croppable
    cache.crop(-2)
    assert cache.members["anchor"].get_seq_length() == 3
    cache.members["augmenting"].layers[0].update_recurrent_state(torch.ones(1, 3))
    cache.members["augmenting"].layers[0].update_conv_state(torch.ones(1, 2, 4))
    assert not cache.is_croppable


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3", "qwen2", "mistral"])
@pytest.mark.parametrize("beams", [1, 2])
def test_a_plain_model_generates_the_same_with_layers_that_grow(architecture: str, beams: int) -> None:
    model = tiny_model(architecture, seed=0).eval()
    prompts = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(prompts)
    mask[0, :4] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False, "num_beams": beams}
    cache = growing_cache(model)
    assert cache is not None
    assert architecture == "mistral" or any(type(layer) is GrowingLayer for layer in cache.layers)
    grown = model.generate(prompts, **options, **{CACHE_ARGUMENT: cache})
    assert torch.equal(grown, model.generate(prompts, **options))
    assert cache.get_seq_length() > 9


def test_a_model_with_a_state_or_a_cache_of_its_own_gets_none() -> None:
    model = tiny_model("llama", seed=0)
    model.generation_config.cache_implementation = "static"
    assert growing_cache(model) is None
    assert growing_cache(tiny_model("jamba", seed=0)) is None
