"""The HTTP/2 engine: what a server may do to streams and connections, and the outcome of the
exchanges on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from httpunk import H2Reason
from support.engine import Line, failure, statuses, stream_to, until, use_engine
from support.http2_server import Connection, Http2Server, Request, Script, http2_server
from support.programs import run_program
from support.tls import server_context

import tinker
from tinker._http import connections as http2
from tinker._http import messages
from tinker._http.messages import ExchangeFailed, PreparedRequest, Purpose, RawResponse
from tinker._loop import loop_thread
from tinker.errors import ClientClosedError
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing.server import call_app

T = TypeVar("T")
pytestmark = pytest.mark.httpunk("its connections, and what servers do to them")


@pytest.fixture(autouse=True)
def trusted(ca_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the certificate authority of the test servers."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))


def run(
    script: Script,
    use: Callable[[Line], Awaitable[T]],
    slots: dict[str, int] | None = None,
    **settings: Any,
) -> T:
    """Return what ``use`` returns, given an engine and a server with this script."""
    server = http2_server(script, ssl_context=server_context("h2"), **settings)
    return use_engine(server, use, slots)


def test_training_data_on_a_server_without_http_1() -> None:
    """It is sent over HTTP/1.1, or over HTTP/2 to a server that refuses the older one."""

    async def use(line: Line) -> RawResponse:
        port = int(line.url.rpartition(":")[2])
        refused = bytes.fromhex("15 0303 0002 0278")  # the alert no_application_protocol

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    sink.write(data)
            sink.close()

        relaying: list[asyncio.Task[Any] | None] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            relaying.append(asyncio.current_task())
            hello = await reader.read(1 << 16)
            if b"\x02h2" not in hello:
                writer.write(refused)
                writer.close()
                return
            behind, ahead = await asyncio.open_connection("127.0.0.1", port)
            ahead.write(hello)
            await asyncio.gather(pass_on(reader, ahead), pass_on(behind, writer))

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as relay:
            url = f"https://localhost:{relay.sockets[0].getsockname()[1]}/"
            request = PreparedRequest(
                method="POST",
                url=url,
                headers={},
                body=(bytes(1 << 20),),
                nbytes=1 << 20,
                purpose=Purpose.UPLOAD,
            )
            answer = await line.engine.send(request)
            await line.engine.aclose()
            await asyncio.gather(*filter(None, relaying))
            return answer

    assert run(Connection.answer_all, use).status == 200


# ----------------------------------------------------------------------------------- what never ran


@pytest.mark.parametrize(
    "code", [H2Reason.REFUSED_STREAM, H2Reason.CANCEL, H2Reason.INTERNAL_ERROR, H2Reason.NO_ERROR]
)
def test_a_reset_stream(code: H2Reason) -> None:
    """A refused stream never ran, others may have; the connection stays in use."""

    async def script(connection: Connection) -> None:
        connection.reset(await connection.request(), code)
        await connection.answer_all()

    async def use(line: Line) -> None:
        [error] = await line.send_all(1)
        assert failure(error).never_ran == (code == H2Reason.REFUSED_STREAM)
        assert not failure(error).never_connected
        assert (await line.send()).status == 200
        assert len(line.connections) == 1

    run(script, use)


def test_going_away() -> None:
    """Streams up to the last of GOAWAY are answered, those above never ran, others reconnect."""

    async def script(connection: Connection) -> None:
        if connection.number:
            await connection.answer_all()
        held = [await connection.request() for _ in range(4)]
        connection.go_away(held[1])
        await connection.respond(held[0], b"first")
        await until(lambda: len(connection.server.connections) > 1)
        await connection.respond(held[1], b"second")
        await connection.lost()

    async def use(line: Line) -> None:
        sent = [line.begin() for _ in range(4)]
        errors = await asyncio.gather(*sent[2:], return_exceptions=True)
        assert [failure(error).never_ran for error in errors] == [True, True]
        assert (await line.send()).status == 200
        assert [(await one).content for one in sent[:2]] == [b"first", b"second"]
        assert [len(connection.requests) for connection in line.connections] == [4, 1]

    run(script, use)


def test_a_graceful_end() -> None:
    """A GOAWAY as a warning, followed by one with the last stream, lets everything finish."""

    async def script(connection: Connection) -> None:
        held = [await connection.request() for _ in range(2)]
        connection.send(connection.codec.serialize_go_away(2**31 - 1, 0))
        connection.go_away(held[-1])
        for request in held:
            await connection.respond(request)
        await connection.lost()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(2)) == [200, 200]

    run(script, use)


# -------------------------------------------------------------------------------- limits of streams


@pytest.mark.parametrize("limit", [1, 10])
def test_a_limit_of_streams(limit: int) -> None:
    """No connection has more streams than the server allows, and all requests are answered."""

    async def script(connection: Connection) -> None:
        held: list[Request] = []
        while True:
            held.append(await connection.head())
            assert len(held) <= limit
            await asyncio.sleep(0.001)
            if len(held) == limit or not connection._heads:
                for request in held:
                    await connection.answer(request)
                held.clear()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(100)) == [200] * 100
        assert len(line.connections) <= 100 // limit + 1

    run(script, use, max_concurrent_streams=limit)


def test_a_limit_that_changes() -> None:
    """New limits hold at once for new streams, open ones continue, and new room is used."""

    async def script(connection: Connection) -> None:
        first_connection = connection.server.connections[0]
        if connection is not first_connection:
            connection.send(connection.codec.serialize_settings(max_concurrent_streams=1))
            held = await connection.request()
            await until(lambda: len(first_connection.requests) == 16)
            await connection.respond(held)
            await connection.lost()
        held_here = [await connection.request() for _ in range(5)]
        connection.send(connection.codec.serialize_settings(max_concurrent_streams=2))
        for request in held_here[:4]:
            await connection.respond(request)
        held_here = [held_here[4], await connection.head()]
        await until(lambda: len(connection.server.connections) > 1)
        connection.send(connection.codec.serialize_settings(max_concurrent_streams=50))
        held_here += [await connection.head() for _ in range(10)]
        for request in held_here:
            await connection.answer(request)
        await connection.lost()

    async def use(line: Line) -> None:
        sent = [line.begin() for _ in range(5)]
        await until(lambda: sum(one.done() for one in sent) == 4)
        sent += [line.begin() for _ in range(2)]
        connections = line.connections
        await until(
            lambda: (
                [one.acknowledged_settings for one in connections] == [3, 2]
                and len(connections[1].requests) == 1
            )
        )
        sent += [line.begin() for _ in range(10)]
        assert statuses(await asyncio.gather(*sent)) == [200] * 17
        assert len(connections) == 2

    run(script, use, max_concurrent_streams=5)


def test_a_limit_of_no_streams() -> None:
    """If a server allows no streams, requests wait, and are sent when it allows some."""

    async def script(connection: Connection) -> None:
        connection.send(connection.codec.serialize_settings(max_concurrent_streams=20))
        await connection.answer_all()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(50)) == [200] * 50
        assert len(line.connections) <= 5

    run(script, use, max_concurrent_streams=0)


def test_never_a_stream() -> None:
    """If no stream is ever allowed, no request ran, over one connection."""

    async def script(connection: Connection) -> None:
        while True:  # those that were sent before the settings arrived
            connection.reset(await connection.head(), H2Reason.REFUSED_STREAM)

    async def use(line: Line) -> None:
        sent = [line.begin(silence_seconds=20) for _ in range(50)]
        await until(lambda: line.connections and line.connections[0].acknowledged_settings)
        await line.skip(20)
        errors = await asyncio.gather(*sent, return_exceptions=True)
        assert {failure(error).never_ran for error in errors} == {True}
        assert len(line.connections) == 1

    run(script, use, max_concurrent_streams=0)


@pytest.mark.parametrize("streams", [20, pytest.param(90, marks=pytest.mark.soak)])
def test_thousands_at_once(streams: int) -> None:
    """Thousands of concurrent exchanges share a hundred connections, and each is answered."""
    count, all_are_full = 100 * streams, asyncio.Barrier(100)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # half as many exchanges are made at once
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))

    async def script(connection: Connection) -> None:
        await connection.wait_until(lambda: len(connection.requests) == streams)
        # a connection that is answered earlier takes exchanges that others wait for
        await all_are_full.wait()
        await connection.answer_all()

    async def use(line: Line) -> None:
        assert (
            statuses(await line.send_all(count, purpose=Purpose.POLL, silence_seconds=600))
            == [200] * count
        )
        assert len(line.connections) == 100

    try:
        run(script, use, slots={"poll": count}, max_concurrent_streams=streams)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("doing", ["waiting for a response", "sending a body", "reading a stream"])
def test_a_server_that_vanishes(doing: str) -> None:
    """A connection on which not even pings are answered is closed long before the timeout."""

    async def script(connection: Connection) -> None:
        if connection.number:
            await connection.answer_all()
        first = await connection.request()
        connection.answers_pings = connection.opens_windows = False
        await connection.respond(first)
        request = await connection.head()
        if doing == "reading a stream":
            connection.begin(request)
            await connection.write(request, b"piece", end=False)
        await connection.lost()

    async def use(line: Line) -> None:
        received: list[bytes] = []
        body = [bytes(1 << 20)] * 4 if doing == "sending a body" else [b"{}"]
        await line.send(body)  # so that nothing of the beginning is on its way
        sent = line.begin(body, receive=stream_to(received))
        allowed = 65_535 if doing == "sending a body" else 2
        await until(lambda: len(line.requests) == 2 and len(line.requests[1].body) == allowed)
        await until(lambda: received or doing != "reading a stream")
        await line.skip(http2.SILENCE_SECONDS)
        await until(lambda: line.connections[0].pings == 1)
        await line.skip(http2.SILENCE_SECONDS)
        [answer] = await asyncio.gather(sent, return_exceptions=True)
        if doing == "reading a stream":
            said = received.pop().decode()
            assert received == [b"piece"]
        else:
            said = str(failure(answer))
            assert not failure(answer).never_ran
        assert "the connection is dead" in said
        assert line.connections[0].pings == 1
        assert (await line.send()).status == 200

    run(script, use)


def test_a_server_that_only_answers_pings() -> None:
    """If only pings are answered, a request times out, and the connection stays in use."""

    async def script(connection: Connection) -> None:
        first = await connection.request()
        connection.opens_windows = False  # only pings are answered
        await connection.respond(first)
        await connection.request()
        await connection.wait_until(lambda: connection.pings > 2)
        await connection.answer_all()

    async def use(line: Line) -> None:
        await line.send()  # so that nothing of the beginning is on its way
        sent = line.begin(silence_seconds=3.5 * http2.SILENCE_SECONDS)
        await until(lambda: len(line.requests) == 2)
        [connection], [ours] = line.connections, line.engine.connections
        for pings in (1, 2, 3):
            await line.skip(http2.SILENCE_SECONDS)
            await until(lambda count=pings: connection.pings == count and not ours._asked)
        await line.skip(http2.SILENCE_SECONDS / 2)
        [error] = await asyncio.gather(sent, return_exceptions=True)
        assert "no response within 35 s" in str(failure(error))
        assert failure(error).timed_out
        assert (await line.send()).status == 200
        assert line.connections == [connection]
        assert [one.error_code for one in line.requests] == [None, H2Reason.CANCEL, None]

    run(script, use)


def test_a_body_in_small_pieces() -> None:
    """Pieces of a byte that are read at once are no flood, however many there are."""

    async def script(connection: Connection) -> None:
        request = await connection.request()
        connection.begin(request)
        for _ in range(200):
            connection.send(frame(DATA, 0, request.stream_id, b"x") * 1000)
            await asyncio.sleep(0)
        connection.send(frame(DATA, 1, request.stream_id, b"x"))
        await connection.lost()

    async def use(line: Line) -> None:
        assert len((await line.send()).content) == 200_001

    run(script, use)


def test_abandoned_streams_do_not_use_up_the_window() -> None:
    """Data of abandoned streams is credited back to the connection's window."""

    async def script(connection: Connection) -> None:
        for _ in range(20):
            request = await connection.request()
            connection.begin(request)
            await connection.write(request, bytes(1_500_000), end=False)
        await connection.respond(await connection.request(), bytes(3_000_000))
        await connection.lost()

    async def use(line: Line) -> None:
        async def leave(_: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
            await until(lambda: line.requests[-1].window < 700_000)

        for _ in range(20):
            await line.send(receive=leave)
        assert len((await line.send()).content) == 3_000_000

    run(script, use)


def test_small_windows_for_bodies() -> None:
    """Bodies are sent concurrently within all windows, and arrive complete and in order."""
    body = bytes(range(256)) * 800

    async def script(connection: Connection) -> None:
        connection.opens_windows = False
        requests = [await connection.head() for _ in range(3)]
        while not all(request.is_complete for request in requests):
            had = sum(len(request.body) for request in requests)
            for request in requests:
                if not request.is_complete:
                    connection.open_window(request, 7_001)
            connection.open_window(None, 20_000)
            await connection.wait_until(
                lambda before=had: sum(len(request.body) for request in requests) > before
            )
        assert [bytes(request.body) for request in requests] == [body] * 3
        for request in requests:
            await connection.respond(request)
        await connection.lost()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(3, body=[body])) == [200] * 3

    run(script, use, initial_window_size=1_000)


