"""What a server says of itself, sessions, errors in one form, and what an organization sees."""

from __future__ import annotations

import base64
import datetime
import uuid
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from tinker_wire import models, runs
from tinker_wire.api import admin as admin_api
from tinker_wire.api import auth as auth_api
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as service_api
from tinker_wire.api import telemetry as telemetry_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Request

from tinker._http.retry import ABSENT_STATUSES
from tinker._version import __version__
from tinker._wire import json
from tinker.testing.conformance import check
from tinker.testing.conformance.connection import ReceivedResponse, detail
from tinker.testing.conformance.context import (
    LORA,
    CheckContext,
    encode_body,
    in_utc,
    is_without_route,
    read_body,
)
from tinker.testing.conformance.outcome import (
    Absent,
    CheckEnd,
    Contradiction,
    Crash,
    Differs,
    Observation,
    Outcome,
)
from tinker.types.results import ForwardBackwardOutput, SampleResponse

_service_check = partial(check, theme="service")


_CONFIG = models.ClientConfigRequest(sdk_version=__version__)


@_service_check("healthz")
def health(context: CheckContext) -> None:
    """The health check responds, also without a credential."""
    context.call(service_api.healthz(), key=None)


@_service_check("get_server_capabilities", core=True, basis=True)
def capabilities(context: CheckContext) -> None:
    """At least one model is offered by name."""
    offered = context.call(service_api.get_server_capabilities()).supported_models
    how = f"none of the {len(offered)} entries of supported_models has a model_name"
    cause = "misfit: SupportedModel: no `model_name`"
    named = any(model.model_name for model in offered)
    context.require(named, how, cause, "get_server_capabilities", "SupportedModel")


@_service_check("client_config")
def client_config(context: CheckContext) -> None:
    """The settings for clients have the documented types, and their limits leave room for work."""
    config = context.call(service_api.client_config(_CONFIG))
    limits = (
        config.fwdbwd_max_chunk_len,
        config.fwdbwd_max_chunk_bytes_count,
        config.sample_max_concurrent_requests,
    )
    context.expect(min(limits) > 0, f"a limit of the client configuration allows nothing: {limits}")


@_service_check("client_dynamic_config")
def client_dynamic_config(context: CheckContext) -> None:
    """The settings that may change have the documented types."""
    context.call(service_api.client_dynamic_config(_CONFIG))


@_service_check("telemetry")
def telemetry(context: CheckContext) -> None:
    """A batch with every kind of event is accepted."""
    now = datetime.datetime.now(datetime.UTC)

    def common(index: int) -> dict[str, object]:
        return {
            "event_id": str(uuid.uuid4()),
            "event_session_index": index,
            "severity": "INFO",
            "timestamp": now,
        }

    events: list[models.TelemetryEvent] = [
        models.SessionStartEvent(**common(0)),  # type: ignore[arg-type]
        models.GenericEvent(event_name="conformance", event_data={"a": 1}, **common(1)),  # type: ignore[arg-type]
        models.UnhandledExceptionEvent(error_message="m", error_type="t", **common(2)),  # type: ignore[arg-type]
        models.SessionEndEvent(duration="0:00:01.000000", **common(3)),  # type: ignore[arg-type]
    ]
    body = models.TelemetrySendRequest(
        events=events,
        platform="Linux",
        sdk_version=__version__,
        session_id=context.session(),
        process_uuid=str(uuid.uuid4()),
    )
    context.call(telemetry_api.telemetry(body))


_sessions_check = partial(check, theme="sessions")


@_sessions_check("create_session", core=True, basis=True)
def begin(context: CheckContext) -> None:
    """Each session gets an id of its own."""
    one, other = context.new_session(), context.new_session()
    if one == other:  # the other checks use it, and what needs a session of its own is blocked
        context.known.shared_session = one
        context.cleanup.sessions.clear()
    context.require(one != other, "two sessions have the same id")


@_sessions_check("session_heartbeat")
def heartbeat(context: CheckContext) -> None:
    """A heartbeat of an open session succeeds."""
    request = _heartbeat(context.session())
    answer = context.send(request)
    elsewhere = context.send(msgspec.structs.replace(request, path=f"{request.path}s"))
    if (
        answer.status == 404
        and not is_without_route(answer)
        and answer.content != elsewhere.content
    ):
        how = f"the heartbeat of an open session answers 404: {detail(answer)}"
        raise Differs(how, cause="heartbeat", operation=request.operation)
    context.decode_accepted(request, answer)


@_sessions_check("finish_session", "session_heartbeat")
def finish(context: CheckContext) -> None:
    """A session can be finished twice; its later heartbeats return 410."""
    session = context.new_session()
    is_kept = context.send(_heartbeat(session)).status < 300
    context.finish(session, "errored")
    context.finish(session, "success")
    if is_kept:
        context.expect_refusal(_heartbeat(session), 410)


