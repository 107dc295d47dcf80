"""One stream of samples: its events as they come, tried again until the first tokens, and what ends it. On the loop.

A connection that is silent ends, as everywhere. Signs of life are not progress: the time without tokens has a limit of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.runtime import Request

from tinker._http import (
    ExchangeFailed,
    Policy,
    PreparedRequest,
    RawResponse,
    SampleAdmission,
    Transport,
    connection_error,
    invalid_response,
)
from tinker._sampling.mailbox import Mailbox
from tinker._wire import EVENT_STREAM, EventDecoder, json
from tinker.errors import APIError, RequestFailedError, TinkerError
from tinker.types.results import SampleResponse

#: A sample may wait so long for its turn, as one that is not streamed may.
FIRST_TOKEN_SECONDS = 7200.0
#: The time between tokens, where the user does not say.
SILENCE_SECONDS = 120.0


class StreamsAbsent(Exception):
    """The server answers something else than a stream."""


@attrs.define(kw_only=True)
class TokenMailbox:
    """Where the events with tokens go, and how many tokens they had. ``silence_seconds`` is the longest time between them."""

    silence_seconds: float = SILENCE_SECONDS
    received_tokens: int = 0
    events: Mailbox[models.SampleStreamEvent] = attrs.field(factory=Mailbox[models.SampleStreamEvent])

    def put(self, event: models.SampleStreamEvent) -> None:
        """Hand an event over."""
        self.received_tokens += len(event.tokens)
        self.events.put(event)

    def put_response(self, response: SampleResponse) -> None:
        """Hand a whole response over, one event for each of its sequences."""
        for index, sequence in enumerate(response.sequences):
            self.put(
                models.SampleStreamEvent(
                    type="tokens",
                    index=index,
                    tokens=list(sequence.tokens),
                    logprobs=list(sequence.logprobs or ()),
                    stop_reason=sequence.stop_reason,
                )
            )


async def receive_stream(
    transport: Transport, request: Request[models.SampleStreamEvent], policy: Policy, admit: SampleAdmission, to: TokenMailbox
) -> None:
    """Send the request and hand its events over until the last one; again as the policy says, as long as there were no tokens.

    StreamsAbsent when the answer is no stream; APIError and RequestFailedError as of other requests.
    """
    prepared, began, failures = transport.prepare_stream(request), transport.clock.monotonic(), None
    while True:
        receiver = EventReceiver(transport, prepared, admit, to)
        try:
            async with admit:
                await transport.send_once(attrs.evolve(prepared, receive=receiver.receive))
            receiver.check()
            return
        except APIError as error:
            if to.received_tokens:
                raise
            failures = failures or transport.submission_attempts(policy, request.operation, began)
            delay = transport.next_delay(failures, error, admit)
        await transport.sleep(delay)


class EventReceiver:
    """The events of one answer. What is wrong with them is raised by :meth:`check`, once the exchange is over."""

    def __init__(self, transport: Transport, prepared: PreparedRequest, admit: SampleAdmission, to: TokenMailbox) -> None:
        self._clock, self._prepared, self._admit, self._to = transport.clock, prepared, admit, to
        self._outcome: Exception | None = connection_error(prepared, ExchangeFailed("the stream ended before its last event"))
        self._until = self._clock.monotonic() + FIRST_TOKEN_SECONDS

    async def receive(self, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        """Take the events as they come, to the last one or to one that cannot be."""
        self._admit.release()
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
                self._outcome = invalid_response(RawResponse(self._prepared, 200, headers, b""), str(error))
                return

    def check(self) -> None:
        """Raise what went wrong."""
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
        self._outcome = connection_error(self._prepared, ExchangeFailed("signs of life, but no tokens", timed_out=True))
        return True


def _to_failure(event: models.SampleStreamEvent) -> TinkerError:
    category = (event.category or "").lower()
    known = category if category in ("user", "server") else "unknown"
    return RequestFailedError(f"sample_stream failed: {event.error or 'the server gives no reason'}", "", known)
