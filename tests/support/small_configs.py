"""Small configurations of any kind that transformers has: its own defaults, with the sizes replaced
by small ones, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from support.families import EXPERTS, LATENT, LINEAR, ROPE, SIZES

TEXT = {
    **SIZES,
    **EXPERTS,
    **LATENT,
    **{name: size for name, size in LINEAR.items() if name != "layer_types"},
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "shared_expert_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "sliding_window": 8,
    "index_topk": 4,  # fewer than the tokens of the tests, so that an index chooses
    "index_head_dim": 16,
    # of few heads all may be 0 for several tokens, and which of those is chosen is left to chance
    "index_n_heads": 16,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
}
TOWER = {
    "vocab_size": SIZES["vocab_size"],
    **dict.fromkeys(
        (
            "hidden_size",
            "embed_dim",
            "d_model",
            "width",
            "out_hidden_size",
            "output_dim",
            "projection_dim",
        ),
        32,
    ),
    **dict.fromkeys(("intermediate_size", "mlp_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "depth", "n_layers", "encoder_layers"), 1),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "encoder_attention_heads", "num_key_value_heads"), 4
    ),
    "encoder_hidden_size": 32,
    "head_dim": 8,
    "image_size": 16,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
    "window_size": 16,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
    "num_mel_bins": 16,
    "max_source_positions": 40,
    "num_query_tokens": 4,
    "initializer_range": 0.2,
}


@attrs.frozen
class Kind:
    """A kind of transformers by its ``model_type``, with a name for people and the options that its
    sizes ask for.

    ``loads``: the kind of the part that is loaded, where a checkpoint has more than one model.
    """

    model_type: str
    name: str = ""
    form: str = "dense"
    options: Mapping[str, Any] = {}
    loads: str = ""

    def make_config(self) -> Any:
        """Return a configuration of a model of two layers."""
        import transformers

        full = transformers.AutoConfig.for_model(self.model_type)
        if not self.loads:
            return _make(full, self.options)
        part = attrs.evolve(self, model_type=self.loads, loads="").make_config()
        name = next(name for name, kind in full.sub_configs.items() if isinstance(part, kind))
        return type(full)(**{name: part.to_dict()}, enable_audio_output=False)


def find_class(config: Any) -> Any:
    """Return the class that a checkpoint of this configuration has."""
    import transformers

    other: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), other)


def _make(full: Any, options: Mapping[str, Any]) -> Any:
    sizes = _shrink(full, full.get_text_config(decoder=True))
    return type(full)(**_merge(sizes, options))


def _shrink(config: Any, text: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: size
        for name, size in (TEXT if config is text else TOWER).items()
        if _value(config, name) is not None
    }
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            found[name] = {**_shrink(part, text), "model_type": part.model_type}
    return found


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except RuntimeError:  # some sizes differ from layer to layer
        return True


def _merge(sizes: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        inner = isinstance(value, Mapping) and isinstance(sizes.get(name), dict)
        sizes[name] = _merge(sizes[name], value) if inner else value
    return sizes


def text(**options: Any) -> dict[str, Any]:
    return {"text_config": options}


START = {"vision_start_token_id": 252}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
WHOLE_ROPE = {"rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 1.0}}
ALIKE_HEADS = {"num_key_value_heads": 4, "head_dim": LATENT["qk_rope_head_dim"]}
MIXED = {"layer_types": LINEAR["layer_types"]}
INDEXED_LAYERS = {"layer_types": ["linear_attention", "indexed_attention"]}
INDEXED = {
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
# Kinds with a tower whose text is trained: those that people name, and how the page calls them.
TOWERS = [
    Kind("mistral3", "Mistral Small 3, Ministral 3"),
    Kind("kimi_k25", "Kimi K2.5", "experts, latent attention", text(**ALIKE_HEADS)),
    Kind("glm4v", "GLM-4.1V", options=text(**ROPE)),
    Kind("glm46v", "GLM-4.6V Flash", options=text(**ROPE)),
    Kind("glm4v_moe", "GLM-4.5V, GLM-4.6V", "experts", text(**WHOLE_ROPE)),
    Kind("internvl", "InternVL"),
    Kind(
        "lfm2_vl",
        "LFM2-VL",
        "convolution",
        text(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    ),
    Kind("smolvlm", "SmolVLM"),
    Kind(
        "gemma4",
        "Gemma 4",
        "dense, windows",
        text(hidden_size_per_layer_input=8, vocab_size_per_layer_input=258),
    ),
    Kind(
        "qwen2_5_omni",
        "Qwen2.5-Omni",
        loads="qwen2_5_omni_thinker",
        options={**text(**ROPE), **START},
    ),
    Kind(
        "qwen3_omni_moe",
        "Qwen3-Omni",
        "experts",
        {**text(**ROPE, sliding_window=None), **START},
        loads="qwen3_omni_moe_thinker",
    ),
    Kind(
        "minimax_m3_vl",
        "MiniMax M3-VL",
        "experts",
        text(index_block_size=4, index_topk_blocks=2, index_n_heads=2, index_head_dim=8),
    ),
    Kind("llava", "LLaVA"),
    Kind("exaone4_5", "EXAONE 4.5"),
]
# Kinds whose caches hold one row each.
ONE_ROW = [
    Kind("deepseek_v32", "DeepSeek-V3.2", "experts, indexed latent attention", ALIKE_HEADS),
    Kind(
        "deepseek_v4",
        "DeepSeek-V4",
        "experts, compressed attention",
        {
            "num_key_value_heads": 1,
            "o_groups": 2,
            "o_lora_rank": 8,
            "num_hidden_layers": 3,
            "layer_types": [
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
            "mlp_layer_types": ["hash_moe", "moe", "moe"],
        },
    ),
    Kind("glm_moe_dsa", "GLM-5", "experts, indexed latent attention", ALIKE_HEADS),
    Kind(
        "qwen4_exp",
        "Qwen4-Exp",
        "experts, indexed attention, linear attention",
        text(**INDEXED_LAYERS, **INDEXED, **WHOLE_ROPE),
    ),
    Kind("hy_v4", "HunYuan 4", "experts, indexed latent attention", ALIKE_HEADS),
    Kind("axk2", "A.X K2", "experts, indexed latent attention", ALIKE_HEADS),
    Kind(
        "dots3_note_text",
        "dots3",
        "experts, indexed latent attention, windows",
        {
            "num_key_value_heads": 4,
            "layer_types": ["sliding_attention", "indexed_attention"],
            "swa_head_dim": 12,
            "swa_qk_nope_head_dim": 8,
            "swa_v_head_dim": 8,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
        },
    ),
    Kind("minimax", "MiniMax M1", "experts, linear attention", MIXED),
]
PLAIN = [
    "aria",
    "aya_vision",
    "cosmos3_omni",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "fuyu",
    "gemma3",
    "gemma4_unified",
    "glmasr",
    "got_ocr2",
    "granite_docling",
    "granite_speech",
    "granite_speech_plus",
    "hyperclovax_vision_v2",
    "idefics2",
    "idefics3",
    "lighton_ocr",
    "llava_next",
    "llava_next_video",
    "llava_onevision",
    "mllama",
    "moss_transcribe_diarize",
    "omniasr",
    "ovis2",
    "pp_chart2table",
    "qianfan_ocr",
    "qwen2_audio",
    "qwen3_asr",
    "video_llama_3",
    "video_llava",
    "vipllava",
    "voxtral",
]
# Other kinds of transformers whose text is trained, by ``tests/families``.
OTHERS = [
    *map(Kind, PLAIN),
    Kind("cohere2_vision", options={"alignment_intermediate_size": 64}),
    Kind("cosmos3_edge", options=text(**ROPE)),
    Kind("fun_asr_nano", options={"adaptor_config": {"intermediate_size": 8}}),
    Kind("glm_ocr", options=text(**ROPE)),
    Kind(
        "hunyuan_vl",
        options=text(head_dim=8, rope_parameters={**PLAIN_ROPE, "mrope_section": [1, 1, 1, 1]}),
    ),
    Kind("lfm3_vl", options=text(layer_types=["conv", "full_attention"])),
    Kind("minicpm_ocr", options=text(**MIXED)),
    Kind("minicpmv4_6", options=text(**MIXED)),
    Kind("minicpmv4_7", options=text(**MIXED)),
    Kind(
        "molmo2",
        options={
            "vision_config": {"image_size": [16, 16]},
            "adapter_config": {"vision_feature_layer": [0]},
        },
    ),
    Kind("paddleocr_vl", options=text(**ROPE)),
    Kind("step3p7", options=text(sliding_window=8)),
]
# Other kinds whose caches hold one row each.
OTHER_ONE_ROW = [
    Kind(
        "glm5_next",
        options=text(
            head_dim=8, num_key_value_heads=4, qk_rope_head_dim=0, index_kpool=2, **INDEXED_LAYERS
        ),
    ),
    Kind(
        "hy_v4_vl",
        options=text(**ALIKE_HEADS, rope_parameters={**PLAIN_ROPE, "mrope_section": [1, 1, 0]}),
    ),
]
