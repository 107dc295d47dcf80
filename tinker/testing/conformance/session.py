"""The session of a check: its requests and their answers, read strictly, the results that it waits
for, and its end.

What is not as the document says is noted, and blocks others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import futures as futures_api
from tinker_wire.api import service as service_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Request

from tinker._http import ABSENT_STATUSES, statuses
from tinker._version import __version__
from tinker._wire import json, proto
from tinker.testing.conformance import decoding
from tinker.testing.conformance.connection import (
    CheckDeadline,
    Connection,
    ReceivedResponse,
    SentRequest,
)
from tinker.testing.conformance.outcome import (
    Absent,
    Blocked,
    CheckEnd,
    Contradiction,
    Crash,
    Failed,
    Late,
    Observation,
    Refused,
)
from tinker.testing.conformance.run_state import Cleanup, ServerKnowledge

T = TypeVar("T")

_TOO_EARLY = 425
#: What web frameworks say of an address that they do not have, or not under this method.
_NO_ROUTE = frozenset({"Not Found", "Method Not Allowed", "nothing"})
_WITH_STATUS = (models.HealthResponse, models.TelemetryResponse)
#: Refusals by a server whose user may not do this.
_FORBIDDEN = frozenset({401, 402, 403})
_SHUTDOWN_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
#: How often an accepted request that is answered with 404 is asked for again: some servers mean by
#: it that it is not done.
_TRIES = 20
NO_RESULT_YET = ("pending", "retrieve_future", "TryAgainResponse")
NO_RESULT = "no result"
_STATE_FIELDS = frozenset({"status", "request_id", "type", "detail", "message"})
_STATES = frozenset({"pending", "queued", "running", "processing", "in_progress"})
_NUMBERS_OF_A_CHECK = 1000
#: The server does not have the operation, or does not accept the request.
_LACKING_STATUSES = ABSENT_STATUSES | {400, 422}


@attrs.frozen
class PendingResult(Generic[T]):
    """A submitted request, what was answered at once, and the type of the result."""

    request: Request[models.UntypedAPIFuture]
    future: models.UntypedAPIFuture
    kind: type[T]

    @property
    def operation(self) -> str:
        """Return the operation that was submitted."""
        return self.request.operation

    @property
    def request_id(self) -> str:
        """Return what to ask ``retrieve_future`` for."""
        return self.future.request_id


class CheckSession:
    """The requests of one check, their answers and results, and the session that they belong to.

    ``observations`` is what it has found that is not as the document says, ``check`` is the name of
    the check, ``cleanup`` what it has made and must delete.
    """

    _session_id: str | None = None
    _first_number: int = 0

    def __init__(
        self,
        connection: Connection,
        deadline: CheckDeadline,
        *,
        check: str = "",
        core: bool = False,
    ) -> None:
        self.connection = connection
        self.known: ServerKnowledge = connection.known
        self.deadline: CheckDeadline = deadline
        self.observations: list[Observation] = []
        self.cleanup: Cleanup = Cleanup()
        self.check: str = check
        self._core = core

    # ------------------------------------------------------------------------------------- findings

    def note(self, observation: Observation) -> None:
        """Note that something is not as the document says, and continue."""
        if observation.text not in [one.text for one in self.observations]:
            self.observations.append(observation)

    def note_difference(
        self, how: str, cause: str = "", operation: str = "", schema: str = ""
    ) -> None:
        """Report a difference, with its cause if other checks may find it too, its operation and
        its schema.
        """
        self.note(Observation(how, cause, operation=operation, schema=schema))

    def expect(
        self, holds: bool, how: str, cause: str = "", operation: str = "", schema: str = ""
    ) -> None:
        """Note ``how`` unless it holds."""
        if not holds:
            self.note_difference(how, cause, operation, schema)

    def need(self, *checks: str) -> None:
        """Raise Blocked if a check that this one depends on is known to fail."""
        for check in self.known.broken.keys() & set(checks) - {self.check}:
            by, how = self.known.broken[check]
            raise Blocked(how, by)

    def require(
        self, holds: bool, how: str, cause: str = "", operation: str = "", schema: str = ""
    ) -> None:
        """Raise Contradiction unless it holds."""
        if not holds:
            raise Contradiction(how, cause=cause, operation=operation, schema=schema)

    # ------------------------------------------------------------------------------------ exchanges

    def send(
        self,
        request: Request[Any],
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = "",
        seconds: float = math.inf,
    ) -> ReceivedResponse:
        """Return the response of any status below 500. ``content`` replaces the body, ``key`` the
        credential (None: none).
        """
        given: dict[str, str] = {"Accept": ", ".join(request.accepts), **request.headers}
        if request.method != "GET":
            given["Content-Type"] = (
                request.body.media_type if isinstance(request.body, Binary) else json.MEDIA_TYPE
            )
        given |= headers or {}
        credential = self.connection.api_key if key == "" else key
        path = f"{request.path}?{request.query}" if request.query else request.path
        while True:
            body = encode_body(self._without_refused(request)) if content is None else content
            message = SentRequest(request.method, path, credential, given, body, request.operation)
            answer = self.connection.send(message, self.deadline, self.note, seconds)
            if content is not None or not self._is_about_defaults(request, answer):
                return answer

    def _is_about_defaults(self, request: Request[Any], answer: ReceivedResponse) -> bool:
        """Return whether fields that say nothing new are refused: noted, and left out from now on,
        as clients do.
        """
        if answer.status < 400 or not isinstance(request.body, msgspec.Struct):
            return False
        if not self.known.refused.learn(request.operation, request.body, answer.content):
            return False
        how = (
            f"{request.operation} answers {answer.status} to fields at their default: "
            f"{decoding.detail(answer)}"
        )
        self.note_difference(how, "unknown fields", request.operation, type(request.body).__name__)
        return True

    def _without_refused(self, request: Request[T]) -> Request[T]:
        body = request.body
        if not isinstance(body, msgspec.Struct):
            return request
        return msgspec.structs.replace(
            request, body=self.known.refused.without(request.operation, body)
        )

    def call(self, request: Request[T], **options: Any) -> T:
        """Return the typed answer of a request that must be accepted; Absent without such an
        operation, Refused otherwise.
        """
        answer = self.send(request, **options)
        while answer.status == _TOO_EARLY:
            self.deadline.pause(1.0, str(answer))
            answer = self.send(request, **options)
        return self.decode_accepted(request, answer)

    def decode_accepted(self, request: Request[T], answer: ReceivedResponse) -> T:
        """Return the typed answer, once it is there."""
        self.require_acceptance(request, answer)
        self.known.statuses.setdefault(request.operation, set()).add(answer.status)
        if request.reply is None:
            return None  # type: ignore[return-value]
        return self.decode(answer, request.reply)

    def require_acceptance(self, request: Request[Any], answer: ReceivedResponse) -> None:
        """Raise Absent if the server lacks the operation, and Refused for any other refusal."""
        if statuses.is_success(answer.status):
            return
        operation = request.operation
        how = f"{operation} answers {answer.status}: {decoding.detail(answer)}"
        refusal = Refused(how, answer.status, operation=operation)
        is_required = not OPERATIONS[operation].optional
        if is_required and is_without_route(answer):
            how = (
                f"{operation} answers {answer.status} to {answer.message}: "
                f"{decoding.detail(answer)}"
            )
            raise Contradiction(how, cause="missing operation", operation=operation)
        may_be_absent = answer.status in _FORBIDDEN or (
            answer.status in ABSENT_STATUSES and not is_required
        )
        if may_be_absent and not self._core:
            raise Absent(how, cause=refusal.cause, operation=operation)
        raise refusal

    def decode(self, answer: ReceivedResponse, kind: type[T]) -> T:
        """Return the record of a response; what is unusual about it is noted."""
        return self._note_anomalies(answer, decoding.record(answer, kind), kind)

    def decode_events(self, answer: ReceivedResponse, kind: type[T]) -> list[T]:
        """Return the records of a stream of events; what is unusual about them is noted."""
        return self._note_anomalies(answer, decoding.events(answer, kind), kind)

    def _note_anomalies(self, answer: ReceivedResponse, found: T, kind: type[Any]) -> T:
        operation = answer.message.operation
        if kind in _WITH_STATUS:  # a constant, which the record has by default
            how = f"the response of {operation} has no `status`"
            self.expect(
                b'"status"' in answer.content,
                how,
                f"misfit: {kind.__name__}: {how}",
                operation,
                kind.__name__,
            )
        for cause, anomaly in decoding.anomalies(found):
            self.note_difference(
                f"{operation}: {anomaly}", cause, operation=operation, schema=kind.__name__
            )
        return found

    def expect_refusal(
        self,
        request: Request[Any],
        *statuses: int,
        cause: str = "",
        about: str = "",
        **options: Any,
    ) -> ReceivedResponse:
        """Return the response to a request that must be refused with one of these statuses.
        Contradiction when it is not.

        ``cause`` is the one of a request that is not refused, ``about`` what is wrong with it.
        """
        wanted, operation = " or ".join(map(str, statuses)), request.operation
        due = (
            f"where it must refuse {about} with {wanted}"
            if about
            else f"where it must refuse with {wanted}"
        )
        try:
            answer = self.send(request, **options)
        except Crash as error:
            kind = cause or ("unknown ids" if 404 in statuses else "crash for refusal")
            raise Crash(f"{error}, {due}", cause=kind, operation=operation) from error
        if OPERATIONS[operation].optional and is_without_route(answer) and 404 not in statuses:
            raise Absent(str(answer), operation=operation)
        self.require(
            answer.status >= 400,
            f"{answer.message}: answers {answer.status} {due}",
            cause,
            operation,
        )
        how = f"{answer.message}: refuses with {answer.status} instead of {wanted}"
        self.expect(answer.status in statuses, how, "statuses", operation=operation)
        self._check_refusal(answer)
        return answer

    def _check_refusal(self, answer: ReceivedResponse) -> None:
        """Note a refusal without a JSON body that has ``detail``. Proxies may send others, servers
        should not.
        """
        try:
            body = decoding.record(answer, dict[str, Any])
        except Contradiction as error:
            self.note_difference(
                str(error),
                "body of refusal",
                operation=answer.message.operation,
                schema="ErrorResponse",
            )
            return
        how = f"{answer.message}: the body of status {answer.status} has no detail"
        self.expect(
            "detail" in body,
            how,
            "body of refusal",
            operation=answer.message.operation,
            schema="ErrorResponse",
        )

    # -------------------------------------------------------------------------------------- results

    def run(self, request: Request[models.UntypedAPIFuture], kind: type[T]) -> T:
        """Submit a request and return its result."""
        return self.result(self.submit(request, kind))

    def submit(
        self, request: Request[models.UntypedAPIFuture], kind: type[T], **options: Any
    ) -> PendingResult[T]:
        """Submit a request whose result is of this type."""
        return self.accept(request, self.send(request, **options), kind)

    def accept(
        self, request: Request[models.UntypedAPIFuture], answer: ReceivedResponse, kind: type[T]
    ) -> PendingResult[T]:
        """Return the pending result that the response to a submission names."""
        future, body = self.decode_accepted(request, answer), hash(encode_body(request))
        is_own = self.known.submitted.setdefault(future.request_id, body) == body
        how = (
            f"{request.operation} answers {future.request_id!r}, the request_id "
            "of an earlier request"
        )
        self.require(is_own, how, "request_id used twice", request.operation, "UntypedAPIFuture")
        return PendingResult(request, future, kind)

    def result(self, promise: PendingResult[T], *, protobuf: bool = True) -> T:
        """Return the result, waited for until the deadline. Failed when the request failed,
        Contradiction when it does not fit.

        An empty object may be what a server has to say, and is noted.
        """
        answer, operation = self.wait_for_response(promise, protobuf=protobuf), promise.operation
        try:
            found = decoding.result(answer, promise.kind)
        except Contradiction as error:
            how = f"the result of {operation}: {error}"
            raise Contradiction(
                how, cause=error.cause, operation=operation, schema=error.schema
            ) from error
        self._note_anomalies(answer, found, promise.kind)
        is_told = answer.content.strip() != b"{}"
        self.expect(
            is_told,
            f"the result of {operation} is an empty object, which says nothing",
            NO_RESULT,
            operation,
        )
        for cause, how in decoding.find_mismatches(promise.request, found):
            self.require(
                False, f"the result of {operation}: {how}", cause, operation, promise.kind.__name__
            )
        return found

    def wait_for_response(
        self, promise: PendingResult[Any], *, protobuf: bool = True, metadata: bool = False
    ) -> ReceivedResponse:
        """Return the response that holds the result. Failed when the request failed, Contradiction
        when it is lost.
        """
        answer = self._poll_until_done(promise, protobuf=protobuf, metadata=metadata)
        if answer.status >= 300:
            answer = self._ask_again(promise, answer)
        if answer.status < 300:
            self.known.fetched.add(promise.request_id)
            how = f"the result of {promise.operation}: {answer} without a body"
            self.require(bool(answer.content), how, NO_RESULT, promise.operation)
        if _is_failure(answer):
            how = (
                f"a failed request is a poll with status {answer.status}, not a "
                "body with error and category"
            )
            self.note_difference(
                how,
                "failure as status",
                operation="retrieve_future",
                schema="RequestFailedResponse",
            )
            raise Failed(
                f"{promise.operation} fails: {decoding.detail(answer)}",
                None,
                operation=promise.operation,
            )
        self.require(
            answer.status < 300, f"the request {promise.request_id!r} was accepted, and {answer}"
        )
        self.known.statuses.setdefault("retrieve_future", set()).add(answer.status)
        if answer.media_type == proto.MEDIA_TYPE:
            how = f"the result of {promise.operation} comes as protobuf where only JSON is accepted"
            self.require(protobuf, how, "json results", "retrieve_future")
            how = f"the result of {promise.operation} is protobuf, which it never is"
            self.require(decoding.has_two_forms(promise.kind), how)
        elif "error" in _small_object(answer):
            failed = self.decode(answer, models.RequestFailedResponse)
            how = (
                f"{promise.operation} fails: {decoding.first_line(failed.error)} (category "
                f"{failed.category})"
            )
            raise Failed(how, failed.category, operation=promise.operation)
        return answer

    def _ask_again(self, promise: PendingResult[Any], answer: ReceivedResponse) -> ReceivedResponse:
        """Return an error response of a poll. Contradiction where its request has had a result, or
        has one a little later.
        """
        told = f"the result of {promise.operation} was fetched, and fetched again {answer}"
        self.require(
            promise.request_id not in self.known.fetched, told, "fetched once", "retrieve_future"
        )
        for _ in range(_TRIES if answer.status == 404 else 0):
            self.deadline.pause(_LONGEST_PAUSE, f"the result of {promise.operation}")
            self.require(
                self.poll(promise.request_id).status == 404,
                f"{answer}; later it does not",
                *NO_RESULT_YET,
            )
        return answer

    def _poll_until_done(
        self, promise: PendingResult[Any], *, protobuf: bool, metadata: bool
    ) -> ReceivedResponse:
        pause = _FIRST_PAUSE
        allow = protobuf or metadata  # clients of 2025, which know only JSON, know no announcements
        while True:
            try:
                answer = self.poll(promise.request_id, protobuf=protobuf, metadata=allow)
            except Late as error:  # held too long: clients ask again
                self.deadline.remaining(f"the result of {promise.operation}")
                self.note_difference(str(error), "late", "retrieve_future")
                continue
            if is_announced(answer) and not metadata:
                how = (
                    f"the result of {promise.operation} is announced to a client "
                    "that did not allow it"
                )
                self.require(allow, how, "announced", "retrieve_future", "FutureMetadataResponse")
                allow = False
                continue
            if not self.is_pending(answer):
                return answer
            self.deadline.pause(pause, f"the result of {promise.operation}")
            pause = min(2 * pause, _LONGEST_PAUSE)

    def poll(
        self,
        request_id: str,
        *,
        protobuf: bool = True,
        metadata: bool = False,
        seconds: float = math.inf,
    ) -> ReceivedResponse:
        """Send one ``retrieve_future``, and return any response. Late after that many seconds."""
        body = models.FutureRetrieveRequest(request_id=request_id, allow_metadata_only=metadata)
        request = futures_api.retrieve_future(body, expected=object)
        accepts = request.accepts if protobuf else (json.MEDIA_TYPE,)
        return self.send(msgspec.structs.replace(request, accepts=accepts), seconds=seconds)

    def is_pending(self, answer: ReceivedResponse) -> bool:
        """Return whether the response of a poll says that there is no result yet. Contradiction
        where it uses other words.
        """
        if answer.status in statuses.PENDING_STATUSES:
            return True
        body = _small_object(answer)
        is_odd = answer.status == 202 or (
            body.keys() <= _STATE_FIELDS and body.get("status") in _STATES
        )
        self.require(not is_odd, str(answer) + answer.excerpt, *NO_RESULT_YET)
        if answer.status >= 300 or body.get("type") != "try_again":
            return False
        self.decode(answer, models.TryAgainResponse)
        return True

    # ------------------------------------------------------------------------------------ a session

    def base_model(self) -> str:
        """Return the base model of the run: the one that was asked for, else the first that can be
        trained.
        """
        known = self.known
        if known.base_model is None:
            self.need("service.capabilities")
            offered = self.call(service_api.get_server_capabilities()).supported_models
            named = [
                model for model in offered if model.model_name and model.trainable is not False
            ]
            self.require(bool(named), "get_server_capabilities offers no model that can be trained")
            known.base_model = named[0].model_name
        assert known.base_model is not None
        return known.base_model

    def session(self) -> str:
        """Return the check's session: its own, or where sessions cannot be told apart or finished
        the one of all.
        """
        known = self.known
        if self._session_id is None and (known.shared_session or "finish_session" in known.lacking):
            known.shared_session = known.shared_session or self.new_session()
            self._session_id, self._first_number = known.shared_session, known.numbers_used
            known.numbers_used += _NUMBERS_OF_A_CHECK
        self._session_id = self._session_id or self.new_session()
        return self._session_id

    def number(self, number: int) -> int:
        """Return the number of a model or sampler in the check's session, where other checks have
        used some.
        """
        self.session()
        return self._first_number + number

    def new_session(self, **fields: Any) -> str:
        """Create another session as clients do, and return its id."""
        self.need("sessions.begin")
        given: dict[str, Any] = {
            "tags": ["conformance"],
            "user_metadata": {},
            "sdk_version": __version__,
            **fields,
        }
        return self.begin(service_api.create_session(models.CreateSessionRequest(**given)))

    def begin(self, request: Request[models.CreateSessionResponse]) -> str:
        """Send a request that creates a session, keep the session until the check ends, and return
        its id.
        """
        made = self.call(request).session_id
        self.cleanup.sessions += [made] if made != self.known.shared_session else []
        self.connection.heartbeats.keep(made)
        return made

    def finish(self, session_id: str, reason: str = "success") -> None:
        """End a session."""
        body = models.FinishSessionRequest(reason={"type": reason}, detail=None)
        self.call(service_api.finish_session(body, session_id=session_id))
        self.connection.heartbeats.release(session_id)

    def close(self) -> None:
        """Delete what the check has made."""
        seconds = max(_SHUTDOWN_SECONDS, self.known.basis_seconds)
        self.deadline = CheckDeadline(seconds, self.connection.clock)
        for request in self.cleanup.requests():
            if request.operation not in self.known.lacking:
                with suppress(CheckEnd):  # whether cleanup works is the subject of other checks
                    self._clean_up(request)
        # else later checks use the session and its models
        if "finish_session" not in self.known.lacking:
            for session in self.cleanup.sessions:
                self.connection.heartbeats.release(session)

    def _clean_up(self, request: Request[Any]) -> None:
        """Send a request of the cleanup, and note whether the server has the operation.

        A 404 may be about the thing and not about the operation, which exists if it has deleted
        something before. The checkpoint of a save that failed may never have been there.
        """
        try:
            answer = self.send(request)
        except Absent:
            self.known.lacking.add(request.operation)
            return
        lacks = (
            is_without_route(answer)
            if request.operation == "delete_checkpoint"
            else answer.status in _LACKING_STATUSES
        )
        if answer.status < 300:
            self.known.statuses.setdefault(request.operation, set()).add(answer.status)
        elif lacks and request.operation not in self.known.statuses:
            self.known.lacking.add(request.operation)


def _is_failure(answer: ReceivedResponse) -> bool:
    """Return whether the status of a poll tells that the request failed, and not that its result is
    lost.
    """
    explained = (
        answer.status in _MAY_BE_FAILURE
        and "detail" in _small_object(answer)
        and not is_without_route(answer)
    )
    return answer.status in statuses.FAILED_STATUSES or explained


_MAY_BE_FAILURE = frozenset({404, 409, 422})


def is_announced(answer: ReceivedResponse) -> bool:
    """Return whether the response of a poll says only that the result is there, and how large it
    is.
    """
    body = _small_object(answer)  # a result may have a status, too
    return (
        answer.status < 300
        and "status" in body
        and "request_id" in body
        and "response_payload_size" in body
    )


_SMALL_NBYTES = 1 << 16


def _small_object(answer: ReceivedResponse) -> dict[str, Any]:
    """Return a small JSON object; an empty one for everything else."""
    if answer.media_type != json.MEDIA_TYPE or len(answer.content) > _SMALL_NBYTES:
        return {}
    try:
        return json.decode(answer.content, dict[str, Any])
    except ValueError:
        return {}


def is_without_route(answer: ReceivedResponse) -> bool:
    """Return whether it is the address that the server does not know, or its method, and not what
    the request names.
    """
    return answer.status in ABSENT_STATUSES and decoding.detail(answer) in _NO_ROUTE


def encode_body(request: Request[Any]) -> bytes:
    """Return the body of a request as it goes out, not compressed."""
    if isinstance(request.body, Binary):
        return b"".join(request.body.content)
    return b"" if request.body is None else json.encode(request.body)
