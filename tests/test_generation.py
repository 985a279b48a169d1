"""How long a text may be: said by the configuration, and refused by name where a member's positions end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT, position_limit, stated_length
from lmcompose.errors import ConfigurationError
from tests.compositions import plain_logits, random_composition
from tests.tiny import Pair, architecture_params, padded, random_ids, tiny_model

LIMIT = 128  # of the tiny models
LONG = random_ids(1, LIMIT + 1)


@pytest.mark.parametrize("arch", architecture_params())
def test_the_limit_is_where_a_member_fails(arch: str) -> None:
    model = tiny_model(arch)
    assert position_limit(model) in (None, LIMIT)
    plain_logits(model, LONG[:, :LIMIT])
    if position_limit(model) is None:
        plain_logits(model, LONG)
    else:
        with pytest.raises((IndexError, RuntimeError)):
            plain_logits(model, LONG)


def short(arch: str) -> dict[str, int]:
    return {"max_seq_len" if arch == "mpt" else "max_position_embeddings": 24}


@pytest.mark.parametrize("name", ["gpt2", "opt", "gpt_neo", "mpt"])
@pytest.mark.parametrize("role", ["anchor", "augmenting"])
def test_a_text_too_long_for_a_member_names_it(name: str, role: str) -> None:
    pair = Pair(name, "llama", short(name)) if role == "anchor" else Pair("llama", name, augmenting_sizes=short(name))
    model = random_composition(pair)
    assert model.config.max_position_embeddings == 24
    model(LONG[:, :24])
    message = rf"25 tokens.*\(the {role}\) has positions for 24"
    with pytest.raises(ConfigurationError, match=message):
        model(LONG[:, :25])
    for use_cache in (False, True):
        with pytest.raises(ConfigurationError, match=message):
            model.generate(LONG[:, :20], max_new_tokens=8, do_sample=False, use_cache=use_cache, eos_token_id=None)
    with pytest.raises(ConfigurationError, match=message.replace("25", r"2\d")):  # some count the cache's slots
        model.generate(
            LONG[:, :20], max_new_tokens=8, do_sample=False, cache_implementation="static", disable_compile=True,
            eos_token_id=None,
        )  # fmt: skip
    assert model.generate(LONG[:, :20], max_new_tokens=5, do_sample=False, eos_token_id=None).shape[1] == 25


@pytest.fixture
def model() -> CalmForCausalLM:
    return random_composition(Pair("llama", "gpt2", augmenting_sizes=short("gpt2")))


def test_a_chunk_counts_what_came_before(model: CalmForCausalLM) -> None:
    first = model(LONG[:, :20])
    with pytest.raises(ConfigurationError, match="25 tokens"):
        model(LONG[:, 20:25], **{CACHE_ARGUMENT: first[CACHE_ARGUMENT]})


def test_only_positions_count_and_not_padding_or_other_documents(model: CalmForCausalLM) -> None:
    ids, mask, _ = padded([LONG[0, :20], LONG[0, :12]], "left")
    ids, mask = torch.nn.functional.pad(ids, (9, 0), value=7), torch.nn.functional.pad(mask, (9, 0))
    assert ids.shape[1] > 24
    torch.testing.assert_close(
        plain_logits(model, ids, attention_mask=mask)[0, 9:], plain_logits(model, LONG[:, :20])[0], atol=5e-5, rtol=0
    )
    plain_logits(model, LONG[:, :40], position_ids=torch.arange(20).repeat(2)[None])
    with pytest.raises(ConfigurationError, match="30 tokens"):
        plain_logits(model, LONG[:, :40], position_ids=torch.cat([torch.arange(30), torch.arange(10)])[None])


def test_a_disabled_composition_asks_its_anchor_alone(model: CalmForCausalLM) -> None:
    with model.disable():
        plain_logits(model, LONG)


def test_the_body_refuses_too(model: CalmForCausalLM) -> None:
    """Losses that apply the head themselves run the composition by its `base_model`."""
    with pytest.raises(ConfigurationError, match="25 tokens"):
        model.base_model(LONG[:, :25])


def test_the_shortest_member_counts_and_one_without_limit_does_not() -> None:
    assert random_composition(Pair("gpt2", "bloom")).config.max_position_embeddings == LIMIT
    both = random_composition(Pair("bloom", "bloom"))
    assert both.config.max_position_embeddings is None
    plain_logits(both, LONG)
    assert stated_length(both.anchor.config) is None


def test_drafts_are_refused_where_a_state_cannot_go_back_and_nowhere_else() -> None:
    """Also of a member that is a composition itself; a disabled composition asks its leader alone."""
    ids = random_ids(1, 9)
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    inner = random_composition(Pair("llama", "bamba"))
    outer = compose(tiny_model("llama", seed=3), inner)
    for model, role in ((inner, "augmenting"), (outer, "augmenting")):
        with pytest.raises(ConfigurationError, match=rf"The {role} '.*\((bamba|calm)\) keeps a state that runs on"):
            model.generate(ids, prompt_lookup_num_tokens=3, **settings)
    with inner.disable():
        drafted = inner.generate(ids, prompt_lookup_num_tokens=3, **settings)
    assert torch.equal(drafted, tiny_model("llama").generate(ids, **settings))
    assert not random_composition(Pair("llama", "lfm2"))._is_stateful


def test_a_prompt_of_a_static_cache_is_masked_where_layers_keep_a_state() -> None:
    """Trap: they take the mask of new tokens from its end, and a mask as wide as the cache ends in empty slots."""
    model = random_composition(Pair("bamba", "llama"))
    ids, mask, _ = padded([random_ids(1, length, seed=length)[0] for length in (9, 14)], "left")
    settings: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, use_cache=False, **settings)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **settings), expected)
