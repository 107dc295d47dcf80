"""Telemetry: nothing is sent unless allowed, it never contains a secret, and it never blocks."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import tinker
from tinker._loop import loop_thread
from tinker._session.telemetry import EVENTS_IN_A_REQUEST, EVENTS_KEPT, FLUSH_SECONDS
from tinker.lib.telemetry import Telemetry, capture_exceptions
from tinker.lib.telemetry_provider import TelemetryProvider

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
KEY = "tml-very-secret"


def reported(wire: Any) -> list[dict[str, Any]]:
    """Return every event that was sent."""
    return [event for exchange in wire.requests("telemetry") for event in exchange.json["events"]]


def flush(wire: Any, clock: Any) -> None:
    """Advance to the next report, and wait for it; heartbeats sleep too."""
    before = len(wire.requests("telemetry"))
    while len(wire.requests("telemetry")) == before:
        clock.advance(FLUSH_SECONDS)
        wire.arrives("telemetry", before + 1)


def test_nothing_is_reported_by_default(
    connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default nothing is collected or sent; an argument overrides the environment."""
    for value, argument in ((None, None), ("0", None), ("1", False)):
        if value is not None:
            monkeypatch.setenv("TINKER_TELEMETRY", value)
        service = connect(telemetry=argument)
        assert service.create_lora_training_client("tinker/toy").result(10).get_telemetry() is None
        assert service.get_telemetry() is None
        service.close().result(10)
    assert wire.requests("telemetry") == []


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_life_of_a_session(
    connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """If allowed, start, end and the user's own events are reported and numbered."""
    if how == "environment":
        monkeypatch.setenv("TINKER_TELEMETRY", "yes")
    service = connect(telemetry=True if how == "argument" else None)
    training = service.create_lora_training_client("tinker/toy").result(10)
    telemetry: Any = service.get_telemetry()
    assert telemetry is training.get_telemetry() is service.create_rest_client().get_telemetry()
    telemetry.log("epoch", {"number": 1})
    service.close().result(10)
    (exchange,) = wire.requests("telemetry")
    told = [(event["event"], event["event_session_index"]) for event in exchange.json["events"]]
    assert told == [("SESSION_START", 0), ("GENERIC_EVENT", 1), ("SESSION_END", 2)]
    assert exchange.json["session_id"] == wire.requests("create_model")[0].json["session_id"]


def test_failures(connect: Connect, wire: Any, clock: Any) -> None:
    """Server failures are reported with their text, user errors only by type, no key at all."""
    service = connect(telemetry=True, api_key=KEY)
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("save_weights", 422, body={"detail": "your secret name"})
    training.save_state("a").exception(10)
    other = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("optim_step", 501, body={"detail": f"no idea what {KEY} is, nor Bearer abc.def"})
    other.optim_step(ADAM).exception(10)
    flush(wire, clock)
    events = {event["event"]: event for event in reported(wire)}
    refused, failed = events["GENERIC_EVENT"]["event_data"], events["UNHANDLED_EXCEPTION"]
    assert (refused["error_type"], refused["status_code"]) == ("UnprocessableEntityError", 422)
    assert failed["error_type"] == "InternalServerError"
    assert "optim_step: Error code: 501" in failed["error_message"]
    for secret in (KEY, "abc.def", "your secret name"):
        assert not [one for one in wire.requests("telemetry") if secret in one.body.decode()]


@pytest.fixture
def service(connect: Connect) -> tinker.ServiceClient:
    """Return a client that reports, and whose session has begun, which is its first event."""
    service = connect(telemetry=True, api_key=KEY)
    service.create_lora_training_client("tinker/toy").result(10)
    return service


@pytest.fixture
def telemetry(service: tinker.ServiceClient) -> Telemetry:
    """Return its reporter."""
    found = service.get_telemetry()
    assert found is not None
    return found


def test_a_server_without_telemetry_is_not_retried(
    service: tinker.ServiceClient, telemetry: Telemetry, wire: Any, clock: Any
) -> None:
    """An absent endpoint ends the reports without an error."""
    wire.fail("telemetry", 404)
    flush(wire, clock)
    telemetry.log("more")
    service.close().result(10)
    assert len(wire.requests("telemetry")) == 1


def test_batches(telemetry: Telemetry, wire: Any) -> None:
    """A hundred events are sent at once; failed ones are sent again, refused ones are dropped."""
    wire.fail("telemetry", 503)
    wire.fail("telemetry", 422)
    for number in range(EVENTS_IN_A_REQUEST - 1):
        telemetry.log("step", {"number": number})
    (exchange,) = wire.wait_for("telemetry")
    assert [event["event_session_index"] for event in exchange.json["events"]] == list(range(100))
    for number in range(130):
        telemetry.log("step", {"number": number})
    wire.wait_for("telemetry", 2)
    assert telemetry.wait_until_drained()
    sizes = [(len(one.json["events"]), one.status) for one in wire.requests("telemetry")]
    assert sizes == [(100, 503), (100, 422), (100, 200), (30, 200)]


# A program's reports of its own exceptions


def exceptions(wire: Any) -> list[tuple[str, str, str]]:
    """Return type, text and severity of the exceptions that were sent."""
    events = [event for event in reported(wire) if event["event"] == "UNHANDLED_EXCEPTION"]
    return [(event["error_type"], event["error_message"], event["severity"]) for event in events]


def test_severities(telemetry: Telemetry, wire: Any) -> None:
    """Exceptions have the given severity, and no secrets, local variables or traceback."""
    local = "a local value"
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(f"no access with {KEY} nor Bearer abc.def")
    assert telemetry.log_exception(caught.value, "CRITICAL").result(10)
    assert telemetry.log_exception_sync(caught.value)
    users = tinker.RequestFailedError("too long", "r", "user")
    telemetry.log_exception(users)
    telemetry.log_exception(users, "DEBUG")
    assert telemetry.wait_until_drained()
    said = ("RuntimeError", "no access with *** nor ***")
    assert exceptions(wire) == [(*said, "CRITICAL"), (*said, "ERROR")]
    generic = [event for event in reported(wire) if event["event"] == "GENERIC_EVENT"]
    told = [(event["event_name"], event["severity"]) for event in generic]
    assert told == [("user_error", "WARNING"), ("user_error", "DEBUG")]
    for text in (KEY, "abc.def", local, __file__):
        assert text not in wire.requests("telemetry")[0].body.decode()


@pytest.mark.parametrize("how", ["sync", "future", "coroutine"])
def test_fatal_exceptions(telemetry: Telemetry, wire: Any, how: str) -> None:
    """Exception and end have been sent when the call returns; the session ends once."""
    error = RuntimeError("it ends")

    async def wait() -> bool:
        told = await telemetry.log_fatal_exception(error, "CRITICAL")
        return told and await telemetry.wait_until_drained_async()

    if how == "sync":
        assert telemetry.log_fatal_exception_sync(error, "CRITICAL")
    elif how == "future":
        assert telemetry.log_fatal_exception(error, "CRITICAL").result(10)
    else:
        assert asyncio.run(wait())
    kinds = ["SESSION_START", "UNHANDLED_EXCEPTION", "SESSION_END"]
    assert [event["event"] for event in reported(wire)] == kinds
    assert exceptions(wire) == [("RuntimeError", "it ends", "CRITICAL")]


def test_the_wait_has_a_deadline(telemetry: Telemetry, wire: Any) -> None:
    """A silent server blocks the program for the given time only, and its I/O thread not at all."""
    release = wire.hold("telemetry")
    assert not telemetry.wait_until_drained(0.05)
    assert asyncio.run(telemetry.wait_until_drained_async(0.05)) is False
    answer, error = concurrent.futures.Future[bool](), ValueError("x")
    loop_thread().call(lambda: answer.set_result(telemetry.log_fatal_exception_sync(error)))
    assert not answer.result(10)
    release()
    assert telemetry.wait_until_drained()


def capture_by_block(telemetry: Telemetry, error: Exception) -> None:
    with telemetry.capture_exceptions(severity="CRITICAL"):
        raise error


def capture_by_decorator(telemetry: Telemetry, error: Exception) -> None:
    @telemetry.capture_exceptions(severity="CRITICAL")
    def fail() -> None:
        raise error

    assert fail.__name__ == "fail"
    fail()


def capture_in_coroutines(telemetry: Telemetry, error: Exception, fatal: bool = False) -> None:
    async def fail() -> None:
        async with telemetry.acapture_exceptions(fatal=fatal, severity="CRITICAL"):
            raise error

    asyncio.run(fail())


def capture_the_end_in_coroutines(telemetry: Telemetry, error: Exception) -> None:
    capture_in_coroutines(telemetry, error, fatal=True)


def capture_a_coroutine_function(telemetry: Telemetry, error: Exception) -> None:
    @telemetry.capture_exceptions(fatal=True, severity="CRITICAL")
    async def fail() -> None:
        raise error

    asyncio.run(fail())


@attrs.define
class Trainer:
    """A class of the user's."""

    telemetry: Telemetry | None

    def get_telemetry(self) -> Telemetry | None:
        return self.telemetry

    @capture_exceptions
    def succeed(self) -> int:
        return 5

    @capture_exceptions(fatal=True, severity="CRITICAL")
    def fail(self, error: Exception) -> None:
        raise error


def capture_a_method(telemetry: Telemetry, error: Exception) -> None:
    with pytest.raises(LookupError):  # without telemetry nothing is reported
        Trainer(None).fail(error)
    assert isinstance(Trainer(telemetry), TelemetryProvider)
    assert Trainer(telemetry).succeed() == 5
    Trainer(telemetry).fail(error)


@pytest.mark.parametrize(
    ("capture", "fatal"),
    [
        (capture_by_block, False),
        (capture_by_decorator, False),
        (capture_in_coroutines, False),
        (capture_the_end_in_coroutines, True),
        (capture_a_coroutine_function, True),
        (capture_a_method, True),
    ],
)
def test_captures(
    telemetry: Telemetry, wire: Any, capture: Callable[[Telemetry, Exception], None], fatal: bool
) -> None:
    """Blocks and functions report an exception and raise it; the session ends if it is fatal."""
    error = LookupError("mine")
    with pytest.raises(LookupError) as caught:
        capture(telemetry, error)
    assert caught.value is error
    assert telemetry.wait_until_drained()
    assert exceptions(wire) == [("LookupError", "mine", "CRITICAL")]
    assert ("SESSION_END" in [event["event"] for event in reported(wire)]) == fatal


def test_a_closed_client_reports_nothing(
    service: tinker.ServiceClient, telemetry: Telemetry, clock: Any
) -> None:
    """An exception after the client was closed does not block the program."""
    service.close().result(10)
    before = clock()
    telemetry.log_fatal_exception_sync(LookupError("late"))
    assert clock() == before
    assert not telemetry.log("later")


def test_stop(telemetry: Telemetry, wire: Any) -> None:
    """Pending events are sent, and nothing after that."""
    telemetry.log("before")
    telemetry.stop()
    assert not telemetry.log("after")
    assert telemetry.wait_until_drained()
    wire.wait_for("telemetry")
    assert [event.get("event_name") for event in reported(wire)] == [None, "before"]


def test_memory_is_bounded(
    telemetry: Telemetry, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """If the server accepts nothing, a bounded number of events is kept; one line is logged."""
    release = wire.hold("telemetry")
    for _ in range(EVENTS_KEPT + 2 * EVENTS_IN_A_REQUEST):
        telemetry.log("x")
    assert len(telemetry._events) == EVENTS_KEPT  # pyright: ignore[reportPrivateUsage]
    assert len([line for line in caplog.messages if "dropping the oldest" in line]) == 1
    release()
    assert telemetry.wait_until_drained()
