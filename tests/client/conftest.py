"""A client of our own server with the toy engine, in process, over a transport that records
requests and injects faults.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import msgspec
import pytest
from support.judge import Judge
from support.tls import write_authority

import tinker
from tinker._wire import proto
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing import Fault, SteppedClock
from tinker.testing.faults import OtherForms, status_fault


@attrs.define
class Exchange:
    """A request that arrived and its response (None: the connection broke)."""

    operation: str
    request: httpx.Request
    body: bytes
    status: int | None = None
    answer: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def seq_id(self) -> int:
        if self.request.headers["content-type"] == proto.MEDIA_TYPE:
            return proto.decode_forward_backward(self.body).seq_id
        return int(self.json["seq_id"])


Answer = Callable[[httpx.Request, bytes], httpx.Response | None]


@attrs.define
class ScriptedFault:
    """A fault for the next ``times`` requests of an operation, after ``after`` other requests.

    ``outside`` gives the reason when the response is deliberately outside the contract. ``form``
    limits the fault to requests in that form; without it, a training request refused as protobuf is
    also refused as JSON, and both count as one.
    """

    operation: str
    fault: Fault
    times: int = 1
    outside: str | None = None
    after: int = 0
    form: str | None = None
    answer: Answer | None = None  # replaces the response of the fault
    change: Callable[[httpx.Response], httpx.Response] | None = None  # of the server's response

    def meets(self, exchange: Exchange) -> bool:
        form = exchange.request.headers.get("content-type", "")
        is_form = self.form is None or form.endswith(self.form)
        return self.operation == exchange.operation and self.times > 0 and is_form

    def respond(self, request: httpx.Request, body: bytes) -> httpx.Response | None:
        if self.answer is not None:
            response = self.answer(request, body)
        elif (answer := self.fault.answer) is not None:
            response = httpx.Response(answer.status, headers=answer.headers, content=answer.content)
        else:
            return None
        unnamed = b'"request_id":"x"'
        if (
            response is None
            or self.operation != "retrieve_future"
            or unnamed not in response.content
        ):
            return response
        # a status is of the request that is asked for
        named = msgspec.json.encode({"request_id": json.loads(body)["request_id"]})[1:-1]
        content = response.content.replace(unnamed, named)
        headers = {"content-type": "application/json"}
        return httpx.Response(response.status_code, headers=headers, content=content)


class Wire(httpx.AsyncBaseTransport):
    """A transport that passes requests to the application and validates each request and response
    against the contract.

    A scripted fault that is never used fails the test, as does anything outside the contract that
    is not marked so.
    """

    HOST = "server"

    def __init__(self, app: Any) -> None:
        self._inner = httpx.ASGITransport(app)
        self.exchanges: list[Exchange] = []
        self.faults: list[ScriptedFault] = []
        self.judge = Judge()
        self._held: dict[str, concurrent.futures.Future[None]] = {}
        self._arrived = threading.Condition()
        self._other_forms = OtherForms()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        operation = request.url.path.rpartition("/api/v1/")[2]
        exchange = Exchange(operation, request, body)
        is_api = request.url.host == self.HOST and request.url.path.startswith("/api/v1/")
        if is_api:
            self.judge.request(request, body)
        # what the test scripts once it knows of the request is for later ones
        scripted = self._scripted(exchange)
        gate = self._held.pop(operation, None)
        with self._arrived:
            self.exchanges.append(exchange)
            self._arrived.notify_all()
        response: httpx.Response | None = None
        if scripted is None or scripted.fault.applied:
            response = await self._inner.handle_async_request(request)
        if scripted is not None:
            scripted.times -= 1
            if response is not None and scripted.change is not None:
                await response.aread()
                response = scripted.change(response)
            else:
                response = scripted.respond(request, body)
            if scripted.form is None:
                self._other_forms.note(request.headers, body, scripted.fault)
        if response is None:
            raise httpx.ReadError("the connection broke", request=request)
        if gate is not None:
            # a waiter that gives up does not open the gate
            await asyncio.shield(asyncio.wrap_future(gate))
        exchange.status = response.status_code
        exchange.answer = await response.aread()
        if is_api and (scripted is None or scripted.outside is None):
            self.judge.response(request, body, response)
        return response

    def _scripted(self, exchange: Exchange) -> ScriptedFault | None:
        same = self._other_forms.of(exchange.operation, exchange.body)
        if same is not None and exchange.request.headers["content-type"] != proto.MEDIA_TYPE:
            return ScriptedFault(exchange.operation, same)
        scripted = next((one for one in self.faults if one.meets(exchange)), None)
        if scripted is None or scripted.after == 0:
            return scripted
        scripted.after -= 1
        return None

    def fail(
        self,
        operation: str,
        status: int = 503,
        *,
        body: object = None,
        headers: dict[str, str] | None = None,
        times: int = 1,
        apply: bool = False,
        outside: str | None = None,
        form: str | None = None,
    ) -> None:
        """Respond so to the next requests, which may be ``outside`` the contract for a reason."""
        fault = status_fault(status, headers, body, applied=apply)
        self.faults.append(ScriptedFault(operation, fault, times, outside, form=form))

    def answer(self, operation: str, answer: Answer, *, after: int = 0) -> None:
        """Answer requests of an operation with a function, after ``after`` other requests."""
        fault = Fault(kind="status")
        self.faults.append(ScriptedFault(operation, fault, after=after, answer=answer))

    def spoil(
        self, operation: str, change: Callable[[httpx.Response], httpx.Response], times: int = 1
    ) -> None:
        """Change the server's next responses to an operation on their way."""
        fault = Fault(kind="corrupt", applied=True)
        self.faults.append(
            ScriptedFault(operation, fault, times, "something on the way spoils it", change=change)
        )

    def drop(self, operation: str, *, apply: bool, times: int = 1) -> None:
        """Break the connection of the next requests, before or after the server receives them."""
        self.faults.append(ScriptedFault(operation, Fault(kind="drop", applied=apply), times))

    def hold(self, operation: str) -> Callable[[], None]:
        """Hold back the response to the next request until the returned function is called."""
        gate = self._held[operation] = concurrent.futures.Future[None]()

        def release() -> None:
            # the request was cancelled in the meantime
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                gate.set_result(None)

        return release

    def change_application(self, app: Any) -> None:
        """Send requests to another application from now on, as after a restart."""
        self._inner = httpx.ASGITransport(app)

    def answers(self, operation: str) -> list[Any]:
        """Return the JSON of each response to an operation."""
        return [json.loads(exchange.answer) for exchange in self.requests(operation)]

    def blow_up(self, operation: str) -> None:
        """Raise what no transport should raise, at the next request of an operation."""

        def answer(_: httpx.Request, __: bytes) -> httpx.Response:
            raise LookupError("a defect of the transport")

        self.answer(operation, answer)

    def requests(self, operation: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.operation == operation]

    def arrives(self, operation: str, count: int, seconds: float = 1.0) -> bool:
        """Return whether this many requests arrive within this many real seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.requests(operation)) >= count, seconds)

    def wait_for(self, operation: str, count: int = 1) -> list[Exchange]:
        """Return the requests of an operation as soon as this many have arrived."""
        assert self.arrives(operation, count, seconds=10)
        return self.requests(operation)


class Silent(httpx.AsyncBaseTransport):
    """A transport without timeouts, over which nothing arrives."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def silent_transport() -> Silent:
    return Silent()


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of the server that are not the usual ones."""
    return {"gap_seconds": 0.4} if request.node.get_closest_marker("gives_up_soon") else {}


@pytest.fixture
def state(tmp_path: Path, settings: dict[str, Any]) -> Iterator[State]:
    """Yield the server's state, with a folder for this test only."""
    given = {"data_dir": tmp_path / "server", "hold_seconds": 5.0, **settings}
    state = State(ToyEngine, Settings(**given))
    yield state
    state.close()