@_sessions_check("list_sessions")
def newest_first(context: CheckContext) -> None:
    """Sessions are listed newest first, in pages."""
    older, newer = context.new_session(), context.new_session()
    first = context.call(service_api.list_sessions(limit=1)).sessions
    context.expect(
        first == [newer],
        f"the newest session is {newer!r}, and the first page of one entry contains {first}",
    )
    both = context.call(service_api.list_sessions(limit=2)).sessions
    context.expect(
        both == [newer, older],
        f"the newest two are {newer!r} and {older!r}, a page of two contains {both}",
    )
    second = context.call(service_api.list_sessions(limit=1, offset=1)).sessions
    context.expect(second == [older], f"with an offset of 1 the page contains {second}")


@_sessions_check("get_session")
def contents(context: CheckContext) -> None:
    """A session lists its models and samplers, its metadata and its name."""
    session = context.new_session(user_metadata={"k": "v"}, display_name="conformance check")
    body = models.CreateSamplingSessionRequest(
        session_id=session, sampling_session_seq_id=0, base_model=context.base_model()
    )
    sampler = context.call(sampling_api.create_sampling_session(body)).sampling_session_id
    fixture = context.create(session_id=session)
    found = context.call(service_api.get_session(session_id=session))
    context.require(
        found.training_run_ids == [fixture.model_id],
        f"the session's runs are {found.training_run_ids}",
    )
    context.require(
        found.sampler_ids == [sampler], f"the session's samplers are {found.sampler_ids}"
    )
    context.expect(found.user_metadata == {"k": "v"}, f"the metadata is {found.user_metadata}")
    context.expect(
        found.display_name == "conformance check", f"the display name is {found.display_name!r}"
    )


@_sessions_check("search_sessions")
def search(context: CheckContext) -> None:
    """Sessions can be found by metadata, name and status, in pages, newest first."""
    mark = uuid.uuid4().hex
    made = [
        context.new_session(user_metadata={"mark": mark}, display_name=f"search {mark} {i}")
        for i in range(3)
    ]
    body = models.SessionSearchRequest(user_metadata={"mark": mark}, limit=2)
    page = context.call(service_api.search_sessions(body))
    found = [one.session_id for one in page.sessions]
    context.require(
        page.next_cursor is not None,
        f"three sessions are more than a page of two, which names no next: {found}",
    )
    rest = context.call(
        service_api.search_sessions(
            models.SessionSearchRequest(user_metadata={"mark": mark}, cursor=page.next_cursor)
        )
    )
    found += [one.session_id for one in rest.sessions]
    context.require(found == made[::-1], f"of {made}, newest first, are found {found}")
    context.expect(rest.next_cursor is None, "the last page names a next one")
    _search_by_name_and_status(context, mark, made)


def _search_by_name_and_status(context: CheckContext, mark: str, made: list[str]) -> None:
    def find(**conditions: object) -> list[str]:
        body = models.SessionSearchRequest(**{"user_metadata": {"mark": mark}, **conditions})  # type: ignore[arg-type]
        return [one.session_id for one in context.call(service_api.search_sessions(body)).sessions]

    by_name = find(display_name=f"{mark} 1")
    context.expect(by_name == [made[1]], f"by a part of its name {made[1]!r} is found as {by_name}")
    context.finish(made[0], "errored")
    finished = find(statuses=[models.ClientFinishedSessionStatusQuery(reasons=["errored"])])
    context.expect(
        finished == [made[0]],
        f"the one that its client finished is {made[0]!r}, found are {finished}",
    )
    active = find(statuses=[models.ActiveSessionStatusQuery()])
    context.expect(active == made[:0:-1], f"active are {made[:0:-1]}, found are {active}")


@_sessions_check("set_session_project")
def project(context: CheckContext) -> None:
    """A session can be moved into a project; an unknown project is refused with 400, 403 or 404."""
    body = models.SetSessionProjectRequest(project_id=f"conformance-{uuid.uuid4().hex[:8]}")
    request = service_api.set_session_project(body, session_id=context.session())
    # with a body that lacks the project
    if context.send(request, content=b"{}").status in ABSENT_STATUSES:
        raise Absent("there is no set_session_project")
    if context.send(request).status >= 300:
        context.expect_refusal(request, 400, 403, 404)


@_sessions_check("trace_export")
def trace(context: CheckContext) -> None:
    """An export of a session's timing ends, with a URL or an error."""
    request = service_api.trace_export(session_id=context.session())
    answer = context.call(request)
    while answer.status == "pending":
        context.deadline.pause(1.0, "the trace export")
        answer = context.call(request)
    context.expect(
        bool(answer.url) == (answer.status == "ready"),
        f"with status {answer.status!r} the URL is {answer.url!r}",
    )
    context.expect(
        answer.status != "failed" or bool(answer.error), "a failed export says no reason"
    )


