"""A client with a circuit breaker: what it stops, what it never stops, and who shares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker.observing import CircuitChange, Event

Connect = Callable[..., tinker.ServiceClient]
MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams()
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
TRAINING, SAMPLING = "http://server training", "http://server sampling"


@pytest.fixture
def breaker(clock: Any) -> tinker.CircuitBreaker:
    """Opens after three failures."""
    return tinker.CircuitBreaker(failures=3, reset_seconds=30, clock=lambda: clock.now)


@pytest.fixture
def guarded(connect: Connect, breaker: tinker.CircuitBreaker) -> tinker.ServiceClient:
    return connect(circuit_breaker=breaker)


@pytest.fixture
def run(guarded: tinker.ServiceClient) -> tinker.TrainingClient:
    """A training client with a breaker, which is ready."""
    return guarded.create_lora_training_client("tinker/toy", rank=4).result(10)


def test_retries_end_when_the_circuit_opens(run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker) -> None:
    """A request that is tried again ends with the failure that opened the circuit as its cause; later ones are not sent."""
    wire.fail("optim_step", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError, match="after 3 failures in a row") as caught:
        run.optim_step(ADAM).result(10)
    assert isinstance(caught.value.__cause__, tinker.InternalServerError)
    assert caught.value.circuit == TRAINING
    assert caught.value.retry_after == pytest.approx(30)
    with pytest.raises(tinker.CircuitOpenError) as again:
        run.optim_step(ADAM).result(10)
    assert again.value.__cause__ is None
    assert len(wire.requests("optim_step")) == 3


def test_a_failure_in_between_is_tried_again_as_before(run: tinker.TrainingClient, wire: Any) -> None:
    """Fewer failures than the breaker counts are none of its business."""
    wire.fail("optim_step", 503, times=2)
    assert run.optim_step(ADAM).result(10)
    assert len(wire.requests("optim_step")) == 3


def test_forward_backward_too(run: tinker.TrainingClient, wire: Any, datum: MakeDatum) -> None:
    """Requests that have several forms are guarded like the others."""
    wire.drop("forward_backward", apply=False, times=3)
    with pytest.raises(tinker.CircuitOpenError) as caught:
        run.forward_backward([datum()], "cross_entropy").result(10)
    assert isinstance(caught.value.__cause__, tinker.APIConnectionError)


def test_who_sleeps_until_the_next_try_is_woken(
    guarded: tinker.ServiceClient, run: tinker.TrainingClient, wire: Any, clock: Any, breaker: tinker.CircuitBreaker
) -> None:
    """A request that a server sent away for a minute ends as soon as another one opens the circuit, not after the minute."""
    wire.fail("optim_step", 503, headers={"retry-after": "50"})
    wire.fail("create_model", 503, times=2)
    began = clock.now
    with clock.busy():
        waiting = run.optim_step(ADAM)
        wire.wait_for("optim_step")
        creation = guarded.create_lora_training_client("tinker/toy", rank=4)
        wire.wait_for("create_model")
    with pytest.raises(tinker.CircuitOpenError):
        creation.result(10)
    with pytest.raises(tinker.CircuitOpenError) as caught:
        waiting.result(10)
    assert clock.now < began + 50
    assert isinstance(caught.value.__cause__, tinker.InternalServerError)


def test_a_probe_closes_it(run: tinker.TrainingClient, wire: Any, clock: Any, breaker: tinker.CircuitBreaker) -> None:
    """When the time is over one request is sent, and its success lets all others pass; the run has lost nothing else."""
    wire.fail("optim_step", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    clock.advance(30, idle=True)
    assert breaker.state(TRAINING) == "half_open"
    assert run.optim_step(ADAM).result(10)
    assert breaker.state(TRAINING) == "closed"
    assert run.save_state("kept").result(10).path


def test_an_accepted_step_is_waited_for(run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker) -> None:
    """While the circuit is open results are polled: a step that the server has accepted is never given up."""
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


def test_the_session_is_kept_alive(run: tinker.TrainingClient, wire: Any, clock: Any, breaker: tinker.CircuitBreaker) -> None:
    """Heartbeats go on while every circuit is open, and their failures open none."""
    wire.fail("session_heartbeat", 503, times=4)
    beats = len(wire.requests("session_heartbeat"))
    for n in range(4):
        clock.advance(10)
        wire.wait_for("session_heartbeat", beats + n + 1)
    assert all(one.state == "closed" for one in breaker.circuits())
    wire.fail("optim_step", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    clock.advance(10)
    wire.wait_for("session_heartbeat", beats + 5)


def test_asking_for_the_session_opens_no_circuit(run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker) -> None:
    """Whether the server still knows the session is asked by heartbeats, which are tried again whatever the breaker counts."""
    wire.fail("optim_step", 404)
    wire.fail("session_heartbeat", 503, times=4)
    with pytest.raises(tinker.NotFoundError):
        run.optim_step(ADAM).result(10)
    assert all(one.state == "closed" for one in breaker.circuits())


def test_what_the_user_did_wrong_is_no_failure(run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker) -> None:
    """Answers that blame the request leave the circuit closed, however many there are."""
    wire.fail("optim_step", 422, times=6)
    for _ in range(6):
        with pytest.raises(tinker.UnprocessableEntityError):
            run.optim_step(ADAM).result(10)
    assert breaker.state(TRAINING) == "closed"


def test_a_request_that_may_have_arrived_keeps_its_number(run: tinker.TrainingClient, wire: Any, clock: Any) -> None:
    """The number of a request whose connections broke is not used again after the circuit opened; an unseen one's is."""
    wire.drop("optim_step", apply=True, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    clock.advance(30, idle=True)
    assert run.optim_step(ADAM).result(10)
    numbers = [one.seq_id for one in wire.requests("optim_step")]
    assert numbers == [numbers[0]] * 3 + [numbers[0] + 1]


def test_samples_give_back_what_they_hold(guarded: tinker.ServiceClient, wire: Any, clock: Any) -> None:
    """A sample that is not sent holds no slot: more of them than there are slots fail, and then one succeeds."""
    sampler = guarded.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("asample", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    refused = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(450)]
    assert all(isinstance(one.exception(10), tinker.CircuitOpenError) for one in refused)
    clock.advance(30, idle=True)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert len(wire.requests("asample")) == 4


def test_an_answer_that_cannot_be_read_counts(run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker) -> None:
    """A page of a proxy in the place of the answer is a failure, though its status is a success."""
    wire.fail("optim_step", 200, body=b"<html>", times=3, outside="a proxy's page")
    with pytest.raises(tinker.TinkerError):
        run.optim_step(ADAM).result(10)
    assert breaker.state(TRAINING) == "open"


def test_kinds_of_calls_are_apart(
    guarded: tinker.ServiceClient, run: tinker.TrainingClient, wire: Any, breaker: tinker.CircuitBreaker
) -> None:
    """While training fails, samples are sent."""
    wire.fail("optim_step", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    sampler = guarded.create_sampling_client(base_model="tinker/toy")
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert (breaker.state(TRAINING), breaker.state(SAMPLING)) == ("open", "closed")


def test_clients_of_the_same_server_and_key_share_it(connect: Connect, wire: Any, breaker: tinker.CircuitBreaker) -> None:
    """What one client has found out spares the other the same failures; another key has a circuit of its own."""
    one, other, stranger = (connect(circuit_breaker=breaker, api_key=key) for key in ("tml-a", "tml-a", "tml-b"))
    runs = [service.create_lora_training_client("tinker/toy", rank=4).result(10) for service in (one, other, stranger)]
    wire.fail("optim_step", 503, times=3)
    for client in runs[:2]:
        with pytest.raises(tinker.CircuitOpenError):
            client.optim_step(ADAM).result(10)
    assert runs[2].optim_step(ADAM).result(10)
    assert len(wire.requests("optim_step")) == 4
    assert sorted(one.state for one in breaker.circuits() if one.circuit == TRAINING) == ["closed", "open"]
    assert "tml-" not in repr(breaker) + repr(breaker.circuits())


def test_observers_hear_of_it(connect: Connect, wire: Any, clock: Any, breaker: tinker.CircuitBreaker) -> None:
    """Each change of the state is an event of the client whose call brought it about."""
    events: list[Event] = []
    run = connect(circuit_breaker=breaker, observers=[events.append]).create_lora_training_client("tinker/toy", rank=4)
    wire.fail("optim_step", 503, times=3)
    with pytest.raises(tinker.CircuitOpenError):
        run.optim_step(ADAM).result(10)
    clock.advance(30, idle=True)
    run.optim_step(ADAM).result(10)
    changes = [event for event in events if isinstance(event, CircuitChange)]
    assert [(change.circuit, change.state, change.failures) for change in changes] == [
        (TRAINING, "open", 3),
        (TRAINING, "half_open", 3),
        (TRAINING, "closed", 0),
    ]


def test_a_closed_client_ends_who_sleeps(
    guarded: tinker.ServiceClient, run: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """With a breaker, too, close() ends what waits for its next try."""
    wire.fail("optim_step", 503, headers={"retry-after": "50"})
    with clock.busy():
        waiting = run.optim_step(ADAM)
        wire.wait_for("optim_step")
        guarded.close().result(10)
        with pytest.raises(tinker.ClientClosedError):
            waiting.result(10)


def test_cancelling_while_it_sleeps(run: tinker.TrainingClient, wire: Any, clock: Any, breaker: tinker.CircuitBreaker) -> None:
    """A request that is given up between two tries ends as cancelled, and opens nothing."""
    wire.fail("optim_step", 503, headers={"retry-after": "50"})
    with clock.busy():
        waiting = run.optim_step(ADAM)
        wire.wait_for("optim_step")
        assert waiting.cancel()
    assert waiting.cancelled()
    assert breaker.state(TRAINING) == "closed"
