"""A client with a circuit breaker: which requests it stops, which it never stops, and which clients
share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.tolerances import FLOAT64, near

import tinker
from tinker.observing import CircuitChange, Event

Connect = Callable[..., tinker.ServiceClient]
MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams()
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
TRAINING, SAMPLING = "http://server training", "http://server sampling"


@pytest.fixture
def breaker(clock: Any) -> tinker.CircuitBreaker:
    """Return a breaker that opens after three failures."""
    return tinker.CircuitBreaker(failures=3, reset_seconds=30, clock=lambda: clock.now)


@pytest.fixture
def guarded(connect: Connect, breaker: tinker.CircuitBreaker) -> tinker.ServiceClient:
    return connect(circuit_breaker=breaker)


@pytest.fixture
def run(guarded: tinker.ServiceClient) -> tinker.TrainingClient:
    """Return a training client with a breaker, ready for use."""
    return guarded.create_lora_training_client("tinker/toy", rank=4).result(10)


def open_circuit(run: tinker.TrainingClient, wire: Any) -> tinker.CircuitOpenError:
    """Open the circuit of training, and return the error of the step that did."""
    wire.fail("optim_step", 503, times=3)
    error = run.optim_step(ADAM).exception(10)
    assert isinstance(error, tinker.CircuitOpenError)
    return error


def test_retries_end_when_the_circuit_opens(run: tinker.TrainingClient, wire: Any) -> None:
    """Retries end with the failure that opened the circuit; later requests are not sent."""
    error = open_circuit(run, wire)
    assert "after 3 failures in a row" in str(error)
    assert isinstance(error.__cause__, tinker.InternalServerError)
    assert error.circuit == TRAINING
    # a difference of times of the clock
    assert error.retry_after == near(30, 2, 1e4, FLOAT64)
    again = run.optim_step(ADAM).exception(10)
    assert isinstance(again, tinker.CircuitOpenError)
    assert again.__cause__ is None
    assert len(wire.requests("optim_step")) == 3


def test_failures_below_the_limit_are_retried(run: tinker.TrainingClient, wire: Any) -> None:
    """Fewer failures than the breaker's limit are retried as without a breaker."""
    wire.fail("optim_step", 503, times=2)
    assert run.optim_step(ADAM).result(10)
    assert len(wire.requests("optim_step")) == 3


@pytest.mark.parametrize("failure", ["broken connection", "a page of a proxy"])
def test_other_failures_open_it_too(
    run: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    breaker: tinker.CircuitBreaker,
    failure: str,
) -> None:
    """Broken connections count too, and pages of a proxy whose status is a success."""
    if failure == "broken connection":
        wire.drop("forward_backward", apply=False, times=3)
    else:
        wire.fail("forward_backward", 200, body=b"<html>", times=3, outside="a proxy's page")
    error = run.forward_backward([datum()], "cross_entropy").exception(10)
    assert isinstance(error, tinker.TinkerError)
    assert breaker.state(TRAINING) == "open"


