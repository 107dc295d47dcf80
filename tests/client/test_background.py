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
@pytest.mark.parametrize(
    ("operation", "seconds"),
    [("session_heartbeat", 10), ("client/dynamic_config", 301), ("telemetry", 10)],
)
def test_background_work_continues_after_failures(
    connect: Connect,
    wire: Any,
    clock: Any,
    caplog: pytest.LogCaptureFixture,
    operation: str,
    seconds: float,
    failure: str,
) -> None:
    """Any failure of a heartbeat, of settings or of telemetry is followed by the next request."""
    if failure == "deep":
        wire.fail(operation, 500, body=DEEP, outside="a proxy's answer")
    else:
        wire.blow_up(operation)
    service = connect(telemetry=True)
    service.create_sampling_client(base_model="tinker/toy").result(10)
    for asked in (1, 2, 3):
        service.get_telemetry().log("again")
        clock.advance(seconds)
        wire.wait_for(operation, asked)
    if operation == "session_heartbeat":
        assert ("a heartbeat failed" in caplog.text) == (failure == "defect")


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
