"""What is wrong is refused in one form, and what only looks unusual is not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Request

from tinker._version import __version__
from tinker._wire import json
from tinker.testing.conformance.connection import ReceivedResponse
from tinker.testing.conformance.context import CheckContext
from tinker.testing.conformance.outcome import CheckEnd, Contradiction, Crash, Observation, Outcome
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.session import encode_body
from tinker.testing.conformance.values import LORA, read_body
from tinker.types.results import ForwardBackwardOutput, SampleResponse

_SESSION = models.CreateSessionRequest(
    tags=["conformance"], user_metadata={}, sdk_version=__version__
)


@check(
    "get_info",
    "optim_step",
    "create_model",
    "create_sampling_session",
    "asample",
    "get_training_run",
    "weights_info",
)
def unknown_ids(context: CheckContext) -> None:
    """Unknown ids return 404, with a detail."""
    gone = "no-such-session:train:0"
    base = context.base_model()
    params = models.SamplingParams(max_tokens=1)
    prompt = models.ModelInput(chunks=[models.EncodedTextChunk(tokens=[5])])
    requests: list[Request[Any]] = [
        training_api.get_info(models.GetInfoRequest(model_id=gone)),
        training_api.optim_step(
            models.OptimStepRequest(model_id=gone, seq_id=1, adam_params=models.AdamParams())
        ),
        training_api.create_model(
            models.CreateModelRequest(
                session_id="no-such-session", model_seq_id=0, base_model=base, lora_config=LORA
            )
        ),
        training_api.get_training_run(training_run_id=gone),
        sampling_api.create_sampling_session(
            models.CreateSamplingSessionRequest(
                session_id="no-such-session", sampling_session_seq_id=0, base_model=base
            )
        ),
        sampling_api.asample(
            models.SampleRequest(
                prompt=prompt,
                sampling_params=params,
                sampling_session_id="no-such-sampler",
                seq_id=0,
            )
        ),
        weights_api.weights_info(
            models.WeightsInfoRequest(tinker_path=f"tinker://{gone}/weights/no-such-checkpoint")
        ),
    ]
    for request in requests:  # one that is not refused does not hide the others
        try:
            context.expect_refusal(request, 404, cause="unknown ids")
        except Contradiction as error:
            context.note(error.observation())


@check(
    "create_session", "create_model", "optim_step", "asample", "retrieve_future", "forward_backward"
)
def syntax(context: CheckContext) -> None:
    """A body that is not JSON, misses a field or has a wrong type is refused with 422, which names
    the place.
    """
    request = service_api.create_session(_SESSION)
    for content in (b"", b"{", b"\xff", b"[]", b"null", b'{"tags": "x", "sdk_version": 1}'):
        _refuse_content(context, request, content)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": ["five"]}]}
    bodies: dict[str, object] = {
        "create_model": {"session_id": context.session(), "model_seq_id": "first", "base_model": 1},
        "optim_step": {"model_id": "m", "seq_id": 1, "adam_params": {"learning_rate": "fast"}},
        "asample": {
            "prompt": prompt,
            "sampling_params": {},
            "sampling_session_id": "s",
            "seq_id": 0,
        },
        "retrieve_future": {"request": "r"},
        "forward_backward": {"model_id": "m", "seq_id": 1, "forward_backward_input": {"data": {}}},
    }
    for operation, body in bodies.items():
        _judge_misfit(context, context.send(_plain(operation, body)))


#: 404 where the server looks at the ids first, 415 where it does not read JSON at all.
_MISFITS = frozenset({400, 404, 415, 422})


def _judge_misfit(context: CheckContext, found: ReceivedResponse) -> None:
    """Note a response that accepts a body that does not fit the contract, or refuses it with
    another status.
    """
    told = (
        f"{found.message} with the body "
        f"{found.message.content[:80].decode(errors='backslashreplace')!r}"
    )
    if found.status < 400:
        observed = f"{told} answers {found.status}"
        context.note(
            Observation(observed, "wrong bodies", Outcome.CONTRADICTION, found.message.operation)
        )
        return
    told = f"{told} is refused with {found.status} instead of 422"
    context.expect(found.status in _MISFITS, told, "statuses", found.message.operation)


def _refuse_content(context: CheckContext, request: Request[Any], content: bytes) -> None:
    """Judge the response to this content as ``_judge_misfit`` does. The detail of status 422 must
    list the places.
    """
    try:
        answer = context.send(request, content=content)
    except Crash as error:
        context.note(Observation(str(error), "crash for refusal", error.outcome, request.operation))
        return
    _judge_misfit(context, answer)
    if answer.status == 422:
        in_words = b'"loc"' not in answer.content and b'"detail"' in answer.content
        context.expect(
            not in_words,
            "the detail of status 422 is not a list of places",
            "no places",
            request.operation,
        )


@check("forward_backward")
def protobuf_syntax(context: CheckContext) -> None:
    """A truncated or invalid protobuf body is refused with 400 or 422."""
    fixture = context.create()
    request = fixture.request("proto")
    whole = encode_body(request)
    for content in (whole[:-3], b"\xff\xff\xff"):
        context.expect_refusal(request, 422, 400, 415, content=content, cause="protobuf")


@check("create_session", "create_model", "asample", "retrieve_future")
def statuses(context: CheckContext) -> None:
    """A successful response has the documented status: 200, or 204 without a body."""
    context.session()
    for attempt in (context.create, context.sampler):
        with suppress(CheckEnd):  # what fails is another check's matter
            attempt()
    for operation, found in sorted(context.known.statuses.items()):
        wanted = 200 if OPERATIONS[operation].response_media_types else 204
        for status in sorted(found - {wanted}):
            context.note_difference(
                f"{operation} {status}: a success has the status {wanted}", "statuses", operation
            )


@check("create_session", "create_sampling_session", "asample")
def unknown_fields(context: CheckContext) -> None:
    """Unknown fields are ignored."""
    context.begin(
        _plain("create_session", msgspec.to_builtins(_SESSION) | {"field_of_tomorrow": {"a": [1]}})
    )
    body = msgspec.to_builtins(context.sampler().body(), enc_hook=str)
    body["sampling_params"]["knob_of_tomorrow"] = 3
    context.call(_plain("asample", body))


@check(
    "create_session",
    "create_model",
    "optim_step",
    "forward_backward",
    "create_sampling_session",
    "asample",
)
def older_bodies(context: CheckContext) -> None:
    """Request bodies from 2025 clients are accepted: they omit defaults and types, and send null
    for unset fields.
    """
    number = context.number(0)
    session = context.begin(_plain("create_session", read_body("older_session")))
    body = {"session_id": session, "base_model": context.base_model()}
    request = _plain("create_model", {**body, "model_seq_id": number, **read_body("older_model")})
    _older_training(
        context, context.adopt(context.run(request, models.CreateModelResponse).model_id).model_id
    )
    opened = {**body, "sampling_session_seq_id": number, "model_path": None}
    sampler = context.call(_plain("create_sampling_session", opened)).sampling_session_id
    request = _plain("asample", {"sampling_session_id": sampler, **read_body("older_sample")})
    context.result(context.submit(request, SampleResponse), protobuf=False)


_UNREAD = frozenset({406, 415})


def _older_training(context: CheckContext, model_id: str) -> None:
    request = _plain("forward_backward", {"model_id": model_id, **read_body("older_loss")})
    answer = context.send(request)
    if answer.status in _UNREAD:  # the body may be protobuf only, as `wires.json_body` says
        return
    context.result(context.accept(request, answer, ForwardBackwardOutput), protobuf=False)
    context.run(
        _plain("optim_step", {"model_id": model_id, **read_body("older_step")}),
        models.OptimStepResponse,
    )


def _plain(operation: str, body: object) -> Request[Any]:
    """Return a request whose JSON body is written by hand, as no record of the contract is."""
    row = OPERATIONS[operation]
    content = Binary(json.MEDIA_TYPE, [msgspec.json.encode(body)])
    return Request(
        operation=operation, method=row.method, path=row.path, body=content, reply=row.reply
    )
