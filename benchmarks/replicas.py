"""Training steps and sampled tokens per second of a server with one process and with several, each with one thread.

    python benchmarks/replicas.py --replicas 1 2 --rounds 3

The model is a random Llama. Rounds alternate between the servers; medians are printed. A core must be free for each process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tinker
from tinker.local.engines.opening import PACKAGED_FOLDER

DATA, LONGEST, STEPS, PROMPTS, TOKENS = 24, 384, 6, 32, 48
SECONDS = 600.0


def write_model(folder: Path) -> str:
    """Write a random model with the packaged tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=258, max_position_embeddings=1024, eos_token_id=256, pad_token_id=257, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
    return str(folder)


@contextmanager
def serving(model: str, replicas: int, data: Path) -> Iterator[str]:
    """Run a server whose processes have one thread each; yields its URL."""
    options = ["--model", model, "--device", "cpu", "--port", "0", "--data", str(data), "--replicas", str(replicas)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tinker.cli", "serve", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].split()[0]
    finally:
        process.terminate()
        process.communicate()


def make_data() -> list[tinker.Datum]:
    """Return data of unlike lengths, the same in every round."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, int(length)).tolist() for length in rng.integers(LONGEST // 8, LONGEST, DATA)]
    return [
        tinker.Datum(model_input=tinker.ModelInput.from_ints(row[:-1]), loss_fn_inputs={"target_tokens": row[1:]})
        for row in rows
    ]


def measure(url: str, seed: int) -> tuple[float, float, float]:
    """Return steps, trained tokens and sampled tokens per second."""
    data = make_data()
    with tinker.ServiceClient(base_url=url) as service:
        model = service.get_server_capabilities().supported_models[0].model_name
        assert model is not None
        training = service.create_lora_training_client(model, rank=16, seed=seed)
        for steps in (1, STEPS):  # the first one warms up
            began = time.perf_counter()
            for _ in range(steps):
                training.forward_backward(data, "cross_entropy").result(SECONDS)
                training.optim_step(tinker.AdamParams(learning_rate=1e-4)).result(SECONDS)
            trained = steps / (time.perf_counter() - began)
        sampler, params = training.save_weights_and_get_sampling_client(), tinker.SamplingParams(max_tokens=TOKENS, stop=[])
        began = time.perf_counter()
        futures = [sampler.sample(tinker.ModelInput.from_ints([n, 1, 2]), 1, params) for n in range(PROMPTS)]
        drawn = sum(len(future.result(SECONDS).sequences[0].tokens) for future in futures)
    return trained, trained * sum(datum.model_input.length for datum in data), drawn / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model, found = write_model(Path(name) / "random-llama"), {count: [] for count in arguments.replicas}
        for seed in range(arguments.rounds):
            for count, rows in found.items():
                with serving(model, count, Path(name) / "data") as url:
                    rows.append(measure(url, seed))
                print(count, *(f"{value:.2f}" for value in rows[-1]), flush=True)
    print("replicas: steps/s, trained tokens/s, sampled tokens/s")
    for count, rows in found.items():
        print(f"{count}: " + ", ".join(f"{statistics.median(column):.2f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
