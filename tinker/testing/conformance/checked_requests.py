"""Requests of the contract and their answers, read strictly; what is not as the document says is noted, and blocks others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Request

from tinker._http import ABSENT_STATUSES, statuses
from tinker._wire import json
from tinker.testing.conformance import decoding
from tinker.testing.conformance.connection import CheckDeadline, Connection, ReceivedResponse, SentRequest
from tinker.testing.conformance.outcome import Absent, Blocked, Contradiction, Crash, Observation, Refused
from tinker.testing.conformance.run_state import Cleanup, ServerKnowledge

T = TypeVar("T")

_TOO_EARLY = 425
#: What web frameworks say of an address that they do not have, or not under this method.
_NO_ROUTE = frozenset({"Not Found", "Method Not Allowed", "nothing"})
_WITH_STATUS = (models.HealthResponse, models.TelemetryResponse)
#: Refusals by a server whose user may not do this.
_FORBIDDEN = frozenset({401, 402, 403})


class CheckedRequests:
    """Requests of one check and their answers. ``observations`` is what it has found that is not as the document says.

    ``check`` is the name of the check, ``cleanup`` what it has made and must delete.
    """

    def __init__(self, connection: Connection, deadline: CheckDeadline, *, check: str = "", core: bool = False) -> None:
        self.connection = connection
        self.known: ServerKnowledge = connection.known
        self.deadline: CheckDeadline = deadline
        self.observations: list[Observation] = []
        self.cleanup: Cleanup = Cleanup()
        self.check: str = check
        self._core = core

    # ------------------------------------------------------------------------------------------------------------ findings

    def note(self, observation: Observation) -> None:
        """Note that something is not as the document says, and continue."""
        if observation.text not in [one.text for one in self.observations]:
            self.observations.append(observation)

    def note_difference(self, how: str, cause: str = "", operation: str = "", schema: str = "") -> None:
        """Report a difference, with its cause if other checks may find it too, its operation and its schema."""
        self.note(Observation(how, cause, operation=operation, schema=schema))

    def expect(self, holds: bool, how: str, cause: str = "", operation: str = "", schema: str = "") -> None:
        """Note ``how`` unless it holds."""
        if not holds:
            self.note_difference(how, cause, operation, schema)

    def need(self, *checks: str) -> None:
        """Raise Blocked if a check that this one depends on is known to fail."""
        for check in self.known.broken.keys() & set(checks) - {self.check}:
            by, how = self.known.broken[check]
            raise Blocked(how, by)

    def require(self, holds: bool, how: str, cause: str = "", operation: str = "", schema: str = "") -> None:
        """Raise Contradiction unless it holds."""
        if not holds:
            raise Contradiction(how, cause=cause, operation=operation, schema=schema)

    # ------------------------------------------------------------------------------------------------------------ exchanges

    def send(
        self,
        request: Request[Any],
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = "",
        seconds: float = math.inf,
    ) -> ReceivedResponse:
        """Return the response of any status below 500. ``content`` replaces the body, ``key`` the credential (None: none)."""
        given: dict[str, str] = {"Accept": ", ".join(request.accepts), **request.headers}
        if request.method != "GET":
            given["Content-Type"] = request.body.media_type if isinstance(request.body, Binary) else json.MEDIA_TYPE
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
        """Return whether fields that say nothing new are refused: noted, and left out from now on, as clients do."""
        if answer.status < 400 or not isinstance(request.body, msgspec.Struct):
            return False
        if not self.known.refused.learn(request.operation, request.body, answer.content):
            return False
        how = f"{request.operation} answers {answer.status} to fields at their default: {decoding.detail(answer)}"
        self.note_difference(how, "unknown fields", request.operation, type(request.body).__name__)
        return True

    def _without_refused(self, request: Request[T]) -> Request[T]:
        body = request.body
        if not isinstance(body, msgspec.Struct):
            return request
        return msgspec.structs.replace(request, body=self.known.refused.without(request.operation, body))

    def call(self, request: Request[T], **options: Any) -> T:
        """Return the typed answer of a request that must be accepted; Absent without such an operation, Refused otherwise."""
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
            how = f"{operation} answers {answer.status} to {answer.message}: {decoding.detail(answer)}"
            raise Contradiction(how, cause="missing operation", operation=operation)
        may_be_absent = answer.status in _FORBIDDEN or (answer.status in ABSENT_STATUSES and not is_required)
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
            self.expect(b'"status"' in answer.content, how, f"misfit: {kind.__name__}: {how}", operation, kind.__name__)
        for cause, anomaly in decoding.anomalies(found):
            self.note_difference(f"{operation}: {anomaly}", cause, operation=operation, schema=kind.__name__)
        return found

    def expect_refusal(
        self, request: Request[Any], *statuses: int, cause: str = "", about: str = "", **options: Any
    ) -> ReceivedResponse:
        """Return the response to a request that must be refused with one of these statuses. Contradiction when it is not.

        ``cause`` is the one of a request that is not refused, ``about`` what is wrong with it.
        """
        wanted, operation = " or ".join(map(str, statuses)), request.operation
        due = f"where it must refuse {about} with {wanted}" if about else f"where it must refuse with {wanted}"
        try:
            answer = self.send(request, **options)
        except Crash as error:
            kind = cause or ("unknown ids" if 404 in statuses else "crash for refusal")
            raise Crash(f"{error}, {due}", cause=kind, operation=operation) from error
        if OPERATIONS[operation].optional and is_without_route(answer) and 404 not in statuses:
            raise Absent(str(answer), operation=operation)
        self.require(answer.status >= 400, f"{answer.message}: answers {answer.status} {due}", cause, operation)
        how = f"{answer.message}: refuses with {answer.status} instead of {wanted}"
        self.expect(answer.status in statuses, how, "statuses", operation=operation)
        self._check_refusal(answer)
        return answer

    def _check_refusal(self, answer: ReceivedResponse) -> None:
        """Note a refusal without a JSON body that has ``detail``. Proxies may send others, servers should not."""
        try:
            body = decoding.record(answer, dict[str, Any])
        except Contradiction as error:
            self.note_difference(str(error), "body of refusal", operation=answer.message.operation, schema="ErrorResponse")
            return
        how = f"{answer.message}: the body of status {answer.status} has no detail"
        self.expect("detail" in body, how, "body of refusal", operation=answer.message.operation, schema="ErrorResponse")


def is_without_route(answer: ReceivedResponse) -> bool:
    """Return whether it is the address that the server does not know, or its method, and not what the request names."""
    return answer.status in ABSENT_STATUSES and decoding.detail(answer) in _NO_ROUTE


def encode_body(request: Request[Any]) -> bytes:
    """Return the body of a request as it goes out, not compressed."""
    if isinstance(request.body, Binary):
        return b"".join(request.body.content)
    return b"" if request.body is None else json.encode(request.body)
