"""Connections over HTTP/1.1 and HTTP/2, by the protocols of httpunk, and one exchange on them."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Protocol

import attrs
import httpunk._httpunk as states
from httpunk import H2Error, H2Reason, H2StreamError, HeaderMap, HTTPunkError

from tinker._http import messages
from tinker._http.messages import MAX_HEAD_NBYTES, ExchangeFailed, Headers, PreparedRequest, Receive
from tinker._wire import INLINE_NBYTES, Piece

# The bytes read ahead of a receiver before the connection stops reading.
READ_AHEAD_NBYTES = 1 << 20
_STEP_NBYTES = 1 << 20  # of a body, between two looks at its size and the memory
_SLICE_NBYTES = 1 << 18


class ReceivedHeaders(Mapping[str, str]):
    """The headers of a response, with names of any case. Bytes that are not UTF-8 are kept as
    surrogates.
    """

    __slots__ = ("_headers",)

    def __init__(self, headers: HeaderMap) -> None:
        self._headers = headers

    def __getitem__(self, name: str) -> str:
        values = self._headers.get_all(name)
        if not values:
            raise KeyError(name)
        return b", ".join(values).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers.keys())

    def __len__(self) -> int:
        return len(self._headers.keys())


class BodySource(Protocol):
    """The connection as a receiver sees it."""

    def consume(self, exchange: Exchange, nbytes: int) -> None:
        """Note that the receiver has taken so much of the body."""
        ...


@attrs.define(eq=False)
class Exchange:
    """A request on its way and the response to it.

    The connection reports what happens: ``begin``, ``add``, ``end`` or ``fail``. ``outcome`` is
    done once the response is complete or has failed; for a request with a receiver, once the head
    of the response has arrived.
    """

    request: PreparedRequest
    _loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[None] = attrs.field(init=False)
    status: int = attrs.field(default=0, init=False)
    headers: ReceivedHeaders | None = attrs.field(default=None, init=False)
    limit: int = attrs.field(default=0, init=False)  # of the bytes of the body, packed or unpacked
    is_over: bool = attrs.field(default=False, init=False)  # the response is complete or has failed
    number: int = attrs.field(default=0, init=False)  # of the HTTP/2 stream
    # The rest of the body while it is sent; the piece that is being sent, how far it was, and
    # whether it is the last.
    unsent: Iterator[tuple[Piece, bool]] | None = attrs.field(default=None, init=False)
    piece: bytes | None = attrs.field(default=None, init=False)
    offset: int = attrs.field(default=0, init=False)
    is_last: bool = attrs.field(default=False, init=False)
    _chunks: deque[bytes] = attrs.field(factory=lambda: deque[bytes](), init=False)
    _nbytes: int = attrs.field(default=0, init=False)
    # up to which size nothing is looked at
    _unchecked_nbytes: int = attrs.field(default=INLINE_NBYTES, init=False)
    _failure: Exception | None = attrs.field(default=None, init=False)
    _waiter: asyncio.Future[None] | None = attrs.field(default=None, init=False)
    _receive: Receive | None = attrs.field(default=None, init=False)
    _source: BodySource | None = attrs.field(default=None, init=False)
    _ends: float = attrs.field(default=float("inf"), init=False)
    _due: float = attrs.field(init=False)
    _timer: asyncio.TimerHandle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outcome = self._loop.create_future()
        self._due = self._loop.time() + self.request.silence_seconds
        self._timer = self._loop.call_at(self._due, self._look)

    # --------------------------------------------------------------------------- for the connection

    def touch(self) -> None:
        """Note a sign of life: the limit of silence begins again."""
        self._due = min(self._loop.time() + self.request.silence_seconds, self._ends)

    def begin(self, status: int, headers: HeaderMap, source: BodySource) -> None:
        """Note the head of the response."""
        self.status, self.headers = status, ReceivedHeaders(headers)
        self._receive, self.limit = self.request.plan_body(status)
        if self._receive is not None:
            self._source = source
            _finish(self.outcome)
        else:
            self._ends = self._loop.time() + messages.ANSWER_SECONDS
        self.touch()

    def add(self, chunk: bytes) -> bool:
        """Note a piece of the body. Return whether the receiver is far behind, so that the
        connection should stop reading.
        """
        self._nbytes += len(chunk)
        self._chunks.append(chunk)
        self.touch()
        if self._receive is not None:
            _finish(self._waiter)
            return self._nbytes > READ_AHEAD_NBYTES
        if self._nbytes > self._unchecked_nbytes:
            self._check_size()
        return False

    def _check_size(self) -> None:
        """Fail the exchange if its response is, or will be, too large."""
        assert self.headers is not None
        try:
            messages.check_size(self._nbytes, self.limit, self.headers.get("content-length", ""))
        except ExchangeFailed as failure:
            self.fail(failure)
            self._chunks.clear()
        self._unchecked_nbytes = min(self._nbytes + _STEP_NBYTES, self.limit)

    def end(self) -> None:
        """Note that the response is complete."""
        self.is_over = True
        self._timer.cancel()
        _finish(self._waiter)
        _finish(self.outcome)

    def fail(self, failure: Exception) -> None:
        """End the exchange without a complete response, unless it has ended already."""
        if self.is_over:
            return
        self._failure = failure
        self.end()

    def next_piece(self) -> tuple[Piece, bool] | None:
        """Return the next piece of the body and whether it is the last; None if it cannot be read,
        which fails the exchange.
        """
        assert self.unsent is not None
        try:
            return next(self.unsent)
        except Exception as error:  # noqa: BLE001 - whatever the body raises is its sender's
            self.unsent = None
            self.fail(error)
            return None

    def pieces_of_body(self) -> Iterator[tuple[Piece, bool]]:
        """Yield the body of the request in pieces that are small enough to be copied, and whether
        each is the last.
        """
        if self.request.nbytes <= INLINE_NBYTES:
            yield b"".join(self.request.body), True
            return
        previous: Piece = b""
        for piece in (part for whole in self.request.body for part in _slices(whole)):
            if previous:
                yield previous, False
            previous = piece
        yield previous, True

    # ------------------------------------------------------------------------------- for the engine

    async def receive(self) -> None:
        """Wait until the response is complete, or hand its body to the receiver as it comes. Raises
        what went wrong.
        """
        await self.outcome
        if self._receive is not None:
            assert self.headers is not None
            await self._receive(self.headers, self.pieces())
        elif self._failure is not None:
            raise self._failure

    @property
    def is_streamed(self) -> bool:
        """Return whether a receiver takes the body as it comes."""
        return self._receive is not None

    @property
    def content(self) -> bytes:
        """Return the body as it was sent; nothing of one that a receiver takes."""
        if self._receive is not None:
            return b""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        assert self._source is not None
        while True:
            while self._chunks:
                piece = self._chunks.popleft()
                self._nbytes -= len(piece)
                self._source.consume(self, len(piece))
                yield piece
                self.touch()
            if self._failure is not None:
                raise self._failure
            if self.is_over:
                return
            self._waiter = self._loop.create_future()
            await self._waiter

    def leave(self) -> None:
        """Stop the clock, after the caller has gone."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
        else:
            self.fail(
                messages.late(
                    self.request, self.headers is not None, is_trickling=self._due >= self._ends
                )
            )


