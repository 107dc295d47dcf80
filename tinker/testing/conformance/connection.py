"""One exchange with the server under test, read to its end or to a deadline. Sync; repeats nothing
but 429 and 503.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import attrs
import httpx
from tinker_wire import models
from tinker_wire.api import service as service_api

from tinker._wire import json, proto
from tinker.testing.conformance.outcome import (
    LIMITS,
    Absent,
    Blocked,
    Broken,
    CheckEnd,
    Contradiction,
    Crash,
    Late,
    Observation,
    normalize,
)
from tinker.testing.conformance.run_state import Heartbeats, ServerKnowledge

#: Clients give a poll up after that, and ask again.
LONGEST_POLL_SECONDS = 45.0
_POLL = "retrieve_future"
MAX_ANSWER_NBYTES = 256 << 20
_TOO_MANY = 429
_WAIT = frozenset({_TOO_MANY, 503})
_WAIT_SECONDS = 1.0
_LONGEST_HEARTBEAT_SECONDS = 10.0
_KEY_HEADER = "X-API-Key"


@attrs.frozen
class KitClock:
    """Time as the kit sees it, so that its own tests need not wait. ``event`` makes events that are
    waited for so long.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    event: Callable[[], threading.Event] = threading.Event


class CheckDeadline:
    """When a check must be done. An exchange that has begun may still continue for as long again,
    byte by byte.
    """

    def __init__(self, seconds: float, clock: KitClock) -> None:
        self._seconds, self._clock = seconds, clock
        self._ends = clock.monotonic() + seconds

    def remaining(self, what: str) -> float:
        """Return the seconds that are left. Contradiction, which names ``what``, if
        there are none.
        """
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            raise Contradiction(f"{what}: not done within {self._seconds:g} s", cause="late")
        return left

    def pause(self, seconds: float, what: str) -> None:
        """Sleep that long; Contradiction naming ``what`` when the deadline comes first."""
        self._clock.sleep(min(seconds, self.remaining(what)))
        self.remaining(what)


@attrs.frozen
class SentRequest:
    """A request as it goes out. ``key``: None sends no credential. Content and headers may hold
    secrets.

    ``operation`` is its id in the document, empty for addresses outside it.
    """

    method: str
    path: str
    key: str | None = attrs.field(default=None, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=lambda: dict[str, str](), repr=False)
    content: bytes = attrs.field(default=b"", repr=False)
    operation: str = ""

    @property
    def is_protobuf(self) -> bool:
        """Return whether its body is protobuf."""
        return self.headers.get("Content-Type") == proto.MEDIA_TYPE

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@attrs.frozen
class ReceivedResponse:
    """What came back, read completely."""

    message: SentRequest
    status: int
    headers: httpx.Headers
    content: bytes = attrs.field(repr=False)

    @property
    def media_type(self) -> str:
        """Return the media type without parameters, in lower case."""
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    @property
    def excerpt(self) -> str:
        """Return the beginning of the body as text, for reports."""
        return self.content[:200].decode(errors="replace")

    def __str__(self) -> str:
        return f"{self.message} answered {self.status}" + (
            f": {self.excerpt}" if self.status >= 400 else ""
        )