def test_a_response_before_the_body_was_sent() -> None:
    """An early response ends the upload and its stream; other streams continue."""

    async def script(connection: Connection) -> None:
        connection.opens_windows = False
        request = await connection.head()
        await connection.respond(request, b"too large", 413)
        await connection.wait_until(lambda: request.error_code is not None)
        connection.opens_windows = True
        connection.open_window(None, len(request.body))
        await connection.answer_all()

    async def use(line: Line) -> None:
        answer = await line.send([bytes(1 << 20)] * 8)
        assert (answer.status, answer.content) == (413, b"too large")
        await until(lambda: line.requests[0].error_code == H2Reason.CANCEL)
        assert (await line.send([bytes(2 << 20)])).status == 200
        assert len(line.connections) == 1

    run(script, use)


# -------------------------------------------------------------------------------- malicious servers


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + payload
    )


DATA, HEADERS, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
OK = b"\x88"  # :status 200

ENDING_THE_CONNECTION: dict[str, Callable[[int], bytes]] = {
    "bytes that are not a frame": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000,
    "data on no stream": lambda _: frame(DATA, 0, 0, b"x"),
    "a response that nobody asked for": lambda _: frame(HEADERS, 5, 99, OK),
    "a stream of the server": lambda _: frame(HEADERS, 5, 2, OK),
    "a push": lambda n: frame(PUSH, 4, n, bytes(4) + OK),
    "a frame that is too large": lambda n: (
        frame(HEADERS, 4, n, OK) + frame(DATA, 0, n, bytes(20_000))
    ),
    "headers that cannot be unpacked": lambda n: frame(HEADERS, 4, n, b"\xff\xff\xff\xff\xff\xff"),
    "a continuation of nothing": lambda n: frame(CONTINUATION, 4, n, OK),
    "headers that are interrupted": lambda n: (
        frame(HEADERS, 0, n, OK) + frame(PING, 0, 0, bytes(8))
    ),
    "settings of an odd length": lambda _: frame(SETTINGS, 0, 0, b"odd"),
    "settings on a stream": lambda n: frame(SETTINGS, 0, n),
    "a ping of an odd length": lambda _: frame(PING, 0, 0, b"odd"),
    "a window that does not grow": lambda _: frame(WINDOW, 0, 0, bytes(4)),
    "a header in capitals": lambda n: frame(HEADERS, 5, n, OK + b"\x00\x01A\x01b"),
    "a window of the stream that does not grow": lambda n: frame(WINDOW, 0, n, bytes(4)),
    "a window beyond all windows": lambda _: frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2,
    "a GOAWAY that is cut": lambda _: frame(GOAWAY, 0, 0, b"cut"),
    "padding longer than its frame": lambda n: (
        frame(HEADERS, 4, n, OK) + frame(DATA, 8, n, b"\xffx")
    ),
    "headers without an end": lambda n: (
        frame(HEADERS, 0, n, OK)
        + frame(CONTINUATION, 0, n, b"\x00\x01a\x7f\x81\x7f" + b"a" * 16_000) * 50
    ),
    "empty continuations without an end": lambda n: (
        frame(HEADERS, 0, n, OK) + frame(CONTINUATION, 0, n) * 5000
    ),
}

