"""Requests of one training client that are cancelled, or fail, before they are sent: order and numbers of the others."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker.types import ImageAssetPointerChunk

ADAM = tinker.AdamParams()
MakeDatum = Callable[..., tinker.Datum]
NUMBERED = ("forward_backward", "optim_step", "save_weights")


def order(wire: Any) -> list[tuple[str, int]]:
    """The numbered requests in the order of their arrival."""
    return [(one.operation, one.seq_id) for one in wire.exchanges if one.operation in NUMBERED]


def round_trips(service: tinker.ServiceClient) -> None:
    """Let the loop do what it can."""
    rest = service.create_rest_client()
    for _ in range(3):
        rest.get_server_capabilities().result(10)


def unsendable(datum: MakeDatum) -> tinker.Datum:
    """A datum that passes the checks on the user's line and fails while it is encoded."""
    pointer = ImageAssetPointerChunk(format="png", location="x", expected_tokens=1)
    broken = datum([1, 2, 3])
    chunks = [pointer, *tinker.ModelInput.from_ints([1, 2]).chunks]
    return tinker.Datum(tinker.ModelInput(chunks=chunks), dict(broken.loss_fn_inputs))


@pytest.mark.parametrize("kind", ["optimizer step", "gradient"])
def test_a_cancelled_request_lets_nobody_overtake(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, datum: MakeDatum, kind: str
) -> None:
    """The third request is sent when the first is submitted, not when the second, which waits in between, is cancelled."""
    release = wire.hold("forward_backward")
    first = training.forward_backward([datum()], "cross_entropy")
    wire.wait_for("forward_backward")
    second = training.optim_step(ADAM) if kind == "optimizer step" else training.forward_backward([datum()], "cross_entropy")
    third = training.save_state("third")
    round_trips(service)
    assert second.cancel()
    round_trips(service)
    assert order(wire) == [("forward_backward", 1)]
    release()
    assert first.result(10)
    assert third.result(10)
    assert order(wire) == [("forward_backward", 1), ("save_weights", 2)]


def test_a_client_whose_creation_is_cancelled_at_once_sends_nothing(service: tinker.ServiceClient, wire: Any) -> None:
    """Requests of a client whose creation was cancelled before it began end as cancelled, and none is sent."""
    service.create_sampling_client(base_model="tinker/toy").result(10)
    gate = threading.Event()
    thread = service._runtime().thread
    thread.call(lambda: gate.wait(10))
    training = service.create_lora_training_client("tinker/toy")
    assert training._run.created.cancel()
    step = training.optim_step(ADAM)
    gate.set()
    with pytest.raises(concurrent.futures.CancelledError):
        step.result(10)
    assert order(wire) == []


def test_what_cannot_be_prepared_lets_nobody_overtake(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A request that fails before its turn leaves the ones behind it where they were, and uses no number."""
    release = wire.hold("forward_backward")
    first = training.forward_backward([datum()], "cross_entropy")
    wire.wait_for("forward_backward")
    second = training.forward([unsendable(datum)], "cross_entropy")
    third = training.save_state("third")
    with pytest.raises(ValueError, match="ImageAssetPointerChunk"):
        second.result(10)
    round_trips(service)
    assert order(wire) == [("forward_backward", 1)]
    release()
    assert first.result(10)
    assert third.result(10)
    assert order(wire) == [("forward_backward", 1), ("save_weights", 2)]


def test_a_gradient_that_cannot_be_prepared_stops_its_step(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """The step called behind it fails at once instead of waiting; one called after the error was received is done."""
    failed, behind = training.forward_backward([unsendable(datum)], "cross_entropy"), training.optim_step(ADAM)
    with pytest.raises(tinker.errors.PrecedingRequestFailed):
        behind.result(10)
    with pytest.raises(ValueError, match="ImageAssetPointerChunk"):
        failed.result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    assert training.optim_step(ADAM).result(10)
    assert order(wire) == [("forward_backward", 1), ("optim_step", 2)]


def test_a_pass_that_cannot_be_prepared_stops_nothing(training: tinker.TrainingClient, wire: Any, datum: MakeDatum) -> None:
    """A forward pass changes nothing, so a step that was called behind it is sent."""
    failed, behind = training.forward([unsendable(datum)], "cross_entropy"), training.optim_step(ADAM)
    assert behind.result(10)
    assert isinstance(failed.exception(10), ValueError)
    assert order(wire) == [("optim_step", 1)]


def test_a_request_that_is_cancelled_while_it_is_prepared_stops_nothing(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum
) -> None:
    """Cancelled while the session is still being created: the requests behind it are sent, under the first numbers."""
    release = wire.hold("create_session")
    training = service.create_lora_training_client("tinker/toy", rank=2)
    wire.wait_for("create_session")
    cancelled, behind = training.forward_backward([datum()], "cross_entropy"), training.optim_step(ADAM)
    assert cancelled.cancel()
    release()
    assert behind.result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    assert order(wire) == [("optim_step", 1), ("forward_backward", 2)]


def test_what_is_being_sent_is_sent_to_the_end(training: tinker.TrainingClient, wire: Any, datum: MakeDatum) -> None:
    """A request that is cancelled while it is submitted keeps its turn and its number until the server has answered."""
    release = wire.hold("forward_backward")
    cancelled, behind = training.forward_backward([datum()], "cross_entropy"), training.optim_step(ADAM)
    wire.wait_for("forward_backward")
    assert cancelled.cancel()
    assert order(wire) == [("forward_backward", 1)]
    release()
    assert behind.result(10)
    assert order(wire) == [("forward_backward", 1), ("optim_step", 2)]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_does_not_say_what_its_models_are(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum, status: int
) -> None:
    """Without get_info a run trains all the same; only what needs the information fails, and says so."""
    wire.fail("get_info", status)
    training = service.create_lora_training_client("tinker/toy", rank=2).result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    with pytest.raises(LookupError, match="does not describe its models"):
        training.get_info()


def test_a_refused_question_about_the_model_fails_the_client(service: tinker.ServiceClient, wire: Any) -> None:
    """When get_info is refused for good the client cannot be used, and says why; the run's order is not held up."""
    wire.fail("get_info", 403)
    training = service.create_lora_training_client("tinker/toy", rank=2)
    with pytest.raises(tinker.PermissionDeniedError):
        training.result(10)


def test_the_error_of_a_request_is_that_of_the_creation(
    service: tinker.ServiceClient, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Who receives the error of a request of a client that could not be created has received that of the creation, too."""
    gc.collect()
    caplog.clear()
    wire.fail("create_model", 422)
    training = service.create_lora_training_client("tinker/toy", rank=2)
    asked = training.optim_step(ADAM)
    assert isinstance(asked.exception(10), tinker.UnprocessableEntityError)
    del training, asked
    round_trips(service)
    gc.collect()
    assert [one for one in caplog.messages if "never retrieved" in one] == []


def test_requests_do_not_wait_for_what_the_model_is(service: tinker.ServiceClient, wire: Any, datum: MakeDatum) -> None:
    """Requests are sent as soon as the model exists, also while the server is asked what it is."""
    release = wire.hold("get_info")
    training = service.create_lora_training_client("tinker/toy", rank=2)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    assert not training.done()
    release()
    assert training.result(10).get_info().model_data.model_name == "tinker/toy"
