"""An HTTP/1.1 connection: one exchange at a time, by the codec of httpunk."""

from __future__ import annotations

import asyncio
import ssl

from httpunk import HTTPunkError
from httpunk._httpunk import H1BodyDecoder, H1Codec, H1ResponseHead

from tinker._http import trust
from tinker._http.exchange import Exchange, encode_headers
from tinker._http.messages import MAX_HEAD_NBYTES, ExchangeFailed
from tinker._wire import INLINE_NBYTES


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
        self._codec = H1Codec(max_buf_size=MAX_HEAD_NBYTES)
        self._exchange: Exchange | None = None
        self._head: H1ResponseHead | None = None
        self._decoder: H1BodyDecoder | None = None
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
        if (refused := trust.find_refusal(exc, self._authority)) is not None:
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
                H1BodyDecoder(head.body_kind, head.content_length or 0),
            )
            self._codec.take_body_into(self._decoder)
            exchange.begin(head.status, head.headers, self)
            self._read_body(self._decoder)

    def _read_body(self, decoder: H1BodyDecoder) -> None:
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
