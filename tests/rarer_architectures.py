"""Architectures beside the usual ones: a tiny model of each, composed in both roles by the slow tests.

A table as `tests/architectures.py` is; that file says what the entries mean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.architectures import (
    GPT2_SPELLING,
    VOCAB_SIZE,
    WINDOW,
    Architecture,
    bert_like,
    llama_like,
    recurrent,
)

_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
_LINEAR = ["linear_attention", "full_attention", "linear_attention"]
_SPARSE = ["dense", "sparse", "sparse"]
_GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}
_GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_MLA: dict[str, Any] = {"kv_lora_rank": 12, "q_lora_rank": 16, "num_key_value_heads": 4}
_MLA |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8}
_TWO_OF_FOUR: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED |= {"n_group": 1, "topk_group": 1}
_MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
_MAMBA2 |= {"mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8}
_DELTA: dict[str, Any] = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_DELTA |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": _LINEAR, "head_dim": 8}
_DELTA |= {"initializer_range": 0.1}  # less noise in the last bits

# transformers 5.19 and 5.24 hold prompts to `time_step_min`, and single tokens not (`tests/test_tiny.py` shows it).
_NO_LEAST_STEP = 1e-9
_LEAST_STEP = "cached and uncached decoding differ a little where `time_step_min` counts (1)"

RARER: dict[str, Architecture] = {
    # Dense.
    "gemma": llama_like("gemma", head_dim=10),
    "ministral": llama_like("ministral", head_dim=8, sliding_window=WINDOW, layer_types=_SLIDING),
    "ministral3": llama_like("ministral3", head_dim=8),
    "arcee": llama_like("arcee", head_dim=8),
    "apertus": llama_like("apertus"),
    "smollm3": llama_like("smollm3", no_rope_layers=[1, 1, 0]),
    "seed_oss": llama_like("seed_oss", head_dim=8, residual_dropout=0.0),
    "exaone4": llama_like("exaone4", sliding_window=WINDOW, layer_types=_SLIDING),
    "ernie4_5": llama_like("ernie4_5", head_dim=8),
    "hunyuan_v1_dense": llama_like("hunyuan_v1_dense", head_dim=8),
    "helium": llama_like("helium", head_dim=8),
    "glm": llama_like("glm", head_dim=8),
    "glm4": llama_like("glm4", head_dim=8),
    "olmo": llama_like("olmo", clip_qkv=3.0),
    "olmo3": llama_like("olmo3", sliding_window=WINDOW, layer_types=_SLIDING),
    "cohere2": llama_like("cohere2", head_dim=8, sliding_window=WINDOW, layer_types=_SLIDING, logit_scale=1.0),
    "nemotron": llama_like("nemotron", head_dim=8),
    "persimmon": llama_like("persimmon", num_key_value_heads=4, hidden_dropout=0.0),
    "diffllama": llama_like("diffllama", head_dim=8),
    "doge": llama_like("doge", keep_window_size=64),
    "granite_swa": llama_like("granite_swa", sliding_window=WINDOW, layer_types=_SLIDING, layer_rope_theta=[1e4] * 3),
    "jais2": llama_like("jais2", head_dim=8),
    "nanochat": llama_like("nanochat"),
    "bitnet": llama_like("bitnet"),
    "cwm": llama_like("cwm", head_dim=8, sliding_window=WINDOW, layer_types=_SLIDING),
    "vaultgemma": llama_like(
        "vaultgemma", head_dim=10, sliding_window=WINDOW, query_pre_attn_scalar=10, layer_types=_SLIDING
    ),
    "hyperclovax": llama_like("hyperclovax", head_dim=8),
    "youtu": llama_like("youtu", **_MLA),
    "minicpm3": llama_like("minicpm3", **_MLA, dim_model_base=32),
    "modernbert-decoder": llama_like("modernbert-decoder", local_attention=2 * WINDOW, layer_types=_SLIDING),
    "gpt_neox_japanese": llama_like("gpt_neox_japanese", hidden_dropout=0.0, rotary_pct=0.5),
    # Experts.
    "qwen2_moe": llama_like("qwen2_moe", **_EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_moe": llama_like("qwen3_moe", **_EXPERTS, num_local_experts=4, head_dim=8),
    "phimoe": llama_like("phimoe", **_TWO_OF_FOUR),
    "olmoe": llama_like("olmoe", num_experts=4, num_experts_per_tok=2),
    "flex_olmo": llama_like("flex_olmo", num_experts=4, num_experts_per_tok=2),
    "granitemoe": llama_like("granitemoe", **_TWO_OF_FOUR),
    "granitemoeshared": llama_like("granitemoeshared", **_TWO_OF_FOUR, shared_intermediate_size=16),
    "granitemoe_swa": llama_like(
        "granitemoe_swa",
        **_TWO_OF_FOUR,
        shared_intermediate_size=16,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        layer_rope_theta=[1e4] * 3,
    ),
    "ernie4_5_moe": llama_like(
        "ernie4_5_moe",
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=16,
        moe_num_shared_experts=1,
        moe_layer_end_index=2,
    ),
    "hunyuan_v1_moe": llama_like("hunyuan_v1_moe", num_experts=4, moe_topk=2, head_dim=8),
    "deepseek_v2": llama_like("deepseek_v2", **_MLA, **_ROUTED, first_k_dense_replace=1, n_shared_experts=1),
    "deepseek_v3": llama_like("deepseek_v3", **_MLA, **_ROUTED, first_k_dense_replace=1, n_shared_experts=1),
    "jetmoe": llama_like("jetmoe", kv_channels=8, **_TWO_OF_FOUR, num_key_value_heads=2),
    "gpt_oss": llama_like("gpt_oss", **_TWO_OF_FOUR, head_dim=8, sliding_window=WINDOW, layer_types=_SLIDING),
    "glm4_moe": llama_like("glm4_moe", **_ROUTED, n_shared_experts=1, first_k_dense_replace=1, head_dim=8),
    "glm4_moe_lite": llama_like("glm4_moe_lite", **_MLA, **_ROUTED, n_shared_experts=1, mlp_layer_types=_SPARSE),
    "dots1": llama_like("dots1", **_ROUTED, n_shared_experts=1, first_k_dense_replace=1, head_dim=8),
    "llama4_text": llama_like(
        "llama4_text",
        head_dim=8,
        num_local_experts=4,
        intermediate_size_mlp=48,
        interleave_moe_layer_step=2,
        attention_chunk_size=8,
        no_rope_layers=[1, 1, 0],
    ),
    "afmoe": llama_like(
        "afmoe", head_dim=8, **_EXPERTS, num_shared_experts=1, sliding_window=WINDOW, layer_types=_SLIDING
    ),
    "minimax_m2": llama_like("minimax_m2", head_dim=8, **_TWO_OF_FOUR),
    "mimo_v2_flash": llama_like(
        "mimo_v2_flash",
        **_ROUTED,
        head_dim=8,
        v_head_dim=8,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        mlp_layer_types=_SPARSE,
    ),
    "solar_open": llama_like("solar_open", **_ROUTED, n_shared_experts=1, head_dim=8),
    "exaone_moe": llama_like(
        "exaone_moe",
        **_EXPERTS,
        num_shared_experts=1,
        n_group=1,
        topk_group=1,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        mlp_layer_types=_SPARSE,
    ),
    "cohere2_moe": llama_like(
        "cohere2_moe",
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        mlp_layer_types=["sparse"] * 3,
        logit_scale=1.0,
    ),
    "aria_text": llama_like("aria_text", head_dim=8, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
    "hy_v3": llama_like("hy_v3", head_dim=8, **_EXPERTS, num_shared_experts=1, mlp_layer_types=_SPARSE),
    "mellum": llama_like(
        "mellum",
        head_dim=8,
        **_TWO_OF_FOUR,
        moe_intermediate_size=16,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        mlp_layer_types=["sparse"] * 3,
    ),
    "laguna": llama_like(
        "laguna",
        head_dim=8,
        **_EXPERTS,
        shared_expert_intermediate_size=16,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        mlp_layer_types=_SPARSE,
        num_attention_heads_per_layer=[4] * 3,
    ),
    "longcat_flash": replace(
        llama_like(
            "longcat_flash",
            num_layers=2,
            num_hidden_layers=4,
            ffn_hidden_size=48,
            **_MLA,
            moe_topk=2,
            n_routed_experts=4,
            zero_expert_num=2,
            head_dim=4,
            expert_ffn_hidden_size=16,
        ),
        connects=False,
    ),
    "axk1": llama_like("axk1", **_MLA, **_ROUTED, n_shared_experts=1, mlp_layer_types=_SPARSE),
    # Hybrids: some layers attend, others keep a state.
    "bamba": recurrent("bamba", attn_layer_indices=[1], **_MAMBA2),
    "falcon_h1": recurrent("falcon_h1", mamba_d_ssm=64, **_MAMBA2, head_dim=8),
    "granitemoehybrid": recurrent(
        "granitemoehybrid", **_MAMBA2, layer_types=_LINEAR, **_TWO_OF_FOUR, shared_intermediate_size=16
    ),
    "jamba": recurrent(
        "jamba",
        pieces=False,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=4,
        mamba_d_conv=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "zamba": recurrent(
        "zamba",
        pieces=False,
        num_hidden_layers=4,
        attention_hidden_size=64,
        attention_head_dim=16,
        n_mamba_heads=2,
        num_key_value_heads=4,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
        layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"],
    ),
    "zamba2": recurrent(
        "zamba2",
        time_step_min=_NO_LEAST_STEP,
        note=_LEAST_STEP,
        num_key_value_heads=4,
        mamba_d_state=8,
        mamba_ngroups=1,
        n_mamba_heads=8,
        mamba_headdim=8,
        chunk_size=8,
        use_mamba_kernels=False,
        layers_block_type=["linear_attention", "hybrid", "linear_attention"],
        attention_hidden_size=64,
        attention_head_dim=16,
        adapter_rank=4,
        num_mem_blocks=1,
        hybrid_layer_ids=[1],
    ),
    "nemotron_h": recurrent(
        "nemotron_h",
        time_step_min=_NO_LEAST_STEP,
        note=_LEAST_STEP,
        layers_block_type=["linear_attention", "full_attention", "moe"],
        head_dim=8,
        ssm_state_size=8,
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=1,
        chunk_size=8,
        n_routed_experts=4,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
        use_mamba_kernels=False,
    ),
    "qwen3_next": recurrent("qwen3_next", **_DELTA, **_EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_5_text": recurrent("qwen3_5_text", **_DELTA),
    "qwen3_5_moe_text": recurrent("qwen3_5_moe_text", **_DELTA, **_EXPERTS, shared_expert_intermediate_size=16),
    "olmo_hybrid": recurrent(
        "olmo_hybrid",
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=_LINEAR,
    ),
    "lfm2": recurrent(
        "lfm2", takes_back=True, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False
    ),
    "lfm2_moe": recurrent(
        "lfm2_moe",
        takes_back=True,
        layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    ),
    "kimi_linear": recurrent(
        "kimi_linear",
        **_MLA,
        num_experts=4,
        num_experts_per_token=2,
        moe_intermediate_size=16,
        num_shared_experts=1,
        linear_head_dim=8,
        linear_num_heads=4,
        layer_types=_LINEAR,
        mlp_layer_types=_SPARSE,
        num_expert_group=1,
        topk_group=1,
    ),
    # Encoders' architectures as decoders.
    "bert": bert_like("bert"),
    "bert-generation": bert_like("bert-generation"),
    "electra": bert_like("electra", embedding_size=32),
    "roformer": replace(bert_like("roformer", embedding_size=32), takes_position_ids=False),
    "rembert": bert_like("rembert", input_embedding_size=16, output_embedding_size=16, classifier_dropout_prob=0.0),
    "biogpt": llama_like("biogpt", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "megatron-bert": bert_like("megatron-bert"),
    "ernie": bert_like("ernie"),
    # With embeddings for every layer.
    "gemma3n_text": replace(
        llama_like(
            "gemma3n_text",
            head_dim=8,
            sliding_window=WINDOW,
            layer_types=_SLIDING,
            vocab_size_per_layer_input=VOCAB_SIZE,
            hidden_size_per_layer_input=4,
            num_kv_shared_layers=0,
            laurel_rank=4,
            activation_sparsity_pattern=[0.0] * 3,
        ),
        connects=False,
    ),
    "gemma4_text": llama_like(
        "gemma4_text",
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=_SLIDING,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=4,
        initializer_range=0.1,
    ),
    # Spelled in ways of their own.
    "gptj": Architecture("gptj", _GPT | {"rotary_dim": 4}, GPT2_SPELLING),
    "codegen": Architecture("codegen", _GPT | {"rotary_dim": 4}, GPT2_SPELLING),
    "gpt_bigcode": Architecture("gpt_bigcode", _GPT, GPT2_SPELLING),
    "ctrl": Architecture("ctrl", _GPT | {"dff": 48}, GPT2_SPELLING),
    "xglm": Architecture(
        "xglm",
        {
            "d_model": 32,
            "ffn_dim": 48,
            "num_layers": 3,
            "attention_heads": 4,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "max_position_embeddings": 128,
        },
    ),
    "dbrx": Architecture(
        "dbrx",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": 128,
            "resid_pdrop": 0.0,
            "emb_pdrop": 0.0,
            "attn_config": {"attn_pdrop": 0.0, "kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
}
