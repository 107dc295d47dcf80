"""What samples and training steps cost above their HTTP exchanges: this client, and bare aiohttp with such bodies, in turn.

    python benchmarks/floor.py

CPU of the whole process for each, medians over the rounds. Nothing below the bare figures is the client's to win while aiohttp
carries the exchanges.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

import tinker

HERE = Path(__file__).parent
SAMPLES, PROMPT_TOKENS, SAMPLED_TOKENS = 1000, 512, 128
STEPS, DATUMS, TOKENS = 10, 128, 4096
STEP_NBYTES = DATUMS * TOKENS * (4 + 8 + 4 + 4)  # int32 inputs, int64 targets, two float32 arrays
JSON, PROTOBUF = "application/json", "application/x-protobuf"

Submit = Callable[[str, bytes, str], Awaitable[None]]


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call, all threads."""
    before = time.process_time()
    work()
    return time.process_time() - before


def take_samples(sampler: tinker.SamplingClient, prompts: list[tinker.ModelInput]) -> None:
    """Ask for every sample at once, and wait for all."""
    params = tinker.SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0)
    for future in [sampler.sample(prompt, 1, params) for prompt in prompts]:
        future.result()


def take_steps(training: tinker.TrainingClient, data: list[tinker.Datum]) -> None:
    """Take training steps one after another, and read what they return."""
    for _ in range(STEPS):
        loss = training.forward_backward(data, "importance_sampling")
        training.optim_step(tinker.AdamParams()).result()
        for output in loss.result().loss_fn_outputs:
            output["logprobs"].to_numpy()


async def exchange_bare(base_url: str, exchanges: Callable[[Submit], Awaitable[object]]) -> None:
    """Make exchanges without this client; the responses are read and not decoded."""
    connector = aiohttp.TCPConnector(limit=512)
    async with aiohttp.ClientSession(f"{base_url}/", connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def post(path: str, body: bytes, media_type: str = JSON) -> bytes:
            headers = {"Content-Type": media_type, "Accept": f"{PROTOBUF}, {JSON}"}
            async with session.post(f"/api/v1/{path}", data=body, headers=headers) as response:
                return await response.read()

        async def submit(path: str, body: bytes, media_type: str) -> None:
            """Post a body, then a poll for what was promised."""
            promise: Any = json.loads(await post(path, body, media_type))
            await post("retrieve_future", json.dumps({"request_id": promise["request_id"]}).encode())

        await exchanges(submit)


def sample_body(number: int) -> bytes:
    """Return the body of one sample."""
    body = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(range(number, number + PROMPT_TOKENS))}]},
        "num_samples": 1,
        "sampling_params": {"max_tokens": SAMPLED_TOKENS, "temperature": 1.0},
        "sampling_session_id": "floor",
        "seq_id": number,
    }
    return json.dumps(body).encode()


def make_data() -> list[tinker.Datum]:
    """Return the data of one step, made of arrays."""
    floats = np.zeros(TOKENS, np.float32)
    inputs = {"target_tokens": np.arange(TOKENS), "logprobs": floats, "advantages": floats}
    return [tinker.Datum(tinker.ModelInput.from_ints(list(range(TOKENS))), inputs) for _ in range(DATUMS)]


def report(what: str, count: int, rounds: int, ours: Callable[[], object], bare: Callable[[], object]) -> None:
    """Measure both in turn, and print a line."""
    ours()  # opens the connections
    pairs = [(cpu_seconds(ours), cpu_seconds(bare)) for _ in range(rounds)]
    mine, floor = (statistics.median(seconds) / count * 1000 for seconds in zip(*pairs, strict=True))
    print(f"{what}: {mine:.2f} ms of CPU with this client, {floor:.2f} with bare aiohttp ({floor / mine:.0%})")


def main() -> None:
    """Measure samples and steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with subprocess.Popen([sys.executable, str(HERE / "stub_server.py")], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        base_url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        service = tinker.ServiceClient(base_url=base_url, api_key="tml-bench")

        sampler = service.create_sampling_client(base_model="stub/model").result()
        prompts = [tinker.ModelInput.from_ints(list(range(i, i + PROMPT_TOKENS))) for i in range(SAMPLES)]
        bodies = [sample_body(number) for number in range(SAMPLES)]

        async def samples(submit: Submit) -> None:
            await asyncio.gather(*(submit("asample", body, JSON) for body in bodies))

        report(
            "a sample",
            SAMPLES,
            rounds,
            lambda: take_samples(sampler, prompts),
            lambda: asyncio.run(exchange_bare(base_url, samples)),
        )

        training = service.create_lora_training_client(base_model="stub/model").result()
        data, batch = make_data(), bytes(STEP_NBYTES)

        async def steps(submit: Submit) -> None:
            for _ in range(STEPS):
                await asyncio.gather(submit("forward_backward", batch, PROTOBUF), submit("optim_step", b"{}", JSON))

        report(
            "a step",
            STEPS,
            rounds,
            lambda: take_steps(training, data),
            lambda: asyncio.run(exchange_bare(base_url, steps)),
        )
        server.kill()


if __name__ == "__main__":
    main()
