"""A local member that reads a text piece by piece, and goes back, scores it as a whole pass does."""

from __future__ import annotations

import pytest
import torch

from lmcompose.errors import ConfigurationError, TokenizerMismatchError
from lmcompose.logits.remote.local import Reader, check_length, check_rows
from tests.compositions import random_composition
from tests.tiny import PAIRS, VOCAB_SIZE, random_ids, tiny_model

ARCHITECTURES = ["llama", "gemma3", "mistral", "gpt2", "bloom", "qwen2_sliding", "falcon", "opt"]


def whole(model: torch.nn.Module, ids: list[int], last: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -last:].float()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_reading_on_and_going_back_is_reading_the_whole(arch: str) -> None:
    """Windows are of 6 tokens and the text of 20, so going back crosses them."""
    model = tiny_model(arch, seed=4)
    text, other = random_ids(1, 20, seed=1)[0].tolist(), random_ids(1, 6, seed=2)[0].tolist()
    reader = Reader(model, VOCAB_SIZE)
    steps = [(text[:9], 1), (text[:10], 1), (text[:14], 5), (text[:12], 2), (text[:12] + other, 7), (text[:13], 1)]
    steps += [(text, 1), (text, 3), (other, 6), (other[:4], 1)]
    for ids, last in steps:
        torch.testing.assert_close(reader.logits(ids, last), whole(model, ids, last), atol=2e-4, rtol=1e-4)


def test_a_composition_is_a_member() -> None:
    model = random_composition(PAIRS["llama+gpt2"])
    text = random_ids(1, 12, seed=1)[0].tolist()
    reader = Reader(model, VOCAB_SIZE)
    for ids, last in [(text[:6], 1), (text[:10], 4), (text[:8], 1), (text, 2)]:
        torch.testing.assert_close(reader.logits(ids, last), whole(model, ids, last), atol=2e-4, rtol=1e-4)


def test_a_cache_that_cannot_go_back_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", seed=4)
    text = random_ids(1, 12, seed=1)[0].tolist()
    reader = Reader(model, VOCAB_SIZE)
    reader.logits(text)
    assert reader._cache is not None

    def refuse(*_: object) -> None:
        raise RuntimeError("this cache keeps no past")

    monkeypatch.setattr(reader._cache, "crop", refuse)
    torch.testing.assert_close(reader.logits(text[:7], 2), whole(model, text[:7], 2), atol=2e-4, rtol=1e-4)


def test_nothing_is_read_twice() -> None:
    model = tiny_model("llama", seed=4)
    text = random_ids(1, 12, seed=1)[0].tolist()
    lengths: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    reader = Reader(model, VOCAB_SIZE)
    for ids, last in [(text[:8], 1), (text[:9], 1), (text, 3), (text[:11], 1)]:
        reader.logits(ids, last)
    assert lengths == [8, 1, 3, 1]


def test_padded_rows_are_cut_off() -> None:
    assert Reader(tiny_model("llama", vocab_size=104), VOCAB_SIZE).logits([5, 6]).shape == (1, VOCAB_SIZE)


def test_a_member_with_too_few_tokens_is_refused() -> None:
    check_rows(tiny_model("llama", vocab_size=104), "expert", VOCAB_SIZE)
    with pytest.raises(TokenizerMismatchError, match="expert has 90 token ids"):
        check_rows(tiny_model("llama", vocab_size=90), "expert", VOCAB_SIZE)


def test_a_text_that_is_too_long_is_refused() -> None:
    check_length(tiny_model("gpt2", n_positions=24), "expert", 24)
    check_length(tiny_model("llama"), "expert", 500)
    with pytest.raises(ConfigurationError, match="expert has positions for 24"):
        check_length(tiny_model("gpt2", n_positions=24), "expert", 25)
