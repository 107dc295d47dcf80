"""What a sample costs above its two HTTP exchanges: this client, and bare aiohttp with the same bodies, in turn.

    python benchmarks/floor.py

CPU of the whole process for each sample, medians over the rounds. Nothing below the second figure is the client's to win while
aiohttp carries the exchanges.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

import tinker

HERE = Path(__file__).parent
SAMPLES, PROMPT_TOKENS, SAMPLED_TOKENS = 1000, 512, 128


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


async def exchange_bare(base_url: str, bodies: list[bytes]) -> None:
    """Post each body, then a poll for what was promised; the answers are read and not decoded."""
    headers = {"Content-Type": "application/json", "Accept": "application/x-protobuf, application/json"}
    connector = aiohttp.TCPConnector(limit=512)
    async with aiohttp.ClientSession(f"{base_url}/", connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def post(path: str, body: bytes) -> bytes:
            async with session.post(f"/api/v1/{path}", data=body, headers=headers) as response:
                return await response.read()

        async def exchange(body: bytes) -> None:
            promise: Any = json.loads(await post("asample", body))
            await post("retrieve_future", json.dumps({"request_id": promise["request_id"]}).encode())

        await asyncio.gather(*map(exchange, bodies))


def main() -> None:
    """Measure both in turn, and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with subprocess.Popen([sys.executable, str(HERE / "stub_server.py")], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        base_url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        prompts = [tinker.ModelInput.from_ints(list(range(i, i + PROMPT_TOKENS))) for i in range(SAMPLES)]
        sampler = (
            tinker.ServiceClient(base_url=base_url, api_key="tml-bench")
            .create_sampling_client(base_model="stub/model")
            .result()
        )
        bodies = [
            json.dumps(
                {
                    "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(range(i, i + PROMPT_TOKENS))}]},
                    "num_samples": 1,
                    "sampling_params": {"max_tokens": SAMPLED_TOKENS, "temperature": 1.0},
                    "sampling_session_id": "floor",
                    "seq_id": i,
                }
            ).encode()
            for i in range(SAMPLES)
        ]
        take_samples(sampler, prompts)  # opens the connections
        ours, floor = [], []
        for _ in range(rounds):
            ours.append(cpu_seconds(lambda: take_samples(sampler, prompts)))
            floor.append(cpu_seconds(lambda: asyncio.run(exchange_bare(base_url, bodies))))
        server.kill()
    print(f"one sample with this client:       {statistics.median(ours) / SAMPLES * 1000:.2f} ms of CPU")
    print(f"two bare exchanges of aiohttp:     {statistics.median(floor) / SAMPLES * 1000:.2f} ms of CPU")


if __name__ == "__main__":
    main()
