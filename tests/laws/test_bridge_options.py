"""The laws with each option of the bridges that goes beyond the paper: gate, norm, rank, and all at once.

Causality and padding have nothing new in them: each option works on one position at a time.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT
from tests.compositions import (
    DIFFERENT,
    anchor_of,
    assert_same_logits,
    augmenting_of,
    pair_params,
    plain_logits,
    randomise,
    untrained_composition,
)
from tests.tiny import PAD_ID, PAIRS, Pair, padded, random_ids, tiny_model

OPTIONS: dict[str, dict[str, Any]] = {
    "gate": {"gate": True},
    "norm": {"norm": True},
    "rank": {"rank": 4},
    "all": {"gate": True, "norm": True, "rank": 4, "projection": "mlp"},
}
EVERY = [
    {"gate": gate, "norm": norm, "rank": rank, "projection": projection}
    for gate, norm, rank, projection in product((False, True), (False, True), (None, 4), ("linear", "mlp"))
]
PAIRS_HERE = ["llama+gpt2", "gemma3+llama", "granite+bloom"]
IDS = random_ids(2, 10)
TEXTS, MASK, POSITIONS = padded([random_ids(1, length, seed=length)[0] for length in (9, 14, 11)], "left")

each_option = pytest.mark.parametrize("option", OPTIONS)
each_pair = pytest.mark.parametrize("pair", pair_params(PAIRS_HERE))


def _random(pair: Pair, option: str) -> CalmForCausalLM:
    """Wider than elsewhere: a product of two thin matrices is small, and so is a gate."""
    return randomise(untrained_composition(pair, **OPTIONS[option]), std=0.2)


# ------------------------------------------------------------------------------------------------------ 1, identity


@each_pair
@each_option
def test_untrained_is_the_anchor_bit_for_bit(pair: Pair, option: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        anchor = anchor_of(pair, dtype)
        model = untrained_composition(pair, dtype, **OPTIONS[option])
        assert torch.equal(plain_logits(model, IDS), plain_logits(anchor, IDS))
        settings = {"max_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 2}
        assert torch.equal(model.generate(IDS, **settings), anchor.generate(IDS, **settings))  # type: ignore[operator]


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_one_step_moves_the_loss_and_two_reach_every_parameter(options: dict[str, Any]) -> None:
    """In every combination, from the anchor's own loss; the members stay as they are (law 5)."""
    pair = PAIRS["llama+gpt2"]
    model = untrained_composition(pair, bridge_initializer_range=0.3, **options)
    assert torch.equal(plain_logits(model, IDS), plain_logits(anchor_of(pair), IDS))
    before = {name: parameter.detach().clone() for name, parameter in model.composition_parameters()}
    optimizer = torch.optim.Adam([parameter for _, parameter in model.composition_parameters()], lr=3e-3)
    losses = []
    for _ in range(2):
        loss = model(IDS, labels=IDS).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0] - 1e-5
    unmoved = [name for name, parameter in model.composition_parameters() if torch.equal(parameter, before[name])]
    assert not unmoved
    for live, fresh in ((model.anchor, anchor_of(pair)), (model.member("augmenting"), augmenting_of(pair))):
        assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in live.state_dict().items())


def test_every_option_makes_another_function() -> None:
    """Whatever is on or off, the shapes that two bridges share hold the same random numbers."""
    pair = PAIRS["llama+gpt2"]
    plain = randomise(untrained_composition(pair), std=0.2)
    for option in ("gate", "norm"):
        other = _random(pair, option)
        with torch.no_grad():
            for name, parameter in other.composition_parameters():
                parameter.copy_(dict(plain.composition_parameters()).get(name, torch.ones_like(parameter)))
        assert (plain_logits(other, IDS) - plain_logits(plain, IDS)).abs().max() > DIFFERENT


# --------------------------------------------------------------------------------------------------------- 4, cache


