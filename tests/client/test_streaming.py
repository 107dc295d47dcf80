"""Streaming: tokens arrive as they are drawn, abandoned streams stop the work, and every failure is
raised.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
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
    """A listener in front of the server's that stops the engine after some tokens until opened or
    the client disconnects.
    """

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
    if request.param == "over HTTP":
        with (
            serve_in_thread(gated) as url,
            tinker.ServiceClient(base_url=url, api_key="tml-key") as service,
        ):
            yield service.create_sampling_client(base_model="tinker/toy").result(10)
        return
    transport = InProcessTransport(create_app(gated))
    with tinker.ServiceClient(
        base_url="http://server", api_key="tml-key", transport=transport
    ) as service:
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
    """The first tokens arrive while the engine still works, and together they equal the ordinary
    sample.
    """
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
    assert (
        [chunk.stop_reason for chunk in chunks if chunk.stop_reason]
        == ["length"]
        == [expected.stop_reason]
    )


def test_closing_ends_the_servers_work(
    sampler: tinker.SamplingClient, engine: GatedEngine, gated: State
) -> None:
    """After `close` the engine draws at most the token in progress, and the server keeps nothing of
    the request.
    """
    stream = sampler.sample_stream(PROMPT, 1, LONG)
    taken(stream, 3)
    stream.close()
    until(lambda: engine.stopped)
    assert engine.drawn <= 4
    until(lambda: not gated.futures._pending)
    assert list(stream) == []
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_that_is_dropped_ends(sampler: tinker.SamplingClient, engine: GatedEngine) -> None:
    """Leaving a loop without a `with` block stops the work on the server."""
    for _ in sampler.sample_stream(PROMPT, 1, LONG):
        break
    gc.collect()
    engine.after = 0
    engine.gate.set()
    until(lambda: engine.stopped)


def test_a_with_block_ends_the_stream(sampler: tinker.SamplingClient, engine: GatedEngine) -> None:
    """Leaving the block stops the work on the server, although the stream is still there."""
    stream = sampler.sample_stream(PROMPT, 1, LONG)
    with stream:
        next(stream)
    until(lambda: engine.stopped)
    assert "ended" in repr(stream)


def test_async_for(sampler: tinker.SamplingClient, engine: GatedEngine) -> None:
    """The same stream in a coroutine: chunks are awaited, and leaving the block stops the work."""
    stream = sampler.sample_stream(PROMPT, 1, LONG)

    async def scenario() -> int:
        async with stream:
            async for chunk in stream:
                return len(chunk.tokens)
        return 0

    assert asyncio.run(scenario()) > 0
    until(lambda: engine.stopped)
    assert "ended" in repr(stream)


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
    """Each chunk has the index of its sample; together they equal the samples. A stream of zero
    tokens is refused.
    """
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


def answer(wire: Any, *parts: bytes | Exception) -> None:
    """Answer one stream with these parts."""

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for part in parts:
                if isinstance(part, Exception):
                    raise part
                yield part

    class Door(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/stream_sample") and not used:
                used.append(request)
                return httpx.Response(200, headers=EVENTS, stream=Body())
            return await inner(request)

    used: list[httpx.Request] = []
    inner = wire.handle_async_request
    wire.handle_async_request = Door().handle_async_request


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_streams(client: tinker.SamplingClient, wire: Any, status: int) -> None:
    """The tokens come at once from an ordinary sample; the server is asked for a stream once, not
    each time.
    """
    wire.fail("stream_sample", status)
    chunks = [list(client.sample_stream(PROMPT, 2, SHORT)) for _ in range(2)]
    expected = [
        (list(one.tokens), list(one.logprobs or ()))
        for one in client.sample(PROMPT, 2, SHORT).result(10).sequences
    ]
    for found in chunks:
        assert [(chunk.tokens, chunk.logprobs) for chunk in found] == expected
        assert [chunk.stop_reason for chunk in found] == ["length", "length"]
    assert len(wire.requests("stream_sample")) == 1


def test_a_response_that_is_no_stream(client: tinker.SamplingClient, wire: Any) -> None:
    """A success with another media type counts as a server without streams."""
    wire.fail("stream_sample", 200, body={"request_id": "x"}, outside="another operation's answer")
    assert len(joined(list(client.sample_stream(PROMPT, 1, SHORT)))) == 6
    assert len(wire.requests("asample")) == 1


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
        ((TOKENS, httpx.ReadError("the connection broke")), tinker.APIConnectionError),
        ((TOKENS,), tinker.APIConnectionError),
        (
            (TOKENS, event(type="failed", error="the engine is gone", category="server")),
            tinker.RequestFailedError,
        ),
        ((TOKENS, b"data: {\n\n"), tinker.APIResponseValidationError),
        ((TOKENS, event(type="tokens", tokens="abc")), tinker.APIResponseValidationError),
    ],
    ids=["broken", "cut off", "failed", "no JSON", "another form"],
)
def test_later_failures_report_the_received_tokens(
    client: tinker.SamplingClient, wire: Any, parts: tuple[Any, ...], cause: type[Exception]
) -> None:
    """The received tokens are returned first; then an error has their number and the reason.
    Nothing is retried.
    """
    answer(wire, *parts)
    stream = client.sample_stream(PROMPT, 1, SHORT)
    assert next(stream).tokens == [1, 2]
    with pytest.raises(tinker.SampleStreamError, match="after 2 tokens") as caught:
        next(stream)
    assert caught.value.received_tokens == 2
    assert isinstance(caught.value.__cause__, cause)
    assert len(wire.requests("stream_sample")) == 0


def test_after_a_single_token_nothing_is_retried(client: tinker.SamplingClient, wire: Any) -> None:
    """The token has been handed over, so that another attempt would repeat it."""
    answer(wire, TOKEN, httpx.ReadError("the connection broke"))
    stream = client.sample_stream(PROMPT, 1, SHORT)
    assert next(stream).tokens == [1]
    with pytest.raises(tinker.SampleStreamError, match="after 1 token"):
        next(stream)
    assert len(wire.requests("stream_sample")) == 0


def test_a_refused_request_raises_its_error(client: tinker.SamplingClient) -> None:
    """A refusal by the engine raises the same error as `sample`, with its category."""
    with pytest.raises(tinker.RequestFailedError, match="context length") as caught:
        list(client.sample_stream(PROMPT, 1, tinker.SamplingParams(max_tokens=10**6)))
    assert caught.value.category == "user"


def test_a_refusal_of_the_stream_is_no_lack_of_streams(
    client: tinker.SamplingClient, wire: Any
) -> None:
    """A request that is refused as a stream is not sent again as a sample."""
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
    """Unknown types and fields, comments and names of events are ignored."""
    answer(
        wire,
        event(type="progress", percent=3),
        b"event: x\n" + TOKENS,
        event(type="tokens", tokens=[3], more=1),
        DONE,
    )
    chunks = list(client.sample_stream(PROMPT, 1, SHORT))
    assert (joined(chunks), chunks[-1].logprobs) == ([1, 2, 3], None)


def test_nothing_is_read_after_the_end(client: tinker.SamplingClient, wire: Any) -> None:
    """The event that ends a stream is the last that is read, whatever the server sends or does
    afterwards.
    """
    answer(wire, TOKENS, DONE, b"data: {\n\n", httpx.ReadError("gone"))
    assert joined(list(client.sample_stream(PROMPT, 1, SHORT))) == [1, 2]


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
    """A stream that lacks a sample, or whose tokens and log-probabilities do not fit what was
    asked, is an error.
    """
    answer(wire, *events)
    with pytest.raises(tinker.SampleStreamError, match=fault):
        list(client.sample_stream(PROMPT, count, SHORT))


def test_keep_alives_are_not_tokens(client: tinker.SamplingClient, wire: Any, clock: Any) -> None:
    """A server that sends only keep-alives times out after the time between tokens, which the user
    may set.
    """

    class Silent(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield TOKENS
            for _ in range(100):
                clock.now += 10
                yield b": waiting\n\n"

    wire.handle_async_request = lambda request, inner=wire.handle_async_request: (
        respond(Silent()) if request.url.path.endswith("/stream_sample") else inner(request)
    )
    began = clock.now
    with pytest.raises(tinker.SampleStreamError) as caught:
        list(client.sample_stream(PROMPT, 1, SHORT, silence_seconds=45))
    assert isinstance(caught.value.__cause__, tinker.APITimeoutError)
    assert clock.now - began < 100


async def respond(stream: httpx.AsyncByteStream) -> httpx.Response:
    return httpx.Response(200, headers=EVENTS, stream=stream)


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode("utf-8", "replace")


def test_text(client: tinker.SamplingClient, wire: Any) -> None:
    """A character spread over several tokens is returned whole with its last one; incomplete bytes
    are returned at the end.
    """
    text = "naïve 😀".encode()
    parts = [event(type="tokens", tokens=[byte]) for byte in text]
    answer(wire, *parts, event(type="tokens", tokens=[0xE2], stop_reason="length"), DONE)
    chunks = list(client.sample_stream(PROMPT, 1, SHORT, tokenizer=Bytes()))
    assert "".join(chunk.text or "" for chunk in chunks) == "naïve 😀\ufffd"
    assert [chunk.text for chunk in chunks[2:4]] == ["", "ï"]
    assert all(chunk.text is None for chunk in client.sample_stream(PROMPT, 1, SHORT))


class Words:
    """A tokenizer that leaves out the space before the first word, as many do."""

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(str(token) for token in token_ids)


def test_text_depends_on_the_tokens_before(client: tinker.SamplingClient, wire: Any) -> None:
    """The texts of the chunks are together the text of all tokens."""
    answer(wire, *(event(type="tokens", tokens=[token]) for token in (7, 8, 9)), DONE)
    assert [chunk.text for chunk in client.sample_stream(PROMPT, 1, SHORT, tokenizer=Words())] == [
        "7",
        " 8",
        " 9",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"silence_seconds": 0}, "silence_seconds must be above 0"),
        ({"silence_seconds": "1"}, "silence_seconds must be a number"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    client: tinker.SamplingClient, wire: Any, arguments: dict[str, Any], reason: str
) -> None:
    """Arguments that no server can process are refused on the caller's line; nothing is sent."""
    with pytest.raises((TypeError, ValueError), match=reason):
        client.sample_stream(
            **{"prompt": PROMPT, "num_samples": 1, "sampling_params": SHORT, **arguments}
        )
    assert wire.requests("stream_sample") == []


