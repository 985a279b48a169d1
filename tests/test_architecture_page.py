"""`docs/architectures.md` says what is so: every decoder of transformers is in one of its lists, and reasons hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import lmcompose
from lmcompose.architecture import CACHE_ARGUMENT, REFUSED, UNCONNECTED, check_causal_decoder
from lmcompose.errors import MemberError
from tests.architecture_page import NOT_TRIED, PAGE, drawn
from tests.tiny import ARCHITECTURES, padded, random_ids, tiny_model, valid_rows

TESTED = {architecture.model_type for architecture in ARCHITECTURES.values()}
UNTRIED = {name for names in NOT_TRIED.values() for name in names}


def test_the_page_is_drawn_from_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert drawn(page) == page, "write it again: python -m tests.architecture_page"


def test_every_decoder_of_transformers_is_in_one_list() -> None:
    names = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert not names - TESTED - set(REFUSED) - set(UNCONNECTED) - UNTRIED
    assert not TESTED & (set(REFUSED) | UNTRIED)
    assert not set(REFUSED) & UNTRIED
    assert len(TESTED) >= 60
    assert {name for name in ARCHITECTURES if not ARCHITECTURES[name].connects} == TESTED & set(UNCONNECTED)


def _decoder_config(model_type: str) -> PreTrainedConfig:
    """The default configuration of an architecture, said to be a decoder where it can be either."""
    config: PreTrainedConfig = CONFIG_MAPPING[model_type]()
    config.is_encoder_decoder = False
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


@pytest.mark.parametrize("model_type", [name for name in REFUSED if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES])
def test_what_cannot_work_is_refused_with_the_reason(model_type: str) -> None:
    if model_type.startswith("musicgen"):
        pytest.importorskip("transformers", minversion="5.24", reason="has no default configuration")
    reason = REFUSED[model_type] if model_type != "xlm" else "it is an encoder"
    for role in ("anchor", "expert"):
        with pytest.raises(MemberError) as refused:
            check_causal_decoder(_decoder_config(model_type), "models/x", role)
        assert f"'models/x' ({model_type}) cannot be the {role}: {reason}" in str(refused.value)


def test_it_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    """There are none here."""
    CONFIG_MAPPING["openai-gpt"]().save_pretrained(tmp_path / "old")
    for name in ("llama", "gemma3n_text", "longcat_flash"):
        tiny_model(name).config.save_pretrained(tmp_path / name)
    CONFIG_MAPPING["bert-generation"]().save_pretrained(tmp_path / "encoder")
    for folder, reason in (
        ("old", "it has no cache"),
        ("gemma3n_text", "several hidden states for each token .altup_num_inputs.*member of a logit composition"),
        ("longcat_flash", "counts two layers for each that it has.*member of a logit composition"),
        ("encoder", "it is an encoder"),
    ):
        with pytest.raises(MemberError, match=reason):
            lmcompose.compose(tmp_path / folder, tmp_path / "llama")
        with pytest.raises(MemberError, match=reason):
            lmcompose.compose(tmp_path / "llama", tmp_path / folder)


@pytest.mark.parametrize("model_type", sorted(UNCONNECTED))
def test_what_cannot_be_connected_to_is_so_by_its_configuration(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type]().get_text_config()
    if model_type == "longcat_flash":
        assert config.num_hidden_layers == 2 * config.num_layers
    else:
        setting = UNCONNECTED[model_type].rpartition("(")[2].rstrip(")")
        assert getattr(config, setting) > 1


# ------------------------------------------------------------------------------- the reasons hold of plain models

SIZES: dict[str, dict[str, Any]] = {
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "recurrent_gemma": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                        "lru_width": 32, "head_dim": 8, "num_key_value_heads": 1},
    "minimax": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "num_local_experts": 2, "head_dim": 8, "block_size": 8},
    "moshi": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
              "num_key_value_heads": 4, "sliding_window": 6},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "cpmant": {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "dim_head": 8, "dim_ff": 48},
    "trocr": {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
              "max_position_embeddings": 64},
    "roberta": {"is_decoder": True, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "max_position_embeddings": 64},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}  # fmt: skip
ROWS = [random_ids(1, length, seed=length)[0] for length in (9, 14)]


def _plain(model_type: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](vocab_size=97, initializer_range=0.2, pad_token_id=0, **SIZES[model_type])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model


def _logits(model: PreTrainedModel, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids, **inputs).logits
    return logits


@pytest.mark.parametrize("model_type", ["xlnet", "cpmant"])
def test_tokens_that_see_the_ones_after_them(model_type: str) -> None:
    model, ids = _plain(model_type), random_ids(1, 10)
    changed = ids.clone()
    changed[0, 8] = 5 if ids[0, 8] != 5 else 6
    before = _logits(model, changed)[:, -10:-2] - _logits(model, ids)[:, -10:-2]
    assert before.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("model_type", "kind"), [("openai-gpt", "NoneType"), ("recurrent_gemma", "NoneType"), ("minimax", "MiniMaxCache")]
)
def test_caches_that_are_none_or_of_another_kind(model_type: str, kind: str) -> None:
    model = _plain(model_type)
    with torch.no_grad():
        output = model(random_ids(1, 5), **({} if kind == "NoneType" else {"use_cache": True}))
    assert type(output.get(CACHE_ARGUMENT)).__name__ == kind


def test_a_window_that_holds_only_with_a_cache() -> None:
    model, ids = _plain("moshi"), random_ids(1, 14)
    with torch.no_grad():
        cache = model(ids[:, :8], use_cache=True)[CACHE_ARGUMENT]
        got = [model(ids[:, t : t + 1], use_cache=True, **{CACHE_ARGUMENT: cache}).logits for t in range(8, 14)]
    assert (torch.cat(got, dim=1) - _logits(model, ids, use_cache=False)[:, 8:]).abs().max() > 1e-2


@pytest.mark.parametrize("model_type", ["trocr", "roberta"])
def test_positions_that_padding_moves(model_type: str) -> None:
    """The one takes no positions, and the other starts to count at the id of its padding."""
    model = _plain(model_type)
    ids, mask, positions = padded(ROWS, "left")
    inputs: dict[str, Any] = {"attention_mask": mask}
    if model_type == "roberta":
        inputs["position_ids"] = positions
    logits = _logits(model, ids, **inputs)
    worst = [
        (got - _logits(model, row[None])[0]).abs().max()
        for got, row in zip(valid_rows(logits, mask), ROWS, strict=True)
    ]
    assert max(worst) > 1e-2


def test_a_state_that_cannot_go_back() -> None:
    with torch.no_grad():
        output = _plain("mamba")(random_ids(1, 5), use_cache=True)
    cache = output["cache_params" if "cache_params" in output else CACHE_ARGUMENT]  # before transformers 5.24
    assert not any(layer.is_croppable for layer in cache.layers)
