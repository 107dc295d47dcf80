"""One stream of samples: its events, and what ends it. Used on the loop only.

A silent connection ends, as everywhere. Events without tokens keep it alive, so the time without
tokens has its own limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec
from tinker_wire import models

from tinker._clock import Clock
from tinker._futures import TokenQueue
from tinker._http.limits import Admission
from tinker._http.messages import ExchangeFailed, PreparedRequest, RawResponse
from tinker._http.responses import connection_error, invalid_response, shorten
from tinker._http.retry import SAMPLE
from tinker._http.statuses import Verdict
from tinker._wire import EVENT_STREAM, EventDecoder, json
from tinker.errors import RequestFailedError, TinkerError

#: A sample may wait so long for its turn, as one that is not streamed may.
FIRST_TOKEN_SECONDS = SAMPLE.limit(Verdict.COOL_DOWN)


class StreamsAbsent(Exception):
    """The response is not a stream."""


class EventReceiver:
    """The receiver of one stream, to its last event or an invalid one.

    :meth:`check` raises StreamsAbsent when the response is no stream; APIError and
    RequestFailedError as of other requests.
    """

    _prepared: PreparedRequest
    _outcome: Exception | str | None
    _until: float
    _sample_count: int
    _ended: dict[int, bool]  # whether each sample that has begun has ended

    def __init__(self, clock: Clock, admit: Admission, to: TokenQueue) -> None:
        self._clock, self._admit, self._to = clock, admit, to

    @property
    def received(self) -> bool:
        """Return whether there were tokens."""
        return self._to.received_tokens > 0

    def begin(self, prepared: PreparedRequest) -> None:
        """Expect the events of another attempt."""
        self._prepared = prepared
        self._outcome = connection_error(
            prepared, ExchangeFailed("the stream ended before its last event")
        )
        self._until = self._clock.monotonic() + FIRST_TOKEN_SECONDS
        self._sample_count, self._ended = getattr(prepared.record, "num_samples", 1), {}

    async def receive(self, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        """Take the events as they come."""
        self._admit.leave(None)  # the server has the request
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
        """Take one event; return whether it is the last."""
        event = json.decode(data.encode(), models.SampleStreamEvent)
        if event.type == "tokens":
            self._check_tokens(event)
            self._until = self._clock.monotonic() + self._to.silence_seconds
            self._to.put(event)
        elif event.type == "done":
            if len(self._ended) < self._sample_count:
                raise ValueError(
                    f"the stream is done after {len(self._ended)} of {self._sample_count} samples"
                )
            self._outcome = None
        elif event.type == "failed":
            self._outcome = _to_failure(event)
        return event.type in ("done", "failed")

    def _check_tokens(self, event: models.SampleStreamEvent) -> None:
        """Raise ValueError unless these tokens are of a sample that has not ended, with as many
        log-probabilities or none.
        """
        if event.index >= self._sample_count or self._ended.get(event.index):
            raise ValueError(
                f"tokens of sample {event.index}, which has ended or was not asked for"
            )
        if event.logprobs and len(event.logprobs) != len(event.tokens):
            raise ValueError(
                f"{len(event.tokens)} tokens of sample "
                f"{event.index} with {len(event.logprobs)} logprobs"
            )
        self._ended[event.index] = event.stop_reason is not None

    def _is_late(self) -> bool:
        """Return whether the time without tokens is over; the outcome is then a timeout."""
        if self._clock.monotonic() < self._until:
            return False
        self._outcome = connection_error(
            self._prepared,
            ExchangeFailed("the connection is alive, but no tokens arrived", timed_out=True),
        )
        return True


def _to_failure(event: models.SampleStreamEvent) -> TinkerError:
    category = (event.category or "").lower()
    known = category if category in ("user", "server") else "unknown"
    return RequestFailedError(
        f"sample_stream failed: {shorten(event.error or 'the server gave no reason')}", "", known
    )
