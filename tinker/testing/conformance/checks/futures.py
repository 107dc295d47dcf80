"""Results of submitted work: fetched, announced, failed, listed, given up."""

from __future__ import annotations

from tinker_wire import models
from tinker_wire.api import futures as api

from tinker._wire import json, proto
from tinker.testing.conformance.bench import Bench
from tinker.testing.conformance.outcome import Absent, Contradiction, Failed, Refused
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.sampler import Sampler
from tinker.testing.conformance.trainee import create, datum

_LONGEST_HOLD_SECONDS = 45.0


@check("retrieve_future")
def again(bench: Bench) -> None:
    """A result may be fetched more than once."""
    trainee = create(bench)
    promise = trainee.loss()
    first, second = bench.outcome(promise), bench.outcome(promise)
    bench.require(first.content == second.content, "fetched again, the result is another one")


@check("retrieve_future")
def unknown(bench: Bench) -> None:
    """An id that was never given out is 404, or 410."""
    body = models.FutureRetrieveRequest(request_id="no-such-request")
    bench.refused(api.retrieve_future(body, expected=object), 404, 410)


@check("retrieve_future")
def failure(bench: Bench) -> None:
    """A request that fails says why and whose fault it is; the model goes on."""
    trainee = create(bench)
    try:
        bench.outcome(trainee.loss(loss_fn="no_such_loss", number=1))
    except Refused as error:
        bench.expect(error.status in (400, 422), f"an unknown loss is refused with {error.status}")
    except Failed as error:
        bench.expect(error.category == "user", f"an unknown loss is a failure of category {error.category!r}, not 'user'")
    else:
        raise Contradiction("a loss of the name 'no_such_loss' has a result")
    trainee.number = 2
    trainee.logprobs()


@check("retrieve_future")
def announced(bench: Bench) -> None:
    """A large result may be announced by its size, where the client allows it; then it has that size."""
    trainee = create(bench)
    promise = trainee.loss([datum(range(5, 37)) for _ in range(64)], backward=False)
    answer = bench.outcome(promise, metadata=True)
    if answer.media_type == proto.MEDIA_TYPE or json.decode(answer.content, models.FutureStatus).status is None:
        return
    size = bench.read(answer, models.FutureMetadataResponse).response_payload_size
    result = bench.outcome(promise)
    bench.expect(len(result.content) == size, f"announced are {size} bytes, and {len(result.content)} come")


@check("retrieve_future", slow=True)
def pending(bench: Bench) -> None:
    """What cannot run yet is answered within 45 s with `try_again` or 408."""
    trainee = create(bench)
    promise = trainee.loss(number=2)
    began = bench.link.clock.monotonic()
    answer = bench.poll(promise.request_id)
    held = bench.link.clock.monotonic() - began
    bench.expect(bench.pending(answer), f"while request 1 is missing, request 2 is answered: {answer}")
    bench.expect(held <= _LONGEST_HOLD_SECONDS, f"the poll was held for {held:.0f} s; clients give up after 45 s")
    trainee.loss(number=1)
    bench.outcome(promise)


@check("retrieve_futures")
def completions(bench: Bench) -> None:
    """Requests of a sampling session that are done are listed once each, with a cursor to go on from."""
    sampler = Sampler.on_base(bench)
    submitted = {sampler.submit().request_id for _ in range(3)}
    found: list[str] = []
    cursor = 0
    while len(found) < 3:
        page = bench.call(api.retrieve_futures(_completions(sampler, cursor)))
        found += [_request_id(one) for one in page.completions]
        cursor = page.cursor
        bench.deadline.remaining("the completions of three samples")
    bench.require(sorted(found) == sorted(submitted), f"submitted are {sorted(submitted)}, completed {sorted(found)}")
    after = bench.call(api.retrieve_futures(_completions(sampler, cursor, timeout=0.0)))
    bench.expect(not after.completions, f"after the last cursor there are {len(after.completions)} completions again")
    bench.call(api.retrieve_futures(_completions(sampler, cursor, timeout=0.0, retrieved_request_ids=sorted(found))))


def _completions(sampler: Sampler, cursor: int, **fields: object) -> models.FuturesRetrieveRequest:
    target = models.SamplingSessionFuturesTarget(sampling_session_id=sampler.sampling_session_id)
    return models.FuturesRetrieveRequest(**{"target": target, "prev_cursor": cursor, "timeout": 5.0, **fields})  # type: ignore[arg-type]


def _request_id(completion: models.FutureCompletion) -> str:
    return str(completion["request_id"]) if isinstance(completion, dict) else completion.request_id


@check("retrieve_futures")
def failed_completions(bench: Bench) -> None:
    """A sample that failed is listed as failed, and its error is fetched like a result."""
    sampler = Sampler.on_base(bench)
    bench.call(api.retrieve_futures(_completions(sampler, 0, timeout=0.0)))
    try:
        promise = sampler.submit(prompt_logprobs_last_n=10**6, prompt_logprobs=True)
        bench.outcome(promise)
    except Refused as error:
        raise Absent(f"nothing fails after it was accepted: {error}") from error
    except Failed:
        page = bench.call(api.retrieve_futures(_completions(sampler, 0)))
        states = {one.state if not isinstance(one, dict) else one["state"] for one in page.completions}
        bench.require(states == {"failed"}, f"after one failed sample the states are {states}")


@check("cancel_future")
def cancel(bench: Bench) -> None:
    """Giving up a request is no error, whether it runs, is done, or was never there."""
    sampler = Sampler.on_base(bench)
    promise = sampler.submit(max_tokens=50)
    for request_id in (promise.request_id, promise.request_id, "no-such-request"):
        bench.call(api.cancel_future(models.CancelFutureRequest(request_id=request_id)))
    sampler.sample()