ENDING_ONE_STREAM: dict[str, Callable[[int], bytes]] = {
    "no status": lambda n: frame(HEADERS, 5, n, b"\x00\x01a\x01b"),
    "more than was announced": lambda n: (
        frame(HEADERS, 4, n, OK + b"\x0f\x0d\x011") + frame(DATA, 1, n, b"xyz")
    ),
    "less than was announced": lambda n: (
        frame(HEADERS, 4, n, OK + b"\x0f\x0d\x019") + frame(DATA, 1, n, b"xyz")
    ),
    "no body where one was announced": lambda n: frame(HEADERS, 5, n, OK + b"\x0f\x0d\x019"),
}


def attack(evil: Callable[[int], bytes]) -> tuple[list[Any], int]:
    """Return the outcomes of the attacked, another and a later request, and the connections."""

    async def script(connection: Connection) -> None:
        if connection.number:
            await connection.answer_all()
        first, second = await connection.request(), await connection.request()
        connection.send(evil(first.stream_id))
        await connection.respond(second)
        await connection.answer_all()

    async def use(line: Line) -> tuple[list[Any], int]:
        answers = await line.send_all(2, silence_seconds=20)
        return statuses([*answers, await line.send()]), len(line.connections)

    return run(script, use)


@pytest.mark.parametrize("evil", ENDING_THE_CONNECTION.values(), ids=list(ENDING_THE_CONNECTION))
def test_a_connection_that_breaks_the_protocol(evil: Callable[[int], bytes]) -> None:
    """A violation that ends the connection fails what is on it; the next exchange reconnects."""
    (first, second, third), connections = attack(evil)
    for error in (first, second):
        assert not failure(error).timed_out
        assert not failure(error).never_ran
    assert (third, connections) == (200, 2)


