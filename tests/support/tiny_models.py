"""Small random models of transformers."""

from __future__ import annotations

from pathlib import Path

from tinker.local.engines.placement import PACKAGED_FOLDER


def write_tiny_llama(directory: Path) -> Path:
    """Write a random two-layer Llama with tied embeddings, and the packaged tokenizer. Needs torch and transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=True,
        eos_token_id=256,
        pad_token_id=257,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
    return directory
