"""Streaming: tokens arrive as they are drawn, left streams end the work, failures are raised."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import httpx
import pytest

import tinker
from tinker._http.engine_httpx import InProcessTransport
from tinker.local import Settings, State, create_app, serve_in_thread
from tinker.local.engines.protocol import SampleJob, SampleResult, TokenListener
from tinker.local.engines.toy import ToyEngine
from tinker.types import SampleStreamChunk

Connect = Callable[..., tinker.ServiceClient]
PROMPT = tinker.ModelInput.from_ints([104, 105])
LONG = tinker.SamplingParams(max_tokens=1000, stop=[], seed=1)
SHORT = tinker.SamplingParams(max_tokens=6, stop=[], seed=1)
EVENTS = {"content-type": "text/event-stream"}


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


@attrs.define
class Gate:
    """A listener that stops the engine after some tokens until opened or the client disconnects."""

    engine: GatedEngine
    inner: Any

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        self.engine.drawn += 1
        more = bool(self.inner.take(index, token, logprob, stop_reason))
        if self.engine.drawn == self.engine.after:
            until(lambda: self.engine.gate.is_set() or self.inner._closed)
        self.engine.stopped |= not more
        return more


class GatedEngine(ToyEngine):
    """An engine that stops after three tokens."""

    def __init__(self) -> None:
        super().__init__(vocabulary=512)
        self.gate, self.after, self.drawn, self.stopped = threading.Event(), 3, 0, False

    def sample(self, jobs: Any) -> list[SampleResult]:
        return super().sample([self._gated(job) for job in jobs])

    def _gated(self, job: SampleJob) -> SampleJob:
        gate: TokenListener | None = None if job.listener is None else Gate(self, job.listener)
        return attrs.evolve(job, listener=gate)


@pytest.fixture
def engine() -> GatedEngine:
    """Return an engine that waits."""
    return GatedEngine()


@pytest.fixture
def gated(engine: GatedEngine, tmp_path: Path) -> Iterator[State]:
    """Yield a server with that engine."""
    state = State(lambda: engine, Settings(data_dir=tmp_path / "gated"))
    yield state
    engine.gate.set()
    state.close()


@pytest.fixture(params=["in this process", "over HTTP"])
def sampler(request: pytest.FixtureRequest, gated: State) -> Iterator[tinker.SamplingClient]:
    """Yield a client of that server, over either transport."""
    with contextlib.ExitStack() as stack:
        given: dict[str, Any] = {"base_url": "http://server", "api_key": "tml-key"}
        if request.param == "over HTTP":
            given["base_url"] = stack.enter_context(serve_in_thread(gated))
        else:
            given["transport"] = InProcessTransport(create_app(gated))
        service = stack.enter_context(tinker.ServiceClient(**given))
        yield service.create_sampling_client(base_model="tinker/toy").result(10)


def joined(chunks: list[SampleStreamChunk], index: int = 0) -> list[int]:
    return [token for chunk in chunks if chunk.index == index for token in chunk.tokens]


def taken(stream: tinker.SampleStream, count: int) -> list[SampleStreamChunk]:
    """Return chunks until there are this many tokens."""
    chunks: list[SampleStreamChunk] = []
    while sum(len(chunk.tokens) for chunk in chunks) < count:
        chunks.append(next(stream))
    return chunks


def test_tokens_come_as_they_are_drawn(sampler: tinker.SamplingClient, engine: GatedEngine) -> None:
    """The first tokens arrive while the engine works; together they equal the ordinary sample."""
    with sampler.sample_stream(PROMPT, 1, SHORT) as stream:
        first = taken(stream, 3)
        assert (engine.drawn, len(joined(first)), first[-1].stop_reason) == (3, 3, None)
        engine.gate.set()
        chunks = [*first, *stream]
    (expected,) = sampler.sample(PROMPT, 1, SHORT).result(10).sequences
    assert joined(chunks) == list(expected.tokens)
    assert stream.received_tokens == len(expected.tokens)
    assert repr(stream) == f"<SampleStream ended, {len(expected.tokens)} tokens>"
    assert [value for chunk in chunks for value in chunk.logprobs or ()] == expected.logprobs
    reasons = [chunk.stop_reason for chunk in chunks if chunk.stop_reason]
    assert reasons == ["length"] == [expected.stop_reason]


def leave_a_loop(sampler: tinker.SamplingClient) -> None:
    for _ in sampler.sample_stream(PROMPT, 1, LONG):
        break
    gc.collect()


def leave_a_block(sampler: tinker.SamplingClient) -> tinker.SampleStream:
    with sampler.sample_stream(PROMPT, 1, LONG) as stream:
        next(stream)
    return stream


def leave_a_block_in_a_coroutine(sampler: tinker.SamplingClient) -> tinker.SampleStream:
    stream = sampler.sample_stream(PROMPT, 1, LONG)

    async def scenario() -> int:
        async with stream:
            async for chunk in stream:
                return len(chunk.tokens)
        return 0

    assert asyncio.run(scenario()) > 0
    return stream


@pytest.mark.parametrize("leave", [leave_a_loop, leave_a_block, leave_a_block_in_a_coroutine])
def test_leaving_ends_the_servers_work(
    sampler: tinker.SamplingClient, engine: GatedEngine, leave: Callable[..., Any]
) -> None:
    """A stream that is dropped, or whose block is left, stops the work on the server."""
    stream = leave(sampler)
    until(lambda: engine.stopped)
    assert stream is None or "ended" in repr(stream)


def test_closing_ends_the_servers_work(
    sampler: tinker.SamplingClient, engine: GatedEngine, gated: State
) -> None:
    """After `close` at most the token in progress is drawn, and the server keeps nothing."""
    stream = sampler.sample_stream(PROMPT, 1, LONG)
    taken(stream, 3)
    stream.close()
    until(lambda: engine.stopped)
    assert engine.drawn <= 4
    until(lambda: not gated.futures._pending)
    assert list(stream) == []
    with pytest.raises(StopIteration):
        next(stream)


def test_a_cancelled_wait_loses_nothing(
    sampler: tinker.SamplingClient, engine: GatedEngine
) -> None:
    """Cancelling the wait for a chunk leaves the stream unchanged."""

    async def scenario() -> list[SampleStreamChunk]:
        stream = sampler.sample_stream(PROMPT, 1, SHORT)
        chunks: list[SampleStreamChunk] = []
        while len(joined(chunks)) < 3:
            chunks.append(await anext(stream))
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        engine.gate.set()
        return chunks + [chunk async for chunk in stream]

    assert len(joined(asyncio.run(scenario()))) == 6


def test_several_samples(sampler: tinker.SamplingClient, engine: GatedEngine) -> None:
    """Each chunk has the index of its sample; a stream of zero tokens is refused."""
    engine.gate.set()
    chunks = list(sampler.sample_stream(PROMPT, 3, SHORT))
    expected = sampler.sample(PROMPT, 3, SHORT).result(10).sequences
    assert [joined(chunks, index) for index in range(3)] == [list(one.tokens) for one in expected]
    with pytest.raises(tinker.BadRequestError, match="max_tokens is 0; it must be at least 1"):
        list(sampler.sample_stream(PROMPT, 2, tinker.SamplingParams(max_tokens=0)))


# Server behaviour, on a scripted transport


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


TOKENS = event(type="tokens", index=0, tokens=[1, 2], logprobs=[-1.0, -2.0])
TOKEN = event(type="tokens", index=0, tokens=[1], logprobs=[-1.0])
DONE = event(type="done")


@pytest.fixture
def client(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a client on the transport."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


def answer(wire: Any, *parts: bytes | Exception | Callable[[], bytes]) -> None:
    """Answer one stream with these parts."""

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for part in parts:
                if isinstance(part, Exception):
                    raise part
                yield part() if callable(part) else part

    async def respond(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/stream_sample"):
            return await inner(request)
        wire.handle_async_request = inner
        return httpx.Response(200, headers=EVENTS, stream=Body())

    inner, wire.handle_async_request = wire.handle_async_request, respond


@pytest.mark.parametrize("status", [404, 405, 501, 200])
def test_a_server_without_streams(client: tinker.SamplingClient, wire: Any, status: int) -> None:
    """The tokens come from an ordinary sample; a server is asked once, also one that sends JSON."""
    wire.fail("stream_sample", status, body={"request_id": "x"}, outside="no answer to a stream")
    chunks = [list(client.sample_stream(PROMPT, 2, SHORT)) for _ in range(2)]
    expected = [
        (list(one.tokens), list(one.logprobs or ()))
        for one in client.sample(PROMPT, 2, SHORT).result(10).sequences
    ]
    for found in chunks:
        assert [(chunk.tokens, chunk.logprobs) for chunk in found] == expected
        assert [chunk.stop_reason for chunk in found] == ["length", "length"]
    assert len(wire.requests("stream_sample")) == 1


def test_an_unknown_sampler_does_not_mean_no_streams(
    client: tinker.SamplingClient, wire: Any
) -> None:
    """A 404 that the ordinary sample gets as well is raised, and streams are requested again."""
    wire.fail("stream_sample", 404)
    wire.fail("asample", 404)
    with pytest.raises(tinker.NotFoundError):
        list(client.sample_stream(PROMPT, 1, SHORT))
    assert len(joined(list(client.sample_stream(PROMPT, 1, SHORT)))) == 6
    assert len(wire.requests("stream_sample")) == 2


def test_before_the_first_token_failures_are_retried(
    client: tinker.SamplingClient, wire: Any, clock: Any
) -> None:
    """A busy server, a failing one, and a stream that breaks off without a token are retried."""
    wire.fail("stream_sample", 429, headers={"retry-after": "3"})
    wire.fail("stream_sample", 503)
    answer(wire, b": waiting\n\n", httpx.ReadError("the connection broke"))
    assert len(joined(list(client.sample_stream(PROMPT, 1, SHORT)))) == 6
    assert any(seconds >= 3 for seconds in clock.slept)


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ((TOKEN, httpx.ReadError("the connection broke")), tinker.APIConnectionError),
        ((TOKENS, httpx.ReadError("the connection broke")), tinker.APIConnectionError),
        ((TOKENS,), tinker.APIConnectionError),
        (
            (TOKENS, event(type="failed", error="the engine is gone", category="server")),
            tinker.RequestFailedError,
        ),
        ((TOKENS, b"data: {\n\n"), tinker.APIResponseValidationError),
        ((TOKENS, event(type="tokens", tokens="abc")), tinker.APIResponseValidationError),
    ],
    ids=["broken after one", "broken", "cut off", "failed", "no JSON", "another form"],
)
def test_later_failures_report_the_received_tokens(
    client: tinker.SamplingClient, wire: Any, parts: tuple[Any, ...], cause: type[Exception]
) -> None:
    """Received tokens are returned first; then an error has their number. Nothing is retried."""
    answer(wire, *parts)
    stream = client.sample_stream(PROMPT, 1, SHORT)
    count = 1 if parts[0] == TOKEN else 2
    assert next(stream).tokens == [1, 2][:count]
    with pytest.raises(tinker.SampleStreamError, match=f"after {count} tokens") as caught:
        next(stream)
    assert caught.value.received_tokens == count
    assert isinstance(caught.value.__cause__, cause)
    assert len(wire.requests("stream_sample")) == 0


def test_a_refused_request_raises_its_error(client: tinker.SamplingClient, wire: Any) -> None:
    """A refusal raises the same error as `sample`, and is not sent again as a sample."""
    with pytest.raises(tinker.RequestFailedError, match="context length") as caught:
        list(client.sample_stream(PROMPT, 1, tinker.SamplingParams(max_tokens=10**6)))
    assert caught.value.category == "user"
    wire.fail("stream_sample", 400)
    with pytest.raises(tinker.BadRequestError):
        list(client.sample_stream(PROMPT, 1, SHORT))
    assert len(wire.requests("asample")) == 0


def test_a_failed_stream_holds_nothing(client: tinker.SamplingClient) -> None:
    """Whoever reads a stream that fails is collected with its error."""
    stream = client.sample_stream(PROMPT, 1, tinker.SamplingParams(max_tokens=10**6))
    left = weakref.ref(stream)
    with pytest.raises(tinker.RequestFailedError):
        next(stream)
    del stream
    gc.collect()
    assert left() is None


def test_unknown_events_are_ignored(client: tinker.SamplingClient, wire: Any) -> None:
    """Unknown types, fields and names of events are ignored, and all that follows the end."""
    parts = [event(type="progress", percent=3), b"event: x\n" + TOKENS]
    parts += [event(type="tokens", tokens=[3], more=1), DONE, b"data: {\n\n"]
    answer(wire, *parts, httpx.ReadError("gone"))
    chunks = list(client.sample_stream(PROMPT, 1, SHORT))
    assert (joined(chunks), chunks[-1].logprobs) == ([1, 2, 3], None)


@pytest.mark.parametrize(
    ("count", "events", "fault"),
    [
        (
            2,
            [event(type="tokens", tokens=[1], stop_reason="stop"), DONE],
            "done after 1 of 2 samples",
        ),
        (
            1,
            [TOKEN, event(type="tokens", tokens=[1], index=1), DONE],
            "tokens of sample 1, which has ended or was not asked for",
        ),
        (
            1,
            [
                event(type="tokens", tokens=[1], stop_reason="stop"),
                event(type="tokens", tokens=[2]),
                DONE,
            ],
            "which has ended",
        ),
        (
            1,
            [TOKEN, event(type="tokens", tokens=[1, 2], logprobs=[-0.5]), DONE],
            "2 tokens of sample 0 with 1 logprobs",
        ),
    ],
)
def test_a_stream_of_something_else(
    client: tinker.SamplingClient, wire: Any, count: int, events: list[bytes], fault: str
) -> None:
    """A stream that lacks a sample, or whose tokens do not fit what was asked, is an error."""
    answer(wire, *events)
    with pytest.raises(tinker.SampleStreamError, match=fault):
        list(client.sample_stream(PROMPT, count, SHORT))


def test_keep_alives_are_not_tokens(client: tinker.SamplingClient, wire: Any, clock: Any) -> None:
    """A server that sends only keep-alives times out after the user's time between tokens."""

    def keep_alive() -> bytes:
        clock.now += 10
        return b": waiting\n\n"

    answer(wire, TOKENS, *[keep_alive] * 100)
    began = clock.now
    with pytest.raises(tinker.SampleStreamError) as caught:
        list(client.sample_stream(PROMPT, 1, SHORT, silence_seconds=45))
    assert isinstance(caught.value.__cause__, tinker.APITimeoutError)
    assert clock.now - began < 100