def test_the_end_of_the_client_ends_streams(
    sampler: tinker.SamplingClient, engine: GatedEngine
) -> None:
    """Closing the service during a stream fails it, with the number of tokens received."""
    stream = sampler.sample_stream(PROMPT, 1, LONG)
    taken(stream, 3)
    engine.gate.set()
    sampler._sampler.runtime.thread.call(
        lambda: sampler._sampler.runtime.thread.background(
            sampler._sampler.runtime.transport.close(), "close"
        )
    )
    with pytest.raises(tinker.TinkerError):
        list(stream)


def test_streams_use_the_circuit(connect: Connect, wire: Any, clock: Any) -> None:
    """Failures of streams open the circuit of sampling, and an open circuit lets no stream pass."""
    breaker = tinker.CircuitBreaker(failures=2, reset_seconds=30, clock=lambda: clock.now)
    sampler = (
        connect(circuit_breaker=breaker).create_sampling_client(base_model="tinker/toy").result(10)
    )
    wire.fail("stream_sample", 503, times=2)
    for cause in (tinker.InternalServerError, type(None)):
        with pytest.raises(tinker.CircuitOpenError) as caught:
            list(sampler.sample_stream(PROMPT, 1, SHORT))
        assert isinstance(caught.value.__cause__, cause)
    assert len(wire.requests("stream_sample")) == 2
