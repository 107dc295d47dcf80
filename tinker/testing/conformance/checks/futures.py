"""Results of submitted work: fetched, announced, failed, listed, given up."""

from __future__ import annotations

from contextlib import suppress

from tinker_wire import models
from tinker_wire.api import futures as api

from tinker._wire import json, proto
from tinker.testing.conformance.context import CheckContext, SamplingFixture
from tinker.testing.conformance.outcome import Contradiction, Failed, Late, Refused, optional
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.session import NO_RESULT_YET
from tinker.testing.conformance.values import datum

_AS_STATUS = "failure as status"
#: Shorter than any server may hold a poll.
_LEAST_HOLD_SECONDS = 1.0


@check("retrieve_future")
def again(context: CheckContext) -> None:
    """A result can be fetched more than once."""
    fixture = context.borrow()
    promise = fixture.loss()
    first, second = context.wait_for_response(promise), context.wait_for_response(promise)
    context.require(first.content == second.content, "fetched again, the result is another one")


@check("retrieve_future")
def unknown(context: CheckContext) -> None:
    """An unknown id returns 404 or 410."""
    body = models.FutureRetrieveRequest(request_id="no-such-request")
    context.expect_refusal(
        api.retrieve_future(body, expected=object),
        404,
        410,
        about=f"the request_id {body.request_id!r}",
    )


@check("retrieve_future")
def failure(context: CheckContext) -> None:
    """A failed request reports the reason and the category; the model keeps working."""
    fixture, ended = context.create(), "failed"
    try:
        context.wait_for_response(fixture.loss(loss_fn="no_such_loss", number=1))
    except Refused as error:
        ended = f"was refused with {error.status}"
        context.expect(
            error.status in (400, 422),
            f"an unknown loss is refused with {error.status}",
            "statuses",
        )
    except Failed as error:
        told = f"an unknown loss is a failure of category {error.category!r}, not 'user'"
        context.expect(error.category not in ("server", "unknown"), told, _AS_STATUS)
    else:
        raise Contradiction("a loss of the name 'no_such_loss' has a result")
    fixture.number = 2
    try:
        fixture.logprobs()
    except (Refused, Failed, Contradiction) as error:
        if isinstance(error, Contradiction) and error.cause != "late":
            raise
        how = f"after request 1, which {ended}, {error}"
        raise Contradiction(how, cause="refused number", operation="forward_backward") from error


@check("retrieve_future")
def announcement(context: CheckContext) -> None:
    """A large result may be announced by its size if the client allows it; the result then has that
    size.
    """
    fixture = context.borrow()
    promise = fixture.loss([datum(range(5, 37)) for _ in range(64)])
    answer = context.wait_for_response(promise, metadata=True)
    if (
        answer.media_type == proto.MEDIA_TYPE
        or json.decode(answer.content, models.FutureStatus).status is None
    ):
        return
    size = context.decode(answer, models.FutureMetadataResponse).response_payload_size
    result = context.wait_for_response(promise)
    told = f"announced are {size} bytes, and {len(result.content)} come"
    context.require(
        len(result.content) == size, told, "announced", "retrieve_future", "FutureMetadataResponse"
    )


@check("retrieve_future")
def pending(context: CheckContext) -> None:
    """A poll for a request that cannot run yet is held, and then answered with
    `try_again` or 408.
    """
    context.need("sequence.late_arrival")
    fixture = context.create()
    promise = fixture.loss(number=2)
    with suppress(Late):  # it is held
        answer = context.poll(promise.request_id, seconds=_LEAST_HOLD_SECONDS)
        told = "a poll for a request that waits is answered at once; clients ask again at once"
        is_pending = context.is_pending(answer)
        context.expect(not is_pending, told, "held", "retrieve_future")
        context.require(
            is_pending or answer.status < 300, f"a request that waits: {answer}", *NO_RESULT_YET
        )
    # the number that was missing may be given up by now, or the request that waited
    with suppress(Refused, Failed):
        fixture.loss(number=1)
        context.wait_for_response(promise)


@check("retrieve_futures")
def completions(context: CheckContext) -> None:
    """Finished requests of a sampling session are listed once each, with a cursor."""
    sampler = context.sampler()
    submitted = {sampler.submit().request_id for _ in range(3)}
    found: list[object] = []
    cursor = 0
    while len(found) < 3:
        page = context.call(api.retrieve_futures(_completions(sampler, cursor)))
        found += [_member(one, "request_id") for one in page.completions]
        cursor = page.cursor
        context.deadline.remaining("the completions of three samples")
    told = f"submitted are {sorted(submitted)}, completed {found}"
    context.require(len(found) == 3 and {*found} == submitted, told)
    after = context.call(api.retrieve_futures(_completions(sampler, cursor, timeout=0.0)))
    context.expect(
        not after.completions,
        f"after the last cursor there are {len(after.completions)} completions again",
    )
    context.call(
        api.retrieve_futures(
            _completions(sampler, cursor, timeout=0.0, retrieved_request_ids=sorted(submitted))
        )
    )


def _completions(
    sampler: SamplingFixture, cursor: int, **fields: object
) -> models.FuturesRetrieveRequest:
    target = models.SamplingSessionFuturesTarget(sampling_session_id=sampler.sampling_session_id)
    return models.FuturesRetrieveRequest(
        **{"target": target, "prev_cursor": cursor, "timeout": 5.0, **fields}  # type: ignore[arg-type]
    )


def _member(completion: models.FutureCompletion, name: str) -> object:
    return completion.get(name) if isinstance(completion, dict) else getattr(completion, name)


@check("retrieve_futures")
def completions_of_failures(context: CheckContext) -> None:
    """A failed sample is listed as failed, and its error can be fetched like a result."""
    sampler = context.sampler()
    context.call(api.retrieve_futures(_completions(sampler, 0, timeout=0.0)))
    with optional(Refused, about="nothing fails after it was accepted"):
        promise = sampler.submit(prompt_logprobs_last_n=10**6, prompt_logprobs=True)
    try:
        context.wait_for_response(promise)
    except Failed:
        page = context.call(api.retrieve_futures(_completions(sampler, 0)))
        states = {_member(one, "state") for one in page.completions}
        context.require(states == {"failed"}, f"after one failed sample the states are {states}")


@check("cancel_future")
def cancel(context: CheckContext) -> None:
    """Cancelling a request is not an error, whether it is running, finished or unknown."""
    sampler = context.sampler()
    promise = sampler.submit(max_tokens=50)
    for request_id in (promise.request_id, promise.request_id, "no-such-request"):
        context.call(api.cancel_future(models.CancelFutureRequest(request_id=request_id)))
    sampler.sample()