def _heartbeat(session_id: str) -> Request[models.SessionHeartbeatResponse]:
    return service_api.session_heartbeat(models.SessionHeartbeatRequest(session_id=session_id))


_errors_check = partial(check, theme="errors")


_SESSION = models.CreateSessionRequest(
    tags=["conformance"], user_metadata={}, sdk_version=__version__
)


@_errors_check(
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
        runs.optim_step(adam_params=models.AdamParams()).fill(gone, 1, None),
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


@_errors_check(
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


@_errors_check("forward_backward")
def protobuf_syntax(context: CheckContext) -> None:
    """A truncated or invalid protobuf body is refused with 400 or 422."""
    fixture = context.create()
    request = fixture.request("proto")
    whole = encode_body(request)
    for content in (whole[:-3], b"\xff\xff\xff"):
        context.expect_refusal(request, 422, 400, 415, content=content, cause="protobuf")


@_errors_check("create_session", "create_model", "asample", "retrieve_future")
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


@_errors_check("create_session", "create_sampling_session", "asample")
def unknown_fields(context: CheckContext) -> None:
    """Unknown fields are ignored."""
    context.begin(
        _plain("create_session", msgspec.to_builtins(_SESSION) | {"field_of_tomorrow": {"a": [1]}})
    )
    body = msgspec.to_builtins(context.sampler().body(), enc_hook=str)
    body["sampling_params"]["knob_of_tomorrow"] = 3
    context.call(_plain("asample", body))


@_errors_check(
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


_admin_check = partial(check, theme="admin")


@_admin_check("get_server_capabilities")
def wrong_key(context: CheckContext) -> None:
    """A server with accounts refuses a wrong or missing key with 401; a server without accounts
    accepts any.
    """
    request = service_api.get_server_capabilities()
    for key in (None, "tml-no-such-key"):
        if context.send(request, key=key).status != 200:
            answer = context.expect_refusal(request, 401, key=key)
            if answer.status == 401 and "www-authenticate" not in answer.headers:
                context.note_difference(
                    f"{answer.message} answers 401 without it",
                    "no WWW-Authenticate",
                    request.operation,
                )


@_admin_check("auth_token")
def token(context: CheckContext) -> None:
    """A credential can be exchanged for a JWT with `iat` and a future `exp`, and the JWT is
    accepted.
    """
    jwt = context.call(auth_api.auth_token(models.AuthTokenRequest())).jwt
    claims = _claims(jwt)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    ahead = claims.exp > max(now, claims.iat)
    context.expect(
        ahead, f"the token is from {claims.iat:.0f} and ends at {claims.exp:.0f}; now is {now:.0f}"
    )
    answer = context.send(service_api.get_server_capabilities(), key=jwt)
    context.require(answer.status == 200, f"with the JWT, {answer}")


class _TokenClaims(msgspec.Struct, frozen=True):
    """When a JWT was made and when it ends, in seconds since 1970."""

    iat: float
    exp: float


def _claims(jwt: str) -> _TokenClaims:
    """Return the times in a JWT, whose signature is not checked. Contradiction for
    anything else.
    """
    try:
        return msgspec.json.decode(
            base64.urlsafe_b64decode(jwt.split(".")[1] + "=="), type=_TokenClaims
        )
    except (ValueError, IndexError) as error:
        raise Contradiction("the token is not a JWT with iat and exp") from error


@_admin_check("get_api_key")
def api_key(context: CheckContext) -> None:
    """The key of the request has an id and a name."""
    context.call(auth_api.get_api_key())


@_admin_check("get_audit_log")
def audit(context: CheckContext) -> None:
    """The audit log of a day is returned, or a redirect to a URL that needs no credential."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for request in (
        admin_api.get_audit_log(),
        admin_api.get_audit_log(event_type="checkpoints", day=today),
    ):
        answer = context.send(request)
        if answer.status == 302:
            context.require("location" in answer.headers, "a redirect names no target")
            answer = context.connection.fetch(answer.headers["location"], context.deadline)
        context.decode_accepted(request, answer)


@_admin_check("get_billing_usage")
def usage(context: CheckContext) -> None:
    """The usage of an hour is returned."""
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    day = datetime.timedelta(days=1)
    found = context.call(admin_api.get_billing_usage(starting_on=now - day, ending_before=now)).data
    outside = [one for one in found if not now - day <= in_utc(one.bucket_start) < now]
    context.expect(
        not outside,
        f"{len(outside)} of {len(found)} events lie outside the time that was asked for",
    )


@_admin_check("get_checkpoint_storage_usage")
def storage(context: CheckContext) -> None:
    """The storage of checkpoints is returned."""
    context.call(admin_api.get_checkpoint_storage_usage())


@_admin_check("delete_api_key", destructive=True)
def revoke(context: CheckContext) -> None:
    """A revoked key is refused."""
    context.call(auth_api.delete_api_key())
    context.expect_refusal(auth_api.get_api_key(), 401)
