"""Small random models of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinker.local.engines import PACKAGED_FOLDER
from tinker.local.engines.protocol import SampleJob, SampleResult

if TYPE_CHECKING:
    from tinker.local.engines.torch import TorchEngine


def write_tiny_llama(directory: Path) -> Path:
    """Write a random two-layer Llama with tied embeddings, and the packaged tokenizer. Needs torch
    and transformers.
    """
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


def sample_jobs(engine: TorchEngine, jobs: Sequence[SampleJob]) -> list[SampleResult]:
    """Sample jobs together to their end. Raises the failure of one that fails."""
    batch, results = engine.open_batch(2**16), dict[object, SampleResult]()
    for index, job in enumerate(jobs):
        batch.add(index, job)
    while len(results) < len(jobs):
        for ticket, outcome in batch.step():
            if isinstance(outcome, Exception):
                raise outcome
            results[ticket] = outcome
    return [results[index] for index in range(len(jobs))]
