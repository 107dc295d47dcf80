"""Background tasks: they survive everything except closing the client, and their failures reach
every waiter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker.testing import toy_server

Connect = Callable[..., tinker.ServiceClient]
PROMPT, PARAMS, ADAM = (
    tinker.ModelInput.from_ints([1, 2, 3]),
    tinker.SamplingParams(max_tokens=4),
    tinker.AdamParams(),
)
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("failure", ["deep", "defect"])
def test_heartbeats_continue_after_failures(
    failure: str, connect: Connect, wire: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Any failure of a heartbeat is followed by the next heartbeat."""
    connect().create_sampling_client(base_model="tinker/toy").result(10)
    before = len(wire.requests("session_heartbeat"))
    if failure == "deep":
        wire.fail("session_heartbeat", 500, body=DEEP, outside="a proxy's answer")
    else:
        wire.blow_up("session_heartbeat")
    for beat in (1, 2):
        clock.advance(10)
        wire.wait_for("session_heartbeat", before + beat)
    assert ("a heartbeat failed" in caplog.text) == (failure == "defect")


@pytest.mark.parametrize("failure", ["deep", "defect"])
def test_settings_are_requested_again(
    failure: str, connect: Connect, wire: Any, clock: Any
) -> None:
    """A failed request for the server's settings is retried."""
    if failure == "deep":
        wire.fail("client/dynamic_config", 500, body=DEEP, outside="a proxy's answer")
    else:
        wire.blow_up("client/dynamic_config")
    connect().create_sampling_client(base_model="tinker/toy").result(10)
    wire.wait_for("client/dynamic_config")
    clock.advance(301)
    wire.wait_for("client/dynamic_config", 2)


def test_settings_are_requested_again_after_ten_seconds(
    connect: Connect, wire: Any, clock: Any
) -> None:
    """A server that wants to be asked more often than that is not."""
    wire.fail("client/dynamic_config", 200, body={"refresh_interval_sec": 1}, times=2)
    connect().create_sampling_client(base_model="tinker/toy").result(10)
    for asked in (1, 2):
        wire.wait_for("client/dynamic_config", asked)
        clock.advance(10)
    wire.wait_for("client/dynamic_config", 3)


def test_telemetry_continues_after_failures(connect: Connect, wire: Any, clock: Any) -> None:
    """A failed telemetry report is followed by the next report."""
    service = connect(telemetry=True)
    service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.blow_up("telemetry")
    clock.advance(10)
    wire.wait_for("telemetry")
    telemetry = service.get_telemetry()
    assert telemetry is not None
    telemetry.log("again")
    clock.advance(10)
    wire.wait_for("telemetry", 2)


# ------------------------------------------------------------------------------------------ closing


def test_closing_ends_requests_that_wait_for_a_busy_server(
    connect: Connect, wire: Any, clock: Any
) -> None:
    """Closing ends a request at once, even while it waits for the server's Retry-After."""
    service = connect()
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("asample", 429, headers={"retry-after": "50"}, times=1)
    with clock.busy():
        waiting = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(3)]
        wire.wait_for("asample")
        service.close().result(10)
        for future in waiting:
            assert isinstance(future.exception(10), tinker.errors.ClientClosedError)


def test_closing_reports_no_failed_attempts(caplog: pytest.LogCaptureFixture) -> None:
    """Connections broken by closing the client are not reported as failed attempts."""
    with toy_server() as server, server.on_port() as url:
        service = tinker.ServiceClient(base_url=url, api_key="tml-key")
        training = service.create_lora_training_client("tinker/toy", rank=2).result(30)
        server.hang_next("retrieve_future", times=100)
        future = training.optim_step(ADAM)
        server.wait_for("retrieve_future", 2)
        service.close().result(30)
        assert isinstance(future.exception(30), tinker.errors.ClientClosedError)
    assert "attempt" not in caplog.text
