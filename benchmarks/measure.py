"""Measures one row in the environment that runs this file, whichever ``tinker`` is installed in it;
prints one JSON object.

    python benchmarks/measure.py samples --base-url http://127.0.0.1:8000

A row has variants. Each is a list of measurements ``{"cpu": ms, "wall": ms, "peak": MB}``, times of
one unit of the row. CPU is that of the whole process, all threads, user and system; the peak is
that of its resident memory until then. Where the process is not a new one, ``pages`` is how many
pages of memory the unit touched first. Only what both clients offer to users is used, but for the
command line, which is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Measurement = dict[str, float]

DATUMS, TOKENS = 128, 4096
SAMPLES, PROMPT_TOKENS, SAMPLED_TOKENS = 1000, 512, 128
MANY_SAMPLES = 10_000
STEP_REPETITIONS, LATER_BURSTS = 5, 2

_USED = """
import tinker
for name in "ServiceClient Datum ModelInput TensorData SamplingParams".split():
    getattr(tinker, name)
"""
_STARTED = """
service = tinker.ServiceClient(base_url={url!r})
sampler = service.create_sampling_client(base_model="stub/model").result()
prompt, params = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=128)
sampler.sample(prompt, 1, params).result()
"""
# A fresh process measures itself; ``{setup}`` is not measured.
_FRESH = """
import json, os, resource, time
{setup}
wall, cpu = time.perf_counter(), time.process_time()
{code}
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{"cpu": cpu * 1000, "wall": wall * 1000, "peak": peak}}), flush=True)
os._exit(0)
"""


def timed(
    work: Callable[[], object], count: int = 1, who: int = resource.RUSAGE_SELF
) -> Measurement:
    """One call, garbage of earlier ones collected before, divided by the number of units."""
    gc.collect()
    pages = resource.getrusage(who).ru_minflt
    wall, cpu = time.perf_counter(), _cpu_seconds(who)
    work()
    cpu, wall = _cpu_seconds(who) - cpu, time.perf_counter() - wall
    used = resource.getrusage(who)
    peak, pages = used.ru_maxrss / 1024, used.ru_minflt - pages  # kilobytes on Linux
    return {
        "cpu": cpu * 1000 / count,
        "wall": wall * 1000 / count,
        "peak": peak,
        "pages": pages / count,
    }


def _cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------------------- fresh processes


def measure_import(_: str) -> dict[str, list[Measurement]]:
    """Return a fresh interpreter each; what it needs to start is not counted."""
    return {"`import tinker`": [_fresh("import tinker")], "... and use its names": [_fresh(_USED)]}


def measure_start(base_url: str) -> dict[str, list[Measurement]]:
    """From the service client to the first sample, in a process that has imported its names."""
    return {"start, until the first sample is back": [_fresh(_STARTED.format(url=base_url), _USED)]}


def measure_command(base_url: str) -> dict[str, list[Measurement]]:
    """Return a whole process of the command line, its interpreter's start included."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "tinker",
        "sample",
        "--max-tokens",
        "12",
        "Once upon a time",
    ]
    environ = {**os.environ, "TINKER_BASE_URL": base_url}

    def sample() -> None:
        subprocess.run(command, check=True, capture_output=True, env=environ)

    sample()
    return {"`tinker sample` of 12 tokens": [timed(sample, who=resource.RUSAGE_CHILDREN)]}


