"""Laws 1 to 6, 9 and 10 where an augmenting model reads the text with a tokenizer of its own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

import lmcompose
from lmcompose import CalmForCausalLM, compose
from lmcompose.alignment.spans import SameTokens
from lmcompose.architecture import CACHE_ARGUMENT
from lmcompose.errors import CacheError, ConfigurationError, TokenizerMismatchError
from tests.compositions import DIFFERENT, assert_same_logits, plain_logits
from tests.tiny import padded, tiny_model, tiny_tokenizer, valid_rows
from tests.tokenizers import family

TEXTS = (
    "The quick brown fox jumps over the lazy dog, and 12 of them. Then it rests.",
    "Mae hi'n braf heddiw; caf\u00e9 \u65e5\u672c\u8a9e \U0001f98a!\n\n  def f(x): return x**2",
    "A short one.",
)
PAIRS = {
    "llama-gpt2": ("llama", "qwen", "gpt2", "gpt2"),
    "gemma3-llama": ("gemma3", "gemma", "llama", "llama3"),
    "gpt_neox-mistral": ("gpt_neox", "gpt2", "mistral", "llama2"),
    "qwen2-gemma2": ("qwen2", "qwen", "gemma2", "gemma"),
    "opt-bloom": ("opt", "wordlevel", "bloom", "bloom"),
    "phi3-falcon": ("phi3", "llama2", "falcon", "unigram"),
    "deepseek_v3-gpt_oss": ("deepseek_v3", "qwen", "gpt_oss", "gpt2"),
    "exaone4-qwen3_moe": ("exaone4", "gemma", "qwen3_moe", "llama2"),
}
"""Anchor and its tokenizer's family, augmenting model and its."""


