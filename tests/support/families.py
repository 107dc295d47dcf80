"""Small random models of the families that people train, two layers each, with the packaged
tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from tinker.local.engines import PACKAGED_FOLDER

SIZES = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": 256,
    "bos_token_id": 256,
    "pad_token_id": 257,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


@attrs.frozen
class Family:
    """A family: its configuration in transformers, its options besides the common sizes, and the
    expected features.
    """

    name: str
    kind: str
    config: str
    model: str
    options: Mapping[str, Any] = {}
    tower: Mapping[str, Any] = {}

    @property
    def reads_images(self) -> bool:
        """Whether it has a tower for images."""
        return bool(self.tower)

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return "experts" in self.kind

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of its configuration."""
        sizes = {**SIZES, **self.options}
        if not self.reads_images:
            return sizes
        tokens = {
            "image_token_id": IMAGE,
            "vision_start_token_id": VISION_START,
            "vision_end_token_id": VISION_END,
        }
        return {
            "text_config": sizes,
            "vision_config": {**TOWER, **self.tower},
            "video_token_id": 254,
            **tokens,
        }


IMAGE, VISION_START, VISION_END = 251, 252, 253  # token ids of families that read images
PATCH, MERGED = 4, 2  # pixels of a patch, and patches of a token, in one direction
TOWER = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGED,
    "temporal_patch_size": 2,
    "out_hidden_size": SIZES["hidden_size"],
    "initializer_range": 0.2,
}
POSITIONS = {"num_position_embeddings": 64}
DEEP = {**POSITIONS, "deepstack_visual_indexes": [0]}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH,
    "merge_size": MERGED,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 8 * 8, "longest_edge": 48 * 48},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
ROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
SHARED = {"shared_expert_intermediate_size": 24}
FAMILIES = [
    Family("Llama", "dense", "LlamaConfig", "LlamaForCausalLM"),
    Family("Qwen3", "dense", "Qwen3Config", "Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    Family("Gemma 3", "dense, windows", "Gemma3TextConfig", "Gemma3ForCausalLM", WINDOWS),
    Family("Phi-3", "dense", "Phi3Config", "Phi3ForCausalLM"),
    Family(
        "Qwen3-MoE",
        "experts",
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "mlp_only_layers": [0]},
    ),
    Family(
        "gpt-oss",
        "experts, windows",
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default"},
            **WINDOWS,
        },
    ),
    Family(
        "DeepSeek-V3",
        "experts, latent attention",
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
            "head_dim": LATENT["qk_rope_head_dim"],
        },
    ),
    Family(
        "Qwen3-Next",
        "experts, linear attention",
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**LINEAR, **EXPERTS, **SHARED},
    ),
    Family("Qwen3.5", "linear attention", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", LINEAR),
    Family(
        "Qwen3.5-MoE",
        "experts, linear attention",
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**LINEAR, **EXPERTS, **SHARED},
    ),
    Family(
        "LFM2",
        "convolution",
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    Family(
        "Falcon-H1",
        "dense, state space beside attention",
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    Family(
        "Nemotron-H",
        "dense, state space",
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            "layers_block_type": ["mamba", "attention", "mlp"],
            "num_hidden_layers": 3,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 2,
            "chunk_size": 8,
        },
    ),
    Family("Qwen3-VL", "dense", "Qwen3VLConfig", "Qwen3VLForConditionalGeneration", ROPE, DEEP),
    Family(
        "Qwen3-VL-MoE",
        "experts",
        "Qwen3VLMoeConfig",
        "Qwen3VLMoeForConditionalGeneration",
        {**ROPE, **EXPERTS},
        DEEP,
    ),
    Family(
        "Qwen2-VL",
        "dense",
        "Qwen2VLConfig",
        "Qwen2VLForConditionalGeneration",
        ROPE,
        {"embed_dim": 16, "hidden_size": SIZES["hidden_size"], "mlp_ratio": 2},
    ),
    Family(
        "Qwen2.5-VL",
        "dense",
        "Qwen2_5_VLConfig",
        "Qwen2_5_VLForConditionalGeneration",
        ROPE,
        {"window_size": 4 * PATCH, "fullatt_block_indexes": [1]},
    ),
    Family(
        "Qwen3.5 with images",
        "linear attention",
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
        {**LINEAR, "rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 1.0}},
        POSITIONS,
    ),
    Family(
        "Qwen3.5-MoE with images",
        "experts, linear attention",
        "Qwen3_5MoeConfig",
        "Qwen3_5MoeForConditionalGeneration",
        {
            **LINEAR,
            **EXPERTS,
            **SHARED,
            "rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 1.0},
        },
        POSITIONS,
    ),
]


def write_family(family: Family, directory: Path) -> Path:
    """Write a random model of this family. Needs torch and transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, family.config)(**family.settings)
    getattr(transformers, family.model)(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
    if family.reads_images:
        (directory / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return directory
