"""How much memory a long datum over a large vocabulary takes, beside what the body of the model
takes of it alone. On Linux.

    python benchmarks/long_context.py [--tokens 8192] [--vocabulary 151936] [--hidden 256]
        [--layers 4] [--recompute never]

Needs the extra ``local``. The model is a random Qwen3, made by this script. Memory is the peak of
the resident memory of this process above what it was before. The body alone is the same pass, with
a gradient of ones for its states.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import tinker
from tinker.local.engines.protocol import AdapterSpec, TrainingExample
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.lora import find_trim, recompute_layers
from tinker.local.engines.torch.passes import chunk_cells

TOKENIZER = Path(tinker.__file__).parent / "local" / "base_model"
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def write_model(folder: Path, options: argparse.Namespace) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=options.hidden // 4,
        max_position_embeddings=options.tokens,
        tie_word_embeddings=True,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    return folder


def read_status(name: str) -> float:
    """Return a figure of this process in MB."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6


def measure_peak(work: Callable[[], object]) -> float:
    """Return by how many MB the resident memory was higher at its peak than before."""
    gc.collect()
    if (trim := find_trim()) is not None:
        trim(0)
    CLEAR_REFS.write_text("5")  # the peak begins anew
    before = read_status("VmRSS")
    work()
    return read_status("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--recompute", choices=["never", "always"], default="never")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = TorchEngine(
            write_model(Path(folder) / "long", options), device="cpu", recompute=options.recompute
        )
        engine.create_adapter("a", AdapterSpec(rank=16, seed=0))
        tokens = (
            np.random.default_rng(0)
            .integers(1, options.vocabulary, options.tokens)
            .astype(np.int32)
        )
        datum = TrainingExample(
            tokens=tokens, loss_inputs={"target_tokens": tokens.astype(np.int64)}
        )
        weights: Any = engine._adapter("a").weights

        def run_body() -> None:
            parameters = list(weights.tensors.values())
            ids = torch.from_numpy(tokens.astype(np.int64))[None]
            with (
                engine._slots.activate(weights),
                recompute_layers(engine._model, options.recompute == "always"),
            ):
                states = engine._trainer._split.run(input_ids=ids, use_cache=False).states
                torch.autograd.grad(states, parameters, torch.ones_like(states), allow_unused=True)

        run_body()  # warms up
        body = measure_peak(run_body)
        whole = measure_peak(
            lambda: engine.forward_backward("a", [datum], "cross_entropy", {}, backward=True)
        )
    chunk, logits = (
        chunk_cells(torch.device("cpu")) * 4 / 1e6,
        options.tokens * options.vocabulary * 4 / 1e6,
    )
    layers = f"{options.layers} layers of {options.hidden}"
    size = f"{options.tokens} x {options.vocabulary:,}, {layers}, recompute {options.recompute}"
    print(
        "| datum | its logits | body alone | one chunk | training step | against body and chunk "
        "|\n|---|--:|--:|--:|--:|--:|"
    )
    figures = " | ".join(f"{number:,.0f} MB" for number in (logits, body, chunk, whole))
    print(f"| {size} | {figures} | {whole / (body + chunk):.2f} |")


if __name__ == "__main__":
    main()
