"""What a client reports about itself: nothing unless allowed, never a secret, and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker._session.telemetry import EVENTS_IN_A_REQUEST, EVENTS_KEPT, FLUSH_SECONDS

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
KEY = "tml-very-secret"


def reported(wire: Any) -> list[dict[str, Any]]:
    """Every event that was sent."""
    return [event for exchange in wire.requests("telemetry") for event in exchange.json["events"]]


def flush(wire: Any, clock: Any) -> None:
    """Let the time of the next report come, and wait for it. Heartbeats sleep too, so the first advance may wake those alone."""
    before = len(wire.requests("telemetry"))
    while len(wire.requests("telemetry")) == before:
        clock.advance(FLUSH_SECONDS)
        wire.arrives("telemetry", before + 1)


def test_nothing_is_reported_unasked(connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of the user's nothing is collected or sent; an argument overrides the environment."""
    for value, argument in ((None, None), ("0", None), ("1", False)):
        if value is not None:
            monkeypatch.setenv("TINKER_TELEMETRY", value)
        service = connect(telemetry=argument)
        assert service.create_lora_training_client("tinker/toy").result(10).get_telemetry() is None
        assert service.get_telemetry() is None
        service.close().result(10)
    assert wire.requests("telemetry") == []


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_life_of_a_session(connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Where it is allowed, start and end of the session and the user's own events are reported, numbered, by the end at last."""
    if how == "environment":
        monkeypatch.setenv("TINKER_TELEMETRY", "yes")
    service = connect(telemetry=True if how == "argument" else None)
    training = service.create_lora_training_client("tinker/toy").result(10)
    telemetry = service.get_telemetry()
    assert telemetry is not None
    assert telemetry is training.get_telemetry() is service.create_rest_client().get_telemetry()
    telemetry.log("epoch", {"number": 1})
    service.close().result(10)
    (exchange,) = wire.requests("telemetry")
    kinds = [event["event"] for event in exchange.json["events"]]
    assert kinds == ["SESSION_START", "GENERIC_EVENT", "SESSION_END"]
    assert sorted(event["event_session_index"] for event in exchange.json["events"]) == [0, 1, 2]
    assert exchange.json["session_id"] == wire.requests("create_model")[0].json["session_id"]


def test_failures(connect: Connect, wire: Any, clock: Any) -> None:
    """Failures of the server are told with their words, those of the user by kind only, and no key is in either."""
    service = connect(telemetry=True, api_key=KEY)
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("save_weights", 422, body={"detail": "your secret name"})
    training.save_state("a").exception(10)
    other = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("optim_step", 501, body={"detail": f"no idea what {KEY} is, nor Bearer abc.def"})
    other.optim_step(ADAM).exception(10)
    flush(wire, clock)
    events = {event["event"]: event for event in reported(wire)}
    assert events["GENERIC_EVENT"]["event_data"]["error_type"] == "UnprocessableEntityError"
    assert events["GENERIC_EVENT"]["event_data"]["status_code"] == 422
    assert events["UNHANDLED_EXCEPTION"]["error_type"] == "InternalServerError"
    assert "optim_step: Error code: 501" in events["UNHANDLED_EXCEPTION"]["error_message"]
    for exchange in wire.requests("telemetry"):
        for secret in (KEY, "abc.def", "your secret name"):
            assert secret not in exchange.body.decode()


def test_a_server_without_it_is_not_asked_again(connect: Connect, wire: Any, clock: Any) -> None:
    """An absent endpoint ends the reports; nobody notices."""
    service = connect(telemetry=True)
    service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("telemetry", 404)
    flush(wire, clock)
    telemetry = service.get_telemetry()
    assert telemetry is not None
    telemetry.log("more")
    service.close().result(10)
    assert len(wire.requests("telemetry")) == 1


def test_batches(connect: Connect, wire: Any, clock: Any) -> None:
    """Many events go in requests of a hundred; what failed to be sent goes with the next, what was refused does not."""
    service = connect(telemetry=True)
    service.create_lora_training_client("tinker/toy").result(10)
    telemetry = service.get_telemetry()
    assert telemetry is not None
    wire.fail("telemetry", 503)
    wire.fail("telemetry", 422)
    for number in range(230):
        telemetry.log("step", {"number": number})
    flush(wire, clock)
    flush(wire, clock)
    service.close().result(10)
    sizes = [(len(exchange.json["events"]), exchange.status) for exchange in wire.requests("telemetry")]
    assert sizes == [(100, 503), (100, 422), (100, 200), (32, 200)]
    assert max(size for size, _ in sizes) == EVENTS_IN_A_REQUEST


def test_memory_is_bounded(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """A server that takes nothing costs a bounded number of events, and one line."""
    service = connect(telemetry=True)
    service.create_rest_client()
    telemetry = service.get_telemetry()
    assert telemetry is not None
    for _ in range(EVENTS_KEPT + 10):
        telemetry.log("x")
    assert len(telemetry._events) == EVENTS_KEPT
    assert len([line for line in caplog.messages if "dropping the oldest" in line]) == 1
