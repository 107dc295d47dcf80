"""The way between client and server: an HTTP engine whose exchanges are events of the loop, and
what goes wrong with them.

fault         what the client sees
------------  --------------------------------------------------------------------------------------
reset         the connection breaks before the server has the request
reset after   the connection breaks when the server has carried the request out
lost          nothing arrives at the server, and nothing comes back
silent        the server carries the request out, and nothing comes back
late          as lost, but the request arrives after the client has given it up
twice         the request arrives a second time, some time after the first
slow          the response takes long
garbage       the body of the response is no JSON and no protobuf; of each third one, nothing is
              left, and of another
              third, if it is a result in protobuf, some of its fields
cut           the connection breaks in the middle of the response
status        another response in place of the server's, before or after it carried the request out
refused       no connection can be made
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tinker_wire.api.sampling import stream_sample

from simulation.loop import SimulatedLoop
from simulation.server import Request, Response, SimulatedServer
from tinker._http.messages import (
    ConnectionFacts,
    ExchangeFailed,
    PreparedRequest,
    RawResponse,
    late,
)
from tinker._wire import proto
from tinker.errors import ClientClosedError

FAULTS = (
    *(
        "reset",
        "reset after",
        "lost",
        "silent",
        "late",
        "twice",
        "slow",
        "garbage",
        "cut",
        "refused",
    ),
    *(
        "status 429",
        "status 503",
        "status 500",
        "status 503 after",
        "status 402",
        "status 408",
        "status 400",
        "status 401",
    ),
)
ORIGIN = "http://server"


class Network:
    """Every exchange with the server. A share ``rate`` of them meets a fault, drawn from
    ``faults``.
    """

    def __init__(self, loop: SimulatedLoop, server: SimulatedServer, reached: Counter[str]) -> None:
        self.loop, self.server, self.reached = loop, server, reached
        self.rate = 0.0
        self.faults: Sequence[str] = FAULTS
        # exchanges that meet no fault, to find a smaller failure
        self.skipped: frozenset[int] = frozenset()
        self.storm: str | None = None  # what goes wrong with every exchange
        self.exchanges = 0
        # called with a line for each thing that happens
        self.trace: Callable[[str], object] | None = None
        self.met: list[int] = []

    def draw(self, operation: str) -> str | None:
        """Return the fault of the next exchange."""
        self.exchanges += 1
        if self.storm is not None:
            return self.storm
        if not self.rate or self.loop.random.random() >= self.rate:
            return None
        kind = self.loop.random.choice(self.faults)
        if self.exchanges in self.skipped:
            return None
        self.met.append(self.exchanges)
        self.reached[kind] += 1
        self.reached[f"{kind.partition(' ')[0]} {operation}"] += 1
        return kind

    def delay(self) -> float:
        """Return how long a message is under way; usually little."""
        return 0.001 + self.loop.random.random() ** 6 * 2.0

    def note(self, what: str) -> None:
        """Tell the trace what happens."""
        if self.trace is not None:
            self.trace(f"{self.loop.now:12.3f} {what}")

    def later(self, function: Callable[..., object], *args: Any) -> None:
        self.loop.call_later(self.delay(), function, *args)


class ReceivedHeaders(dict[str, str]):
    """Headers whose names are lower case, found by a name in any case."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())


