"""Sampling sessions, samples, and results of submitted work."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from functools import partial

import numpy as np
from tinker_wire import models
from tinker_wire.api import futures as futures_api
from tinker_wire.api import sampling as sampling_api

from tinker._wire import json, proto
from tinker.testing.conformance import check
from tinker.testing.conformance.context import (
    NO_RESULT_YET,
    PROMPT,
    PROMPT_DATUM,
    CheckContext,
    SamplingFixture,
    datum,
)
from tinker.testing.conformance.outcome import (
    Absent,
    Contradiction,
    Failed,
    Late,
    Refused,
    optional,
)
from tinker.types.results import SampleResponse

_futures_check = partial(check, theme="futures")


_AS_STATUS = "failure as status"
#: Shorter than any server may hold a poll.
_LEAST_HOLD_SECONDS = 1.0


@_futures_check("retrieve_future")
def again(context: CheckContext) -> None:
    """A result can be fetched more than once."""
    fixture = context.borrow()
    promise = fixture.loss()
    first, second = context.wait_for_response(promise), context.wait_for_response(promise)
    context.require(first.content == second.content, "fetched again, the result is another one")


@_futures_check("retrieve_future")
def unknown(context: CheckContext) -> None:
    """An unknown id returns 404 or 410."""
    body = models.FutureRetrieveRequest(request_id="no-such-request")
    context.expect_refusal(
        futures_api.retrieve_future(body, expected=object),
        404,
        410,
        about=f"the request_id {body.request_id!r}",
    )


@_futures_check("retrieve_future")
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


@_futures_check("retrieve_future")
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


@_futures_check("retrieve_future")
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


@_futures_check("retrieve_futures")
def completions(context: CheckContext) -> None:
    """Finished requests of a sampling session are listed once each, with a cursor."""
    sampler = context.sampler()
    submitted = {sampler.submit().request_id for _ in range(3)}
    found: list[object] = []
    cursor = 0
    while len(found) < 3:
        page = context.call(futures_api.retrieve_futures(_completions(sampler, cursor)))
        found += [_member(one, "request_id") for one in page.completions]
        cursor = page.cursor
        context.deadline.remaining("the completions of three samples")
    told = f"submitted are {sorted(submitted)}, completed {found}"
    context.require(len(found) == 3 and {*found} == submitted, told)
    after = context.call(futures_api.retrieve_futures(_completions(sampler, cursor, timeout=0.0)))
    context.expect(
        not after.completions,
        f"after the last cursor there are {len(after.completions)} completions again",
    )
    context.call(
        futures_api.retrieve_futures(
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


@_futures_check("retrieve_futures")
def completions_of_failures(context: CheckContext) -> None:
    """A failed sample is listed as failed, and its error can be fetched like a result."""
    sampler = context.sampler()
    context.call(futures_api.retrieve_futures(_completions(sampler, 0, timeout=0.0)))
    with optional(Refused, about="nothing fails after it was accepted"):
        promise = sampler.submit(prompt_logprobs_last_n=10**6, prompt_logprobs=True)
    try:
        context.wait_for_response(promise)
    except Failed:
        page = context.call(futures_api.retrieve_futures(_completions(sampler, 0)))
        states = {_member(one, "state") for one in page.completions}
        context.require(states == {"failed"}, f"after one failed sample the states are {states}")


@_futures_check("cancel_future")
def cancel(context: CheckContext) -> None:
    """Cancelling a request is not an error, whether it is running, finished or unknown."""
    sampler = context.sampler()
    promise = sampler.submit(max_tokens=50)
    for request_id in (promise.request_id, promise.request_id, "no-such-request"):
        context.call(futures_api.cancel_future(models.CancelFutureRequest(request_id=request_id)))
    sampler.sample()


_sampling_check = partial(check, theme="sampling")


@_sampling_check("create_sampling_session", core=True, basis=True)
def session(context: CheckContext) -> None:
    """A sampling session can be created for a base model."""
    context.sampler()


@_sampling_check("asample", "retrieve_future", core=True, basis=True)
def sample(context: CheckContext) -> None:
    """A prompt can be sampled."""
    context.sampler().sample()


@_sampling_check("create_sampling_session")
def of_nothing(context: CheckContext) -> None:
    """A sampling session without a base model or saved weights is refused with 400."""
    body = models.CreateSamplingSessionRequest(
        session_id=context.session(), sampling_session_seq_id=context.number(1)
    )
    context.expect_refusal(sampling_api.create_sampling_session(body), 400, 422)


@_sampling_check("get_sampler")
def sampler(context: CheckContext) -> None:
    """A sampling session reports what it samples from."""
    made = context.sampler()
    found = context.call(sampling_api.get_sampler(sampler_id=made.sampling_session_id))
    context.require(
        found.sampler_id == made.sampling_session_id, f"the sampler's id is {found.sampler_id!r}"
    )
    context.expect(
        found.base_model == context.base_model(),
        f"on {context.base_model()!r}, it says {found.base_model!r}",
    )


@_sampling_check("asample", core=True)
def samples(context: CheckContext) -> None:
    """The requested number of sequences is returned, with the requested length, a logprob for each
    token, and an id each.
    """
    promise = context.sampler().submit(num_samples=3, max_tokens=4)
    result = context.result(promise)
    ids = promise.future.sample_sequence_ids or []
    told = f"the response to the submission has {len(set(ids))} sample_sequence_ids for 3 samples"
    cause = "misfit: UntypedAPIFuture: not a `sample_sequence_ids` for each sample"
    context.expect(len(set(ids)) == 3, told, cause, "asample", "UntypedAPIFuture")
    for one in result.sequences:
        context.require(
            0 < len(one.tokens) <= 4, f"with max_tokens 4 there are {len(one.tokens)} tokens"
        )
        ends = one.stop_reason == "stop" or len(one.tokens) == 4
        context.require(ends, f"{len(one.tokens)} of 4 tokens end with {one.stop_reason!r}")
        logprobs = one.logprobs or []
        context.expect(
            len(logprobs) == len(one.tokens),
            f"{len(one.tokens)} tokens have {len(logprobs)} logprobs",
        )


@_sampling_check("asample")
def draws(context: CheckContext) -> None:
    """Without a seed, the sequences of a request are drawn independently."""
    drawn = context.sampler().sample(num_samples=3, max_tokens=24).sequences
    for one, other in itertools.combinations(drawn, 2):
        chance = math.exp(min(sum(one.logprobs or ()), 0.0))
        how = (
            f"two of {len(drawn)} sequences are {one.tokens}; by their logprobs the "
            f"chance of that is {chance:.0e}"
        )
        context.require(
            one.tokens != other.tokens or chance > _LEAST_CHANCE, how, "same draws", "asample"
        )


#: Below it two sequences are not the same by chance: a kit that runs each second does not meet that
#: in thirty years.
_LEAST_CHANCE = 1e-9


@_sampling_check("asample")
def seed(context: CheckContext) -> None:
    """The same seed gives the same tokens; another seed gives others."""
    made = context.sampler()
    one, again, other = (_tokens(made.sample(seed=seed, max_tokens=24)) for seed in (1, 1, 2))
    context.require(
        one == again, f"with seed 1 the tokens are others the second time: {one}, then {again}"
    )
    context.require(one != other, f"with seeds 1 and 2 the tokens are both {one}")


@_sampling_check("asample", basis=True)
def greedy(context: CheckContext) -> None:
    """At temperature 0, the most likely token is always taken."""
    made = context.sampler()
    one, other = (made.sample(temperature=0.0, seed=seed) for seed in (1, 2))
    context.require(
        _tokens(one) == _tokens(other),
        f"at temperature 0 the tokens vary: {_tokens(one)}, then {_tokens(other)}",
    )
    rows = None
    with suppress(Refused, Failed):  # an option of later clients, which `likeliest` is about
        rows = (
            made.sample(temperature=0.0, topk_sample_logprobs=1, seed=1).sequences[0].topk_logprobs
        )
    if rows is not None:
        best = [row[0][0] if row else None for row in rows]
        is_sorted = all(
            row is None or row[0][1] == max(logprob for _, logprob in row) for row in rows
        )
        told = f"the likeliest tokens are {best}, taken are {_tokens(one)}"
        context.require(best == _tokens(one) or not is_sorted, told)


@_sampling_check("asample")
def stop_tokens(context: CheckContext) -> None:
    """A stop token ends the sequence and is its last token, with the stop reason `stop`."""
    context.need("sampling.greedy")
    made = context.sampler()
    free = _tokens(made.sample(temperature=0.0, max_tokens=8))
    context.require(bool(free), "asked for up to 8 tokens, got none")
    stop = free[min(2, len(free) - 1)]
    stopped = made.sample(temperature=0.0, max_tokens=8, stop=[stop]).sequences[0]
    found = (stopped.tokens, stopped.stop_reason)
    wanted = (free[: free.index(stop) + 1], "stop")
    context.require(
        found == wanted, f"a stop token ends no sequence as it should: {found}, not {wanted}"
    )


@_sampling_check("asample")
def top_k(context: CheckContext) -> None:
    """With `top_k` 1, the tokens are those of temperature 0."""
    context.need("sampling.greedy")
    made = context.sampler()
    best, drawn = _tokens(made.sample(temperature=0.0)), _tokens(made.sample(top_k=1, seed=3))
    context.require(
        best == drawn, f"the likeliest tokens are {best}, with top_k 1 they are {drawn}"
    )


@_sampling_check("asample")
def least_likely(context: CheckContext) -> None:
    """`min_p` 1, an extension, leaves the most likely token alone."""
    made = context.sampler()
    if _tokens(_optional(made, min_p=1.0, max_tokens=16)) != _tokens(
        made.sample(temperature=0.0, max_tokens=16)
    ):
        raise Absent("min_p is ignored")


@_sampling_check("asample")
def schema(context: CheckContext) -> None:
    """`json_schema`, an extension, leaves only what it allows: of the constant 7 the same tokens
    for every seed, and an end.
    """
    made, wanted = context.sampler(), models.JSONSchema(const=7)
    drawn = [
        _optional(made, json_schema=wanted, stop=None, max_tokens=16, seed=seed).sequences[0]
        for seed in range(4)
    ]
    if len({(*one.tokens, one.stop_reason) for one in drawn}) > 1 or drawn[0].stop_reason != "stop":
        raise Absent("json_schema is ignored")


@_sampling_check("asample", basis=True)
def prompt_logprobs(context: CheckContext) -> None:
    """Each prompt token except the first has a logprob, equal to that of a forward pass with a
    fresh adapter.
    """
    context.need("losses.places")
    found = context.sampler().sample(prompt_logprobs=True).prompt_logprobs
    rest = np.array(
        [math.nan if value is None else value for value in context.prompt_scores(found)[1:]]
    )
    trained = context.borrow().logprobs([PROMPT_DATUM])
    is_equal = float(np.max(np.abs(trained - rest))) <= 0.1
    cause = (
        "shifted prompt logprobs"
        if sorted(np.round(rest, 1)) == sorted(np.round(trained, 1))
        else ""
    )
    context.require(
        is_equal, f"sampling says {rest.tolist()}, training {trained.tolist()}", cause, "asample"
    )


@_sampling_check("asample")
def last_prompt_logprobs(context: CheckContext) -> None:
    """`prompt_logprobs_last_n` scores the end of the prompt only."""
    made = context.sampler()
    whole = context.prompt_scores(made.sample(prompt_logprobs=True).prompt_logprobs)
    part = context.prompt_scores(
        _optional(made, prompt_logprobs=True, prompt_logprobs_last_n=2).prompt_logprobs
    )
    unscored = [value for value in part[:-2] if value is not None]
    context.expect(
        not unscored,
        f"`prompt_logprobs_last_n` is ignored: {len(unscored)} earlier positions have logprobs",
    )
    same = np.allclose(np.array(part[-2:], float), np.array(whole[-2:], float), atol=1e-2)
    context.require(
        bool(same), f"the last two are {part[-2:]}, scored with the whole prompt {whole[-2:]}"
    )


@_sampling_check("asample")
def likeliest(context: CheckContext) -> None:
    """`topk_prompt_logprobs` and `topk_sample_logprobs` return the most likely tokens of each
    position, best first.
    """
    result = _optional(
        context.sampler(), topk_prompt_logprobs=3, topk_sample_logprobs=2, prompt_logprobs=True
    )
    prompt, sampled = result.topk_prompt_logprobs, result.sequences[0].topk_logprobs
    for name, found, count in (
        ("prompt", prompt, len(PROMPT)),
        ("sample", sampled, len(_tokens(result))),
    ):
        context.expect(found is not None, f"`topk_{name}_logprobs` is ignored")
        context.expect(
            len(found or ()) in (0, count),
            f"`topk_{name}_logprobs` has {len(found or ())} rows for {count} tokens",
        )
    for k, rows in ((3, (prompt or [])[1:]), (2, sampled or [])):
        for row in rows:
            values = [logprob for _, logprob in row or ()]
            context.require(len(values) == k, f"a row of {k} has {len(values)} tokens")
            is_sorted = values == sorted(values, reverse=True)
            context.require(is_sorted, f"the likeliest tokens are not sorted, best first: {values}")


@_sampling_check("asample")
def target_logprobs(context: CheckContext) -> None:
    """`target_prompt_logprobs` scores the given tokens at the positions of the prompt, and 0.0 for
    the others.
    """
    targets = [PROMPT[1], -1, PROMPT[2], 9, PROMPT[3], -1]
    tensor = models.TensorData(data=targets, dtype="int64", shape=[len(PROMPT) - 1, 2])
    result = _optional(context.sampler(), prompt_logprobs=True, target_prompt_logprobs=tensor)
    if result.target_prompt_logprobs is None:
        raise Absent("target_prompt_logprobs is ignored")
    found = result.target_prompt_logprobs.to_numpy()
    context.require(found.shape == (len(PROMPT) - 1, 2), f"the scores have shape {found.shape}")
    own = np.array(
        [
            math.nan if value is None else value
            for value in context.prompt_scores(result.prompt_logprobs)[1:]
        ]
    )
    context.require(
        bool(np.allclose(found[:, 0], own, atol=1e-2)),
        f"the prompt's own tokens score {found[:, 0]}, not {own}",
    )
    context.require(
        bool((found[[0, 2], 1] == 0.0).all()),
        f"where no token is given the score is {found[[0, 2], 1]}",
    )


@_sampling_check("asample")
def alternatives(context: CheckContext) -> None:
    """`prompt_alt_tokens_k` draws that many other tokens for each position of the prompt after the
    first.
    """
    result = _optional(context.sampler(), prompt_alt_tokens_k=2)
    if result.prompt_alt_tokens is None:
        raise Absent("prompt_alt_tokens_k is ignored")
    shapes = (
        result.prompt_alt_tokens.tokens.to_numpy().shape,
        result.prompt_alt_tokens.logprobs.to_numpy().shape,
    )
    wanted = (len(PROMPT) - 1, 2)
    context.expect(
        shapes == (wanted, wanted), f"tokens and logprobs have the shapes {shapes}, not {wanted}"
    )


@_sampling_check("asample")
def without_session(context: CheckContext) -> None:
    """A base model can be sampled without a sampling session."""
    body = models.SampleRequest(
        prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(PROMPT))]),
        sampling_params=models.SamplingParams(max_tokens=2),
        base_model=context.base_model(),
    )
    with optional():
        context.run(sampling_api.asample(body), SampleResponse)


@_sampling_check("asample", "retrieve_future")
def json_result(context: CheckContext) -> None:
    """A sample fetched as JSON equals the sample fetched as protobuf."""
    promise = context.sampler().submit(prompt_logprobs=True)
    one, other = (context.result(promise, protobuf=form) for form in (True, False))
    context.require(
        _tokens(one) == _tokens(other), f"the tokens are {_tokens(one)}, as JSON {_tokens(other)}"
    )
    pairs = zip(one.prompt_logprobs or (), other.prompt_logprobs or ())
    context.expect(
        all(a == b or (a and b and abs(a - b) < 1e-4) for a, b in pairs),
        "the prompt logprobs differ",
    )


@_sampling_check("stream_sample")
def stream(context: CheckContext) -> None:
    """A stream has the requested number of tokens, each with a logprob, and ends with `done`."""
    made = context.sampler()
    request = sampling_api.stream_sample(made.body(num_samples=2, max_tokens=4))
    answer = context.send(request)
    context.require_acceptance(request, answer)
    events = context.decode_events(answer, models.SampleStreamEvent)
    last = events[-1].type if events else None
    context.require(last == "done", f"the last of {len(events)} events is {last!r}")
    for index in range(2):
        _check_sequence(
            context, [one for one in events if (one.type, one.index) == ("tokens", index)]
        )
    unknown = {one.index for one in events} - {0, 1}
    context.expect(
        not unknown, f"of samples 0 and 1 there are tokens with the index {sorted(unknown)}"
    )


def _check_sequence(context: CheckContext, events: list[models.SampleStreamEvent]) -> None:
    """Check that the events of one sample have the requested tokens."""
    count = sum(len(one.tokens) for one in events)
    logprobs = sum(len(one.logprobs) for one in events)
    reason = events[-1].stop_reason if events else None
    context.require(0 < count <= 4, f"asked for up to 4 tokens, the stream has {count}")
    context.expect(
        reason == "stop" or (count == 4 and reason == "length"),
        f"{count} of 4 tokens end with {reason!r}",
    )
    context.expect(logprobs == count, f"{count} tokens of the stream have {logprobs} logprobs")


@_sampling_check("join_sampling_session")
def join(context: CheckContext) -> None:
    """Copies of a sampling client get their own numbers, and can sample under them."""
    made = context.sampler()
    body = models.JoinSamplingSessionRequest(sampling_session_id=made.sampling_session_id)
    numbers = [
        context.call(sampling_api.join_sampling_session(body)).client_counter for _ in range(2)
    ]
    context.require(len({0, *numbers}) == 3, f"after client 0 the next two get {numbers}")
    made.sample(number=numbers[0] * 10**9)
    made.sample(number=numbers[1] * 10**9)


def _tokens(response: SampleResponse) -> list[int]:
    return response.sequences[0].tokens


def _optional(sampler: SamplingFixture, **fields: object) -> SampleResponse:
    """Return the sample. Absent if the server refuses a field that it may not know."""
    with optional():
        return sampler.sample(**fields)
