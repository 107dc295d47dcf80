"""One exchange on a connection: its request, the received part of its response, and how long the
server may be silent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Protocol

import attrs
from httpunk import HeaderMap

from tinker._http import messages
from tinker._http.messages import ExchangeFailed, PreparedRequest
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
    has_begun: bool = attrs.field(default=False, init=False)
    is_streamed: bool = attrs.field(default=False, init=False)
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
        self.has_begun = True
        if self.request.receiver_of(status) is not None:
            self.is_streamed = True
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
        if self.is_streamed:
            _finish(self._waiter)
            return self._nbytes > READ_AHEAD_NBYTES
        if self._nbytes > self._unchecked_nbytes:
            self._check_size()
        return False

    def _check_size(self) -> None:
        """Fail the exchange if its response is, or will be, too large."""
        assert self.headers is not None
        most = self.request.limit_of(self.status)
        try:
            messages.check_size(self._nbytes, most, self.headers.get("content-length", ""))
        except ExchangeFailed as failure:
            self.fail(failure)
            self._chunks.clear()
        self._unchecked_nbytes = min(self._nbytes + _STEP_NBYTES, most)

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
        receive = self.request.receiver_of(self.status)
        if self.is_streamed and receive is not None:
            assert self.headers is not None
            await receive(self.headers, self.pieces())
        elif self._failure is not None:
            raise self._failure

    @property
    def content(self) -> bytes:
        """Return the body as it was sent."""
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
                messages.late(self.request, self.has_begun, is_trickling=self._due >= self._ends)
            )


def encode_headers(request: PreparedRequest) -> HeaderMap:
    """Return the encoded headers of a request; headers shared by many requests are encoded once."""
    parts = request.header_parts
    shared = parts.shared.encoded
    if shared is None:
        shared = parts.shared.encoded = HeaderMap(parts.shared.items())
    headers = HeaderMap(shared)
    for name, value in parts.own.items():
        headers[name] = value
    return headers


def _finish(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _slices(piece: Piece) -> Iterator[Piece]:
    view = memoryview(piece).cast("B")
    for start in range(0, len(view), _SLICE_NBYTES):
        yield view[start : start + _SLICE_NBYTES]
