"""Measures one row in the environment that runs this file, whichever ``tinker`` is installed in it; prints one JSON object.

    python benchmarks/measure.py samples --base-url http://127.0.0.1:8000

A row has variants. Each is a list of measurements ``{"cpu": s, "wall": s}``, import rows also ``"modules"``; those of memory
have ``"megabytes"`` alone. CPU is that of the whole process, all threads, user and system. Only what both clients offer to
users is used.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Measurement = dict[str, float]

DATUMS, TOKENS = 128, 4096
SAMPLES, PROMPT_TOKENS, SAMPLED_TOKENS = 1000, 512, 128
SAMPLES_IN_FLIGHT = 10_000
STEP_REPETITIONS, SAMPLE_REPETITIONS = 5, 2

NAMES = "ServiceClient Datum ModelInput TensorData SamplingParams"
# A fresh process measures itself; ``{setup}`` is not measured.
_FRESH = """
import json, os, sys, time
{setup}
before, wall, cpu = len(sys.modules), time.perf_counter(), time.process_time()
{code}
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
print(json.dumps({{"cpu": cpu, "wall": wall, "modules": len(sys.modules) - before}}), flush=True)
os._exit(0)
"""
_USED = f"import tinker\nfor name in {NAMES.split()!r}: getattr(tinker, name)"
IMPORT_VARIANTS = {
    "alone": "import tinker",
    "names used": _USED,
    "names used beside numpy": _USED,
    "client ready": (
        "import tinker\n"
        "client = tinker.ServiceClient(base_url={url!r}).create_sampling_client(base_model='stub/model').result()\n"
        "prompt = tinker.ModelInput.from_ints([1, 2, 3])"
    ),
}


def timed(work: Callable[[], object]) -> Measurement:
    """CPU and wall seconds of one call, garbage of earlier ones collected before."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


# -------------------------------------------------------------------------------------------------------------------- import


def measure_import(base_url: str) -> dict[str, list[Measurement]]:
    """A fresh interpreter each; what it needs to start is not counted."""
    return {
        variant: [_fresh(code.format(url=base_url), "import numpy" if "numpy" in variant else "")]
        for variant, code in IMPORT_VARIANTS.items()
    }


def _fresh(code: str, setup: str) -> Measurement:
    # -P keeps the current directory, which may hold another tinker, off the path.
    command = [sys.executable, "-P", "-c", _FRESH.format(code=code, setup=setup)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: Measurement = json.loads(done.stdout)
    return result


# ---------------------------------------------------------------------------------------------------------------------- step


def measure_step(base_url: str) -> dict[str, list[Measurement]]:
    """forward_backward and optim_step, submitted together and waited for; once from arrays, once from Python lists."""
    import numpy as np

    import tinker

    random = np.random.default_rng(0)
    tokens = random.integers(0, 100_000, (DATUMS, TOKENS + 1))
    floats = random.standard_normal((2, DATUMS, TOKENS)).astype(np.float32)
    lists = [(row[:-1].tolist(), row[1:].tolist(), a.tolist(), b.tolist()) for row, a, b in zip(tokens, *floats, strict=True)]

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
                loss_fn_inputs={"target_tokens": targets, "logprobs": logprobs, "advantages": advantages},
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
        "arrays": [timed(lambda: step(data)) for _ in range(STEP_REPETITIONS)],
        "lists": [timed(lambda: step(from_lists())) for _ in range(STEP_REPETITIONS)],
    }


def _check_step(logprobs: list[Any]) -> None:
    expected = [-(position % 256) / 256 for position in range(TOKENS)]
    assert len(logprobs) == DATUMS
    assert all(array.tolist() == expected for array in logprobs)


# ------------------------------------------------------------------------------------------------------------------- samples


def measure_samples(base_url: str) -> dict[str, list[Measurement]]:
    """Samples asked for at once and waited for, awaited in one coroutine or blocked on in one thread."""
    import tinker

    # Every prompt is another one, so that nothing can be encoded once for all.
    prompts = [tinker.ModelInput.from_ints(list(range(i, i + PROMPT_TOKENS))) for i in range(SAMPLES)]
    params = tinker.SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0)
    service = tinker.ServiceClient(base_url=base_url)
    sampler = service.create_sampling_client(base_model="stub/model").result()

    def read(responses: list[Any]) -> int:
        """What a user reads of a sample, for the same reason as in a step."""
        return sum(len(response.sequences[0].tokens) + len(response.sequences[0].logprobs) for response in responses)

    async def gathered() -> list[Any]:
        return await asyncio.gather(*[sampler.sample(prompt, 1, params) for prompt in prompts])

    def awaited() -> int:
        return read(asyncio.run(gathered()))

    def blocked() -> int:
        futures = [sampler.sample(prompt, 1, params) for prompt in prompts]
        return read([future.result() for future in futures])

    assert blocked() == 2 * SAMPLES * SAMPLED_TOKENS  # also opens the connections
    return {
        "awaited": [timed(awaited) for _ in range(SAMPLE_REPETITIONS)],
        "blocked": [timed(blocked) for _ in range(SAMPLE_REPETITIONS)],
    }


# -------------------------------------------------------------------------------------------------------------------- memory


def measure_memory(base_url: str) -> dict[str, list[Measurement]]:
    """Asks for ten thousand samples at once; how far the peak of the resident memory rises until all of them are there."""
    import tinker

    params = tinker.SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0)
    prompt = tinker.ModelInput.from_ints(list(range(PROMPT_TOKENS)))
    sampler = tinker.ServiceClient(base_url=base_url).create_sampling_client(base_model="stub/model").result()
    for future in [sampler.sample(prompt, 1, params) for _ in range(100)]:
        future.result()  # also opens the connections
    before = _peak_megabytes()
    futures = [sampler.sample(prompt, 1, params) for _ in range(SAMPLES_IN_FLIGHT)]
    for future in futures:
        assert len(future.result().sequences[0].tokens) == SAMPLED_TOKENS
    return {"samples": [{"megabytes": _peak_megabytes() - before}]}


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux


ROWS = {"import": measure_import, "step": measure_step, "samples": measure_samples, "memory": measure_memory}


def main() -> None:
    """Measure the row named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--base-url", required=True)
    arguments = parser.parse_args()
    print(json.dumps(ROWS[arguments.row](arguments.base_url)), flush=True)


if __name__ == "__main__":
    main()