def encode_headers(request: PreparedRequest) -> HeaderMap:
    """Return the encoded headers of a request; headers shared by many requests are encoded once."""
    own = request.headers
    if not isinstance(own, Headers):
        return HeaderMap(own.items())
    shared, own = own.shared, own.own
    if shared.encoded is None:
        shared.encoded = HeaderMap(shared.items())
    headers = HeaderMap(shared.encoded)
    for name, value in own.items():
        headers[name] = value
    return headers


def _finish(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _slices(piece: Piece) -> Iterator[Piece]:
    view = memoryview(piece).cast("B")
    for start in range(0, len(view), _SLICE_NBYTES):
        yield view[start : start + _SLICE_NBYTES]


class Http1Connection(asyncio.Protocol):
    """The protocol of one connection. The connection can be used again once its exchange has ended
    properly.

    ``target`` is what is sent instead of the path alone: the address of the server, where a proxy
    passes requests on.
    """

    version = "HTTP/1.1"
    secured: ssl.SSLObject | None = None
    capacity = 1
    is_settled = True

    def __init__(
        self, authority: str, target: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.used = 0
        self.idle_since = 0.0
        self.is_closed = False
        self._authority, self._target, self._proxy_headers = authority, target, headers or {}
        self._codec = states.H1Codec(max_buf_size=MAX_HEAD_NBYTES)
        self._exchange: Exchange | None = None
        self._head: states.H1ResponseHead | None = None
        self._decoder: states.H1BodyDecoder | None = None
        self._nbytes = 0  # that have arrived until the head was complete
        self._is_paused = False
        self._is_reading = True

    # ------------------------------------------------------------------------------- for the engine

    def start(self, exchange: Exchange, path: str) -> bool:
        """Send the request. Return whether the connection can; otherwise another one has to."""
        if self.is_closed:
            return False
        self._exchange, self._head, self._decoder, self._nbytes = exchange, None, None, 0
        request = exchange.request
        headers = encode_headers(request)
        for name, value in self._proxy_headers.items():
            headers[name] = value
        headers.setdefault("host", self._authority)
        nbytes = request.nbytes
        if nbytes or request.method != "GET":
            headers["content-length"] = str(nbytes)
        self._codec.reset()
        head = self._codec.serialize_request(
            request.method, self._target + path, headers, content_length=nbytes or None
        )
        if nbytes <= INLINE_NBYTES:
            self._transport.write(b"".join((head, *request.body)))
        else:
            self._transport.write(head)
            exchange.unsent = exchange.pieces_of_body()
            self._push()
        return True

    def leave(self, exchange: Exchange) -> None:
        """Abandon an exchange. Its remaining bytes cannot be separated from the next response, so
        the connection ends.
        """
        if self._exchange is exchange:
            self._exchange = None
            self.close()

    def consume(self, exchange: Exchange, nbytes: int) -> None:
        """Read on after the receiver took a piece of the body."""
        if self._exchange is exchange:
            self._resume_reading()

    def close(self) -> None:
        """End the connection, and the exchange on it."""
        self.is_closed = True
        self._transport.abort()
        self._fail(ExchangeFailed("the connection was closed"))

    # --------------------------------------------------------------------------- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read the response, as far as it has come."""
        try:
            self._read(data)
        except HTTPunkError as error:
            self._end(ExchangeFailed(f"the server sent no valid HTTP/1.1: {error}"))

    def eof_received(self) -> None:
        """End a body that lasts until the connection ends; any other that is
        incomplete has failed.
        """
        if self._decoder is not None:
            try:
                self._decoder.mark_eof()
                self._read_body(self._decoder)
            except HTTPunkError as error:
                self._end(
                    ExchangeFailed(f"the connection ended in the middle of the response: {error}")
                )

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange on the connection."""
        self.is_closed = True
        if (refused := messages.find_refusal(exc, self._authority)) is not None:
            self._fail(refused)
            return
        when = "before a response came" if self._head is None else "in the middle of the response"
        self._fail(ExchangeFailed(f"the connection ended {when}" + (f": {exc}" if exc else "")))

    def pause_writing(self) -> None:
        """Send no more of the body for now."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Send more of the body."""
        self._is_paused = False
        self._push()

    # ----------------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()

    def _push(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.unsent is None:
            return
        exchange.touch()
        while not self._is_paused and not self.is_closed:
            following = exchange.next_piece()
            if following is None:
                return
            self._transport.write(following[0])
            if following[1]:
                exchange.unsent = None
                return

    def _read(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nothing was asked
            self.close()
            return
        if self._decoder is not None:
            self._decoder.feed(data)
            self._read_body(self._decoder)
            return
        head = self._codec.receive_head(data)
        self._nbytes += len(data)
        if self._nbytes - self._codec.buffered() > MAX_HEAD_NBYTES:
            self._end(
                ExchangeFailed(f"the head of the response is larger than {MAX_HEAD_NBYTES} bytes")
            )
        elif head is not None:
            self._head, self._decoder = (
                head,
                states.H1BodyDecoder(head.body_kind, head.content_length or 0),
            )
            self._codec.take_body_into(self._decoder)
            exchange.begin(head.status, head.headers, self)
            self._read_body(self._decoder)

    def _read_body(self, decoder: states.H1BodyDecoder) -> None:
        exchange = self._exchange
        while exchange is not None and (chunk := decoder.decode()) is not None:
            if exchange.add(chunk) and self._is_reading:
                self._is_reading = False
                self._transport.pause_reading()
            if exchange.is_over:  # too large
                self.leave(exchange)
                return
        if decoder.is_complete:
            self._end(None)

    def _end(self, failure: ExchangeFailed | None) -> None:
        """End the exchange. After a failure, before the whole request was sent, or if one side
        wants so, the connection too.
        """
        exchange, head, decoder = self._exchange, self._head, self._decoder
        self._exchange = self._decoder = None
        is_sent = (
            exchange is not None
            and exchange.unsent is None
            and not self._transport.get_write_buffer_size()
        )
        is_clean = is_sent and head is not None and head.wants_keep_alive
        if failure is not None or not is_clean or (decoder is not None and decoder.finish()[1]):
            self.is_closed = True
            self._transport.abort()
        else:
            self._resume_reading()
        if exchange is not None:
            exchange.unsent = None
            exchange.end() if failure is None else exchange.fail(failure)

    def _fail(self, failure: ExchangeFailed) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(failure)


# Streams that a client opens on one connection. Front ends allow 100 to 128; more exchanges open
# more connections.
STREAMS = 100
# Before the server has said how many it allows.
_EARLY_STREAMS = 10
# A connection that has been silent for so long is asked for a sign of life; without one it is dead
# after twice as long.
SILENCE_SECONDS = 10.0
_WINDOW_NBYTES, _CONNECTION_WINDOW_NBYTES = 2 << 20, 16 << 20
_FRAME_NBYTES = 1 << 14
_UNSENT_NBYTES = 1 << 18  # of one body, in the buffer of the connection


class Http2Connection(asyncio.Protocol):
    """The protocol of one connection."""

    version = "HTTP/2"
    secured: ssl.SSLObject | None = None

    def __init__(self, authority: str) -> None:
        self.used, self.capacity = 0, _EARLY_STREAMS
        self.is_settled = False  # whether the server has said how many streams it allows
        self.when_settled: Callable[[], None] | None = None
        self.idle_since = 0.0
        self.is_closed = False  # to new exchanges; those under way may go on
        self._authority = authority
        self._streams = states.H2Streams(
            "client",
            initial_window_size=_WINDOW_NBYTES,
            connection_window=_CONNECTION_WINDOW_NBYTES,
            max_frame_size=_FRAME_NBYTES,
            max_header_list_size=MAX_HEAD_NBYTES,
            max_send_buf_size=_UNSENT_NBYTES,
            enable_push=False,
        )
        self._exchanges: dict[int, Exchange] = {}
        self._loop = asyncio.get_running_loop()
        self._is_paused = False
        self._will_flush = False
        self._heard = self._loop.time()
        self._asked = 0.0  # when a ping was sent that has not been answered
        self._watch: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------- for the engine

    def start(self, exchange: Exchange, path: str) -> bool:
        """Send the request, or as much of it as the server takes now. Return False where another
        connection has to.
        """
        request = exchange.request
        headers = encode_headers(request)
        nbytes = request.nbytes
        if nbytes:
            headers["content-length"] = str(nbytes)
        if self.is_closed or not self._streams.try_claim_slot():
            self.is_closed = self.is_closed or self.used <= self.capacity  # they do not agree
            return False
        number = self._streams.open_stream(
            request.method,
            path,
            headers,
            not nbytes,
            False,
            exchange,
            scheme="https",
            authority=self._authority,
        )
        if number is None:
            self.is_closed = True
            return False
        exchange.number = number
        self._exchanges[number] = exchange
        if nbytes:
            exchange.unsent = exchange.pieces_of_body()
            self._push(exchange)
        self._flush_soon()
        if self._watch is None:
            self._note_life()
            self._watch = self._loop.call_later(SILENCE_SECONDS, self._look)
        return True

    def leave(self, exchange: Exchange) -> None:
        """Abandon an exchange: its stream is reset."""
        if self._exchanges.pop(exchange.number, None) is None:
            return
        exchange.unsent = None
        self._act(self._streams.reset_stream(exchange.number, int(H2Reason.CANCEL), "user").flags)
        self._flush_soon()

    def consume(self, exchange: Exchange, nbytes: int) -> None:
        """Let the server send more, after the receiver took a piece of the body."""
        self._act(self._streams.release_capacity(exchange.number, nbytes))
        self._flush_soon()

    def close(self) -> None:
        """End the connection, and the exchanges on it."""
        self._end(ExchangeFailed("the connection was closed"))

    # --------------------------------------------------------------------------- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._streams.begin()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take the frames that have arrived."""
        self._note_life()
        try:
            for frame in self._streams.receive(data):
                self._take(frame)
            flags = self._streams.maybe_goaway_reply()
        except H2Error as error:
            reason = (
                error.args[0]
                if error.args and isinstance(error.args[0], int)
                else int(H2Reason.PROTOCOL_ERROR)
            )
            self._streams.send_goaway(reason)
            self._flush()
            self._end(ExchangeFailed(f"the server sent no valid HTTP/2: {error}"))
            return
        if flags & states.H2_FLAG_CONN_DONE:
            self._end(ExchangeFailed("the server closed the connection"))
        elif self._streams.has_pending():
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every exchange on the connection."""
        refused = messages.find_refusal(exc, self._authority)
        self._end(refused or ExchangeFailed("the connection ended" + (f": {exc}" if exc else "")))

    def pause_writing(self) -> None:
        """Hand over no more bytes for now."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Write the buffered bytes. The peer has read some, so it is alive."""
        self._is_paused = False
        self._note_life()
        self._flush()

    # ------------------------------------------------------------------------------------ receiving

    def _take(self, frame: states.H2Frame) -> None:
        try:
            if isinstance(frame, states.H2FrameData):
                self._take_data(frame)
            elif isinstance(frame, states.H2FrameHeaders):
                self._take_headers(frame)
            elif isinstance(frame, states.H2FrameWindowUpdate):
                self._wake(self._streams.recv_window_update(frame))
            elif isinstance(frame, states.H2FrameSettings):
                _, handles, flags = self._streams.recv_settings(frame)
                self._wake(handles)
                self._act(flags)
                if not frame.ack:
                    self._settle(self._streams.peer_max_concurrent_streams)
            elif isinstance(frame, states.H2FramePing):
                self._act(self._streams.recv_ping(frame))
            elif isinstance(frame, states.H2FrameRstStream):
                self._take_reset(frame)
            elif isinstance(frame, states.H2FrameGoAway):
                self._take_go_away(frame)
            elif isinstance(frame, states.H2FrameStreamError):
                self._reset_broken(frame.stream_id, frame.error_code)
        except H2StreamError as error:
            self._reset_broken(error.args[0], error.args[1])

    def _settle(self, limit: int | None) -> None:
        self.capacity = STREAMS if limit is None else min(STREAMS, limit)
        self.is_settled = True
        if self.when_settled is not None:
            self.when_settled()

    def _take_headers(self, frame: states.H2FrameHeaders) -> None:
        verdict = self._streams.recv_headers(frame)
        exchange = verdict.handle
        if isinstance(exchange, Exchange):
            if verdict.kind == states.H2_HEADERS_HEAD and frame.status is None:
                self._reset_broken(frame.stream_id, int(H2Reason.PROTOCOL_ERROR))
                return
            if verdict.kind == states.H2_HEADERS_HEAD and frame.status is not None:
                exchange.begin(frame.status, frame.headers, self)
            if verdict.eof or verdict.kind == states.H2_HEADERS_TRAILERS:
                self._finish(exchange)
        self._act(verdict.flags)

    def _take_data(self, frame: states.H2FrameData) -> None:
        verdict = self._streams.recv_data(frame)
        exchange = verdict.handle
        if isinstance(exchange, Exchange):
            if verdict.payload is not None:
                if verdict.budgeted:
                    self._streams.release_data_frame(frame.stream_id, len(verdict.payload))
                exchange.add(verdict.payload)
                if not exchange.is_streamed:
                    self._act(self._streams.release_capacity(frame.stream_id, len(verdict.payload)))
            if verdict.eof:
                self._finish(exchange)
            elif exchange.is_over:  # too large
                self.leave(exchange)
        self._act(verdict.flags)

    def _finish(self, exchange: Exchange) -> None:
        """Note that a response is complete, and drop the unsent part of its request."""
        self._exchanges.pop(exchange.number, None)
        if exchange.unsent is not None:
            exchange.unsent = None
            self._act(
                self._streams.reset_stream(exchange.number, int(H2Reason.CANCEL), "user").flags
            )
        exchange.end()

    def _take_reset(self, frame: states.H2FrameRstStream) -> None:
        stopped = self._streams.recv_reset(frame)
        if stopped is not None:
            exchange, stop, _, flags = stopped
            if isinstance(exchange, Exchange):
                self._exchanges.pop(exchange.number, None)
                never_ran = stop.reason == int(H2Reason.REFUSED_STREAM)
                exchange.fail(
                    ExchangeFailed(
                        f"the server reset the request ({_name(stop.reason)})", never_ran=never_ran
                    )
                )
            self._act(flags)

    def _take_go_away(self, frame: states.H2FrameGoAway) -> None:
        """Stop opening streams. Those that the server has not processed end, the
        others continue.
        """
        self.is_closed = True
        stopped, flags = self._streams.recv_go_away(frame)
        for exchange, _ in stopped:
            if isinstance(exchange, Exchange):
                self._exchanges.pop(exchange.number, None)
                exchange.fail(
                    ExchangeFailed(
                        "the server closes this connection and did not begin the request",
                        never_ran=True,
                    )
                )
        self._act(flags)

    def _reset_broken(self, number: int, reason: int) -> None:
        """Reset a stream on which the server broke the protocol; the others continue."""
        verdict = self._streams.reset_on_error(number, reason)
        exchange = self._exchanges.pop(number, None)
        if exchange is not None:
            exchange.fail(ExchangeFailed(f"the server sent no valid HTTP/2 ({_name(reason)})"))
        self._act(verdict.flags)

    # -------------------------------------------------------------------------------------- sending

    def _push(self, exchange: Exchange) -> None:
        """Hand over as much of a body as the windows and the buffer take."""
        while exchange.unsent is not None:
            if exchange.piece is None:
                following = exchange.next_piece()
                if following is None:
                    return
                exchange.piece, exchange.is_last, exchange.offset = (
                    bytes(following[0]),
                    following[1],
                    0,
                )
            verdict = self._streams.send_data(
                exchange.number, exchange.piece, exchange.offset, exchange.is_last
            )
            self._act(verdict.flags)
            exchange.offset += verdict.sent
            if verdict.done:
                exchange.piece = None
            if verdict.stopped is not None or (verdict.done and exchange.is_last):
                exchange.unsent = exchange.piece = None
            elif not verdict.done and not verdict.sent:
                return

    def _wake(self, handles: list[object]) -> None:
        for exchange in handles:
            if isinstance(exchange, Exchange) and exchange.unsent is not None:
                exchange.touch()
                self._push(exchange)

    def _act(self, flags: int) -> None:
        """Carry out the actions that the state requests; its bytes are sent after the caller is
        done.
        """
        if flags & states.H2_FLAG_CAPACITY:
            following = self._streams.next_capacity_wake()
            if following is not None:
                self._wake([following])
        if flags:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Write once for everything that happens before the loop's next turn."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        while (
            not self._is_paused and not self._transport.is_closing() and self._streams.has_pending()
        ):
            batch, _ = self._streams.take_pending()
            try:
                self._transport.write(bytes(batch))
            finally:
                batch.release()
            self._wake(self._streams.credit_written())

    def _note_life(self) -> None:
        self._heard, self._asked = self._loop.time(), 0.0

    def _look(self) -> None:
        """Ask a silent server for a sign of life, while anybody waits for it; end a connection that
        gives none.
        """
        self._watch = None
        if not self._exchanges:
            return
        now = self._loop.time()
        due = (self._asked or self._heard) + SILENCE_SECONDS
        if now >= due and self._asked:
            self._end(
                ExchangeFailed(
                    "the connection is dead: the server did not answer for "
                    f"{now - self._heard:.0f} s"
                )
            )
            return
        if now >= due:
            self._asked, due = now, now + SILENCE_SECONDS
            self._transport.write(_PING)
        self._watch = self._loop.call_at(due, self._look)

    def _end(self, failure: ExchangeFailed) -> None:
        self.is_closed = True
        self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        self._streams.fail(None)
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.unsent = None
            exchange.fail(failure)


_PING = states.H2Codec().serialize_ping(bytes(8))


def _name(reason: int | None) -> str:
    try:
        return "no reason" if reason is None else H2Reason(reason).name
    except ValueError:
        return f"reason {reason}"