@pytest.fixture
def wire(state: State) -> Iterator[Wire]:
    """Yield the transport to that server."""
    wire = Wire(create_app(state))
    yield wire
    unused = [fault.operation for fault in wire.faults if fault.times > 0]
    assert not unused, f"scripted faults that never happened: {unused}"
    assert wire.judge.faults == []


@pytest.fixture
def clock() -> SteppedClock:
    """Return the client's clock."""
    return SteppedClock()


@pytest.fixture
def connect(wire: Wire, clock: SteppedClock) -> Iterator[Callable[..., tinker.ServiceClient]]:
    """Create service clients on the transport and close them after the test."""
    made: list[tinker.ServiceClient] = []

    def make(**arguments: Any) -> tinker.ServiceClient:
        given = {
            "base_url": "http://server",
            "api_key": "tml-secret",
            "transport": wire,
            "clock": clock.clock(),
            **arguments,
        }
        made.append(tinker.ServiceClient(**given))
        return made[-1]

    yield make
    for service in made:
        service.close().result(10)


@pytest.fixture
def service(connect: Callable[..., tinker.ServiceClient]) -> tinker.ServiceClient:
    """Return a service client on the transport."""
    return connect()


@pytest.fixture
def training(service: tinker.ServiceClient) -> tinker.TrainingClient:
    """Return a training client that is ready."""
    return service.create_lora_training_client("tinker/toy", rank=4).result(10)


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampling client of the base model that is ready."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


@pytest.fixture
def datum() -> Callable[..., tinker.Datum]:
    """Create datums for cross_entropy."""

    def make(tokens: list[int] | None = None) -> tinker.Datum:
        ids = tokens or [1, 2, 3]
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(ids),
            loss_fn_inputs={"target_tokens": [i + 1 for i in ids], "weights": [1.0] * len(ids)},  # type: ignore[dict-item]
        )

    return make


@pytest.fixture
def restart(wire: Wire, clock: SteppedClock, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Replace the server's process with a new one on the same folder."""
    states: list[State] = []

    def restarted() -> None:
        clock.advance(10)
        wire.wait_for("session_heartbeat")
        states.append(State(ToyEngine, Settings(data_dir=tmp_path / "server", hold_seconds=0.2)))
        wire.change_application(create_app(states[-1]))

    yield restarted
    for state in states:
        state.close()


@pytest.fixture
def silent(wire: Wire, connect: Callable[..., tinker.ServiceClient]) -> tinker.TrainingClient:
    """Return a run on a server that does not report which losses it computes."""
    wire.answer("client/config", lambda *_: httpx.Response(200, json={}))
    return connect().create_lora_training_client("tinker/toy", rank=4).result(10)


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    """Return the certificate of the authority of servers and proxies."""
    return write_authority(tmp_path)