@pytest.mark.parametrize("evil", ENDING_ONE_STREAM.values(), ids=list(ENDING_ONE_STREAM))
def test_a_stream_that_breaks_the_protocol(evil: Callable[[int], bytes]) -> None:
    """An error in one response fails only its exchange."""
    (first, second, third), connections = attack(evil)
    assert not failure(first).never_ran
    assert (second, third, connections) == (200, 200, 1)


def test_unusual_but_valid_frames() -> None:
    """Trailers, padding, pings, unknown frames and priorities are read without effect."""

    async def script(connection: Connection) -> None:
        number = (await connection.request()).stream_id
        connection.send(
            frame(0xEE, 0xFF, 0, b"unknown")
            + frame(2, 0, number, bytes(5))
            + frame(PING, 0, 0, bytes(8)) * 5_000
        )
        connection.send(
            frame(HEADERS, 4, number, b"\x08\x03103")
            + frame(HEADERS, 4 | 8, number, b"\x02" + OK + b"\x00\x00")
        )
        connection.send(frame(DATA, 8, number, b"\x03body\x00\x00\x00") + frame(DATA, 0, number))
        connection.send(frame(HEADERS, 5, number, b"\x00\x01t\x01v"))
        await connection.answer_all()

    async def use(line: Line) -> None:
        answer = await line.send()
        assert (answer.status, answer.content, dict(answer.headers)) == (200, b"body", {})
        assert (await line.send()).status == 200
        assert len(line.connections) == 1

    run(script, use)