def test_an_opening_circuit_wakes_waiting_requests(
    guarded: tinker.ServiceClient, run: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """A request that waits for a Retry-After fails as soon as another opens the circuit."""
    wire.fail("optim_step", 503, headers={"retry-after": "50"})
    wire.fail("create_model", 503, times=2)
    began = clock.now
    with clock.busy():
        waiting = run.optim_step(ADAM)
        wire.wait_for("optim_step")
        creation = guarded.create_lora_training_client("tinker/toy", rank=4)
        wire.wait_for("create_model")
    assert isinstance(creation.exception(10), tinker.CircuitOpenError)
    error = waiting.exception(10)
    assert isinstance(error, tinker.CircuitOpenError)
    assert isinstance(error.__cause__, tinker.InternalServerError)
    assert clock.now < began + 50


@pytest.mark.gives_up_soon
def test_a_probe_closes_it(
    run: tinker.TrainingClient, wire: Any, clock: Any, breaker: tinker.CircuitBreaker
) -> None:
    """After the reset time the success of one request lets all others pass; the run goes on."""
    open_circuit(run, wire)
    clock.advance(30, idle=True)
    assert breaker.state(TRAINING) == "half_open"
    assert run.optim_step(ADAM).result(10)
    assert breaker.state(TRAINING) == "closed"
    assert run.save_state("kept").result(10).path


def test_an_accepted_step_is_waited_for(
    run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker
) -> None:
    """While the circuit is open results are still polled: an accepted step is never abandoned."""
    wire.fail("retrieve_future", 503, times=5)
    release = wire.hold("retrieve_future")
    accepted = run.optim_step(ADAM)
    wire.wait_for("optim_step")
    wire.fail("save_weights", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.save_state("no").result(10)
    states = {one.circuit: one.state for one in breaker.circuits()}
    assert "open" in states.values()
    release()
    assert accepted.result(10) is not None


def test_the_session_is_kept_alive(
    run: tinker.TrainingClient, wire: Any, clock: Any, breaker: tinker.CircuitBreaker
) -> None:
    """Heartbeats continue while every circuit is open, and their failures open none."""
    wire.fail("session_heartbeat", 503, times=4)
    beats = len(wire.requests("session_heartbeat"))
    for n in range(4):
        clock.advance(10)
        wire.wait_for("session_heartbeat", beats + n + 1)
    assert all(one.state == "closed" for one in breaker.circuits())
    open_circuit(run, wire)
    clock.advance(10)
    wire.wait_for("session_heartbeat", beats + 5)


def test_checking_the_session_opens_no_circuit(
    run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker
) -> None:
    """Heartbeats that check for a lost session are retried whatever the breaker counts."""
    wire.fail("optim_step", 404)
    wire.fail("session_heartbeat", 503, times=4)
    with pytest.raises(tinker.NotFoundError):
        run.optim_step(ADAM).result(10)
    assert all(one.state == "closed" for one in breaker.circuits())


def test_user_errors_are_no_failures(
    run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker
) -> None:
    """Errors caused by the request leave the circuit closed, however many there are."""
    wire.fail("optim_step", 422, times=6)
    for _ in range(6):
        with pytest.raises(tinker.UnprocessableEntityError):
            run.optim_step(ADAM).result(10)
    assert breaker.state(TRAINING) == "closed"


def test_a_request_that_may_have_arrived_keeps_its_number(
    run: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """When a circuit opens, only numbers of requests that cannot have arrived are used again."""
    wire.drop("optim_step", apply=True, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    clock.advance(30, idle=True)
    assert run.optim_step(ADAM).result(10)
    numbers = [one.seq_id for one in wire.requests("optim_step")]
    assert numbers == [numbers[0]] * 3 + [numbers[0] + 1]


def test_unsent_samples_release_their_slots(
    guarded: tinker.ServiceClient, wire: Any, clock: Any
) -> None:
    """More samples than there are slots can go unsent, and then one succeeds."""
    sampler = guarded.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("asample", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    refused = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(450)]
    assert all(isinstance(one.exception(10), tinker.CircuitOpenError) for one in refused)
    clock.advance(30, idle=True)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert len(wire.requests("asample")) == 4


def test_training_and_sampling_have_separate_circuits(
    guarded: tinker.ServiceClient,
    run: tinker.TrainingClient,
    wire: Any,
    breaker: tinker.CircuitBreaker,
) -> None:
    """Samples are sent while the training circuit is open."""
    open_circuit(run, wire)
    sampler = guarded.create_sampling_client(base_model="tinker/toy")
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert (breaker.state(TRAINING), breaker.state(SAMPLING)) == ("open", "closed")


def test_clients_of_the_same_server_and_key_share_it(
    connect: Connect, wire: Any, breaker: tinker.CircuitBreaker
) -> None:
    """Clients of the same server and key share a circuit; another key has its own."""
    one, other, stranger = (
        connect(circuit_breaker=breaker, api_key=key) for key in ("tml-a", "tml-a", "tml-b")
    )
    runs = [
        service.create_lora_training_client("tinker/toy", rank=4).result(10)
        for service in (one, other, stranger)
    ]
    wire.fail("optim_step", 503, times=3)
    for client in runs[:2]:
        with pytest.raises(tinker.CircuitOpenError):
            client.optim_step(ADAM).result(10)
    assert runs[2].optim_step(ADAM).result(10)
    assert len(wire.requests("optim_step")) == 4
    assert sorted(one.state for one in breaker.circuits() if one.circuit == TRAINING) == [
        "closed",
        "open",
    ]
    assert "tml-" not in repr(breaker) + repr(breaker.circuits())


@pytest.mark.gives_up_soon
def test_state_changes_are_reported_to_observers(
    connect: Connect, wire: Any, clock: Any, breaker: tinker.CircuitBreaker
) -> None:
    """Each change of state is an event of the client whose call caused it."""
    events: list[Event] = []
    run = connect(circuit_breaker=breaker, observers=[events.append]).create_lora_training_client(
        "tinker/toy", rank=4
    )
    open_circuit(run, wire)
    clock.advance(30, idle=True)
    run.optim_step(ADAM).result(10)
    changes = [event for event in events if isinstance(event, CircuitChange)]
    assert [(change.circuit, change.state, change.failures) for change in changes] == [
        (TRAINING, "open", 3),
        (TRAINING, "half_open", 3),
        (TRAINING, "closed", 0),
    ]


@pytest.mark.parametrize("how", ["closing", "cancelling"])
def test_waits_between_attempts_end(
    guarded: tinker.ServiceClient,
    run: tinker.TrainingClient,
    wire: Any,
    clock: Any,
    breaker: tinker.CircuitBreaker,
    how: str,
) -> None:
    """Closing or cancelling ends a wait for the next attempt, and opens no circuit."""
    wire.fail("optim_step", 503, headers={"retry-after": "50"})
    with clock.busy():
        waiting = run.optim_step(ADAM)
        wire.wait_for("optim_step")
        if how == "closing":
            guarded.close().result(10)
            assert isinstance(waiting.exception(10), tinker.ClientClosedError)
        else:
            assert waiting.cancel()
            assert waiting.cancelled()
    assert breaker.state(TRAINING) == "closed"
