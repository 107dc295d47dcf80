"""This project's server beside other people's and plain PyTorch: the same small model, the same
client, one server at a time.

    nox -s compat -- peers [--only ours hatchery --repetitions 3]

Each server runs as in the comparison of servers (``tests/compat/servers``), with two threads. A row
is the median by the clock, and in brackets the processor time of the server's processes. ``plain``
is transformers and PEFT in this process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

# two threads, which sleep while they wait
os.environ.update(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "compat" / "servers"))

import numpy as np
import psutil
import torch
from peft import LoraConfig, get_peft_model
from run import free_port, fresh_folder, server_python
from servers import KEY, MODEL, SERVERS, Server, StartError, running
from transformers import AutoModelForCausalLM, PreTrainedModel

import tinker

VOCABULARY, RANK, LEARNING_RATE = 256, 8, 1e-4  # SkyRL is started with adapters of rank 8 at most
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
SECONDS = 300.0  # that one call may take
STANDS_IN = {"tuft": "its sampler is vLLM, in whose place the comparison runs one of this project"}
Rows = list[list[int]]


class Contender(Protocol):
    """What is measured: training steps and samples."""

    def step(self, rows: Rows) -> None:
        """Take a step of cross entropy."""
        ...

    def refresh(self) -> None:
        """Take the present weights for the samples that follow."""
        ...

    def sample(self, prompts: Rows, tokens: int, count: int) -> None:
        """Draw samples of exactly that length."""
        ...


class Served:
    """A server behind this client."""

    def __init__(self, url: str) -> None:
        self._service = tinker.ServiceClient(base_url=url, api_key=KEY)
        self._training = self._service.create_lora_training_client(MODEL, rank=RANK, seed=0).result(
            SECONDS
        )
        self._sampler: tinker.SamplingClient | None = None

    def step(self, rows: Rows) -> None:
        # TuFT requires weights
        inputs = [{"target_tokens": row[1:], "weights": [1.0] * len(row[1:])} for row in rows]
        data = [
            tinker.Datum(tinker.ModelInput.from_ints(row[:-1]), one)
            for row, one in zip(rows, inputs, strict=True)
        ]
        loss = self._training.forward_backward(data, "cross_entropy")
        self._training.optim_step(tinker.AdamParams(learning_rate=LEARNING_RATE)).result(SECONDS)
        loss.result(SECONDS)

    def refresh(self) -> None:
        self._sampler = self._training.save_weights_and_get_sampling_client()

    def sample(self, prompts: Rows, tokens: int, count: int) -> None:
        assert self._sampler is not None
        params = tinker.SamplingParams(max_tokens=tokens, stop=[])
        inputs = [tinker.ModelInput.from_ints(prompt) for prompt in prompts]
        for future in [self._sampler.sample(one, count, params) for one in inputs]:
            future.result(SECONDS)

    def close(self) -> None:
        self._service.close()


class Plain:
    """Transformers and PEFT."""

    def __init__(self, folder: Path) -> None:
        base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = get_peft_model(
            base, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS)
        )
        trained = [one for one in self._model.parameters() if one.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)

    def step(self, rows: Rows) -> None:
        tokens = torch.tensor(rows)
        logits = self._model(input_ids=tokens[:, :-1], use_cache=False).logits
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
        ).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def refresh(self) -> None:
        pass

    def sample(self, prompts: Rows, tokens: int, count: int) -> None:
        asked = torch.tensor([prompt for prompt in prompts for _ in range(count)])
        options = {
            "max_new_tokens": tokens,
            "min_new_tokens": tokens,
            "do_sample": True,
            "top_k": 0,
            "pad_token_id": 0,
        }
        with torch.no_grad():
            self._model.generate(input_ids=asked, attention_mask=torch.ones_like(asked), **options)


class Prompts:
    """Random tokens, which never repeat."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def rows(self, count: int, length: int) -> Rows:
        return self._rng.integers(1, VOCABULARY, (count, length)).tolist()


def grpo(one: Contender, prompts: Prompts) -> None:
    """Do what a loop of reinforcement learning does: sample groups, take a step, sample from the
    new weights.
    """
    for _ in range(3):
        one.refresh()
        one.sample(prompts.rows(8, 16), 32, 8)
        one.step(prompts.rows(64, 48))


