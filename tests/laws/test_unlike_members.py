"""Laws 1 to 6 for two and three augmenting models of unlike width, depth and dtype, and for every subset of them.

Where a member computes in bf16, two ways to the same result differ by its rounding, and a near tie can fall to either
token. So decoding is judged by its logits: those of every step are those of one uncached pass over the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT
from tests.compositions import DIFFERENT, TOLERANCE, assert_same_logits, plain_logits, randomise
from tests.tiny import padded, random_ids, tiny_model, valid_rows

BF16, FP32 = torch.bfloat16, torch.float32
WIDE, DEEP, NARROW = {"hidden_size": 48}, {"num_hidden_layers": 5}, {"hidden_size": 24}
NEW = 7
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]
IDS, MASK, POSITIONS = padded(ROWS, "left")


@dataclass(frozen=True)
class Added:
    """One augmenting model: what it is, and where it is connected."""

    arch: str
    sizes: dict[str, int]
    dtype: torch.dtype
    connections: list[tuple[int, int]]


@dataclass(frozen=True)
class Unlike:
    """An anchor of three layers of width 32, and augmenting models that are not like it."""

    anchor: str
    dtype: torch.dtype
    added: dict[str, Added]

    def compose(self, names: list[str] | None = None) -> CalmForCausalLM:
        """The untrained composition, of all or of some."""
        chosen = {name: self.added[name] for name in (self.added if names is None else names)}
        live = {
            name: tiny_model(added.arch, seed=1 + list(self.added).index(name), **added.sizes).to(added.dtype)
            for name, added in chosen.items()
        }
        anchor = tiny_model(self.anchor).to(self.dtype).requires_grad_(False)
        return compose(anchor, live, connections={name: added.connections for name, added in chosen.items()})

    def random(self) -> CalmForCausalLM:
        """With all composition parameters random, which is seen in the logits."""
        return randomise(self.compose())

    @property
    def loosest(self) -> torch.dtype:
        """The dtype whose tolerance the logits have."""
        return BF16 if BF16 in (self.dtype, *(added.dtype for added in self.added.values())) else FP32


BUILDS = {
    "llama+gpt2_wide_bf16+mistral_deep": Unlike(
        "llama",
        FP32,
        {
            "wide": Added("gpt2", WIDE, BF16, [(1, 1), (3, 3)]),
            "deep": Added("mistral", DEEP, FP32, [(5, 3), (0, 0)]),
        },
    ),
    "gemma3+llama_wide_deep_bf16+bloom+qwen2_narrow_bf16": Unlike(
        "gemma3",
        FP32,
        {
            "both": Added("llama", WIDE | DEEP, BF16, [(5, 2), (2, 1)]),
            "alibi": Added("bloom", {}, FP32, [(0, 0), (3, 2)]),
            "narrow": Added("qwen2_sliding", NARROW, BF16, [(3, 3)]),
        },
    ),
    "gpt2_bf16+llama_wide_deep+opt_bf16": Unlike(
        "gpt2",
        BF16,
        {
            "both": Added("llama", WIDE | DEEP, FP32, [(5, 3), (1, 1)]),
            "small": Added("opt", {}, BF16, [(2, 3)]),
        },
    ),
    "falcon+starcoder2_deep+granite_wide": Unlike(
        "falcon",
        FP32,
        {
            "deep": Added("starcoder2", DEEP, FP32, [(4, 2), (5, 3)]),
            "wide": Added("granite", WIDE, FP32, [(1, 2), (3, 1)]),
        },
    ),
}


@pytest.fixture(params=list(BUILDS))
def unlike(request: pytest.FixtureRequest) -> Unlike:
    return BUILDS[request.param]


def _subsets(unlike: Unlike) -> Iterator[list[str]]:
    """Every choice of some of the augmenting models, but neither all of them nor none."""
    for count in range(1, len(unlike.added)):
        yield from (list(names) for names in combinations(unlike.added, count))


def test_the_members_are_unlike_and_keep_their_dtypes(unlike: Unlike) -> None:
    model = unlike.random()
    assert {name: member.dtype for name, member in model.augmenting.items()} == {
        name: added.dtype for name, added in unlike.added.items()
    }
    shapes = {(m.config.hidden_size, m.config.num_hidden_layers) for m in model.members.values()}
    assert len(shapes) >= 2
    assert plain_logits(model, IDS[1:2]).dtype == unlike.dtype


def test_untrained_it_is_its_anchor(unlike: Unlike) -> None:
    model, anchor = unlike.compose(), unlike.compose().detach()
    assert torch.equal(plain_logits(model, IDS[1:2]), plain_logits(anchor, IDS[1:2]))
    settings: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "no_repeat_ngram_size": 2}
    ids = model.generate(IDS[1:2], **settings)
    assert torch.equal(ids, anchor.generate(IDS[1:2], **settings))


def test_nothing_later_is_seen(unlike: Unlike) -> None:
    length = 10
    ids = random_ids(1, length, seed=2).repeat(length + 1, 1)
    for t in range(length):
        ids[t, t] = (ids[t, t] - 4 + 17) % 93 + 4
    logits = plain_logits(unlike.random(), ids).float()
    changed = (logits[:-1] - logits[-1]).abs().amax(dim=-1)
    before = torch.arange(length)[None, :] < torch.arange(length)[:, None]
    assert changed[before].max() <= TOLERANCE[unlike.loosest]
    assert changed.diagonal().min() > 2 * TOLERANCE[unlike.loosest], "this test could not fail"


def test_a_batch_is_its_rows(unlike: Unlike) -> None:
    model = unlike.random()
    for side in ("left", "right"):
        ids, mask, positions = padded(ROWS, side)
        logits = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
        for row, got in zip(ROWS, valid_rows(logits, mask), strict=True):
            assert_same_logits(got, plain_logits(model, row[None])[0], unlike.loosest)


def test_decoding_is_one_uncached_pass(unlike: Unlike) -> None:
    model = unlike.random()
    settings: dict[str, Any] = {
        "attention_mask": MASK,
        "max_new_tokens": NEW,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
    }
    for arguments in ({}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}):
        got = model.generate(IDS, no_repeat_ngram_size=2, output_logits=True, **settings, **arguments)
        assert all(len(set(row[-NEW:].tolist())) >= 3 for row in got.sequences), "too dull to show anything"
        expected = _logits_of(model, got.sequences)[:, -NEW - 1 : -1]
        assert_same_logits(torch.stack(got.logits, dim=1), expected, unlike.loosest)
    got = model.generate(IDS, num_beams=3, output_scores=True, **settings)
    logits = _logits_of(model, got.sequences)[:, -NEW - 1 : -1].float()
    chosen = logits.log_softmax(-1).gather(-1, got.sequences[:, -NEW:, None]).squeeze(-1)
    assert_same_logits(got.sequences_scores, chosen.mean(dim=1), unlike.loosest)


def _logits_of(model: CalmForCausalLM, sequences: torch.Tensor) -> torch.Tensor:
    """Logits of one pass without a cache over left-padded texts that begin as IDS."""
    mask = torch.cat([MASK, torch.ones(len(MASK), sequences.shape[1] - MASK.shape[1], dtype=torch.long)], dim=1)
    return plain_logits(model, sequences, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))


def test_training_changes_the_bridges_only_and_detaching_restores(unlike: Unlike) -> None:
    model = unlike.random()
    members = {name: tensor.clone() for name, tensor in model.members.state_dict().items()}
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert wanted.keys() == dict(model.composition_parameters()).keys()
    before = {name: parameter.detach().clone() for name, parameter in wanted.items()}
    optimizer = torch.optim.AdamW(wanted.values(), lr=1e-2, weight_decay=0.1)
    model.train()
    model(IDS[1:2], labels=IDS[1:2]).loss.backward()
    optimizer.step()
    assert all(torch.equal(tensor, members[name]) for name, tensor in model.members.state_dict().items())
    assert not [name for name, parameter in wanted.items() if torch.equal(parameter, before[name])]
    anchor = model.detach()
    assert torch.equal(plain_logits(anchor, IDS[1:2]), plain_logits(unlike.compose().detach(), IDS[1:2]))


@pytest.mark.filterwarnings("ignore:.*came live and have no name")
def test_loaded_is_saved(unlike: Unlike, tmp_path: Path) -> None:
    model = unlike.random()
    model.save_pretrained(tmp_path / "saved")
    fresh = unlike.compose()
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", anchor=fresh.anchor, augmenting=fresh.augmenting)
    assert list(loaded.augmenting) == list(unlike.added)
    assert torch.equal(plain_logits(loaded, IDS[1:2]), plain_logits(model, IDS[1:2]))


def test_a_subset_is_the_composition_without_the_others(unlike: Unlike) -> None:
    """Bit for bit, in one pass and in cached decoding with beams, by parameters of the same names."""
    model = unlike.random()
    whole = plain_logits(model, IDS[1:2])
    settings: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "num_beams": 2}
    for names in _subsets(unlike):
        without = unlike.compose(names)
        own = dict(without.composition_parameters())
        with torch.no_grad():
            for name, parameter in model.composition_parameters():
                if name in own:
                    own[name].copy_(parameter)
        expected = plain_logits(without, IDS, attention_mask=MASK)
        with model.without(*(name for name in unlike.added if name not in names)):
            assert torch.equal(plain_logits(model, IDS, attention_mask=MASK), expected)
            decoded = model.generate(IDS[1:2], **settings)
            with torch.no_grad():
                assert set(model(IDS[1:2])[CACHE_ARGUMENT].lengths().values()) == {0, IDS.shape[1]}
        assert torch.equal(decoded, without.generate(IDS[1:2], **settings))
        assert (expected[1] - whole[0]).abs().max() > DIFFERENT, "what was left out made no difference"
    assert torch.equal(plain_logits(model, IDS[1:2]), whole)