def _member(arch: str, kind: str, seed: int, **shape: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    tokenizer = family(kind)
    return tiny_model(arch, seed, vocab_size=len(tokenizer), **shape), tokenizer


def _untrained(name: str, **options: Any) -> CalmForCausalLM:
    anchor, ours, augmenting, theirs = PAIRS[name]
    return compose(
        _member(anchor, ours, 0),
        _member(augmenting, theirs, 1, hidden_size=48, num_hidden_layers=5),
        every=2,
        **options,
    )


def _random(name: str) -> CalmForCausalLM:
    model = _untrained(name)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    ids = _rows(model)[0][None]
    with model.disable():
        bare = plain_logits(model, ids)
    difference = (plain_logits(model, ids) - bare).abs().amax(dim=-1)
    assert difference[0, 6:].min() > DIFFERENT, "the bridges do not reach the logits"
    return model


@functools.cache
def _shared(name: str) -> CalmForCausalLM:
    """A composition that several tests share; none of them may change it."""
    return _random(name)


def _rows(model: CalmForCausalLM, longest: int = 40) -> list[torch.Tensor]:
    assert model.tokenizer is not None
    return [torch.tensor(model.tokenizer(text)["input_ids"][:longest]) for text in TEXTS]


SLOW = ("deepseek_v3-gpt_oss", "exaone4-qwen3_moe")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PAIRS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_untrained_it_is_its_anchor(name: str) -> None:
    model = _untrained(name)
    assert model.config.alignment == {"augmenting": "spans"}
    ids = _rows(model)[0][None]
    logits = plain_logits(model, ids)
    assert torch.equal(logits, plain_logits(model.detach(), ids))


def test_nothing_later_is_seen(name: str) -> None:
    """Changing token t changes no logits before t: also not by way of words that it would have made another."""
    model = _shared(name)
    row, vocabulary = _rows(model)[1], model.config.vocab_size
    length = min(len(row), 24)
    ids = row[:length].repeat(length + 1, 1)
    for t in range(length):
        ids[t, t] = (ids[t, t] + 31) % (vocabulary - 8) + 4
    logits = plain_logits(model, ids)
    changed = (logits[:-1] - logits[-1]).abs().amax(dim=-1)
    assert changed[torch.arange(length)[None, :] < torch.arange(length)[:, None]].max() < 5e-5
    assert changed.diagonal().min() > DIFFERENT


def test_padding_and_batches(name: str) -> None:
    model = _shared(name)
    rows = _rows(model)
    for side in ("left", "right"):
        ids, mask, positions = padded(rows, side)
        logits = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
        for row, got in zip(rows, valid_rows(logits, mask), strict=True):
            assert_same_logits(got, plain_logits(model, row[None])[0])


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_cached_is_uncached(name: str, chunk: int) -> None:
    """Token by token and in chunks, one row and a batch with left padding, whose rows grow by unlike numbers."""
    model = _shared(name)
    rows = _rows(model)
    for few in (rows[1:2], rows):
        ids, mask, positions = padded(few, "left")
        expected = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
        cache, parts = None, []
        with torch.no_grad():
            for start in range(0, ids.shape[1], chunk):
                stop = min(start + chunk, ids.shape[1])
                output = model(ids[:, start:stop], attention_mask=mask[:, :stop], cache=cache, use_cache=True)
                cache = output[CACHE_ARGUMENT]
                parts.append(output.logits)
        got = torch.cat(parts, dim=1)
        for one, other in zip(valid_rows(got, mask), valid_rows(expected, mask), strict=True):
            assert_same_logits(one, other)
        own = cache.texts["augmenting"]
        assert own.lengths == [len(model._aligners["augmenting"].align(row).ids) for row in few]
        assert cache.members["augmenting"].get_seq_length() == max(own.lengths)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False},
        {"do_sample": False, "num_beams": 3},
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": False, "prefill_chunk_size": 5},
        {"do_sample": False, "cache_implementation": "static"},
        {"do_sample": True, "num_return_sequences": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings)),
)
def test_generation_agrees_with_the_uncached_one(name: str, settings: dict[str, Any]) -> None:
    model = _shared(name)
    rows = _rows(model, longest=14)
    ids, mask, _ = padded(rows, "left")
    common = {"attention_mask": mask, "max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 0}
    plain = {key: value for key, value in settings.items() if key not in ("prefill_chunk_size", "cache_implementation")}
    torch.manual_seed(0)
    expected = model.generate(ids, use_cache=False, **common, **plain)
    torch.manual_seed(0)
    assert torch.equal(model.generate(ids, **common, **settings), expected)


@pytest.mark.parametrize("kind", ["prompt lookup", "assistant"])
def test_drafts_are_taken_back(name: str, kind: str) -> None:
    model = _shared(name)
    ids = _rows(model, longest=14)[0].repeat(2)[None]
    common = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    drafting: dict[str, Any] = {"prompt_lookup_num_tokens": 3}
    if kind == "assistant":
        drafting = {"assistant_model": tiny_model(PAIRS[name][0], 5, vocab_size=model.config.vocab_size)}
    assert torch.equal(model.generate(ids, **common, **drafting), model.generate(ids, **common, use_cache=False))


def test_a_cropped_cache_goes_on_as_if_nothing_had_been(name: str) -> None:
    model = _shared(name)
    rows = _rows(model, longest=20)[:2]
    ids, mask, _ = padded(rows, "left")
    cache = model.new_cache()
    cache.activate_past_recording()  # of the anchor's sliding windows
    with torch.no_grad():
        model(ids, attention_mask=mask, cache=cache, use_cache=True)
        cache.crop(-9)
        output = model(ids[:, -9:], attention_mask=mask, cache=cache, use_cache=True)
    expected = plain_logits(model, ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
    assert_same_logits(output.logits, expected[:, -9:])
    cache.crop(-ids.shape[1])
    assert cache.texts["augmenting"].columns == 0
    with torch.no_grad():
        again = model(ids, attention_mask=mask, cache=cache, use_cache=True).logits
    for one, other in zip(valid_rows(again, mask), valid_rows(expected, mask), strict=True):
        assert_same_logits(one, other)


@pytest.mark.parametrize("method", ["reorder_cache", "batch_select_indices"])
def test_rows_that_are_left_go_on_when_the_longest_is_gone(name: str, method: str) -> None:
    """A beam or a batch may lose the row with the most tokens of its own; what follows may have nothing new to read."""
    model = _shared(name)
    rows = _rows(model)[:2]
    ids = torch.stack([row[: min(12, *map(len, rows))] for row in rows])
    with torch.no_grad():
        cache = model(ids, use_cache=True)[CACHE_ARGUMENT]
        lengths = cache.texts["augmenting"].lengths
        kept = lengths.index(min(lengths))
        getattr(cache, method)(torch.tensor([kept, kept]))
        assert cache.members["augmenting"].get_seq_length() == min(lengths)
        parts = [model(ids[kept].repeat(2, 1)[:, t : t + 1], cache=cache, use_cache=True).logits for t in range(4)]
    expected = plain_logits(model, torch.cat([ids[kept], ids[kept][:4]])[None])
    assert_same_logits(torch.cat(parts, dim=1)[:1], expected[:, -4:])


def test_packed_documents_never_see_each_other() -> None:
    model = _shared("llama-gpt2")
    rows = _rows(model, longest=17)
    ids = torch.cat(rows)[None]
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
    got = plain_logits(model, ids, position_ids=positions)[0]
    expected = torch.cat([plain_logits(model, row[None])[0] for row in rows])
    assert_same_logits(got, expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_attentions_agree(attention: str) -> None:
    model = _random("llama-gpt2")
    ids = _rows(model)[0][None]
    expected = plain_logits(_shared("llama-gpt2"), ids)
    model.set_attn_implementation(attention)
    assert_same_logits(plain_logits(model, ids), expected)


def test_training_moves_the_bridges_and_nothing_else(name: str) -> None:
    model = _random(name).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rows = _rows(model)
    ids, mask, positions = padded(rows, "right")
    optimizer = torch.optim.SGD([parameter for _, parameter in model.composition_parameters()], lr=0.1)
    model(ids, attention_mask=mask, position_ids=positions, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for _, parameter in model.composition_parameters())
    optimizer.step()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]) == key.startswith("members."), key


def test_saved_is_loaded(name: str, tmp_path: Path) -> None:
    anchor, ours, augmenting, theirs = PAIRS[name]
    for role, arch, kind, seed in (("anchor", anchor, ours, 0), ("augmenting", augmenting, theirs, 1)):
        model, tokenizer = _member(arch, kind, seed)
        model.save_pretrained(tmp_path / role)
        tokenizer.save_pretrained(tmp_path / role)
    model = compose(tmp_path / "anchor", tmp_path / "augmenting")
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved")
    ids = _rows(model)[0][None]
    assert loaded.config.alignment == {"augmenting": "spans"}
    assert torch.equal(plain_logits(loaded, ids), plain_logits(model, ids))


# ------------------------------------------------------------------------------------- one tokenizer, and two at once


def test_two_tokenizers_that_are_one_reduce_to_the_shared_path() -> None:
    """Law 9: through the code of other tokenizers, the ids pass through, and every logit is the same bit for bit."""
    anchor, augmenting = _member("llama", "qwen", 0), _member("gpt2", "qwen", 1)
    models = [compose(anchor, augmenting, alignment=how) for how in (None, "spans")]
    for model in models:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for _, parameter in model.composition_parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    shared, spans = models
    assert (shared.config.alignment, spans.config.alignment) == ({"augmenting": "ids"}, {"augmenting": "spans"})
    assert isinstance(spans._aligners["augmenting"], SameTokens)
    rows = [*_rows(shared), torch.tensor([5, 9, 5, 5, 201, 77, 3, 90])]  # the last is no canonical text
    for row in rows:
        assert_same_logits(plain_logits(spans, row[None]), plain_logits(shared, row[None]))
    ids, mask, _ = padded(rows, "left")
    generated = [
        model.generate(ids, attention_mask=mask, max_new_tokens=10, do_sample=False, pad_token_id=0) for model in models
    ]
    assert torch.equal(*generated)


def test_models_with_and_without_the_anchors_tokens_add_up() -> None:
    anchor = _member("llama", "qwen", 0)
    augmenting = {"same": _member("gpt2", "qwen", 1), "other": _member("gpt2", "gemma", 2)}
    model = compose(anchor, augmenting)
    assert model.config.alignment == {"same": "ids", "other": "spans"}
    with torch.no_grad():
        for _, parameter in model.composition_parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    ids, mask, _ = padded(_rows(model, longest=14), "left")
    common = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **common), model.generate(ids, use_cache=False, **common))


