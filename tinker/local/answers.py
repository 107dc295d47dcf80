"""The handler of ``retrieve_future``: waits a while, and answers in the form the client can read."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from tinker_wire import models

from tinker._wire import json, proto
from tinker.local.call import Call
from tinker.local.futures import Failure, Future, Outcome
from tinker.local.state import State
from tinker.types.results import ForwardBackwardOutput, SampleResponse


async def retrieve_future(state: State, call: Call) -> msgspec.Struct | Response:
    """The result; or, after ``hold_seconds``, that it is still to come; or, when it is large, its size first."""
    request = call.read(models.FutureRetrieveRequest)
    future = state.futures.find(request.request_id)
    outcome = await future.wait(state.settings.hold_seconds)
    if outcome is None:
        return _try_again(future, _is_old(call))
    media_type, content = await _encoded(state, future, outcome, proto_wanted=call.accepts_proto)
    if request.allow_metadata_only and len(content) > state.settings.inline_result_bytes:
        future.encoded = media_type, content
        return models.FutureMetadataResponse(request_id=future.request_id, response_payload_size=len(content))
    future.encoded = None
    state.futures.mark_read(future)
    return Response(content, media_type=media_type)


def _is_old(call: Call) -> bool:
    """Whether the client knows fewer fields than the contract has; such clients read a queue state from 408 only."""
    sent = msgspec.json.decode(call.content, type=dict[str, object])
    return not sent.keys() >= set(models.FutureRetrieveRequest.__struct_fields__)


def _try_again(future: Future, old: bool) -> msgspec.Struct | Response:
    reason = future.progress()
    again = models.TryAgainResponse(request_id=future.request_id, queue_state="active", queue_state_reason=reason)
    if not old:
        return again
    status = models.FutureStatus(
        request_id=future.request_id,
        queue_state=again.queue_state,
        queue_state_reason=reason,
        detail=reason or "still queued or running",
    )
    return Response(json.encode(status), status_code=408, media_type=json.MEDIA_TYPE)


async def _encoded(state: State, future: Future, outcome: Outcome, *, proto_wanted: bool) -> tuple[str, bytes]:
    """The media type and bytes of a result; those announced before are kept until they are fetched."""
    bulky = isinstance(outcome, (ForwardBackwardOutput, SampleResponse))
    media_type = proto.MEDIA_TYPE if bulky and proto_wanted else json.MEDIA_TYPE
    if future.encoded is not None and future.encoded[0] == media_type:
        return future.encoded
    return media_type, await state.offload(future.nbytes, lambda: _encoded_or_failed(outcome, media_type))


def _encoded_or_failed(outcome: Outcome, media_type: str) -> bytes:
    """A result that JSON cannot carry (NaN, infinity) fails: an error status would make clients ask again for ever."""
    try:
        return _encode(outcome, media_type)
    except ValueError as error:
        return _encode(Failure(f"the result cannot be sent as {media_type}: {error}", "server"), json.MEDIA_TYPE)


def _encode(outcome: Outcome, media_type: str) -> bytes:
    if isinstance(outcome, Failure):
        return json.encode(models.RequestFailedResponse(error=outcome.error, category=outcome.category))
    if isinstance(outcome, ForwardBackwardOutput):
        if media_type == proto.MEDIA_TYPE:
            return proto.encode_loss_output(outcome)
        return json.encode(json.wire_loss_output(outcome))
    if isinstance(outcome, SampleResponse):
        return proto.encode_sample(outcome) if media_type == proto.MEDIA_TYPE else json.encode(json.wire_sample(outcome))
    return json.encode(outcome)
