"""Observing: timings, queue states, events and counts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.cases import for_each
from support.queue_news import all_told, waiting

import tinker
from tinker.observing import (
    AttemptStarted,
    CircuitChange,
    CustomLossEvaluated,
    Event,
    FutureSettled,
    FutureStarted,
    LogObserver,
    Metrics,
    ModelLoading,
    QueueChange,
    RecoveryChange,
    RequestAttempt,
    RequestRetry,
    SessionLost,
    Timings,
)
from tinker.testing import SteppedClock, toy_server

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
TOLD_OF_A_STEP = ("optim_step", "retrieve_future")
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)


def test_timings(training: tinker.TrainingClient, wire: Any, clock: Any) -> None:
    """A future has the times of call, acceptance, start and result by the client's clock."""
    assert training.timings.queued == 1000.0
    wire.fail("optim_step", 503)
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity"))
    wire.fail("retrieve_future", 200, body=waiting("active"), times=2)
    before = clock.now
    future = training.optim_step(ADAM)
    future.result(10)
    queued, submitted, running, fetched = future.timings
    assert None not in future.timings
    assert before == queued < submitted < running < fetched == clock.now  # type: ignore[operator]
    quick = training.optim_step(ADAM)
    quick.result(10)
    assert quick.timings.running is None
    assert tinker.APIFuture[None]().timings == Timings()


@pytest.mark.parametrize("kind", ["training", "sampling", "future"])
def test_changes_of_the_queue(service: tinker.ServiceClient, wire: Any, kind: str) -> None:
    """Observers of a client or future hear of each change once, even if another observer raises."""

    def broken(state: str, reason: str | None) -> None:
        raise ZeroDivisionError

    def watch(observed: Any) -> None:
        for observer in (broken, lambda *told: seen.append(told), watcher):
            observed.observe_queue(observer)

    seen: list[tuple[str, str | None]] = []
    others: list[tuple[str, str | None]] = []
    watcher = SimpleNamespace(on_queue_state_change=lambda *told: others.append(told))
    client: Any = (
        service.create_sampling_client(base_model="tinker/toy")
        if kind == "sampling"
        else service.create_lora_training_client("tinker/toy")
    ).result(10)
    watched = threading.Event()

    def answer_when_watched(_: httpx.Request, __: bytes) -> httpx.Response:
        assert watched.wait(10)
        return httpx.Response(200, json=waiting("paused_capacity"))

    wire.answer("retrieve_future", answer_when_watched)
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity"))
    for state, reason in (("paused_capacity", "full"), ("active", None)):
        wire.fail("retrieve_future", 200, body=waiting(state, reason), times=2)
    if kind != "future":
        watch(client)
    future = client.sample(PROMPT, 1, PARAMS) if kind == "sampling" else client.optim_step(ADAM)
    if kind == "future":
        watch(future)
    watched.set()
    future.result(10)
    changes = [("paused_capacity", None), ("paused_capacity", "full"), ("active", None)]
    assert seen == others == changes
    assert future.request_id
    assert (future.queue_state, future.queue_state_reason) == changes[-1]
    assert None not in (future.timings.submitted, future.timings.fetched)


def test_queue_states_of_a_creation(service: tinker.ServiceClient, wire: Any) -> None:
    """An observer of a client that is being created is notified of queue states."""
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity"), times=3)
    seen: list[tuple[str, str | None]] = []
    training = service.create_lora_training_client("tinker/toy")
    training.observe_queue(lambda *told: seen.append(told))
    training.result(10)
    assert seen in ([], [("paused_capacity", None)])
    assert training.queue_state == "paused_capacity"


def test_events(connect: Connect, wire: Any, clock: Any) -> None:
    """Observers get one event for each attempt, retry, queue change and settled future."""
    events: list[Event] = []
    service = connect(observers=[events.append])
    training = service.create_lora_training_client("tinker/toy").result(10)
    all_told()
    del events[:]
    wire.fail("optim_step", 503, headers={"retry-after": "3"})
    wire.drop("optim_step", apply=True)
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity", "full"), times=2)
    future = training.optim_step(ADAM)
    future.result(10)
    all_told()
    told: list[Any] = [
        event for event in events if event.operation.rpartition("/")[2] in TOLD_OF_A_STEP
    ]
    attempt = [AttemptStarted, RequestAttempt]
    assert [type(event) for event in told] == [
        FutureStarted,
        *[*attempt, RequestRetry] * 2,
        *[*attempt, *attempt, QueueChange, *attempt, *attempt],
        FutureSettled,
    ]
    failed, retry, broken = [one for one in told if type(one) in (RequestAttempt, RequestRetry)][:3]
    assert isinstance(failed.error, tinker.InternalServerError)
    assert (failed.status, failed.operation, failed.seconds) == (503, "optim_step", 0.0)
    assert failed.sent_nbytes == len(wire.requests("optim_step")[0].body)
    assert (retry.operation, retry.failures) == ("optim_step", 1)
    assert retry.delay_seconds >= 3
    assert broken.status is None
    (change,) = [one for one in told if isinstance(one, QueueChange)]
    assert (change.operation, change.request_id) == ("optim_step", future.request_id)
    assert (change.state, change.reason) == ("paused_capacity", "full")
    settled = told[-1]
    assert settled.request_id == future.request_id
    assert (settled.error, settled.cancelled, settled.timings) == (None, False, future.timings)
    assert settled.seconds == clock.now - future.timings.queued  # type: ignore[operator]


