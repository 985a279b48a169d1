"""How to build a tiny model of every usual architecture, and what its plain model cannot do.

`docs/architectures.md` is drawn from this table. It builds nothing and knows no compositions. Windows are smaller than
the texts of the laws, so that one that is applied wrongly is seen; dropout is zero everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

VOCAB_SIZE = 97
WINDOW = 6
"""Sliding windows of the tiny models, in tokens. The texts of the laws are longer."""


@dataclass(frozen=True)
class Architecture:
    """How to build one tiny model: its ``model_type``, its config, and how its config spells the common sizes."""

    model_type: str
    config: dict[str, Any]
    spelling: dict[str, str] = field(default_factory=dict)
    takes_position_ids: bool = True
    static_cache: bool = True
    """Whether the plain model generates with a static cache what it generates without (``tests/test_tiny.py``)."""
    padded_steps: bool = True
    """Whether the plain model may read padding token by token. A recurrent state takes up what a mask would pass over:
    most hybrids look at the mask of a longer piece only."""
    pieces: bool = True
    """Whether the plain model goes on from its cache with several tokens at a time."""
    takes_back: bool = True
    """Whether its cache can go back to an earlier token, which drafts need. Of hybrids, transformers says it itself."""
    connects: bool = True
    """Whether its layers have one hidden state for each token; where they have several, there is nothing to connect."""

    note: str = ""
    """What else its plain model cannot do, in words for `docs/architectures.md`."""

    def overrides(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Translate ``hidden_size``, ``num_hidden_layers`` and ``num_attention_heads`` to this architecture's names."""
        return {self.spelling.get(name, name): value for name, value in wanted.items()}


def llama_like(model_type: str, **config: Any) -> Architecture:
    """An architecture that spells its sizes as Llama does."""
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attention_dropout": 0.0,
    }
    return Architecture(model_type, shape | config)


def recurrent(
    model_type: str, *, pieces: bool = True, takes_back: bool = False, note: str = "", **config: Any
) -> Architecture:
    """A hybrid: layers with attention, and layers with a state that runs on from token to token."""
    built = llama_like(model_type, **config)
    return replace(built, padded_steps=False, pieces=pieces, takes_back=takes_back, note=note)


def bert_like(model_type: str, **config: Any) -> Architecture:
    """An encoder's architecture as a decoder."""
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return llama_like(model_type, is_decoder=True, **dropout, **config)


GPT2_SPELLING = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
_GPT_NEO_SPELLING = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
_BLOOM_SPELLING = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
_MPT_SPELLING = {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}

USUAL: dict[str, Architecture] = {
    "llama": llama_like("llama"),
    "mistral": llama_like("mistral", sliding_window=WINDOW),
    "qwen2": llama_like("qwen2"),
    # Half of the layers slide: a model whose cache layers differ in kind.
    "qwen2_sliding": llama_like("qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": llama_like("qwen3", head_dim=12),
    "gemma2": llama_like("gemma2", head_dim=10, sliding_window=WINDOW, query_pre_attn_scalar=10),
    "gemma3": llama_like(
        "gemma3_text",
        head_dim=10,
        sliding_window=WINDOW,
        query_pre_attn_scalar=10,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi": llama_like("phi", num_key_value_heads=4, resid_pdrop=0.0, embd_pdrop=0.0, partial_rotary_factor=0.5),
    "phi3": llama_like("phi3", resid_pdrop=0.0, embd_pdrop=0.0, sliding_window=WINDOW),
    "olmo2": llama_like("olmo2"),
    "starcoder2": llama_like("starcoder2", sliding_window=WINDOW, residual_dropout=0.0, embedding_dropout=0.0),
    "stablelm": llama_like("stablelm", hidden_dropout=0.0, partial_rotary_factor=0.5),
    "cohere": llama_like("cohere", logit_scale=1.0),
    "granite": llama_like("granite", embedding_multiplier=2.0, residual_multiplier=0.7, attention_multiplier=0.4),
    "mixtral": llama_like("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "gpt_neox": llama_like("gpt_neox", hidden_dropout=0.0, rotary_pct=0.5),
    "gpt2": Architecture(
        "gpt2",
        {
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 128,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        GPT2_SPELLING,
    ),
    "gpt_neo": Architecture(
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "intermediate_size": 48,
            "max_position_embeddings": 128,
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        _GPT_NEO_SPELLING,
        # transformers 5.19 and 5.24: the local attention of GPT-Neo is wrong with a static cache.
        static_cache=False,
    ),
    "opt": Architecture(
        "opt",
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "layerdrop": 0.0,
        },
    ),
    "falcon": Architecture(
        "falcon",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "max_position_embeddings": 128,
        },
    ),
    # ALiBi: positions come from the mask; the forward takes no position_ids.
    "bloom": Architecture(
        "bloom",
        {"hidden_size": 32, "n_layer": 3, "n_head": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0},
        _BLOOM_SPELLING,
        takes_position_ids=False,
    ),
    "mpt": Architecture(
        "mpt",
        {"d_model": 32, "n_layers": 3, "n_heads": 4, "expansion_ratio": 2, "max_seq_len": 128, "use_cache": True},
        _MPT_SPELLING,
        takes_position_ids=False,
    ),
}

UNPACKABLE = frozenset(
    {
        "bloom", "mpt", "opt", "xglm", "biogpt",
        "afmoe", "gpt_oss", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared",
        "bert", "bert-generation", "electra", "ernie", "megatron-bert", "rembert", "roformer",
        "bamba", "falcon_h1", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "nemotron_h", "olmo_hybrid",
        "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba", "zamba2",
    }
)  # fmt: skip
"""Their positions come from the mask (or they pass none on to it), or a state runs on: they cannot tell documents
apart, and training refuses to pack with them."""
