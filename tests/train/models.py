"""Small models of architectures whose weights differ in kind: experts, routers, recurrences, untied heads."""

from typing import Any

from stages.formats.tokens import Manifest

WIDTH: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED: dict[str, Any] = WIDTH | {"num_key_value_heads": 1, "max_position_embeddings": 32}
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
ROUTED: dict[str, Any] = {"output_router_logits": True, "router_aux_loss_coef": 0.05, "num_experts_per_tok": 2}

JAMBA: dict[str, Any] = {
    **{"model_type": "jamba", "num_experts": 4, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    **GROUPED,
    **UNTIED,
    **ROUTED,
}

MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "head_dim": 8} | GROUPED | UNTIED | ROUTED,
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 8}
    | (GROUPED | UNTIED | ROUTED),
    "gpt_oss": {"model_type": "gpt_oss", "num_local_experts": 4, "head_dim": 8, "sliding_window": 8}
    | (GROUPED | UNTIED | ROUTED),
    "jamba": JAMBA,
    "llama": {"model_type": "llama"} | GROUPED | UNTIED,
    "gpt_neox": {"model_type": "gpt_neox", "max_position_embeddings": 32} | WIDTH | UNTIED,
    "qwen3": {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True} | GROUPED,
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


def vocabulary(size: int = 300) -> Manifest:
    """Of a tokenizer with so many ids."""
    return Manifest("uint16", size, 0, "", "", ())