def test_text(client: tinker.SamplingClient, wire: Any) -> None:
    """Split characters are returned whole, incomplete bytes at the end; texts add up."""
    text = "naïve 😀".encode()
    parts = [event(type="tokens", tokens=[byte]) for byte in text]
    answer(wire, *parts, event(type="tokens", tokens=[0xE2], stop_reason="length"), DONE)
    of_bytes = SimpleNamespace(decode=lambda ids: bytes(ids).decode("utf-8", "replace"))
    chunks = list(client.sample_stream(PROMPT, 1, SHORT, tokenizer=of_bytes))
    assert "".join(chunk.text or "" for chunk in chunks) == "naïve 😀\ufffd"
    assert [chunk.text for chunk in chunks[2:4]] == ["", "ï"]
    assert all(chunk.text is None for chunk in client.sample_stream(PROMPT, 1, SHORT))
    # a tokenizer that leaves out the space before the first word, as many do
    words = SimpleNamespace(decode=lambda ids: " ".join(str(token) for token in ids))
    answer(wire, *(event(type="tokens", tokens=[token]) for token in (7, 8, 9)), DONE)
    found = client.sample_stream(PROMPT, 1, SHORT, tokenizer=words)
    assert [chunk.text for chunk in found] == ["7", " 8", " 9"]


