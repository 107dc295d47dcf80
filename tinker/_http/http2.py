"""An HTTP/2 connection: many exchanges at once, by the protocol state of httpunk.

The state (streams, flow control, header compression, GOAWAY) is hyper's; this module moves bytes
between it and the transport, sends pings, and tells each exchange what happens to it. Nothing here
waits: every method runs to its end.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpunk._httpunk as h2

from tinker._http import trust
from tinker._http.exchange import Exchange, encode_headers
from tinker._http.messages import MAX_HEAD_NBYTES, ExchangeFailed

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
        self._streams = h2.H2Streams(
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
        self._act(
            self._streams.reset_stream(exchange.number, int(h2.H2Reason.CANCEL), "user").flags
        )
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
        except h2.H2Error as error:
            reason = (
                error.args[0]
                if error.args and isinstance(error.args[0], int)
                else int(h2.H2Reason.PROTOCOL_ERROR)
            )
            self._streams.send_goaway(reason)
            self._flush()
            self._end(ExchangeFailed(f"the server sent no valid HTTP/2: {error}"))
            return
        if flags & h2.H2_FLAG_CONN_DONE:
            self._end(ExchangeFailed("the server closed the connection"))
        elif self._streams.has_pending():
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every exchange on the connection."""
        refused = trust.find_refusal(exc, self._authority)
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

    def _take(self, frame: h2.H2Frame) -> None:
        try:
            if isinstance(frame, h2.H2FrameData):
                self._take_data(frame)
            elif isinstance(frame, h2.H2FrameHeaders):
                self._take_headers(frame)
            elif isinstance(frame, h2.H2FrameWindowUpdate):
                self._wake(self._streams.recv_window_update(frame))
            elif isinstance(frame, h2.H2FrameSettings):
                _, handles, flags = self._streams.recv_settings(frame)
                self._wake(handles)
                self._act(flags)
                if not frame.ack:
                    self._settle(self._streams.peer_max_concurrent_streams)
            elif isinstance(frame, h2.H2FramePing):
                self._act(self._streams.recv_ping(frame))
            elif isinstance(frame, h2.H2FrameRstStream):
                self._take_reset(frame)
            elif isinstance(frame, h2.H2FrameGoAway):
                self._take_go_away(frame)
            elif isinstance(frame, h2.H2FrameStreamError):
                self._reset_broken(frame.stream_id, frame.error_code)
        except h2.H2StreamError as error:
            self._reset_broken(error.args[0], error.args[1])

    def _settle(self, limit: int | None) -> None:
        self.capacity = STREAMS if limit is None else min(STREAMS, limit)
        self.is_settled = True
        if self.when_settled is not None:
            self.when_settled()

    def _take_headers(self, frame: h2.H2FrameHeaders) -> None:
        verdict = self._streams.recv_headers(frame)
        exchange = verdict.handle
        if isinstance(exchange, Exchange):
            if verdict.kind == h2.H2_HEADERS_HEAD and frame.status is None:
                self._reset_broken(frame.stream_id, int(h2.H2Reason.PROTOCOL_ERROR))
                return
            if verdict.kind == h2.H2_HEADERS_HEAD and frame.status is not None:
                exchange.begin(frame.status, frame.headers, self)
            if verdict.eof or verdict.kind == h2.H2_HEADERS_TRAILERS:
                self._finish(exchange)
        self._act(verdict.flags)

    def _take_data(self, frame: h2.H2FrameData) -> None:
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
                self._streams.reset_stream(exchange.number, int(h2.H2Reason.CANCEL), "user").flags
            )
        exchange.end()

    def _take_reset(self, frame: h2.H2FrameRstStream) -> None:
        stopped = self._streams.recv_reset(frame)
        if stopped is not None:
            exchange, stop, _, flags = stopped
            if isinstance(exchange, Exchange):
                self._exchanges.pop(exchange.number, None)
                never_ran = stop.reason == int(h2.H2Reason.REFUSED_STREAM)
                exchange.fail(
                    ExchangeFailed(
                        f"the server reset the request ({_name(stop.reason)})", never_ran=never_ran
                    )
                )
            self._act(flags)

    def _take_go_away(self, frame: h2.H2FrameGoAway) -> None:
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
        if flags & h2.H2_FLAG_CAPACITY:
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


_PING = h2.H2Codec().serialize_ping(bytes(8))


def _name(reason: int | None) -> str:
    try:
        return "no reason" if reason is None else h2.H2Reason(reason).name
    except ValueError:
        return f"reason {reason}"