@pytest.mark.parametrize(
    "late",
    [
        frame(DATA, 1, 1, b"x"),
        frame(HEADERS, 5, 1, OK),
        frame(RST, 0, 1, bytes(4)),
        frame(WINDOW, 0, 1, b"\0\0\0\1"),
    ],
)
def test_frames_after_the_end(late: bytes) -> None:
    """Frames for a finished stream do not change its response, and nothing hangs."""

    async def script(connection: Connection) -> None:
        if not connection.number:
            await connection.respond(await connection.request(), b"response")
            connection.send(late)
        await connection.answer_all()

    async def use(line: Line) -> None:
        assert (await line.send()).content == b"response"
        await line.send_all(1)
        assert (await line.send()).status == 200

    run(script, use)


@pytest.mark.parametrize("what", ["body", "endless headers", "early responses", "empty pieces"])
def test_responses_without_an_end(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response too large, or without an end, fails typed; the next exchange works."""
    monkeypatch.setattr(messages, "MAX_ANSWER_NBYTES", 100_000)
    sent: list[Request] = []

    async def respond(connection: Connection, request: Request) -> None:
        number = request.stream_id
        if what == "body":
            await connection.respond(request, bytes(1_000_000))
            return
        if what != "early responses":
            connection.begin(request)
        if what == "endless headers":
            more = frame(CONTINUATION, 0, number, b"\x00\x01a\x01b" * 1000)
            connection.send(frame(HEADERS, 1, number) + more * 50)
            return
        early, empty = frame(HEADERS, 4, number, b"\x08\x03103"), frame(DATA, 0, number) * 1000
        while request.error_code is None and not connection._is_lost:
            connection.send(early if what == "early responses" else empty)
            sent.append(request)
            await asyncio.sleep(0.001)

    async def script(connection: Connection) -> None:
        if not connection.number:
            await respond(connection, await connection.request())
        await connection.answer_all()

    async def use(line: Line) -> None:
        answer = line.begin(silence_seconds=20)
        if what == "early responses":
            await until(lambda: len(sent) > 10)
            await line.skip(20)
        [error] = await asyncio.gather(answer, return_exceptions=True)
        assert not failure(error).never_ran
        assert failure(error).timed_out == (what == "early responses")
        assert (await line.send()).status == 200

    run(script, use)


def test_a_head_that_is_too_large() -> None:
    """Header blocks are buffered only up to the limit."""

    async def script(connection: Connection) -> None:
        await connection.respond(
            await connection.request(),
            headers=[(f"x-{number}", "a" * 1000) for number in range(1000)],
        )
        await connection.lost()

    async def use(line: Line) -> None:
        [answer] = await line.send_all(1)
        if isinstance(answer, RawResponse):
            assert (
                sum(len(name) + len(value) for name, value in answer.headers.items())
                <= messages.MAX_HEAD_NBYTES
            )
        else:
            assert not failure(answer).never_ran

    run(script, use)


# ------------------------------------------------------------------------------ closing, cancelling


def test_an_invalid_request_header() -> None:
    """An invalid request header fails before anything is sent, and uses no stream."""

    async def use(line: Line) -> None:
        for url, headers in (("/a b", {}), ("/", {"x": "a\nb"}), ("/", {"a b": "c"})):
            with pytest.raises(ExchangeFailed, match="ValueError"):
                await line.engine.send(
                    PreparedRequest(method="GET", url=line.url + url, headers=headers)
                )
        assert statuses(await line.send_all(10)) == [200] * 10
        assert all(connection.used == 0 for connection in line.engine.connections)

    run(Connection.answer_all, use)


# --------------------------------------------------------------------------------------- the client


PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
DATUM = tinker.Datum(PROMPT, {"target_tokens": [2, 3, 4]})


@pytest.fixture
def steps() -> list[int]:
    """Return what grows with each step that the toy server runs."""
    return []


@pytest.fixture
def app(tmp_path: Path, steps: list[int]) -> Iterator[Any]:
    """Yield the toy server."""

    class Counting(ToyEngine):
        def forward_backward(self, *args: Any, **how: Any) -> Any:
            steps.append(1)
            return super().forward_backward(*args, **how)

    state = State(Counting, Settings(data_dir=tmp_path / "server", hold_seconds=0.2))
    yield create_app(state)
    state.close()


@contextlib.contextmanager
def served(
    app: Any, script: Script = Connection.answer_all, **settings: int
) -> Iterator[tuple[Http2Server, tinker.ServiceClient]]:
    """Serve an application over HTTP/2, to a client that is closed at the end."""
    with http2_server(script, app=app, ssl_context=server_context("h2"), **settings) as server:
        service = tinker.ServiceClient(base_url=server.url, api_key="tml-key")
        yield server, service
        service.close().result(30)


def sample_often(service: tinker.ServiceClient, count: int) -> list[tinker.APIFuture[Any]]:
    sampler = service.create_sampling_client(base_model="tinker/toy").result(30)
    return [sampler.sample(PROMPT, 1, PARAMS) for _ in range(count)]


def responding(respond: Callable[[Connection, Request], Awaitable[None]]) -> Script:
    """Return a script that responds to all requests of a connection concurrently."""

    async def script(connection: Connection) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(respond(connection, await connection.head()))

    return script


def refuse(connection: Connection, request: Request) -> None:
    connection.reset(request, H2Reason.REFUSED_STREAM)


def reset(connection: Connection, request: Request) -> None:
    connection.reset(request, H2Reason.INTERNAL_ERROR)


def go_away(connection: Connection, request: Request) -> None:
    connection.send(connection.codec.serialize_go_away(request.stream_id - 2, 0))


def break_off(connection: Connection, _: Request) -> None:
    connection.break_off()


# what is refused never ran, and its server would report a wrong outcome
@pytest.mark.parametrize(
    ("end", "has_run"),
    [
        *((end, False) for end in (refuse, go_away, reset, break_off)),
        *((end, True) for end in (reset, break_off)),
    ],
)
def test_every_step_runs_once(
    end: Callable[[Connection, Request], None], has_run: bool, app: Any, steps: list[int]
) -> None:
    """A request whose stream ends is sent again, with the same number, and runs once."""
    bodies: list[bytes] = []

    async def respond(connection: Connection, request: Request) -> None:
        await connection.wait_until(lambda: request.is_complete)
        if request.path.endswith("/forward_backward"):
            bodies.append(bytes(request.body))
            if len(bodies) in (1, 3):
                if has_run:
                    url, headers = connection.server.url + request.path, request.headers
                    asked = httpx.Request("POST", url, headers=headers, content=bodies[-1])
                    await call_app(app, asked)
                end(connection, request)
                return
        await connection.answer(request)

    with served(app, responding(respond)) as (_, service):
        training = service.create_lora_training_client("tinker/toy", rank=4)
        for future in [training.forward_backward([DATUM], "cross_entropy") for _ in range(3)]:
            future.result(60)
    assert (len(bodies), len(set(bodies)), len(steps)) == (5, 3, 3)


def test_a_connection_with_many_samples_breaks(app: Any) -> None:
    """Samples on a broken connection are sent again, once, over one new connection."""
    count = 80
    lost, seen = list[bytes](), list[bytes]()

    async def respond(connection: Connection, request: Request) -> None:
        if not request.path.endswith("/asample"):
            await connection.answer(request)
            return
        await connection.wait_until(lambda: request.is_complete)
        if len(lost) < count:
            lost.append(bytes(request.body))
            if len(lost) == count:
                connection.break_off()
        else:
            await connection.answer(request)
            seen.append(bytes(request.body))

    with served(app, responding(respond), max_concurrent_streams=100) as (server, service):
        assert all(future.result(60) for future in sample_often(service, count))
    assert len(server.connections) <= 3
    assert sorted(seen) == sorted(lost)
    assert len(set(lost)) == count


def test_closing_a_client_under_way(app: Any) -> None:
    """Closing a client fails its futures, typed, and leaves no task and no connection."""

    def tasks() -> set[Any]:
        loop = loop_thread()._loop
        return set() if loop is None else asyncio.all_tasks(loop)

    held: list[Request] = []

    async def respond(connection: Connection, request: Request) -> None:
        if request.path.endswith("/asample"):
            held.append(request)
        else:
            await connection.answer(request)

    with served(app):  # starts the loop
        pass
    had = tasks()
    with served(app, responding(respond)) as (server, service):
        futures = sample_often(service, 30)
        wait_for(lambda: len(held) == 30)
        service.close().result(30)
        assert {type(future.exception(30)) for future in futures} == {ClientClosedError}
        wait_for(lambda: all(connection._is_lost for connection in server.connections))
        wait_for(lambda: len(tasks()) <= len(had))


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until another thread has done something."""
    asyncio.run(until(condition))


def test_the_end_of_a_program_with_exchanges_under_way(tmp_path: Path) -> None:
    """Exchanges under way delay the end of no program or child, which connects anew."""
    program = """
import multiprocessing, os, sys
import tinker

PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)

def sample(url):
    service = tinker.ServiceClient(base_url=url, api_key="tml-key")
    return service.create_sampling_client(base_model="tinker/toy").result(30).sample(PROMPT, 1, PARAMS).result(30)

def child(url):
    assert sample(url).sequences
    os._exit(0) if multiprocessing.get_start_method() == "fork" else None

if __name__ == "__main__":
    url, method = sys.argv[1:]
    service = tinker.ServiceClient(base_url=url, api_key="tml-key")
    sampler = service.create_sampling_client(base_model="tinker/toy").result(30)
    sampler.sample(PROMPT, 1, PARAMS).result(30)
    held = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(20)]
    multiprocessing.set_start_method(method)
    process = multiprocessing.Process(target=child, args=(url,))
    process.start()
    process.join(60)
    assert process.exitcode == 0, process.exitcode
    [one.result(30) for one in held]
    held = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(20)]
"""
    state = State(ToyEngine, Settings(data_dir=tmp_path / "server", hold_seconds=5.0))
    with http2_server(app=create_app(state), ssl_context=server_context("h2")) as server:
        for method in ("fork", "spawn"):
            run_program(program, server.url, method)
    state.close()


def test_threads_and_loops(app: Any) -> None:
    """Samples of several threads and of consecutive event loops share a connection."""

    async def ask(sampler: tinker.SamplingClient) -> Any:
        return await sampler.sample(PROMPT, 1, PARAMS)

    with served(app, max_concurrent_streams=100) as (server, service):
        sampler = service.create_sampling_client(base_model="tinker/toy").result(30)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: asyncio.run(ask(sampler)), range(24)))
        assert len(answers) == 24
    assert len(server.connections) == 1