@pytest.mark.parametrize(
    ("count", "silence", "reason"),
    [
        (0, 1, "num_samples"),
        (1, 0, "silence_seconds must be above 0"),
        (1, "1", "silence_seconds must be a number"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    client: tinker.SamplingClient, wire: Any, count: int, silence: Any, reason: str
) -> None:
    """Arguments that no server can process are refused on the caller's line; nothing is sent."""
    with pytest.raises((TypeError, ValueError), match=reason):
        client.sample_stream(PROMPT, count, SHORT, silence_seconds=silence)
    assert wire.requests("stream_sample") == []


def test_the_end_of_the_client_ends_streams(
    sampler: tinker.SamplingClient, engine: GatedEngine
) -> None:
    """Closing the service during a stream fails it, with the number of tokens received."""
    stream = sampler.sample_stream(PROMPT, 1, LONG)
    taken(stream, 3)
    engine.gate.set()
    runtime = sampler._sampler.runtime
    runtime.thread.call(lambda: runtime.thread.background(runtime.transport.close(), "close"))
    with pytest.raises(tinker.TinkerError):
        list(stream)


def test_streams_use_the_circuit(connect: Connect, wire: Any, clock: Any) -> None:
    """Failures of streams open the circuit of sampling, and an open circuit lets no stream pass."""
    breaker = tinker.CircuitBreaker(failures=2, reset_seconds=30, clock=lambda: clock.now)
    sampler = connect(circuit_breaker=breaker).create_sampling_client(base_model="tinker/toy")
    wire.fail("stream_sample", 503, times=2)
    for cause in (tinker.InternalServerError, type(None)):
        with pytest.raises(tinker.CircuitOpenError) as caught:
            list(sampler.sample_stream(PROMPT, 1, SHORT))
        assert isinstance(caught.value.__cause__, cause)
    assert len(wire.requests("stream_sample")) == 2
