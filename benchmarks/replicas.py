"""Training steps and sampled tokens per second of a server with one process and with several, each
with one thread.

    python benchmarks/replicas.py --replicas 1 2 --rounds 3
    python benchmarks/replicas.py --replicas 2 --fsdp      # the model is split over them

The model is a random Llama. Rounds alternate between the servers; medians are printed: by the
clock, and by the processor time of the server and its busiest worker, which is what the clock would
show with a core free for each process. Linux only.
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
from tinker.local.engines import PACKAGED_FOLDER

DATA, LONGEST, STEPS, PROMPTS, TOKENS = 24, 384, 4, 32, 32
SECONDS = 600.0


def write_model(folder: Path) -> str:
    """Write a random model with the packaged tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    config = transformers.LlamaConfig(
        vocab_size=258, max_position_embeddings=1024, eos_token_id=256, pad_token_id=257, **shape
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((PACKAGED_FOLDER / name).read_bytes())
    return str(folder)


@contextmanager
def serving(model: str, replicas: int, data: Path, *, fsdp: bool) -> Iterator[tuple[str, int]]:
    """Run a server whose processes have one thread each; yields its URL and its process."""
    options = [
        "--model",
        model,
        "--device",
        "cpu",
        "--port",
        "0",
        "--data",
        str(data),
        "--replicas",
        str(replicas),
    ]
    options += ["--fsdp"] if fsdp else []
    process = subprocess.Popen(
        [sys.executable, "-m", "tinker.cli", "serve", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].split()[0], process.pid
    finally:
        process.terminate()
        process.communicate()


def find_descendants(pid: int, name: str) -> list[int]:
    """Return the processes below this one, at any depth, whose command contains the name."""
    found: list[int] = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        found += [child] if name in Path(f"/proc/{child}/cmdline").read_text() else []
        found += find_descendants(child, name)
    return found


def make_data() -> list[tinker.Datum]:
    """Return data of unlike lengths, the same in every round."""
    rng = np.random.default_rng(0)
    rows = [
        rng.integers(0, 256, int(length)).tolist()
        for length in rng.integers(LONGEST // 8, LONGEST, DATA)
    ]
    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={"target_tokens": row[1:]},
        )
        for row in rows
    ]


def read_times(pid: int) -> list[float]:
    """Return the processor time of a server and of each of its workers, in seconds."""
    return [_read_time(one) for one in (pid, *find_descendants(pid, "ray::Host"))]


def _read_time(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Meter:
    """The time of a block: by the ``clock``, and of the processor: that of the server and of its
    busiest worker.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.clock = self.cpu = 0.0

    def __enter__(self) -> Meter:
        self._began, self._before = time.perf_counter(), read_times(self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.clock = time.perf_counter() - self._began
        server, *workers = [
            now - before for now, before in zip(read_times(self._pid), self._before, strict=True)
        ]
        self.cpu = server + max(workers, default=0.0)


def measure(url: str, pid: int, seed: int) -> list[float]:
    """Return steps, trained tokens and sampled tokens per second, by the clock and then by
    processor time.
    """
    data = make_data()
    tokens = sum(datum.model_input.length for datum in data)
    with tinker.ServiceClient(base_url=url) as service:
        model = service.get_server_capabilities().supported_models[0].model_name
        assert model is not None
        training = service.create_lora_training_client(model, rank=16, seed=seed)
        train(training, data, 1)
        with Meter(pid) as trained:
            train(training, data, STEPS)
        sampler, params = (
            training.save_weights_and_get_sampling_client(),
            tinker.SamplingParams(max_tokens=TOKENS, stop=[]),
        )
        with Meter(pid) as sampled:
            futures = [
                sampler.sample(tinker.ModelInput.from_ints([n, 1, 2]), 1, params)
                for n in range(PROMPTS)
            ]
            drawn = sum(len(future.result(SECONDS).sequences[0].tokens) for future in futures)
    found = [(trained.clock, sampled.clock), (trained.cpu, sampled.cpu)]
    return [
        rate
        for step, sample in found
        for rate in (STEPS / step, STEPS * tokens / step, drawn / sample)
    ]


def train(training: tinker.TrainingClient, data: list[tinker.Datum], steps: int) -> None:
    """Take steps, one after the other."""
    for _ in range(steps):
        training.forward_backward(data, "cross_entropy").result(SECONDS)
        training.optim_step(tinker.AdamParams(learning_rate=1e-4)).result(SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fsdp", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model, found = (
            write_model(Path(name) / "random-llama"),
            {count: list[list[float]]() for count in arguments.replicas},
        )
        for seed in range(arguments.rounds):
            for count, rows in found.items():
                with serving(model, count, Path(name) / "data", fsdp=arguments.fsdp) as server:
                    rows.append(measure(*server, seed))
                print(count, *(f"{value:.2f}" for value in rows[-1]), flush=True)
    print("replicas: steps/s, trained tokens/s, sampled tokens/s; the same by processor time")
    for count, rows in found.items():
        print(
            f"{count}: "
            + ", ".join(f"{statistics.median(column):.2f}" for column in zip(*rows, strict=True))
        )


if __name__ == "__main__":
    main()