def _fresh(code: str, setup: str = "") -> Measurement:
    # -P keeps the current directory, which may hold another tinker, off the path.
    command = [sys.executable, "-P", "-c", _FRESH.format(code=code, setup=setup)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: Measurement = json.loads(done.stdout)
    return result


# --------------------------------------------------------------------------------------------- step


def measure_step(base_url: str) -> dict[str, list[Measurement]]:
    """forward_backward and optim_step, submitted together and waited for; once from arrays, once
    from Python lists.
    """
    import numpy as np

    import tinker

    random = np.random.default_rng(0)
    tokens = random.integers(0, 100_000, (DATUMS, TOKENS + 1))
    floats = random.standard_normal((2, DATUMS, TOKENS)).astype(np.float32)
    lists = [
        (row[:-1].tolist(), row[1:].tolist(), a.tolist(), b.tolist())
        for row, a, b in zip(tokens, *floats, strict=True)
    ]

    def from_arrays() -> list[Any]:
        return [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(row[:-1].tolist()),
                loss_fn_inputs={
                    "target_tokens": tinker.TensorData.from_numpy(row[1:].astype(np.int64)),
                    "logprobs": tinker.TensorData.from_numpy(logprobs.copy()),
                    "advantages": tinker.TensorData.from_numpy(advantages.copy()),
                },
            )
            for row, logprobs, advantages in zip(tokens, *floats, strict=True)
        ]

    def from_lists() -> list[Any]:
        return [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(inputs),
                loss_fn_inputs={
                    "target_tokens": targets,
                    "logprobs": logprobs,
                    "advantages": advantages,
                },
            )
            for inputs, targets, logprobs, advantages in lists
        ]

    service = tinker.ServiceClient(base_url=base_url)
    training = service.create_lora_training_client(base_model="stub/model").result()

    def step(data: list[Any]) -> list[Any]:
        """The result is read as well, so that a client which puts decoding off pays for it here."""
        loss = training.forward_backward(data, "importance_sampling")
        optimizer = training.optim_step(tinker.AdamParams())
        optimizer.result()
        return [output["logprobs"].to_numpy() for output in loss.result().loss_fn_outputs]

    data = from_arrays()
    _check_step(step(data))
    step(data)
    return {
        "step of 128 x 4,096 tokens, from arrays": [
            timed(lambda: step(data)) for _ in range(STEP_REPETITIONS)
        ],
        "... from lists": [timed(lambda: step(from_lists())) for _ in range(STEP_REPETITIONS)],
    }


def _check_step(logprobs: list[Any]) -> None:
    expected = [-(position % 256) / 256 for position in range(TOKENS)]
    assert len(logprobs) == DATUMS
    assert all(array.tolist() == expected for array in logprobs)


# ------------------------------------------------------------------------------------------ samples


def measure_samples(base_url: str) -> dict[str, list[Measurement]]:
    """Return a thousand samples asked for at once and awaited in one coroutine: in a new process,
    and again.
    """
    # Every prompt is another one, so that nothing can be encoded once for all.
    burst = _burst(base_url, [list(range(i, i + PROMPT_TOKENS)) for i in range(SAMPLES)])
    first = timed(burst, SAMPLES)
    return {
        "one of 1,000 samples at once": [first],
        "... connections are open": [timed(burst, SAMPLES) for _ in range(LATER_BURSTS)],
    }


def measure_many(base_url: str) -> dict[str, list[Measurement]]:
    """Ten thousand samples asked for at once."""
    burst = _burst(base_url, [list(range(PROMPT_TOKENS))] * MANY_SAMPLES)
    return {"one of 10,000 samples at once": [timed(burst, MANY_SAMPLES)]}


def _burst(base_url: str, prompts: list[list[int]]) -> Callable[[], None]:
    import tinker

    inputs = [tinker.ModelInput.from_ints(prompt) for prompt in prompts]
    params = tinker.SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0)
    sampler = (
        tinker.ServiceClient(base_url=base_url)
        .create_sampling_client(base_model="stub/model")
        .result()
    )

    async def gathered() -> list[Any]:
        return await asyncio.gather(*[sampler.sample(prompt, 1, params) for prompt in inputs])

    def burst() -> None:
        """The results are read, for the same reason as in a step."""
        sequences = [response.sequences[0] for response in asyncio.run(gathered())]
        assert (
            sum(len(one.tokens) + len(one.logprobs) for one in sequences)
            == 2 * len(inputs) * SAMPLED_TOKENS
        )

    return burst


ROWS = {
    "samples": measure_samples,
    "many": measure_many,
    "step": measure_step,
    "start": measure_start,
    "import": measure_import,
    "command": measure_command,
}


def main() -> None:
    """Measure the row named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--base-url", required=True)
    arguments = parser.parse_args()
    print(json.dumps(ROWS[arguments.row](arguments.base_url)), flush=True)


if __name__ == "__main__":
    main()
