"""Requests of one training client that are cancelled or fail before they are sent: order and
numbers of the others.
"""

from __future__ import annotations

import concurrent.futures
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
    """Return the numbered requests in the order of their arrival."""
    return [(one.operation, one.seq_id) for one in wire.exchanges if one.operation in NUMBERED]


def round_trips(service: tinker.ServiceClient) -> None:
    """Let the loop run until nothing is left to do."""
    rest = service.create_rest_client()
    for _ in range(3):
        rest.get_server_capabilities().result(10)


def unsendable(datum: MakeDatum) -> tinker.Datum:
    """Return a datum that passes the checks on the user's line and fails while it is encoded."""
    pointer = ImageAssetPointerChunk(format="png", location="x", expected_tokens=1)
    broken = datum([1, 2, 3])
    chunks = [pointer, *tinker.ModelInput.from_ints([1, 2]).chunks]
    return tinker.Datum(tinker.ModelInput(chunks=chunks), dict(broken.loss_fn_inputs))


@pytest.mark.parametrize("kind", ["optimizer step", "gradient"])
def test_a_cancelled_request_keeps_the_order(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    kind: str,
) -> None:
    """The third request is sent after the first was submitted, not when the second, which waits in
    between, is cancelled.
    """
    release = wire.hold("forward_backward")
    first = training.forward_backward([datum()], "cross_entropy")
    wire.wait_for("forward_backward")
    second = (
        training.optim_step(ADAM)
        if kind == "optimizer step"
        else training.forward_backward([datum()], "cross_entropy")
    )
    third = training.save_state("third")
    round_trips(service)
    assert second.cancel()
    round_trips(service)
    assert order(wire) == [("forward_backward", 1)]
    release()
    assert first.result(10)
    assert third.result(10)
    assert order(wire) == [("forward_backward", 1), ("save_weights", 2)]


def test_a_client_whose_creation_is_cancelled_at_once_sends_nothing(
    service: tinker.ServiceClient, wire: Any
) -> None:
    """Requests of a client whose creation was cancelled before it began end as cancelled, and none
    is sent.
    """
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


def test_a_request_that_cannot_be_prepared_keeps_the_order(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A request that fails before its turn does not change the order of later ones, and uses no
    number.
    """
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
    """The next step fails at once instead of waiting; one called after the error
    was received runs.
    """
    failed, behind = (
        training.forward_backward([unsendable(datum)], "cross_entropy"),
        training.optim_step(ADAM),
    )
    with pytest.raises(tinker.errors.PrecedingRequestFailed):
        behind.result(10)
    with pytest.raises(ValueError, match="ImageAssetPointerChunk"):
        failed.result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    assert training.optim_step(ADAM).result(10)
    assert order(wire) == [("forward_backward", 1), ("optim_step", 2)]


def test_a_pass_that_cannot_be_prepared_stops_nothing(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A forward pass changes nothing, so a step called after it is sent."""
    failed, behind = (
        training.forward([unsendable(datum)], "cross_entropy"),
        training.optim_step(ADAM),
    )
    assert behind.result(10)
    assert isinstance(failed.exception(10), ValueError)
    assert order(wire) == [("optim_step", 1)]


def test_a_request_that_is_cancelled_while_it_is_prepared_stops_nothing(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum
) -> None:
    """If a request is cancelled before the session exists, later requests are sent, under the first
    numbers.
    """
    release = wire.hold("create_session")
    training = service.create_lora_training_client("tinker/toy", rank=2)
    wire.wait_for("create_session")
    cancelled, behind = (
        training.forward_backward([datum()], "cross_entropy"),
        training.optim_step(ADAM),
    )
    assert cancelled.cancel()
    release()
    assert behind.result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    assert order(wire) == [("optim_step", 1), ("forward_backward", 2)]


def test_a_submission_under_way_is_completed(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A request cancelled during its submission keeps its turn and its number until the server has
    responded.
    """
    release = wire.hold("forward_backward")
    cancelled, behind = (
        training.forward_backward([datum()], "cross_entropy"),
        training.optim_step(ADAM),
    )
    wire.wait_for("forward_backward")
    assert cancelled.cancel()
    assert order(wire) == [("forward_backward", 1)]
    release()
    assert behind.result(10)
    assert order(wire) == [("forward_backward", 1), ("optim_step", 2)]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_get_info(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum, status: int
) -> None:
    """Without get_info a run still trains; only calls that need the information fail, with an error
    that says so.
    """
    wire.fail("get_info", status)
    training = service.create_lora_training_client("tinker/toy", rank=2).result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    with pytest.raises(LookupError, match="does not describe its models"):
        training.get_info()


def test_a_refused_get_info_fails_the_client(service: tinker.ServiceClient, wire: Any) -> None:
    """If get_info is refused permanently, the client fails with the reason; the order of the run is
    not blocked.
    """
    wire.fail("get_info", 403)
    training = service.create_lora_training_client("tinker/toy", rank=2)
    with pytest.raises(tinker.PermissionDeniedError):
        training.result(10)


def test_requests_do_not_wait_for_get_info(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum
) -> None:
    """Requests are sent as soon as the model exists, even while get_info is pending."""
    release = wire.hold("get_info")
    training = service.create_lora_training_client("tinker/toy", rank=2)
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    assert not training.done()
    release()
    assert training.result(10).get_info().model_data.model_name == "tinker/toy"
