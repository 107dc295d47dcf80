"""What samples and training steps cost above their HTTP exchanges: this client, and bare httpunk
with such bodies, in turn.

    python benchmarks/floor.py

Over HTTPS with HTTP/2 through nginx, and over plain HTTP. CPU of the whole process for each,
medians over the rounds. Nothing below the bare figures is the client's to win while httpunk carries
the exchanges.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import ssl
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from httpunk import HeaderMap, Request
from httpunk.asyncio import AutoClientProtocol
from wires import wires

import tinker

SAMPLES, PROMPT_TOKENS, SAMPLED_TOKENS = 1000, 512, 128
STEPS, DATUMS, TOKENS = 10, 128, 4096
STEP_NBYTES = DATUMS * TOKENS * (4 + 8 + 4 + 4)  # int32 inputs, int64 targets, two float32 arrays
JSON, PROTOBUF = "application/json", "application/x-protobuf"
CONNECTIONS, STREAMS = 512, 100  # at most, over HTTP/1.1; of each connection, over HTTP/2

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


@cache
def tls_context() -> ssl.SSLContext:
    """Return the context of every bare connection: reading the system's certificates takes as long
    as many exchanges.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class Connections:
    """Connections to one server, opened as they are needed: one exchange at a time on each, or with
    HTTP/2 a hundred.
    """

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        self.authority, self._address, self._scheme = (
            url.netloc,
            (url.hostname, url.port),
            url.scheme,
        )
        self._tls = tls_context() if url.scheme == "https" else None
        self._free: list[Any] = []  # a connection as often as it has room
        self._slots = asyncio.Semaphore(CONNECTIONS * (STREAMS if self._tls else 1))
        self._opening = asyncio.Lock()
        self._protocols: list[AutoClientProtocol] = []

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Any]:
        """Yield a connection with room for one exchange."""
        async with self._slots:
            connection = self._free.pop() if self._free else await self._open()
            try:
                yield connection
            finally:
                self._free.append(connection)

    async def _open(self) -> Any:
        # Over HTTP/2, one new connection has room for a hundred of those that wait for it.
        async with self._opening if self._tls else contextlib.nullcontext():
            if not self._free:
                _, protocol = await asyncio.get_running_loop().create_connection(
                    lambda: AutoClientProtocol(authority=self.authority, scheme=self._scheme),
                    *self._address,
                    ssl=self._tls,
                )
                self._protocols.append(protocol)
                self._free += [await protocol.ready()] * (STREAMS if self._tls else 1)
            return self._free.pop()

    async def close(self) -> None:
        """Close every connection."""
        for protocol in self._protocols:
            await protocol.aclose()


async def exchange_bare(base_url: str, exchanges: Callable[[Submit], Awaitable[object]]) -> None:
    """Make exchanges without this client; the responses are read and not decoded."""
    connections = Connections(base_url)

    async def post(path: str, body: bytes, media_type: str = JSON) -> bytes:
        headers = [
            ("content-type", media_type),
            ("accept", f"{PROTOBUF}, {JSON}"),
            ("content-length", str(len(body))),
        ]
        headers += [] if base_url.startswith("https") else [("host", connections.authority)]
        async with connections.lease() as connection:
            request = Request("POST", f"/api/v1/{path}", headers=HeaderMap(headers), body=body)
            async with await connection.send_request(request) as response:
                return bytes(await response.read())

    async def submit(path: str, body: bytes, media_type: str) -> None:
        """Post a body, then a poll for what was promised."""
        promise: Any = json.loads(await post(path, body, media_type))
        await post("retrieve_future", json.dumps({"request_id": promise["request_id"]}).encode())

    await exchanges(submit)
    await connections.close()


def sample_body(number: int) -> bytes:
    """Return the body of one sample."""
    body = {
        "prompt": {
            "chunks": [
                {"type": "encoded_text", "tokens": list(range(number, number + PROMPT_TOKENS))}
            ]
        },
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
    return [
        tinker.Datum(tinker.ModelInput.from_ints(list(range(TOKENS))), inputs)
        for _ in range(DATUMS)
    ]


def report(
    what: str, count: int, rounds: int, ours: Callable[[], object], bare: Callable[[], object]
) -> None:
    """Measure both in turn, and print a line."""
    ours()  # opens the connections
    pairs = [(cpu_seconds(ours), cpu_seconds(bare)) for _ in range(rounds)]
    mine, floor = (
        statistics.median(seconds) / count * 1000 for seconds in zip(*pairs, strict=True)
    )
    print(
        f"{what}: {mine:.2f} ms of CPU with this client, {floor:.2f} with bare httpunk "
        f"({floor / mine:.0%})"
    )


def measure(wire: str, base_url: str, rounds: int) -> None:
    """Measure samples and steps over one wire."""
    service = tinker.ServiceClient(base_url=base_url, api_key="tml-bench")
    sampler = service.create_sampling_client(base_model="stub/model").result()
    prompts = [
        tinker.ModelInput.from_ints(list(range(i, i + PROMPT_TOKENS))) for i in range(SAMPLES)
    ]
    bodies = [sample_body(number) for number in range(SAMPLES)]

    async def samples(submit: Submit) -> None:
        await asyncio.gather(*(submit("asample", body, JSON) for body in bodies))

    def bare(exchanges: Callable[[Submit], Awaitable[object]]) -> Callable[[], None]:
        return lambda: asyncio.run(exchange_bare(base_url, exchanges))

    report(
        f"{wire}, a sample", SAMPLES, rounds, lambda: take_samples(sampler, prompts), bare(samples)
    )

    training = service.create_lora_training_client(base_model="stub/model").result()
    data, batch = make_data(), bytes(STEP_NBYTES)

    async def steps(submit: Submit) -> None:
        for _ in range(STEPS):
            await asyncio.gather(
                submit("forward_backward", batch, PROTOBUF), submit("optim_step", b"{}", JSON)
            )

    report(f"{wire}, a step", STEPS, rounds, lambda: take_steps(training, data), bare(steps))


def main() -> None:
    """Measure over every wire but the distant one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with wires() as (urls, trust):
        os.environ.update(trust)
        for wire in ("https", "plain"):
            if wire in urls:
                measure(wire, urls[wire], rounds)


if __name__ == "__main__":
    main()
