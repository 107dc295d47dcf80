"""Background tasks: they survive everything except closing the client, and their failures reach
every waiter.
"""

from __future__ import annotations

import threading
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


def shared_poller(connect: Connect, wire: Any, **arguments: Any) -> tinker.SamplingClient:
    wire.fail("client/config", 200, body={"sample_use_retrieve_futures": True})
    return connect(**arguments).create_sampling_client(base_model="tinker/toy").result(10)


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


def test_completions_are_polled_again(connect: Connect, wire: Any) -> None:
    """An unreadable response about completed samples is followed by another poll."""
    sampler = shared_poller(connect, wire)
    wire.fail("retrieve_futures", 500, body=DEEP, outside="a proxy's answer")
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences


def test_a_defect_in_the_poller_fails_every_waiter(connect: Connect, wire: Any) -> None:
    """If the poller of all samples ends, each sample fails with an error of this package; later
    samples start a new poller.
    """
    sampler = shared_poller(connect, wire)
    wire.blow_up("retrieve_futures")
    errors = [future.exception(10) for future in [sampler.sample(PROMPT, 1, PARAMS)]]
    for error in errors:
        assert isinstance(error, tinker.TinkerError)
        assert "asking for completed samples failed: LookupError" in str(error)
        assert isinstance(error.__cause__, LookupError)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences


def test_a_server_that_does_not_hold_polls(connect: Connect, wire: Any, clock: Any) -> None:
    """A server that responds at once that no sample is done is polled at growing intervals."""
    sampler = shared_poller(connect, wire)
    wire.fail("retrieve_futures", 200, body={"completions": [], "cursor": 0}, times=8)
    del clock.slept[:]
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert clock.slept[:8] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_completions_of_cancelled_samples_are_dropped(connect: Connect, wire: Any) -> None:
    """Completions of cancelled samples are not kept."""
    sampler = shared_poller(connect, wire)
    kept = sampler.sample(PROMPT, 1, PARAMS)
    kept.result(10)
    completions = sampler._sampler.completions
    assert completions is not None
    unknown = [
        {
            "state": "finished",
            "request_id": f"given up {i}",
            "response_payload_uncompressed_size": 1,
        }
        for i in range(50)
    ]
    for done in range(2):
        wire.fail("retrieve_futures", 200, body={"completions": unknown, "cursor": 0})
        sampler.sample(PROMPT, 1, PARAMS).result(10)
        assert completions._early == {}, done


def test_a_completion_before_the_submit_response_is_kept(connect: Connect, wire: Any) -> None:
    """A completion that arrives before its submission's response is kept until needed, also while
    other submissions end.
    """
    sampler = shared_poller(connect, wire)
    completions = sampler._sampler.completions
    assert completions is not None
    told: list[object] = []

    async def scenario() -> None:
        with completions.submission() as first:
            with completions.submission():
                completions._done(tinker_completion("early", 7))
            told.append(dict(completions._early))
            told.append(await completions.wait("early", first))
        told.append(dict(completions._early))

    done = threading.Event()
    thread = sampler._sampler.runtime.thread
    thread.call(lambda: thread.task(scenario()).add_done_callback(lambda _: done.set()))
    assert done.wait(10)
    assert told == [{"early": (7, 2)}, 7, {}]


def tinker_completion(request_id: str, size: int) -> Any:
    from tinker_wire import models

    return models.FutureFinished(request_id=request_id, response_payload_uncompressed_size=size)


# ------------------------------------------------------------------------------------------ closing


def test_closing_ends_requests_that_wait_for_a_busy_server(
    connect: Connect, wire: Any, clock: Any
) -> None:
    """Closing the client ends a request at once, even while it waits for the
    server's Retry-After.
    """
    service = connect()
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("asample", 429, headers={"retry-after": "50"}, times=1)
    with clock.busy():
        waiting = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(3)]
        wire.wait_for("asample")
        service.close().result(10)
        for future in waiting:
            assert isinstance(future.exception(10), tinker.errors.ClientClosedError)


def test_closing_ends_samples_that_wait_for_their_completion(connect: Connect, wire: Any) -> None:
    """Closing the client ends samples that wait for the shared poll of completions."""
    service = connect()
    wire.fail("client/config", 200, body={"sample_use_retrieve_futures": True})
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("retrieve_futures", 200, body={"completions": [], "cursor": 0}, times=10**9)
    future = sampler.sample(PROMPT, 1, PARAMS)
    wire.wait_for("retrieve_futures")
    service.close().result(10)
    assert isinstance(future.exception(10), tinker.errors.ClientClosedError)
    wire.faults.clear()


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