SAMPLED: dict[str, Callable[[Contender, Prompts], None]] = {
    "1 prompt x 64 tokens": lambda one, prompts: one.sample(prompts.rows(1, 16), 64, 1),
    "64 prompts x 32 tokens": lambda one, prompts: one.sample(prompts.rows(64, 16), 32, 1),
    "16 samples of a prompt of 900": lambda one, prompts: one.sample(prompts.rows(1, 900), 16, 16),
    "3 x (8 x 8 x 32 tokens, step, new sampler)": grpo,
}
ROWS: dict[str, Callable[[Contender, Prompts], None]] = {
    "step 8 x 64": lambda one, prompts: one.step(prompts.rows(8, 64)),
    "step 8 x 512": lambda one, prompts: one.step(prompts.rows(8, 512)),
    **SAMPLED,
}


class Usage:
    """The processes whose processor time and memory count: this one for plain, else those that it
    started.
    """

    def __init__(self, server: Server | None) -> None:
        self._own = server is None

    def _processes(self) -> list[psutil.Process]:
        this = psutil.Process()
        return [this] if self._own else this.children(recursive=True)

    def seconds(self) -> float:
        times = [one.cpu_times() for one in self._processes()]
        return sum(one.user + one.system for one in times)

    def megabytes(self) -> float:
        return sum(one.memory_info().rss for one in self._processes()) / 2**20


def measure(
    one: Contender, usage: Usage, names: list[str], repetitions: int
) -> Iterator[tuple[str, str]]:
    """Yield the name and the figure of each row; the first repetition warms up."""
    prompts = Prompts()
    one.refresh()
    for name in names:
        walls, processors = list[float](), list[float]()
        for _ in range(repetitions + 1):
            wall, processor = time.perf_counter(), usage.seconds()
            try:
                ROWS[name](one, prompts)
            except tinker.TinkerError as error:
                print(
                    f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}",
                    flush=True,
                )
                break
            walls.append(time.perf_counter() - wall)
            processors.append(usage.seconds() - processor)
        wall, processor = (
            1000 * statistics.median(some[1:] or [0.0]) for some in (walls, processors)
        )
        yield name, f"{wall:,.0f} ({processor:,.0f})" if len(walls) > repetitions else "fails"


@contextmanager
def contender(server: Server | None, scratch: Path, clone: Path | None) -> Iterator[Contender]:
    """Yield a server of its own, or plain PyTorch."""
    folder = fresh_folder(scratch / "run" / f"{'plain' if server is None else server.name}-speed")
    if server is None:
        yield Plain(folder / MODEL)
        return
    with running(server, server_python(server, scratch, clone), folder, free_port()) as url:
        served = Served(url)
        yield served
        served.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scratch", required=True, type=Path, help="where environments and servers' files are kept"
    )
    parser.add_argument(
        "--only", nargs="*", choices=["plain", *(one.name for one in SERVERS)], help="these"
    )
    parser.add_argument(
        "--repetitions", type=int, default=5, help="of each row, whose median counts"
    )
    parser.add_argument(
        "--openrl", type=Path, help="a clone of OpenRL, which has no package; else GitHub is asked"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    columns: dict[str, dict[str, str]] = {}
    for server in (None, *SERVERS):
        name = "plain" if server is None else server.name
        if arguments.only and name not in arguments.only:
            continue
        print(f"== {name}", flush=True)
        began, usage = time.perf_counter(), Usage(server)
        try:
            with contender(server, arguments.scratch.resolve(), arguments.openrl) as one:
                one.step(Prompts().rows(1, 16))
                start = {"start to first step, s": f"{time.perf_counter() - began:.1f}"}
                names = [row for row in ROWS if name not in STANDS_IN or row not in SAMPLED]
                columns[name] = {**start, **dict(measure(one, usage, names, arguments.repetitions))}
                columns[name]["memory at the end, MB"] = f"{usage.megabytes():,.0f}"
        except (StartError, tinker.TinkerError) as error:
            print(error, flush=True)
    print_table(columns)


def print_table(columns: dict[str, dict[str, str]]) -> None:
    """Print a table in Markdown; milliseconds where a row names no other unit."""
    print(f"| ms (of the processor) | {' | '.join(columns)} |")
    print(f"|---|{'--:|' * len(columns)}")
    for row in ("start to first step, s", *ROWS, "memory at the end, MB"):
        print(f"| {row} | {' | '.join(one.get(row, '') for one in columns.values())} |")
    for name, reason in STANDS_IN.items():
        if name in columns:
            print(f"\n{name} is not sampled from: {reason}.")


if __name__ == "__main__":
    main()