def test_two_callers_do_not_leak_into_each_other() -> None:
    model = _shared("llama-gpt2")
    one, two = (row[None] for row in _rows(model, longest=10)[:2])
    caches: dict[int, Any] = {0: None, 1: None}
    parts: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    with torch.no_grad():
        for t in range(10):
            for index, ids in enumerate((one, two)):
                output = model(ids[:, t : t + 1], cache=caches[index], use_cache=True)
                caches[index] = output[CACHE_ARGUMENT]
                parts[index].append(output.logits)
    for index, ids in enumerate((one, two)):
        assert_same_logits(torch.cat(parts[index], dim=1), plain_logits(model, ids))


# ---------------------------------------------------------------------------------------------------------- bad input


def test_tokens_that_must_be_the_anchors_are_refused_when_they_are_not() -> None:
    anchor, augmenting = _member("llama", "qwen", 0), _member("gpt2", "gemma", 1)
    with pytest.raises(TokenizerMismatchError, match="different tokenizers"):
        compose(anchor, augmenting, alignment="ids")
    with pytest.raises(ConfigurationError, match="Did you mean 'spans'"):
        compose(anchor, augmenting, alignment="span")
    with pytest.raises(ConfigurationError, match="'augmentin' is none of"):
        compose(anchor, augmenting, alignment={"augmentin": "spans"})
    with pytest.raises(TokenizerMismatchError, match="Pass each live model with its tokenizer"):
        compose(anchor[0], augmenting[0])
    with pytest.raises(lmcompose.errors.MemberError):
        compose(anchor, augmenting[0], alignment="spans")


