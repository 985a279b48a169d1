"""The laws where members are in bfloat16 or float16: the bridges between them stay in float32 unless asked for less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lmcompose
from lmcompose import CalmForCausalLM, compose, proxy_tune
from lmcompose.architecture import CACHE_ARGUMENT
from tests.compositions import TOLERANCE, plain_logits, randomise
from tests.tiny import random_ids, save_tiny

IDS = random_ids(2, 9)
TOLERANCES = TOLERANCE | {torch.float16: 2e-2}
HALVES = (torch.bfloat16, torch.float16)
PAIRS = [("llama", "gpt2"), ("gpt2", "llama"), ("gemma3", "opt")]

halves = pytest.mark.parametrize("dtype", HALVES, ids=["bf16", "fp16"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("halves")
    return {arch: save_tiny(root / arch, arch, seed=i) for i, arch in enumerate(("llama", "gpt2", "gemma3", "opt"))}


@halves
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_untrained_it_is_the_anchor(pair: tuple[str, str], dtype: torch.dtype, folders: dict[str, Path]) -> None:
    model = compose(folders[pair[0]], folders[pair[1]], dtype=dtype)
    assert {parameter.dtype for parameter in model.members.parameters()} == {dtype}
    assert {parameter.dtype for parameter in model.bridges.parameters()} == {torch.float32}
    logits = plain_logits(model, IDS)
    assert logits.isfinite().all()
    assert torch.equal(logits, plain_logits(model.anchor, IDS))


def _seen(model: CalmForCausalLM) -> dict[str, set[torch.dtype]]:
    """The dtypes in which the bridges read, compute and answer in one pass."""
    seen: dict[str, set[torch.dtype]] = {"reads": set(), "computes": set(), "answers": set()}
    bridge: Any = next(iter(model.bridges.values()))
    read, attend = bridge.key_value, bridge.attend

    def key_value(states: torch.Tensor) -> Any:
        seen["reads"].add(states.dtype)
        found = read(states)
        seen["computes"] |= {part.dtype for part in found}
        return found

    def attended(states: torch.Tensor, *rest: Any, **named: Any) -> Any:
        found = attend(states, *rest, **named)
        seen["answers"].add(found.dtype)
        return found

    bridge.key_value, bridge.attend = key_value, attended
    plain_logits(model, IDS)
    del bridge.key_value, bridge.attend
    return seen


@pytest.mark.parametrize("anchor", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("augmenting", HALVES, ids=str)
def test_hidden_states_are_cast_on_the_way(
    anchor: torch.dtype, augmenting: torch.dtype, folders: dict[str, Path]
) -> None:
    dtypes = {"anchor": anchor, "augmenting": augmenting}
    model = randomise(compose(folders["llama"], folders["gpt2"], dtype=dtypes))
    assert _seen(model) == {"reads": {augmenting}, "computes": {torch.float32}, "answers": {anchor}}
    own = compose(folders["llama"], folders["gpt2"], dtype=dtypes, bridge_dtype=torch.bfloat16)
    assert _seen(own)["computes"] == {torch.bfloat16}


@halves
def test_cached_trained_and_saved(dtype: torch.dtype, folders: dict[str, Path], tmp_path: Path) -> None:
    model = randomise(compose(folders["llama"], folders["gpt2"], dtype=dtype), std=0.05)
    whole, pieces, cache = plain_logits(model, IDS), [], None
    with torch.no_grad():
        for part in (IDS[:, :6], *IDS[:, 6:].split(1, dim=1)):
            output = model(part, cache=cache, use_cache=True)
            cache = getattr(output, CACHE_ARGUMENT)
            pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=TOLERANCES[dtype], rtol=0)
    before = {name: value.clone() for name, value in model.members.named_parameters()}
    optimizer = torch.optim.AdamW(model.bridges.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        assert all(value.grad is not None and value.grad.isfinite().all() for value in model.bridges.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(value, before[name]) for name, value in model.members.named_parameters())
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved")
    assert {value.dtype for value in loaded.members.parameters()} == {dtype}
    assert {value.dtype for value in loaded.bridges.parameters()} == {torch.float32}
    assert torch.equal(plain_logits(loaded, IDS), plain_logits(model, IDS))
    assert torch.equal(
        loaded.generate(IDS, max_new_tokens=4, do_sample=False), model.generate(IDS, max_new_tokens=4, do_sample=False)
    )


@halves
def test_logit_compositions(dtype: torch.dtype, folders: dict[str, Path], tmp_path: Path) -> None:
    model = proxy_tune(folders["llama"], folders["gpt2"], folders["opt"], dtype=dtype)
    logits = plain_logits(model, IDS)
    parts = [plain_logits(model.member(role), IDS).float() for role in ("base", "expert", "antiexpert")]
    assert logits.dtype == torch.float32, "scores are added up in float32"
    torch.testing.assert_close(logits, parts[0] + parts[1] - parts[2], atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "saved")
    loaded = lmcompose.load(tmp_path / "saved")
    assert {value.dtype for value in loaded.parameters()} == {dtype}
    assert torch.equal(plain_logits(loaded, IDS), logits)
    assert loaded.generate(IDS, max_new_tokens=4, do_sample=False).shape == (2, 13)
