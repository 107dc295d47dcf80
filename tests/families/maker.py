"""A small random model of every causal language model of the installed transformers, by what their
configurations have in common.

Configurations differ in names more than in meaning: each known name of a size gets a small value,
where the default configuration of a family has it. ``OWN`` has what single families need besides. A
family that cannot be made so is listed with its reason, and never left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers

from tinker.local.engines import PACKAGED_FOLDER

LAYERS, HIDDEN, HEADS, HEAD = 2, 32, 4, 8
SIZES: Mapping[str, Any] = {
    **dict.fromkeys(
        (
            "hidden_size",
            "n_embd",
            "d_model",
            "embed_dim",
            "word_embed_proj_dim",
            "embedding_size",
            "dim_model",
        ),
        HIDDEN,
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_blocks"),
        LAYERS,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), HEADS
    ),
    **dict.fromkeys(
        ("encoder_attention_heads", "swa_num_attention_heads", "local_num_attention_heads"), HEADS
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "ffn_hidden_size",
        ),
        48,
    ),
    **dict.fromkeys(
        ("intermediate_size_mlp", "dense_intermediate_size", "dim_ff", "inner_hidden_size"), 48
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "multi_query_group_num", "swa_num_key_value_heads", "num_kv_heads"),
        2,
    ),
    **dict.fromkeys(("num_global_key_value_heads",), 2),
    **dict.fromkeys(
        (
            "head_dim",
            "kv_channels",
            "attention_head_dim",
            "d_kv",
            "dim_head",
            "swa_head_dim",
            "global_head_dim",
        ),
        HEAD,
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
        256,
    ),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        (
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_topk",
            "moe_k",
            "moe_top_k",
            "experts_per_token",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ),
        24,
    ),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(
        (
            "first_k_dense_replace",
            "num_dense_layers",
            "moe_layer_start_index",
            "n_shared_experts",
            "num_shared_experts",
        ),
        1,
    ),
    **dict.fromkeys(("moe_num_shared_experts",), 1),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_groups"), 1),
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_d_ssm": 32,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "mamba_n_groups": 1,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "state_size": 8,
    "chunk_size": 8,
    "mamba_dt_rank": 4,
    "sliding_window": 8,
    "sliding_window_size": 8,
    "local_attention": 8,
    "block_size": 8,
    "attention_window_size": 8,
    "lru_width": HIDDEN,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 258,
    "num_memory_blocks": 2,
    "rotary_dim": 4,
    "logits_scaling": 1.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "vocab_size": 258,
    "initializer_range": 0.2,
    "init_std": 0.2,
    "eos_token_id": 256,
    "bos_token_id": 256,
    "pad_token_id": 1,
    "num_kv_shared_layers": 0,
    "num_nextn_predict_layers": 0,
    "is_decoder": True,
    "tie_word_embeddings": False,
    "layer_types": None,
    "mlp_layer_types": None,
    "block_auto_adjust_ff_dim": False,
    "laurel_rank": 4,
    "decoder_start_token_id": 256,
    "forced_eos_token_id": None,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "activation_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_window_layers": 1,
}
#: What single kinds need besides, by their ``model_type``.
LATENT = {"head_dim": 4, "num_key_value_heads": HEADS}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "glm4_moe_lite",
            "longcat_flash",
            "minicpm3",
            "sarvam_mla",
            "youtu",
        ),
        LATENT,
    ),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp_text"), HYBRID),
    "bailing_hybrid": {**HYBRID, **LATENT},
    "granitemoehybrid": {**HYBRID, "mamba_expand": 2},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "num_key_value_heads": 1},
    "falcon_h1": {"mamba_n_heads": 4},
    "mamba2": {"n_groups": 1, "num_heads": 8, "head_dim": 8, "expand": 2},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "hybrid_layer_ids": [1],
        "n_mamba_heads": 2,
        "mamba_headdim": 32,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
        "num_query_groups": 4,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 32,
        "shape_vocab_size": 32,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "inkling2_loop_text": {"unpadded_vocab_size": 258, "layer_types": ["hybrid_sliding", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid"] * 2, "router_hidden_size": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "kimi_linear": {
        **HYBRID,
        "mlp_layer_types": ["dense", "sparse"],
        "num_key_value_heads": HEADS,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "cohere_compass_text": {"layer_types": ["full_attention"] * 2},
    "dots3_note_text": {
        "num_key_value_heads": HEADS,
        "layer_types": ["indexed_attention", "sliding_attention"],
        "per_layer_config": {},
        "head_dim": 12,
    },
    "inkling2_text": {"layer_types": ["hybrid_sliding", "hybrid"], "unpadded_vocab_size": 258},
}
SEED = 0
MOST_NUMBERS = 1_200_000


@attrs.frozen
class Made:
    """A kind that could be made: the classes of its configuration and its model,
    and the settings.
    """

    kind: str
    config: Any
    model: str

    def write(self, directory: Path) -> Path:
        """Write a random model of this kind with the packaged tokenizer."""
        torch.manual_seed(SEED)
        model = getattr(transformers, self.model)(self.config).float()
        model.save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
        return directory


def find_kinds() -> Iterator[tuple[str, Any, str]]:
    """Yield each kind of causal language models: ``model_type``, class of the configuration, name
    of the model's class.
    """
    names: Any = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for kind, model in names.items():
        config = transformers.CONFIG_MAPPING[kind]
        yield kind, config, model


def make_kind(kind: str, config: Any, model: str) -> Made:
    """Make the small configuration of a kind. Raises whatever transformers raises where these sizes
    do not fit it.
    """
    known = config().to_dict()
    settings = {
        name: value
        for name, value in SIZES.items()
        if name in known and not (value is None and known[name] is None)
    }
    made = Made(kind, config(**(settings | OWN.get(kind, {}))), model)
    with torch.device("meta"):
        numbers = sum(one.numel() for one in getattr(transformers, model)(made.config).parameters())
    if numbers > MOST_NUMBERS:
        raise OverflowError(f"{kind} has {numbers:,} numbers with these sizes")
    return made