def test_a_cache_of_another_kind_is_refused() -> None:
    model = _shared("llama-gpt2")
    with pytest.raises(CacheError, match=r"new_cache\(\)"):
        model(torch.tensor([[1, 2, 3]]), cache=DynamicCache(), use_cache=True)


def test_a_cache_that_was_filled_without_the_augmenting_model_is_refused() -> None:
    model = _shared("llama-gpt2")
    with torch.no_grad(), model.disable():
        cache = model(torch.tensor([[1, 2, 3]]), use_cache=True)[CACHE_ARGUMENT]
    with pytest.raises(CacheError, match="disabled"):
        model(torch.tensor([[4]]), cache=cache)


def test_a_text_that_is_too_long_for_the_augmenting_model_is_refused() -> None:
    anchor, augmenting = _member("llama", "llama2", 0), _member("gpt2", "gpt2", 1, max_position_embeddings=16)
    model = compose(anchor, augmenting)
    ids = torch.tensor(anchor[1]("word " * 60)["input_ids"])[None]
    with pytest.raises(ConfigurationError, match=r"has positions for 16"):
        model(ids)


def test_members_that_share_a_word_level_tokenizer_are_as_before() -> None:
    model = compose((tiny_model("llama"), tiny_tokenizer()), (tiny_model("gpt2", 1), tiny_tokenizer()))
    assert model.config.alignment == {"augmenting": "ids"}
