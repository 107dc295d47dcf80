"""The session of a check: its requests, the results that it waits for, and what it must delete at its end."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Generic, TypeVar

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import futures as futures_api
from tinker_wire.api import service as service_api
from tinker_wire.runtime import Request

from tinker._http import ABSENT_STATUSES, statuses
from tinker._version import __version__
from tinker._wire import json, proto
from tinker.testing.conformance import decoding
from tinker.testing.conformance.checked_requests import CheckedRequests, encode_body, is_without_route
from tinker.testing.conformance.connection import CheckDeadline, ReceivedResponse
from tinker.testing.conformance.outcome import Absent, CheckEnd, Contradiction, Failed, Late

T = TypeVar("T")

_SHUTDOWN_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
#: How often an accepted request that is answered with 404 is asked for again: some servers mean by it that it is not done.
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


class CheckSession(CheckedRequests):
    """The requests of one check, their results, and the session that they belong to."""

    _session_id: str | None = None
    _first_number: int = 0

    # ------------------------------------------------------------------------------------------------------------- results

    def run(self, request: Request[models.UntypedAPIFuture], kind: type[T]) -> T:
        """Submit a request and return its result."""
        return self.result(self.submit(request, kind))

    def submit(self, request: Request[models.UntypedAPIFuture], kind: type[T], **options: Any) -> PendingResult[T]:
        """Submit a request whose result is of this type."""
        return self.accept(request, self.send(request, **options), kind)

    def accept(self, request: Request[models.UntypedAPIFuture], answer: ReceivedResponse, kind: type[T]) -> PendingResult[T]:
        """Return the pending result that the response to a submission names."""
        future, body = self.decode_accepted(request, answer), hash(encode_body(request))
        is_own = self.known.submitted.setdefault(future.request_id, body) == body
        how = f"{request.operation} answers {future.request_id!r}, the request_id of an earlier request"
        self.require(is_own, how, "request_id used twice", request.operation, "UntypedAPIFuture")
        return PendingResult(request, future, kind)

    def result(self, promise: PendingResult[T], *, protobuf: bool = True) -> T:
        """Return the result, waited for until the deadline. Failed when the request failed, Contradiction when it does not fit.

        An empty object may be what a server has to say, and is noted.
        """
        answer, operation = self.wait_for_response(promise, protobuf=protobuf), promise.operation
        try:
            found = decoding.result(answer, promise.kind)
        except Contradiction as error:
            how = f"the result of {operation}: {error}"
            raise Contradiction(how, cause=error.cause, operation=operation, schema=error.schema) from error
        self._note_anomalies(answer, found, promise.kind)
        is_told = answer.content.strip() != b"{}"
        self.expect(is_told, f"the result of {operation} is an empty object, which says nothing", NO_RESULT, operation)
        for cause, how in decoding.find_mismatches(promise.request, found):
            self.require(False, f"the result of {operation}: {how}", cause, operation, promise.kind.__name__)
        return found

    def wait_for_response(
        self, promise: PendingResult[Any], *, protobuf: bool = True, metadata: bool = False
    ) -> ReceivedResponse:
        """Return the response that holds the result. Failed when the request failed, Contradiction when it is lost."""
        answer = self._poll_until_done(promise, protobuf=protobuf, metadata=metadata)
        if answer.status >= 300:
            answer = self._ask_again(promise, answer)
        if answer.status < 300:
            self.known.fetched.add(promise.request_id)
            how = f"the result of {promise.operation}: {answer} without a body"
            self.require(bool(answer.content), how, NO_RESULT, promise.operation)
        if _is_failure(answer):
            how = f"a failed request is a poll with status {answer.status}, not a body with error and category"
            self.note_difference(how, "failure as status", operation="retrieve_future", schema="RequestFailedResponse")
            raise Failed(f"{promise.operation} fails: {decoding.detail(answer)}", None, operation=promise.operation)
        self.require(answer.status < 300, f"the request {promise.request_id!r} was accepted, and {answer}")
        self.known.statuses.setdefault("retrieve_future", set()).add(answer.status)
        if answer.media_type == proto.MEDIA_TYPE:
            how = f"the result of {promise.operation} comes as protobuf where only JSON is accepted"
            self.require(protobuf, how, "json results", "retrieve_future")
            how = f"the result of {promise.operation} is protobuf, which it never is"
            self.require(decoding.has_two_forms(promise.kind), how)
        elif "error" in _small_object(answer):
            failed = self.decode(answer, models.RequestFailedResponse)
            how = f"{promise.operation} fails: {decoding.first_line(failed.error)} (category {failed.category})"
            raise Failed(how, failed.category, operation=promise.operation)
        return answer

    def _ask_again(self, promise: PendingResult[Any], answer: ReceivedResponse) -> ReceivedResponse:
        """Return an error response of a poll. Contradiction where its request has had a result, or has one a little later."""
        told = f"the result of {promise.operation} was fetched, and fetched again {answer}"
        self.require(promise.request_id not in self.known.fetched, told, "fetched once", "retrieve_future")
        for _ in range(_TRIES if answer.status == 404 else 0):
            self.deadline.pause(_LONGEST_PAUSE, f"the result of {promise.operation}")
            self.require(self.poll(promise.request_id).status == 404, f"{answer}; later it does not", *NO_RESULT_YET)
        return answer

    def _poll_until_done(self, promise: PendingResult[Any], *, protobuf: bool, metadata: bool) -> ReceivedResponse:
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
                how = f"the result of {promise.operation} is announced to a client that did not allow it"
                self.require(allow, how, "announced", "retrieve_future", "FutureMetadataResponse")
                allow = False
                continue
            if not self.is_pending(answer):
                return answer
            self.deadline.pause(pause, f"the result of {promise.operation}")
            pause = min(2 * pause, _LONGEST_PAUSE)

    def poll(
        self, request_id: str, *, protobuf: bool = True, metadata: bool = False, seconds: float = math.inf
    ) -> ReceivedResponse:
        """Send one ``retrieve_future``, and return any response. Late after that many seconds."""
        body = models.FutureRetrieveRequest(request_id=request_id, allow_metadata_only=metadata)
        request = futures_api.retrieve_future(body, expected=object)
        accepts = request.accepts if protobuf else (json.MEDIA_TYPE,)
        return self.send(msgspec.structs.replace(request, accepts=accepts), seconds=seconds)

    def is_pending(self, answer: ReceivedResponse) -> bool:
        """Return whether the response of a poll says that there is no result yet. Contradiction where it uses other words."""
        if answer.status in statuses.PENDING_STATUSES:
            return True
        body = _small_object(answer)
        is_odd = answer.status == 202 or (body.keys() <= _STATE_FIELDS and body.get("status") in _STATES)
        self.require(not is_odd, str(answer) + answer.excerpt, *NO_RESULT_YET)
        if answer.status >= 300 or body.get("type") != "try_again":
            return False
        self.decode(answer, models.TryAgainResponse)
        return True

    # ------------------------------------------------------------------------------------------------------------ a session

    def base_model(self) -> str:
        """Return the base model of the run: the one that was asked for, else the first that can be trained."""
        known = self.known
        if known.base_model is None:
            self.need("service.capabilities")
            offered = self.call(service_api.get_server_capabilities()).supported_models
            named = [model for model in offered if model.model_name and model.trainable is not False]
            self.require(bool(named), "get_server_capabilities offers no model that can be trained")
            known.base_model = named[0].model_name
        assert known.base_model is not None
        return known.base_model

    def session(self) -> str:
        """Return the check's session: its own, or where sessions cannot be told apart or finished the one of all."""
        known = self.known
        if self._session_id is None and (known.shared_session or "finish_session" in known.lacking):
            known.shared_session = known.shared_session or self.new_session()
            self._session_id, self._first_number = known.shared_session, known.numbers_used
            known.numbers_used += _NUMBERS_OF_A_CHECK
        self._session_id = self._session_id or self.new_session()
        return self._session_id

    def number(self, number: int) -> int:
        """Return the number of a model or sampler in the check's session, where other checks have used some."""
        self.session()
        return self._first_number + number

    def new_session(self, **fields: Any) -> str:
        """Create another session as clients do, and return its id."""
        self.need("sessions.begin")
        given: dict[str, Any] = {"tags": ["conformance"], "user_metadata": {}, "sdk_version": __version__, **fields}
        return self.begin(service_api.create_session(models.CreateSessionRequest(**given)))

    def begin(self, request: Request[models.CreateSessionResponse]) -> str:
        """Send a request that creates a session, keep the session until the check ends, and return its id."""
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
        self.deadline: CheckDeadline = CheckDeadline(seconds, self.connection.clock)
        for request in self.cleanup.requests():
            if request.operation not in self.known.lacking:
                with suppress(CheckEnd):  # whether cleanup works is the subject of other checks
                    self._clean_up(request)
        if "finish_session" not in self.known.lacking:  # else later checks use the session and its models
            for session in self.cleanup.sessions:
                self.connection.heartbeats.release(session)

    def _clean_up(self, request: Request[Any]) -> None:
        """Send a request of the cleanup, and note whether the server has the operation.

        A 404 may be about the thing and not about the operation, which exists if it has deleted something before. The
        checkpoint of a save that failed may never have been there.
        """
        try:
            answer = self.send(request)
        except Absent:
            self.known.lacking.add(request.operation)
            return
        lacks = is_without_route(answer) if request.operation == "delete_checkpoint" else answer.status in _LACKING_STATUSES
        if answer.status < 300:
            self.known.statuses.setdefault(request.operation, set()).add(answer.status)
        elif lacks and request.operation not in self.known.statuses:
            self.known.lacking.add(request.operation)


def _is_failure(answer: ReceivedResponse) -> bool:
    """Return whether the status of a poll tells that the request failed, and not that its result is lost."""
    explained = answer.status in _MAY_BE_FAILURE and "detail" in _small_object(answer) and not is_without_route(answer)
    return answer.status in statuses.FAILED_STATUSES or explained


_MAY_BE_FAILURE = frozenset({404, 409, 422})


def is_announced(answer: ReceivedResponse) -> bool:
    """Return whether the response of a poll says only that the result is there, and how large it is."""
    body = _small_object(answer)  # a result may have a status, too
    return answer.status < 300 and "status" in body and "request_id" in body and "response_payload_size" in body


_SMALL_NBYTES = 1 << 16


def _small_object(answer: ReceivedResponse) -> dict[str, Any]:
    """Return a small JSON object; an empty one for everything else."""
    if answer.media_type != json.MEDIA_TYPE or len(answer.content) > _SMALL_NBYTES:
        return {}
    try:
        return json.decode(answer.content, dict[str, Any])
    except ValueError:
        return {}
