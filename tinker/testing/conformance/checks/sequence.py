"""Order and repetition: requests take effect once, by their number, however often and in whatever
order they arrive.
"""

from __future__ import annotations

import uuid
from typing import Any

from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import training as training_api

from tinker.testing.conformance.context import CheckContext, TrainingFixture
from tinker.testing.conformance.outcome import Contradiction, Failed, Refused
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.session import PendingResult
from tinker.testing.conformance.values import ONE, OTHER, are_alike, distance, effect

_NUMBERS, _REPETITION = "numbers of training", "repetition"


@check("forward_backward", "optim_step", "retrieve_future")
def pipeline(context: CheckContext) -> None:
    """Requests can be submitted without waiting, with the same results as one by one."""

    def at_once(fixture: TrainingFixture) -> None:
        promises: list[PendingResult[Any]] = [
            fixture.loss(),
            fixture.step(),
            fixture.loss([ONE]),
            fixture.step(),
        ]
        for promise in reversed(promises):
            context.wait_for_response(promise)

    def one_by_one(fixture: TrainingFixture) -> None:
        fixture.learn()
        fixture.learn([ONE])

    before, wanted = context.measure(0, one_by_one)
    _, found = context.measure(1, at_once)
    context.need("training.seed")
    context.require(
        are_alike(wanted, found, effect(before, wanted)),
        f"the logprobs differ by {distance(wanted, found):g}",
    )


@check("forward_backward", "optim_step", basis=True)
def late_arrival(context: CheckContext) -> None:
    """A request that arrives before the one with the number below it waits for that one."""

    def send_swapped(fixture: TrainingFixture) -> None:
        fixture.number += 2
        try:
            step = fixture.step(number=fixture.number - 1)
            loss = fixture.loss(number=fixture.number - 2)
            context.wait_for_response(loss)
            context.wait_for_response(step)
        except (Failed, Refused) as error:
            raise Contradiction(
                f"sent before the one below it, {error}", cause=_NUMBERS, operation=error.operation
            ) from error

    before, wanted = context.measure(0, lambda fixture: fixture.learn())
    moved = effect(before, wanted)
    _, found = context.measure(1, send_swapped)
    is_still = are_alike(before, found, moved)
    context.require(
        not is_still, "the step ran before the gradient with the lower seq_id", _NUMBERS
    )
    context.need("training.seed")
    context.require(
        are_alike(wanted, found, moved), f"the logprobs differ by {distance(wanted, found):g}"
    )


@check("forward_backward", "optim_step")
def repetition(context: CheckContext) -> None:
    """Repeating a request under the same number returns the same future and has no other effect."""

    def twice(fixture: TrainingFixture) -> None:
        number, keys = fixture.number, [{"X-Idempotency-Key": str(uuid.uuid4())} for _ in range(4)]
        fixture.number += 2
        losses = [fixture.loss(number=number, headers=key) for key in keys[:2]]
        steps = [fixture.step(number=number + 1, headers=key) for key in keys[2:]]
        for first, again in (losses, steps, (losses[0], fixture.loss(number=number))):
            same = first.request_id == again.request_id
            told = (
                f"{first.operation} again is request {again.request_id!r}, not {first.request_id!r}"
            )
            context.require(same, told, _REPETITION, first.operation)
        promises: list[PendingResult[Any]] = [*losses, *steps]
        for promise in promises:
            context.wait_for_response(promise)

    context.need("training.seed")
    before, wanted = context.measure(0, lambda fixture: fixture.learn())
    moved = effect(before, wanted)
    _, found = context.measure(1, twice)
    told = (
        f"with repetitions the logprobs move by {distance(before, found):g}, without by {moved:g}"
    )
    context.require(are_alike(wanted, found, moved), told, _REPETITION)


@check("forward_backward", "optim_step")
def conflict(context: CheckContext) -> None:
    """A different request under a used number is refused with 409."""
    fixture = context.create()
    context.wait_for_response(fixture.loss([ONE], number=1))
    assert context.known.form is not None
    context.expect_refusal(
        fixture.request(context.known.form, [OTHER], number=1), 409, cause=_NUMBERS
    )
    step = models.OptimStepRequest(
        model_id=fixture.model_id, seq_id=1, adam_params=models.AdamParams()
    )
    context.expect_refusal(training_api.optim_step(step), 409, cause=_NUMBERS)


@check("create_model")
def model_again(context: CheckContext) -> None:
    """Repeating the creation of a model under the same number returns the same future; with another
    body it is refused.
    """
    request = context.creation()
    one, other = (context.submit(request, models.CreateModelResponse) for _ in range(2))
    told = (
        f"sent twice, create_model answers the requests {one.request_id!r} and {other.request_id!r}"
    )
    context.require(one.request_id == other.request_id, told, _REPETITION, "create_model")
    ids = {context.result(promise).model_id for promise in (one, other)}
    context.require(len(ids) == 1, f"one number makes the models {', '.join(sorted(ids))}")
    context.expect_refusal(context.creation(lora_config=models.LoraConfig(rank=4)), 409)


@check("asample")
def sample_again(context: CheckContext) -> None:
    """Repeating a sample under the same number returns the same sample; a different request is
    refused with 409.
    """
    sampler = context.sampler()
    one, other = (sampler.submit(number=0) for _ in range(2))
    told = f"sent twice, asample answers the requests {one.request_id!r} and {other.request_id!r}"
    context.require(one.request_id == other.request_id, told, _REPETITION, "asample")
    ids = [promise.future.sample_sequence_ids for promise in (one, other)]
    context.require(
        ids[0] == ids[1],
        f"sent twice, asample answers the sample_sequence_ids {ids}",
        _REPETITION,
        "asample",
    )
    first, again = (context.result(promise).sequences[0].tokens for promise in (one, other))
    told = f"unseeded samples of the same number are {first} and {again}: it was drawn twice"
    context.require(first == again, told, _REPETITION, "asample")
    context.expect_refusal(sampling_api.asample(sampler.body((9, 10), number=0)), 409)


@check("create_sampling_session")
def session_again(context: CheckContext) -> None:
    """Repeating the creation of a sampling session under the same number returns
    the same session.
    """
    one, other = (context.sampler().sampling_session_id for _ in range(2))
    told = f"sent twice, create_sampling_session answers {one!r} and {other!r}"
    context.require(one == other, told, _REPETITION, "create_sampling_session")


@check("forward_backward", "optim_step", slow=True)
def gap(context: CheckContext) -> None:
    """A number that never arrives does not block the model forever; polls return within 45 s until
    then.
    """
    context.need("sequence.late_arrival")
    promise = context.create().loss(number=2)
    try:
        context.wait_for_response(promise)
    except Failed:  # a server may give up the request instead of the number
        pass
    except Contradiction as error:
        told = f"request 2 waits for request 1, which never arrives: {error}"
        context.require(error.cause != "late", told, operation="forward_backward")
        raise