class Connection:
    """The connections of one run, and what it has learned about the server. Close it."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        base_model: str | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: KitClock | None = None,
    ) -> None:
        self.base_url: str = base_url.rstrip("/")
        self.api_key = api_key
        self.clock: KitClock = clock or KitClock()
        self.known: ServerKnowledge = ServerKnowledge(base_model=base_model)
        self.heartbeats: Heartbeats = Heartbeats(self.clock.event, self._beat)
        self.last: str = "no response"
        self._client = httpx.Client(
            headers=headers, transport=transport, follow_redirects=False, trust_env=False
        )

    def close(self) -> None:
        """End the heartbeats and close every connection."""
        self.heartbeats.close()
        self._client.close()

    def reach(self, seconds: float) -> None:
        """Raise Contradiction unless something answers at the URL, whatever it is."""
        self._once(SentRequest("GET", "/api/v1/healthz"), CheckDeadline(seconds, self.clock))

    def send(
        self,
        message: SentRequest,
        deadline: CheckDeadline,
        note: Callable[[Observation], None],
        seconds: float = math.inf,
    ) -> ReceivedResponse:
        """Return the response, of any status below 500. Contradiction for 5xx and for none; 429 and
        503 are waited out.

        ``note`` is told of a 429 that does not say when to come again; ``seconds`` is the longest
        time to wait for a response. Blocked when 429 lasts longer than the check may; after that
        the same operation is not waited for any more.
        """
        while True:
            try:
                answer = self._once(message, deadline, seconds)
            except Broken:  # clients ask once more, too
                answer = self._once(message, deadline, seconds)
            if answer.status not in _WAIT:
                break
            if (
                answer.status == _TOO_MANY
                and not {"retry-after", "retry-after-ms"} & answer.headers.keys()
            ):
                note(
                    Observation(
                        f"{answer}, without Retry-After", "no delay", operation=message.operation
                    )
                )
            self._wait(answer, deadline)
        operation, self.last = (
            message.operation,
            f"{message.operation} ({message}) answered {answer.status}: {answer.excerpt}",
        )
        if answer.status == 501:
            raise Absent(str(answer), cause=f"501: {operation}", operation=operation)
        if answer.status >= 500:
            cause = "protobuf" if message.is_protobuf else f"crash: {operation or message}"
            raise Crash(str(answer), cause=cause, operation=operation)
        return answer

    def _wait(self, answer: ReceivedResponse, deadline: CheckDeadline) -> None:
        """Wait as long as is asked for."""
        operation, is_full = answer.message.operation, answer.status == _TOO_MANY
        try:
            if is_full and operation in self.known.full:
                raise Blocked(f"{answer}, as before", LIMITS)
            deadline.pause(_retry_after(answer), str(answer))
        except Contradiction as error:
            if not is_full:
                raise Crash(
                    f"{answer}, to the end", cause=f"crash: {operation}", operation=operation
                ) from error
            self.known.full.add(operation)
            raise Blocked(f"{answer}, for as long as the check may take", LIMITS) from error

    def _beat(self, session_id: str) -> None:
        """Say once that a session is alive, whatever is answered; from a thread of its own."""
        beat = models.SessionHeartbeatRequest(session_id=session_id)
        request = service_api.session_heartbeat(beat)
        body = self.known.refused.without(request.operation, beat)
        headers = {"Accept": json.MEDIA_TYPE, "Content-Type": json.MEDIA_TYPE, **request.headers}
        message = SentRequest(
            request.method,
            request.path,
            self.api_key,
            headers,
            json.encode(body),
            request.operation,
        )
        with suppress(CheckEnd):
            self._once(message, CheckDeadline(_LONGEST_HEARTBEAT_SECONDS, self.clock))

    def fetch(
        self, url: str, deadline: CheckDeadline, file: bytes | None = None
    ) -> ReceivedResponse:
        """Return the response of another address, asked or sent a file without the credential."""
        return self._once(
            SentRequest("GET" if file is None else "PUT", url, content=file or b""), deadline
        )

    def _once(
        self, message: SentRequest, deadline: CheckDeadline, seconds: float = math.inf
    ) -> ReceivedResponse:
        headers = dict(message.headers) | (
            {} if message.key is None else {_KEY_HEADER: message.key}
        )
        url = message.path if "://" in message.path else self.base_url + message.path
        longest = LONGEST_POLL_SECONDS if message.operation == _POLL else math.inf
        timeout = min(deadline.remaining(str(message)), longest, seconds)
        try:
            with self._client.stream(
                message.method, url, headers=headers, content=message.content, timeout=timeout
            ) as response:
                return ReceivedResponse(
                    message,
                    response.status_code,
                    response.headers,
                    _read(response, message, deadline),
                )
        except httpx.TimeoutException as error:
            raise Late(
                f"{message}: no response within {timeout:.0f} s",
                cause="late",
                operation=message.operation,
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            how, operation = f"the connection broke: {error}".removesuffix(": "), message.operation
            raise Broken(
                f"{message}: {how}",
                cause=f"broken: {operation}: {normalize(how)}",
                operation=operation,
            ) from error


def _read(response: httpx.Response, message: SentRequest, deadline: CheckDeadline) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        deadline.remaining(str(message))
        if len(content) > MAX_ANSWER_NBYTES:
            raise Contradiction(f"{message}: the response is larger than {MAX_ANSWER_NBYTES} bytes")
    return bytes(content)


def _retry_after(answer: ReceivedResponse) -> float:
    """Return the delay that is asked for in seconds; dates and nonsense count as a second."""
    in_ms = answer.headers.get("retry-after-ms")
    try:
        return max(
            0.0, float(in_ms or answer.headers.get("retry-after", "")) * (1e-3 if in_ms else 1.0)
        )
    except ValueError:
        return _WAIT_SECONDS