@each_pair
@each_option
def test_cached_is_uncached_in_any_pieces_and_in_every_way_to_decode(pair: Pair, option: str) -> None:
    model = _random(pair, option)
    expected = plain_logits(model, TEXTS, attention_mask=MASK, position_ids=POSITIONS)
    for pieces in ([1] * 14, [8, 1, 1, 4]):
        state, start, logits = None, 0, []
        with torch.no_grad():
            for length in pieces:
                stop = start + length
                output = model(
                    TEXTS[:, start:stop],
                    attention_mask=MASK[:, :stop],
                    position_ids=POSITIONS[:, start:stop],
                    use_cache=True,
                    **{CACHE_ARGUMENT: state},
                )
                state, start = output[CACHE_ARGUMENT], stop
                logits.append(output.logits)
        assert_same_logits(torch.cat(logits, dim=1)[MASK.bool()], expected[MASK.bool()])

    def generate(rows: slice = slice(None), **arguments: Any) -> torch.Tensor:
        settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD_ID}
        texts, mask = TEXTS[rows], MASK[rows]
        return model.generate(texts, attention_mask=mask, no_repeat_ngram_size=2, **settings, **arguments)  # type: ignore[no-any-return]

    greedy = generate(use_cache=False)
    assert torch.equal(generate(), greedy)
    assert torch.equal(generate(prefill_chunk_size=4), greedy)
    assert torch.equal(generate(cache_implementation="static"), greedy)
    assert torch.equal(generate(num_beams=3), generate(num_beams=3, use_cache=False))
    longest = slice(1, 2)  # the one row without padding: these two decode one text at a time
    assert torch.equal(generate(longest, prompt_lookup_num_tokens=3), generate(longest, use_cache=False))


# --------------------------------------------------------------------------------------------------------- 6, saved


@each_pair
@each_option
def test_loaded_is_what_was_saved(pair: Pair, option: str, tmp_path: Path) -> None:
    model, options = _random(pair, option), OPTIONS[option]
    model.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {key: config[key] for key in options} == options
    assert config["format_version"] == 1
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=anchor_of(pair), augmenting=augmenting_of(pair))
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    saved, own = (dict(each.composition_parameters()) for each in (loaded, model))
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], own[name]) for name in own)
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "Bridges, beyond the paper" in card
    assert all(f'"{key}"' in card for key in options)


# ------------------------------------------------------------------------------------------------------- 10, callers


@each_pair
@each_option
def test_two_forwards_before_one_backward(pair: Pair, option: str) -> None:
    texts = [random_ids(2, 10, seed=20), random_ids(3, 7, seed=21)]

    def gradients(chosen: list[torch.Tensor], checkpointing: bool = False) -> dict[str, torch.Tensor]:
        model = _random(pair, option)
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        sum(model(ids, labels=ids).loss for ids in chosen).backward()  # type: ignore[union-attr]
        return {name: parameter.grad for name, parameter in model.composition_parameters()}  # type: ignore[misc]

    one_by_one = [gradients([ids]) for ids in texts]
    for together in (gradients(texts), gradients(texts, checkpointing=True)):
        for name, gradient in together.items():
            torch.testing.assert_close(gradient, one_by_one[0][name] + one_by_one[1][name], atol=5e-5, rtol=1e-3)
            assert gradient.abs().max() > 1e-6


@each_option
def test_compositions_with_and_without_it_share_an_anchor(option: str) -> None:
    pair = PAIRS["llama+gpt2"]

    def first(anchor: Any) -> CalmForCausalLM:
        return randomise(compose(anchor, augmenting_of(pair), connections=[(1, 1), (3, 3)], **OPTIONS[option]), 1, 0.2)

    def second(anchor: Any) -> CalmForCausalLM:
        return randomise(compose(anchor, tiny_model("opt", seed=4), connections=[(2, 1), (3, 3)]), 2, 0.2)

    expected = [plain_logits(each(anchor_of(pair)), IDS) for each in (first, second)]
    assert (expected[0] - expected[1]).abs().max() > DIFFERENT
    shared = anchor_of(pair)
    models = [first(shared), second(shared)]
    for _ in range(2):
        assert all(torch.equal(plain_logits(m, IDS), logits) for m, logits in zip(models, expected, strict=True))
    models[0].detach()
    assert torch.equal(plain_logits(models[1], IDS), expected[1])
    models[1].detach()
    assert torch.equal(plain_logits(shared, IDS), plain_logits(anchor_of(pair), IDS))
