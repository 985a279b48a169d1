"""The laws on a CUDA device: fp32 and bf16, eager, sdpa and flash where it is present, and a compiled static cache.

``make test-gpu`` runs these and says so where there is no device. ``LMCOMPOSE_GPU_TESTS_ON=cpu`` rehearses them
without one, so that the tests themselves can be tested anywhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CompileConfig
from transformers.utils import is_flash_attn_2_available

from lmcompose import CalmForCausalLM, compose
from lmcompose.architecture import CACHE_ARGUMENT
from tests.compositions import (
    DIFFERENT,
    anchor_of,
    augmenting_of,
    plain_logits,
    random_composition,
    randomise,
    untrained_composition,
)
from tests.tiny import PAIRS, Pair, padded, random_ids, save_tiny, valid_rows

DEVICE = os.environ.get("LMCOMPOSE_GPU_TESTS_ON", "cuda")
FLASH = DEVICE == "cuda" and is_flash_attn_2_available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no CUDA device"),
]

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.15}
"""Largest difference of logits (standard deviation near 1): other kernels for other shapes sum in another order."""

NAMES = ["llama+llama_wide", "llama+gpt2", "gemma3+llama", "qwen2_sliding+qwen3_wide", "falcon+opt"]
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14, 11)]


@dataclass(frozen=True)
class Kind:
    dtype: torch.dtype
    attention: str

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.dtype]


KINDS = {
    "fp32-eager": Kind(torch.float32, "eager"),
    "fp32-sdpa": Kind(torch.float32, "sdpa"),
    "bf16-eager": Kind(torch.bfloat16, "eager"),
    "bf16-sdpa": Kind(torch.bfloat16, "sdpa"),
}
FLASH_NAMES = ["llama+llama_wide", "llama+gpt2"]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return PAIRS[request.param]


def _on_device(pair: Pair, kind: Kind) -> CalmForCausalLM:
    """A random composition on the device: bridges in fp32, or in bf16 where flash attention demands it."""
    bridge_dtype = torch.bfloat16 if kind.attention.startswith("flash") else torch.float32
    model = random_composition(pair, kind.dtype, kind.attention, bridge_dtype=bridge_dtype)
    return model.to(DEVICE)


def _batch(side: str = "left") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, mask, positions = padded(ROWS, side)
    return ids.to(DEVICE), mask.to(DEVICE), positions.to(DEVICE)


def _assert_close(got: torch.Tensor, expected: torch.Tensor, kind: Kind) -> None:
    torch.testing.assert_close(got.float(), expected.float(), atol=kind.tolerance, rtol=0)


def _check_causality(model: CalmForCausalLM, kind: Kind, length: int = 10) -> None:
    ids = random_ids(1, length, seed=2).repeat(length + 1, 1)
    for t in range(length):
        ids[t, t] = (ids[t, t] - 4 + 17) % 93 + 4
    logits = plain_logits(model, ids.to(DEVICE)).float().cpu()
    changed = (logits[:-1] - logits[-1]).abs().amax(dim=-1)
    assert changed[torch.arange(length)[None, :] < torch.arange(length)[:, None]].max() <= kind.tolerance
    assert changed.diagonal().min() > DIFFERENT


def _check_padding(model: CalmForCausalLM, kind: Kind) -> None:
    alone = [plain_logits(model, row[None].to(DEVICE))[0] for row in ROWS]
    for side in ("left", "right"):
        ids, mask, positions = _batch(side)
        logits = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
        for got, expected in zip(valid_rows(logits, mask), alone, strict=True):
            _assert_close(got, expected, kind)


def _check_cache(model: CalmForCausalLM, kind: Kind) -> None:
    ids, mask, positions = _batch()
    expected = plain_logits(model, ids, attention_mask=mask, position_ids=positions)
    state, start, logits = None, 0, []
    for length in (8, 1, 1, 4):
        stop = start + length
        with torch.no_grad():
            output = model(
                ids[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=positions[:, start:stop],
                use_cache=True,
                **{CACHE_ARGUMENT: state},
            )
        state, start = output[CACHE_ARGUMENT], stop
        logits.append(output.logits)
    _assert_close(torch.cat(logits, dim=1)[mask.bool()], expected[mask.bool()], kind)


def test_identity(pair: Pair, kind: Kind) -> None:
    anchor = anchor_of(pair, kind.dtype, kind.attention).to(DEVICE)
    model = untrained_composition(pair, kind.dtype, kind.attention).to(DEVICE)
    ids, mask, positions = _batch()
    assert torch.equal(plain_logits(model, ids), plain_logits(anchor, ids))
    inputs = {"attention_mask": mask, "position_ids": positions}
    assert torch.equal(
        plain_logits(model, ids, **inputs)[mask.bool()], plain_logits(anchor, ids, **inputs)[mask.bool()]
    )


def test_causality_padding_and_cache(pair: Pair, kind: Kind) -> None:
    model = _on_device(pair, kind)
    _check_causality(model, kind)
    _check_padding(model, kind)
    _check_cache(model, kind)


@pytest.mark.skipif(not FLASH, reason="flash-attn is not installed")
@pytest.mark.parametrize("name", FLASH_NAMES)
def test_flash_attention(name: str) -> None:
    kind = Kind(torch.bfloat16, "flash_attention_2")
    pair = PAIRS[name]
    model = untrained_composition(pair, kind.dtype, "sdpa", bridge_dtype=torch.bfloat16).to(DEVICE)
    for member in model.members.values():
        member.set_attn_implementation("flash_attention_2")
    model.set_attn_implementation("flash_attention_2")
    randomise(model)
    _check_causality(model, kind)
    _check_padding(model, kind)
    _check_cache(model, kind)
    sdpa = random_composition(pair, kind.dtype, "sdpa", bridge_dtype=torch.bfloat16).to(DEVICE)
    ids = random_ids(2, 12).to(DEVICE)
    _assert_close(plain_logits(model, ids), plain_logits(sdpa, ids), kind)


def test_generation_in_every_mode(pair: Pair) -> None:
    """Token for token in fp32; bf16 has near ties, where the order of a sum decides."""
    model = _on_device(pair, KINDS["fp32-sdpa"])
    ids, mask, _ = _batch()
    settings: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    settings["no_repeat_ngram_size"] = 2
    expected = model.generate(ids, attention_mask=mask, use_cache=False, **settings)
    for arguments in ({}, {"prefill_chunk_size": 4}):
        assert torch.equal(model.generate(ids, attention_mask=mask, **settings, **arguments), expected)
    beams = model.generate(ids, attention_mask=mask, use_cache=False, num_beams=3, **settings)
    assert torch.equal(model.generate(ids, attention_mask=mask, num_beams=3, **settings), beams)
    expected = model.generate(ids[1:2], use_cache=False, **settings)
    assert torch.equal(model.generate(ids[1:2], prompt_lookup_num_tokens=3, **settings), expected)


@pytest.mark.parametrize("name", ["llama+gpt2", "gemma3+llama"])
def test_a_compiled_static_cache(name: str) -> None:
    """`generate` compiles the decoding step of a static cache by itself on CUDA; once more with CUDA graphs."""
    model = _on_device(PAIRS[name], KINDS["fp32-sdpa"])
    ids, mask, _ = _batch()
    settings: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    settings |= {"no_repeat_ngram_size": 2, "attention_mask": mask}
    expected = model.generate(ids, use_cache=False, **settings)
    with model.disable():
        bare = model.generate(ids, use_cache=False, **settings)
    modes = ("default", "reduce-overhead") if DEVICE == "cuda" else ("default",)
    for mode in modes:
        compile_config = CompileConfig(fullgraph=True, mode=mode, backend="inductor" if DEVICE == "cuda" else "eager")
        compile_config._compile_all_devices = True
        if DEVICE != "cuda":
            compile_config.mode = None
        arguments = settings | {"cache_implementation": "static", "compile_config": compile_config}
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        assert torch.equal(model.generate(ids, **arguments), expected)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
        assert torch.equal(model.generate(ids, **arguments), expected)
        with model.disable():
            assert torch.equal(model.generate(ids, **arguments), bare)
    torch._dynamo.reset()


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointed"])
def test_training_changes_the_composition_parameters_only(pair: Pair, checkpointing: bool) -> None:
    """bf16 members under fp32 bridges, as in training."""
    anchor, augmenting = (build(pair, torch.bfloat16).to(DEVICE) for build in (anchor_of, augmenting_of))
    model = compose(anchor=anchor, augmenting=augmenting)
    members = {name: tensor.clone() for name, tensor in model.members.state_dict().items()}
    before = {name: parameter.detach().clone() for name, parameter in model.composition_parameters()}
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.device.type for parameter in parameters} == {torch.device(DEVICE).type}
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for step in range(3):
        ids = random_ids(4, 12, seed=step).to(DEVICE)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(tensor, members[name]) for name, tensor in model.members.state_dict().items())
    for name, parameter in model.composition_parameters():
        assert not torch.equal(parameter, before[name])
    model.detach()
    ids = random_ids(2, 12).to(DEVICE)
    assert torch.equal(plain_logits(anchor, ids), plain_logits(anchor_of(pair, torch.bfloat16).to(DEVICE), ids))


def test_saved_is_loaded_onto_the_device(tmp_path: Path) -> None:
    base, helper = save_tiny(tmp_path / "base", "llama"), save_tiny(tmp_path / "helper", "gpt2", seed=1)
    model = randomise(compose(anchor=str(base), augmenting=str(helper), device_map=DEVICE))
    assert model.device.type == torch.device(DEVICE).type
    model.save_pretrained(tmp_path / "saved")
    loaded = CalmForCausalLM.from_pretrained(tmp_path / "saved", device_map=DEVICE)
    assert {parameter.device.type for parameter in loaded.parameters()} == {torch.device(DEVICE).type}
    ids = random_ids(2, 12).to(DEVICE)
    assert torch.equal(plain_logits(loaded, ids), plain_logits(model, ids))