def test_failures_and_cancellations_are_events(connect: Connect, wire: Any) -> None:
    """A future that fails or is cancelled is reported as settled."""
    events: list[Any] = []
    service = connect(observers=[events.append])
    wire.fail("optim_step", 403)
    training = service.create_lora_training_client("tinker/toy").result(10)
    error = training.optim_step(ADAM).exception(10)
    wire.fail("retrieve_future", 200, body=waiting("active"), times=10**9)
    cancelled = service.create_lora_training_client("tinker/toy").save_state("x")
    assert cancelled.cancel()
    wire.faults.clear()
    service.create_rest_client().list_sessions().result(10)
    all_told()
    settled = {event.operation: event for event in events if isinstance(event, FutureSettled)}
    assert settled["optim_step"].error is error
    assert settled["save_state"].cancelled
    assert settled["list_sessions"].error is None


def test_an_observer_that_raises(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """An observer's exception is logged once and affects neither other observers nor the client."""

    def broken(_: Event) -> None:
        raise ZeroDivisionError("mine")

    metrics = Metrics()
    training = connect(observers=[broken, metrics]).create_lora_training_client("tinker/toy")
    asyncio.run(training.optim_step(ADAM).result_async(10))
    all_told()
    assert metrics.snapshot().futures["optim_step"].count == 1
    said = [record for record in caplog.records if record.exc_info and "observer" in record.message]
    assert len(said) == 1


def test_metrics(connect: Connect, wire: Any) -> None:
    """Counts, bytes and percentiles are per operation; a reset starts from zero."""
    metrics = Metrics()
    training = connect(observers=[metrics]).create_lora_training_client("tinker/toy").result(10)
    all_told()
    metrics.reset()
    wire.fail("optim_step", 503, times=3)
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity"))
    for _ in range(20):
        training.optim_step(ADAM).result(10)
    all_told()
    seen = metrics.snapshot()
    assert (seen.attempts["optim_step"].count, seen.attempts["optim_step"].failed) == (23, 3)
    assert seen.retries == {"optim_step": 3}
    assert seen.queue_changes == {"paused_capacity": 1}
    assert "queue: paused_capacity" in metrics._repr_html_()
    steps = seen.futures["optim_step"]
    assert (steps.count, steps.failed) == (20, 0)
    assert steps.p50 == steps.p95 == 0 < steps.p99 == steps.longest_seconds
    assert 0 < steps.mean_seconds < steps.longest_seconds
    assert seen.sent_nbytes > seen.received_nbytes > 0
    metrics.reset()
    assert metrics.snapshot().futures == {}


def test_percentiles_are_of_the_last_thousand() -> None:
    """Percentiles use the nearest rank of the last thousand values."""
    metrics = Metrics()
    what: dict[str, Any] = {"request_id": None, "error": None, "cancelled": False}
    for seconds in [*range(5000, 5500), *range(1, 1001)]:
        metrics(FutureSettled(operation="x", seconds=seconds, timings=Timings(), **what))
    summary = metrics.snapshot().futures["x"]
    assert (summary.p50, summary.p95, summary.p99) == (500, 950, 990)
    assert (summary.count, summary.longest_seconds) == (1500, 5499)


def test_a_burst_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """If a hundred samples fail at once, one line is logged at WARNING and the rest at DEBUG."""
    clock = SteppedClock()
    with toy_server(clock=clock) as server, caplog.at_level(logging.DEBUG, "tinker"):
        sampler = server.service().create_sampling_client(base_model="tinker/toy").result(10)
        server.fail_next("asample", 503, times=100)
        with clock.busy():
            futures = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(100)]
            server.wait_for("asample", 100)
        for future in futures:
            future.result(10)
    said = [one for one in caplog.records if "asample" in one.message and "failed" in one.message]
    assert [one.levelno for one in said].count(logging.WARNING) == 1
    assert len(said) == 100


@for_each(
    "event, level, line",
    [
        (
            SessionLost(operation="session", silent_seconds=9, error=OSError("x")),
            "WARNING",
            "session lost its session, silent for 9 s: x",
        ),
        (
            CircuitChange(circuit="c", state="open", failures=3),
            "WARNING",
            "circuit_breaker c is open after 3 failures in a row",
        ),
        (RecoveryChange(run_id="r", stage="started"), "WARNING", "recovery of r started"),
        (
            RecoveryChange(run_id="r", stage="failed", error=OSError("x")),
            "WARNING",
            "recovery of r failed: x",
        ),
        (ModelLoading(what="torch"), "INFO", "loading torch began"),
        (ModelLoading(what="torch", seconds=2), "INFO", "loading torch took 2.0 s"),
        (
            CustomLossEvaluated(operation="o", seconds=1, loss=2),
            "DEBUG",
            "o loss 2, 1.000 s in your function",
        ),
        (
            CustomLossEvaluated(operation="o", seconds=1, error=OSError("x")),
            "DEBUG",
            "o failed: x, 1.000 s in your function",
        ),
    ],
)
def test_lines_of_rare_events(
    caplog: pytest.LogCaptureFixture, event: Event, level: str, line: str
) -> None:
    """What happens to a session, circuit, run, model or loss is one line; losses are warnings."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "tinker.events"):
        LogObserver()(FutureStarted(operation="o"))  # logs nothing
        LogObserver()(event)
    assert [(record.levelname, record.message) for record in caplog.records] == [(level, line)]
