"""Handlers of futures: fetch one result, list the finished ones, cancel one. Answers have a form
that the client can read.
"""

from __future__ import annotations

import contextlib

import msgspec
from starlette.responses import Response
from tinker_wire import models

from tinker._wire import json, proto
from tinker.local.call import APICall
from tinker.local.errors import APIProblem
from tinker.local.profiles import Profile
from tinker.local.state import SHUTTING_DOWN, State
from tinker.local.storage.futures import Completion, RequestFailure, RequestOutcome, ServerFuture
from tinker.types.results import ForwardBackwardOutput, SampleResponse
from tinker.wire import encode_result

CANCELLED = RequestFailure("the request was cancelled by its client", "user")


async def retrieve_future(state: State, call: APICall) -> msgspec.Struct | Response:
    """Return the result, "try again" after ``hold_seconds``, or first the size of a
    large result.
    """
    request = call.read(models.FutureRetrieveRequest)
    profile = state.settings.profile
    future = state.futures.find(request.request_id)
    if future.session is not None:
        future.session.last_seen = state.clock()
    outcome = await future.wait(state.settings.hold_seconds)
    if outcome is None:
        return _try_again(future, _is_old_client(call), profile)
    if outcome is SHUTTING_DOWN and state.journal.is_kept:
        raise APIProblem(503, SHUTTING_DOWN.error)  # the restarted server will continue it
    if isinstance(outcome, RequestFailure) and profile.failed_status != 200:
        raise APIProblem(profile.failed_status, outcome.error)
    media_type, content = await _encode_result(
        state, future, outcome, proto_wanted=call.accepts_proto and profile.protobuf
    )
    if (
        request.allow_metadata_only
        and profile.announces_size
        and len(content) > state.settings.inline_result_bytes
    ):
        future.encoded = media_type, content
        return models.FutureMetadataResponse(
            request_id=future.request_id, response_payload_size=len(content)
        )
    future.encoded = None
    state.futures.mark_read(future)
    return Response(content, media_type=media_type)


async def retrieve_futures(state: State, call: APICall) -> models.FuturesRetrieveResponse:
    """Return the requests of one client that have completed since the cursor; wait while there are
    none.
    """
    request = call.read(models.FuturesRetrieveRequest)
    hold = state.settings.hold_seconds
    with state.lock() as shared:
        log = shared.store.sampler(request.target.sampling_session_id).completion_log(
            request.target.cloned_sampler_id
        )
        for request_id in request.retrieved_request_ids:
            state.futures.release(request_id)
    await log.wait(
        request.prev_cursor, hold if request.timeout is None else min(request.timeout, hold)
    )
    with state.lock() as shared:
        completed, cursor = log.after(request.prev_cursor), log.cursor
    completions = [await _to_completion(state, completion) for completion in completed]
    return models.FuturesRetrieveResponse(completions=completions, cursor=cursor)


async def _to_completion(state: State, completion: Completion) -> models.FutureCompletion:
    if completion.failed:
        return models.FutureFailed(request_id=completion.request_id)
    size = None  # of a result that was dropped; another one is kept, encoded, until it is sent
    with contextlib.suppress(APIProblem):
        future = state.futures.find(completion.request_id)
        if future.outcome is not None:
            future.encoded = await _encode_result(state, future, future.outcome, proto_wanted=True)
            size = len(future.encoded[1])
    return models.FutureFinished(
        request_id=completion.request_id, response_payload_uncompressed_size=size
    )


async def cancel_future(state: State, call: APICall) -> None:
    """Cancel a waiting sample, or discard the result of a running one. Other and unknown requests
    are ignored.
    """
    request_id = call.read(models.CancelFutureRequest).request_id
    with contextlib.suppress(APIProblem):
        cancel_sample(state, state.futures.find(request_id))


def cancel_sample(state: State, future: ServerFuture) -> None:
    """Cancel a waiting sample, or discard the result of a running one. Other requests are
    unaffected.
    """
    with state.lock():
        if future.is_sample:
            state.served.drop_sample(future)
            state.futures.resolve(future, CANCELLED)


def _is_old_client(call: APICall) -> bool:
    """Return whether the client knows fewer fields than the contract has; such clients read a queue
    state from 408 only.
    """
    sent = msgspec.json.decode(call.content, type=dict[str, object])
    return not sent.keys() >= set(models.FutureRetrieveRequest.__struct_fields__)


def _try_again(future: ServerFuture, old: bool, profile: Profile) -> msgspec.Struct | Response:
    reason = future.progress()
    again = models.TryAgainResponse(
        request_id=future.request_id, queue_state="active", queue_state_reason=reason
    )
    if not old and profile.pending_status == 200:
        return again
    status = models.FutureStatus(
        request_id=future.request_id,
        queue_state=again.queue_state,
        queue_state_reason=reason,
        detail=reason or "still queued or running",
    )
    content = msgspec.json.encode(profile.pending_body(msgspec.to_builtins(status)))
    return Response(content, status_code=408, media_type=json.MEDIA_TYPE)


async def _encode_result(
    state: State, future: ServerFuture, outcome: RequestOutcome, *, proto_wanted: bool
) -> tuple[str, bytes]:
    """Return the media type and bytes of a result; an announced result is kept
    until it is fetched.
    """
    bulky = isinstance(outcome, (ForwardBackwardOutput, SampleResponse))
    media_type = proto.MEDIA_TYPE if bulky and proto_wanted else json.MEDIA_TYPE
    if future.encoded is not None and future.encoded[0] == media_type:
        return future.encoded
    content = await state.offload(future.nbytes, lambda: _encode_or_fail(outcome, media_type))
    if media_type == json.MEDIA_TYPE:
        content = state.settings.profile.rewrite_result(type(outcome), content)
    return media_type, content


def _encode_or_fail(outcome: RequestOutcome, media_type: str) -> bytes:
    """Encode a result, or a failure where JSON cannot carry it (NaN): clients would repeat after an
    error status forever.
    """
    try:
        return _encode_outcome(outcome, media_type)
    except ValueError as error:
        return _encode_outcome(
            RequestFailure(f"the result cannot be sent as {media_type}: {error}", "server"),
            json.MEDIA_TYPE,
        )


def _encode_outcome(outcome: RequestOutcome, media_type: str) -> bytes:
    if isinstance(outcome, RequestFailure):
        return json.encode(
            models.RequestFailedResponse(
                error=outcome.error,
                category=outcome.category,
                failed_operation=outcome.failed_operation,
            )
        )
    return encode_result(outcome, media_type)
