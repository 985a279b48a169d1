"""What the passes of a composition read ahead of the text: how far they may, and what is left of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lmcompose
from lmcompose import LogitForCausalLM
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import ConfigurationError
from lmcompose.logits.speculation import DraftedPasses
from tests.decoding.drafted import BATCH, GREEDY, IDS, MASK, drafted, texts
from tests.logits.test_speculation import FIXED, counted
from tests.tiny import random_ids, tiny_model

CONTEXTS = {
    "member_input_ids": random_ids(6, 14, seed=3).view(3, 2, 14),
    "member_attention_mask": (torch.arange(14) >= torch.tensor([0, 5, 9, 2, 2, 13])[:, None]).long().view(3, 2, 14),
}


def limited(arch: str, positions: int) -> LogitForCausalLM:
    """A composition whose expert has so many positions."""
    name = "max_seq_len" if arch == "mpt" else "max_position_embeddings"
    experts = {arch: tiny_model(arch, 1, **{name: positions})}
    members = {"base": tiny_model("llama", 0), "expert": experts[arch], "antiexpert": tiny_model("llama", 2)}
    return lmcompose.combine("0.5 * base + expert - 0.2 * antiexpert", members)


def read(model: LogitForCausalLM, contexts: dict[str, Any], extra: int = 0) -> Any:
    """The cache after the prompts, and then after `extra` columns more."""
    given = {**contexts, **({"context_length": IDS.shape[1]} if contexts else {})}
    with torch.no_grad():
        cache = getattr(model(**BATCH, **given, use_cache=True), CACHE_ARGUMENT)
        if extra:
            mask = torch.nn.functional.pad(MASK, (0, extra), value=1)
            model(random_ids(3, extra, seed=9), attention_mask=mask, **given, **{CACHE_ARGUMENT: cache})
    return cache


@pytest.mark.parametrize("contexts", [{}, CONTEXTS], ids=["same", "contexts"])
@pytest.mark.parametrize("arch", ["gpt2", "opt", "gpt_neo", "mpt"])
def test_the_room_is_as_large_as_what_can_be_read(arch: str, contexts: dict[str, Any]) -> None:
    model = limited(arch, 24)
    cache = read(model, contexts)
    call = {"attention_mask": MASK, "position_ids": (MASK.cumsum(-1) - 1).clamp(min=0), **contexts}
    call |= {"context_length": IDS.shape[1]} if contexts else {}
    target = DraftedPasses(model, "expert", cache, IDS, call)
    room = target.room(IDS.shape[1])
    assert room is not None
    read(model, contexts, room)
    with pytest.raises(ConfigurationError, match="has positions for 24"):
        read(model, contexts, room + 1)
    assert target.room(IDS.shape[1] + 3) == room - 3
    assert DraftedPasses(model, "expert", cache, IDS[:, -2:], call).room(2) == room  # the rest is in the cache alone


def test_positions_without_end_are_no_limit() -> None:
    model = drafted("bloom", "bloom", terms=2)
    assert DraftedPasses(model, "expert", read(model, {}), IDS, BATCH).room(11) is None
    inner = lmcompose.combine("base + expert", {"base": limited("gpt2", 30), "expert": tiny_model("bloom", 0)})
    assert DraftedPasses(inner, "expert", read(inner, {}), IDS, BATCH).room(11) == 30 - 11  # those of a member's member


def test_scores_of_a_draft_are_kept_until_it_is_judged() -> None:
    """And no longer: over a long text they would be as large as all logits."""
    model = drafted("mistral")
    cache = read(model, {})
    cache.activate_past_recording()
    target = DraftedPasses(model, "expert", cache, IDS, BATCH)
    ids = torch.cat([IDS, random_ids(3, 3, seed=1)], dim=1)
    with torch.no_grad(), counted(model) as counts:
        one_by_one = [target.draft_scores(ids[:, :columns]) for columns in (12, 13, 14)]
        logits = target.final_logits(ids, 3)
        plain = model(ids, attention_mask=torch.nn.functional.pad(MASK, (0, 3), value=1), output_member_scores=True)
    torch.testing.assert_close(logits, plain.logits[:, -3:], atol=5e-5, rtol=0)
    torch.testing.assert_close(torch.cat(one_by_one, 1), plain.member_scores["expert"][:, -3:], atol=5e-5, rtol=0)
    assert (counts["expert"], counts["base"]) == (3 + 1, 1 + 1)
    assert {part.shape[1] for part in target._kept.values()} == {3}
    target.crop(12)
    assert not target._kept
    assert set(cache.lengths().values()) == {12}
    with torch.no_grad():
        torch.testing.assert_close(target.final_logits(ids, 2), logits[:, 1:], atol=5e-5, rtol=0)


def test_a_drafter_outside_goes_on_from_what_it_read() -> None:
    """Its own context is longer than the prompt, and it is read once."""
    model = drafted("mistral", terms=2, more={"small": tiny_model("mistral", 1, num_hidden_layers=2)}, drafter="small")
    given = {**CONTEXTS, "context_length": IDS.shape[1]}
    whole = texts(model, None, BATCH | given, max_new_tokens=20)
    half = model.generate(**(BATCH | given | GREEDY | {"max_new_tokens": 10}), speculative=FIXED,
                          return_dict_in_generate=True)  # fmt: skip
    cache = getattr(half, CACHE_ARGUMENT)
    behind = half.sequences.shape[1] - 1 + 1 - cache.lengths()["small"]  # its context has 12 columns for 11
    assert behind in (0, 1)
    inputs = {"input_ids": half.sequences, "attention_mask": torch.nn.functional.pad(MASK, (0, 10), value=1)}
    with counted(model) as counts:
        again = texts(model, FIXED, inputs | given | {CACHE_ARGUMENT: cache}, max_new_tokens=10)
    assert again.tolist() == whole.tolist()
    assert counts["small most"] == 2 + behind  # the last token, the first one after it, and what it had not read