MEASURED = """
import asyncio, resource, sys
from tinker._http.engine_http import HttpEngine
from tinker._http.messages import PreparedRequest
from tinker_wire.runtime import FormPieces

PIECE = bytes(1 << 20)

async def send(count):
    engine = HttpEngine()
    body = FormPieces([PIECE] * count)
    request = PreparedRequest(
        method="POST", url=sys.argv[1], headers={}, body=body, nbytes=count << 20
    )
    assert (await engine.send(request)).status == 200
    await engine.aclose()

asyncio.run(send(8))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
asyncio.run(send(int(sys.argv[2])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is Linux's")
def test_a_large_body() -> None:
    """A large body in pieces is sent without being copied in memory."""

    class Discarded(bytearray):
        nbytes = 0

        def __iadd__(self, data: Any) -> Discarded:  # type: ignore[misc]
            self.nbytes += len(data)
            return self

    async def script(connection: Connection) -> None:
        connection.open_window(None, 1 << 30)
        request = await connection.head()
        received = Discarded()
        received.nbytes = len(request.body)
        request.body = received
        await connection.wait_until(lambda: request.is_complete)
        sizes.append(received.nbytes)
        await connection.respond(request)
        await connection.lost()

    sizes: list[int] = []
    count = 256
    context = server_context("h2")
    with http2_server(script, ssl_context=context, initial_window_size=1 << 20) as server:
        grown = run_program(MEASURED, server.url, str(count)).stdout
    assert sizes[1] == count << 20
    assert int(grown) < 20_000  # KiB
