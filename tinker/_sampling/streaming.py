"""One stream of samples: its events as they come, and what ends it. On the loop.

A connection that is silent ends, as everywhere. Signs of life are not progress: the time without tokens has a limit of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec
from tinker_wire import models

from tinker._clock import Clock
from tinker._futures import TokenMailbox
from tinker._http import (
    ExchangeFailed,
    PreparedRequest,
    RawResponse,
    SampleAdmission,
    connection_error,
    invalid_response,
    shorten,
)
from tinker._wire import EVENT_STREAM, EventDecoder, json
from tinker.errors import RequestFailedError, TinkerError

#: A sample may wait so long for its turn, as one that is not streamed may.
FIRST_TOKEN_SECONDS = 7200.0


class StreamsAbsent(Exception):
    """The server answers something else than a stream."""


class EventReceiver:
    """Takes the events of a stream, to the last one or to one that is wrong.

    :meth:`check` raises StreamsAbsent when the response is no stream; APIError and RequestFailedError as of other requests.
    """

    _prepared: PreparedRequest
    _outcome: Exception | str | None
    _until: float

    def __init__(self, clock: Clock, admit: SampleAdmission, to: TokenMailbox) -> None:
        self._clock, self._admit, self._to = clock, admit, to

    @property
    def received(self) -> bool:
        """Return whether there were tokens."""
        return self._to.received_tokens > 0

    def begin(self, prepared: PreparedRequest) -> None:
        """Expect the events of another attempt."""
        self._prepared = prepared
        self._outcome = connection_error(prepared, ExchangeFailed("the stream ended before its last event"))
        self._until = self._clock.monotonic() + FIRST_TOKEN_SECONDS

    async def receive(self, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        """Take the events as they come."""
        self._admit.leave()
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != EVENT_STREAM:
            self._outcome = StreamsAbsent(media_type)
            return
        decoder = EventDecoder()
        async for piece in pieces:
            try:
                if any(self._take(event.data) for event in decoder.feed(piece)) or self._is_late():
                    return
            except (ValueError, msgspec.DecodeError) as error:
                self._outcome = str(error)
                return

    def check(self, response: RawResponse) -> None:
        """Raise what went wrong."""
        if isinstance(self._outcome, str):
            raise invalid_response(response, self._outcome)
        if self._outcome is not None:
            raise self._outcome

    def _take(self, data: str) -> bool:
        """Take one event; whether it is the last one."""
        event = json.decode(data.encode(), models.SampleStreamEvent)
        if event.type == "tokens":
            self._until = self._clock.monotonic() + self._to.silence_seconds
            self._to.put(event)
        elif event.type == "done":
            self._outcome = None
        elif event.type == "failed":
            self._outcome = _to_failure(event)
        return event.type in ("done", "failed")

    def _is_late(self) -> bool:
        """Return whether tokens should have come by now; the outcome is then a timeout."""
        if self._clock.monotonic() < self._until:
            return False
        self._outcome = connection_error(
            self._prepared, ExchangeFailed("the connection is alive, but no tokens arrived", timed_out=True)
        )
        return True


def _to_failure(event: models.SampleStreamEvent) -> TinkerError:
    category = (event.category or "").lower()
    known = category if category in ("user", "server") else "unknown"
    return RequestFailedError(f"sample_stream failed: {shorten(event.error or 'the server gave no reason')}", "", known)