class SimulatedEngine:
    """The HTTP engine of one client."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._open: dict[asyncio.Future[Response], None] = {}
        self._is_closed = False

    async def send(self, request: PreparedRequest) -> RawResponse:
        """Make one exchange, or raise ExchangeFailed."""
        self._check_open()
        response = await self._wait(request)
        headers = ReceivedHeaders(response.headers)
        receive, _ = request.plan_body(response.status)
        if receive is not None:
            await receive(headers, _pieces(response))
            return RawResponse(request, response.status, headers, b"")
        return RawResponse(request, response.status, headers, response.content)

    async def _wait(self, request: PreparedRequest) -> Response:
        network = self._network
        outcome: asyncio.Future[Response] = network.loop.create_future()
        timer = network.loop.call_later(request.silence_seconds, _give_up, outcome, request)
        self._open[outcome] = None
        Exchange(network, request, outcome).begin()
        try:
            return await outcome
        finally:
            timer.cancel()
            del self._open[outcome], outcome

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client is closed")

    async def aclose(self) -> None:
        """End every exchange."""
        self._is_closed = True
        for outcome in self._open:
            fail(outcome, ClientClosedError("the client is closed"))

    def describe(self) -> list[ConnectionFacts]:
        return []

    @property
    def open_count(self) -> int:
        """Return how many exchanges are under way."""
        return len(self._open)


async def _pieces(response: Response) -> Any:
    half = len(response.content) // 2
    yield response.content[:half]
    await asyncio.sleep(0.01)
    if response.is_cut:
        raise ExchangeFailed("the connection broke")
    yield response.content[half:]


def fail(outcome: asyncio.Future[Response], error: Exception) -> None:
    """End an exchange with an error, unless it has ended."""
    if not outcome.done():
        outcome.set_exception(error)


def _give_up(outcome: asyncio.Future[Response], request: PreparedRequest) -> None:
    fail(outcome, late(request, False, is_trickling=False))


class Exchange:
    """One exchange on its way."""

    def __init__(
        self, network: Network, request: PreparedRequest, outcome: asyncio.Future[Response]
    ) -> None:
        self._network, self._outcome = network, outcome
        body = request.body[0] if len(request.body) == 1 else b"".join(request.body)
        self._call = Request(
            request.method,
            request.url.removeprefix(ORIGIN),
            request.headers,
            bytes(body),
            request.operation,
        )
        self._fault = network.draw(request.operation)
        self._number = network.exchanges
        if network.trace is not None:
            network.note(
                f"#{self._number} {request.operation} {_describe(request)} {self._fault or ''}"
            )

    def begin(self) -> None:
        """Send the request, unless a fault keeps it from the server."""
        fault, network = self._fault, self._network
        if fault == "refused":
            network.later(self._break, ExchangeFailed("connection refused", never_connected=True))
        elif fault == "reset":
            network.later(self._break, ExchangeFailed("the connection broke"))
        elif fault == "late":
            network.loop.call_later(
                60.0 + 120.0 * network.loop.random.random(), self._arrive, _ignore
            )
        elif fault is not None and fault.startswith("status") and not fault.endswith("after"):
            network.later(self._answer_status)
        elif fault != "lost":
            network.later(self._arrive, self._answered)

    def _arrive(self, done: Callable[[Response | None], object]) -> None:
        server = self._network.server
        self._network.note(f"#{self._number} arrives")
        if server.is_up:
            # without a connection, there is nothing to copy
            if self._fault == "twice" and done is not _ignore:
                self._network.loop.call_later(self._network.delay() * 20, self._arrive, _ignore)
            server.begin(self._call, done)
        elif done is not _ignore:
            self._network.reached["no server"] += 1
            self._break(ExchangeFailed("connection refused", never_connected=True))

    def _answered(self, response: Response | None) -> None:
        fault, network = self._fault, self._network
        if response is None:
            network.reached["killed while it answers"] += 1
            network.later(self._break, ExchangeFailed("the connection broke"))
        elif fault == "cut" and self._call.operation == stream_sample.__name__:
            network.later(
                self._deliver,
                Response(response.status, response.headers, response.content, is_cut=True),
            )
        elif fault in ("reset after", "cut"):
            network.later(self._break, ExchangeFailed("the connection broke"))
        elif fault == "status 503 after":
            network.later(self._answer_status)
        elif fault == "garbage":
            network.later(self._deliver, self._spoil(response))
        elif fault == "slow":
            network.loop.call_later(
                1.0 + 80.0 * network.loop.random.random() ** 2, self._deliver, response
            )
        elif fault != "silent":
            network.later(self._deliver, response)

    def _spoil(self, response: Response) -> Response:
        """Return what a proxy leaves of a response."""
        if self._number % 3 == 0:
            self._network.reached["a response is emptied"] += 1
            return Response(204, response.headers, b"")
        if self._number % 3 == 1 and response.headers.get("content-type") == proto.MEDIA_TYPE:
            self._network.reached["a result is shortened"] += 1
            fields = proto.split_fields(response.content)
            return Response(
                response.status, response.headers, b"".join(fields[: self._number % len(fields)])
            )
        return Response(response.status, response.headers, b"\xff" * 20)

    def _answer_status(self) -> None:
        assert self._fault is not None
        status = int(self._fault.split()[1])
        headers = {"content-type": "application/json"}
        if status == 429 and self._network.loop.random.random() < 0.5:
            headers["retry-after"] = "1"
        self._deliver(Response(status, headers, b'{"detail":"simulated %d"}' % self._number))

    def _deliver(self, response: Response) -> None:
        self._network.note(
            f"#{self._number} is answered {response.status} {response.content[:100]!r}"
        )
        if not self._outcome.done():
            self._outcome.set_result(response)

    def _break(self, error: ExchangeFailed) -> None:
        self._network.note(f"#{self._number} breaks: {error}")
        fail(self._outcome, error)


def _ignore(_: Response | None) -> None:
    return None


def _describe(request: PreparedRequest) -> str:
    """Describe a request for the trace: its record, or what a protobuf body spells."""
    if request.record is not None:
        return str(request.record)[:160]
    if request.operation == "forward_backward":
        call = proto.decode_forward_backward(b"".join(request.body))
        return (
            f"{call.seq_id} of {call.model_id[-8:]}, "
            f"{[list(datum.model_input.chunks[0].array) for datum in call.data]}"
        )
    return ""
