"""What one check works with: its session, models and samplers, and the data that it sends."""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from tinker_wire import models, runs
from tinker_wire.api import futures as futures_api
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Request

from tinker._http import retry
from tinker._http.retry import ABSENT_STATUSES
from tinker._version import __version__
from tinker._wire import json, proto
from tinker.testing.conformance import connection as decoding
from tinker.testing.conformance import outcome
from tinker.testing.conformance.connection import (
    BodyFormat,
    CheckDeadline,
    Connection,
    ReceivedResponse,
    ServerKnowledge,
)
from tinker.testing.conformance.outcome import Absent, Contradiction, Failed, Observation, Refused
from tinker.types.model_input import Datum, ModelInput
from tinker.types.results import ForwardBackwardOutput, SampleResponse

Floats: TypeAlias = NDArray[np.float64]

ADAM = models.AdamParams(learning_rate=0.01)
#: The adapter of a model that is created without another one. Adapters with the same seed begin
#: equal.
LORA = models.LoraConfig(rank=8, seed=11)
#: The prompt of every sample.
PROMPT = (5, 6, 7, 8)


def read_body(name: str) -> dict[str, Any]:
    """Return a body of `bodies.json`, which lacks the ids."""
    content = files("tinker.testing.conformance").joinpath("bodies.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, dict[str, Any]])[name]


def datum(
    tokens: Sequence[int] = (5, 6, 7, 8), targets: Sequence[int] | None = None, **inputs: Any
) -> Datum:
    """Return a datum whose target at each position is the next token, unless ``targets`` are given.

    As in the data of most programs, each token has the weight 1.0; other ``inputs`` replace the
    weights.
    """
    wanted = [*tokens[1:], tokens[0]] if targets is None else list(targets)
    return Datum(
        ModelInput.from_ints(list(tokens)),
        {"target_tokens": wanted, **(inputs or {"weights": [1.0] * len(wanted)})},
    )


def without_weight(one: Datum) -> Datum:
    """Return the datum with weights of 0, whose gradient is zero."""
    return attrs.evolve(
        one, loss_fn_inputs={**one.loss_fn_inputs, "weights": [0.0] * one.model_input.length}
    )


ONE, OTHER = datum((5, 6, 7, 8)), datum((9, 10, 11))
DATA = (ONE, OTHER)
PROMPT_DATUM = datum(PROMPT[:-1], PROMPT[1:])


def logprobs_of(
    output: ForwardBackwardOutput, data: Sequence[Datum] = DATA, operation: str = "forward_backward"
) -> Floats:
    """Return the ``logprobs`` of a result in one row. Contradiction unless there is a finite one
    for each target.
    """
    about = (operation, "ForwardBackwardOutput")
    rows: list[Floats] = []
    for fields in output.loss_fn_outputs:
        if "logprobs" not in fields:
            raise Absent(f"loss_fn_outputs hold {', '.join(fields) or 'nothing'}, but no logprobs")
        rows.append(np.asarray(fields["logprobs"].to_numpy(), np.float64).reshape(-1))
    found, wanted = (
        [len(row) for row in rows],
        [one.loss_fn_inputs["target_tokens"].to_numpy().size for one in data],
    )
    if found != wanted:
        is_other_order, is_wide = (
            sorted(found) == sorted(wanted),
            found == [2 * count for count in wanted],
        )
        cause = (
            "order of outputs"
            if is_other_order
            else decoding.WIDTH
            if is_wide
            else decoding.MISCOUNT
        )
        raise Contradiction(f"for {wanted} targets there are {found} logprobs", cause, *about)
    joined = np.concatenate(rows)
    if not np.isfinite(joined).all() or (joined > 1e-3).any():
        told = f"log-probabilities are finite and not positive, these are not: {joined.tolist()}"
        raise Contradiction(told, "" if np.isfinite(joined).all() else decoding.WIDTH, *about)
    return joined


def distance(one: Floats, other: Floats) -> float:
    """Return the largest difference."""
    return float(np.max(np.abs(one - other)))


def effect(before: Floats, after: Floats) -> float:
    """Return how far training moved the logprobs. Contradiction if a gradient and a step moved
    nothing.
    """
    moved = distance(before, after)
    if moved < 1e-5:
        told = "a loss with a gradient and a step with a rate changed nothing: the step is lost"
        raise Contradiction(told, cause="lost step", operation="optim_step")
    return moved


def are_near(one: Floats, other: Floats, moved: float) -> bool:
    """Return whether a model equals the one that was saved and loaded; saves may be rounded to half
    precision.
    """
    return distance(one, other) <= min(0.25 * moved + 0.05, 0.5 * moved) + 1e-5


def are_alike(one: Floats, other: Floats, moved: float) -> bool:
    """Return whether two results of training that moved them by ``moved`` are equal, but for
    rounding.
    """
    return distance(one, other) <= 0.05 * moved + 1e-5


def are_close(one: float, other: float) -> bool:
    """Return whether two losses are equal, but for rounding."""
    return abs(one - other) <= 1e-3 * (1 + abs(one))


def in_utc(time: datetime.datetime) -> datetime.datetime:
    """Return a time that may lack its zone, which is told elsewhere."""
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


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


class CheckContext:
    """What one check works with: its session, requests and results, the models and samplers that
    it makes.

    ``observations`` is what it has found that is not as the document says, ``check`` is the name of
    the check, ``cleanup`` what it has made and must delete.
    """

    _session_id: str | None = None
    _first_number: int = 0
    _lent: TrainingFixture | None = None
    _made: tuple[TrainingFixture, ...] = ()

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
        self.cleanup: decoding.Cleanup = decoding.Cleanup()
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
            raise outcome.Blocked(how, by)

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
            message = decoding.SentRequest(
                request.method, path, credential, given, body, request.operation
            )
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
        if retry.is_success(answer.status):
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
        except outcome.Crash as error:
            kind = cause or ("unknown ids" if 404 in statuses else "crash for refusal")
            raise outcome.Crash(f"{error}, {due}", cause=kind, operation=operation) from error
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
        about = ("body of refusal", answer.message.operation, "ErrorResponse")
        try:
            body = decoding.record(answer, dict[str, Any])
        except Contradiction as error:
            self.note_difference(str(error), *about)
            return
        how = f"{answer.message}: the body of status {answer.status} has no detail"
        self.expect("detail" in body, how, *about)

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
            except outcome.Late as error:  # held too long: clients ask again
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
        if answer.status in retry.PENDING_STATUSES:
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
        """Return the check's session: its own, or a shared one, if the server cannot tell sessions
        apart or finish them.
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

    def close(self, *, at_end: bool = True) -> None:
        """Delete what the check has made. If it came to its end, another check may use the model
        that it borrowed.
        """
        if self._lent is not None and at_end:
            self.known.spare = (self._lent.model_id, self._lent.number)
        for fixture in [
            one
            for one in self._made
            if self.known.leaves_gradients and one.model_id in self.cleanup.models
        ]:
            # a step that changes nothing, and leaves no gradient to the models of other checks
            with suppress(outcome.CheckEnd):
                self.result(fixture.step(models.AdamParams(learning_rate=0.0)))
        seconds = max(_SHUTDOWN_SECONDS, self.known.basis_seconds)
        self.deadline = CheckDeadline(seconds, self.connection.clock)
        for request in self.cleanup.requests():
            if request.operation not in self.known.lacking:
                with suppress(
                    outcome.CheckEnd
                ):  # whether cleanup works is the subject of other checks
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

    # --------------------------------------------------------------------------------------- models

    def creation(self, number: int = 0, **fields: Any) -> Request[models.UntypedAPIFuture]:
        """Return the request that creates model ``number`` of the check's session."""
        given: dict[str, Any] = {
            "base_model": self.base_model(),
            "lora_config": LORA,
            "session_id": self.session(),
            "model_seq_id": self.number(number),
            **fields,
        }
        return training_api.create_model(models.CreateModelRequest(**given))

    def create(self, number: int = 0, **fields: Any) -> TrainingFixture:
        """Create a model."""
        self.need("training.model")
        return self.adopt(
            self.run(self.creation(number, **fields), models.CreateModelResponse).model_id
        )

    def borrow(self) -> TrainingFixture:
        """Return a model for losses, without steps: a new one, or where neither models nor sessions
        end one for many checks.
        """
        spare, self.known.spare = self.known.spare, None
        if not self.known.lacking >= {"unload_model", "finish_session"}:
            return self.create()
        self._lent = self.create() if spare is None else TrainingFixture(self, *spare)
        return self._lent

    def adopt(self, model_id: str) -> TrainingFixture:
        """Return a model that the check has made, and must unload."""
        self.cleanup.models.append(model_id)
        self._made += (TrainingFixture(self, model_id),)
        return self._made[-1]

    def note_leftover_gradient(self, moved: float) -> None:
        """Report that the first step of a new model has moved its logprobs. Later checks step
        before they unload a model.
        """
        self.known.leaves_gradients = True
        how = (
            "the first step of a new model uses the gradient of an unloaded one: "
            f"its logprobs move by {moved:g}"
        )
        self.note(
            Observation(how, "leftover gradient", outcome.Outcome.CONTRADICTION, "unload_model")
        )

    # ---------------------------------------------------------------------------------------- steps

    def measure(self, number: int, script: TrainingScript) -> tuple[Floats, Floats]:
        """Return the logprobs of the data before and after what ``script`` does with a new model.

        Those of two models can be compared where adapters of equal seed begin equal, which
        ``training.seed`` is about.
        """
        self.need("training.forward_only")
        fixture = self.create(number)
        before = fixture.logprobs()
        script(fixture)
        return before, fixture.logprobs()

    def gradient_params(self, **fields: float) -> models.AdamParams:
        """Return the parameters of a step as long as the gradient: gradients that count twice, or
        not, show.

        Adam's usual step has one length. The rate is found once for a server, so that one step
        moves the logprobs visibly and not too far.
        """
        if self.known.rate is None:
            try:
                self.known.rate = self._calibrate()
            except (Refused, Failed):
                if self.known.eps == _LARGEST_EPS:
                    raise
                self.known.eps = _LARGEST_EPS
                self.known.rate = self._calibrate()
        return self._descent(self.known.rate, **fields)

    def _descent(self, rate: float, **fields: float) -> models.AdamParams:
        eps = self.known.eps
        usual = {"learning_rate": rate * eps, "beta1": 0.0, "beta2": 0.0, "eps": eps}
        return models.AdamParams(**{**usual, **fields})

    def _calibrate(self) -> float:
        rate = 1e-3
        first = 0 if self.known.eps > _LARGEST_EPS else len(_CALIBRATION_MODELS)
        for number in _CALIBRATION_MODELS:
            params = self._descent(rate)
            moved = distance(
                *self.measure(first + number, partial(TrainingFixture.learn, params=params))
            )
            if moved == 0.0 or 0.1 <= moved <= 1.0:
                break
            rate *= min(max(0.3 / moved, 1e-2), 1e2)
        return rate

    def loss_of(self, output: ForwardBackwardOutput) -> float:
        """Return the loss of a result. Differs when the server sends none; another name than the
        document's is noted.
        """
        about = ("name of the loss", "forward_backward", "ForwardBackwardOutput")
        for name in _LOSSES:
            if name in output.metrics:
                how = f"the loss is the metric {name}, not {_LOSSES[0]}, which custom losses need"
                self.expect(name == _LOSSES[0], how, *about)
                return output.metrics[name]
        raise outcome.Differs(
            f"the metrics are {', '.join(sorted(output.metrics)) or 'none'}, not {_LOSSES[0]}",
            *about,
        )

    # -------------------------------------------------------------------------------------- samples

    def sampler(self, number: int = 0, *, model_path: str | None = None) -> SamplingFixture:
        """Create a sampling session on the base model, or on saved weights."""
        self.need("sampling.session")
        body = models.CreateSamplingSessionRequest(
            session_id=self.session(),
            sampling_session_seq_id=self.number(number),
            base_model=self.base_model() if model_path is None else None,
            model_path=model_path,
        )
        return SamplingFixture(
            self, self.call(sampling_api.create_sampling_session(body)).sampling_session_id
        )

    def prompt_scores(self, found: Sequence[float | None] | None) -> Sequence[float | None]:
        """Return the logprobs of the tokens of ``PROMPT``. Contradiction unless there is one for
        each.
        """
        self.need("sampling.prompt_logprobs")
        about = ("prompt logprobs", "asample", "SampleResponse")
        scores, count = list(found or ()), "none" if found is None else len(found)
        how = (
            f"the prompt has {len(PROMPT)} tokens and {count} logprobs; there is one for each, "
            "null for the first"
        )
        self.require(len(scores) == len(PROMPT), how, *about)
        self.require(
            scores[0] is None, f"the first logprob is {scores[0]}, and nothing is before it", *about
        )
        return scores


def _is_failure(answer: ReceivedResponse) -> bool:
    """Return whether the status of a poll tells that the request failed, and not that its result is
    lost.
    """
    explained = (
        answer.status in _MAY_BE_FAILURE
        and "detail" in _small_object(answer)
        and not is_without_route(answer)
    )
    return answer.status in retry.FAILED_STATUSES or explained


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


TrainingScript: TypeAlias = "Callable[[TrainingFixture], None]"

_UNREADABLE = frozenset({400, 404, 406, 415, 422})
#: With an `eps` far above the gradient, and without momentum, Adam's step is the gradient times
#: `learning_rate / eps`. Some servers take none above 1.
_LARGEST_EPS = 1.0
#: What the loss of a request is called, and what another server calls it.
_LOSSES = ("loss:sum", "total_loss:sum")
_CALIBRATION_MODELS = range(900, 905)
_PARAMS = frozenset(models.SamplingParams.__struct_fields__)


def fresh_name() -> str:
    """Return a name that no checkpoint has."""
    return f"conformance-{uuid.uuid4().hex[:8]}"


class TrainingFixture:
    """One model. Requests take the next number unless one is given."""

    def __init__(self, context: CheckContext, model_id: str, number: int = 1) -> None:
        self.context = context
        self.model_id = model_id
        self.number: int = number

    def _take_number(self, number: int | None) -> int:
        if number is not None:
            return number
        self.number += 1
        return self.number - 1

    # --------------------------------------------------------------------------------------- losses

    def loss(
        self,
        data: Sequence[Datum] = DATA,
        loss_fn: str = "cross_entropy",
        config: Mapping[str, float | str] | None = None,
        *,
        backward: bool = True,
        number: int | None = None,
        form: BodyFormat | None = None,
        **options: Any,
    ) -> PendingResult[ForwardBackwardOutput]:
        """Submit a loss, in the form that the server takes unless one is given."""
        self.context.need("training.loss")
        at = self._take_number(number)
        request = partial(
            self.request, data=data, loss_fn=loss_fn, config=config, number=at, backward=backward
        )
        chosen = form or self.context.known.form
        if chosen is None:
            return self._find_form(request, **options)
        return self.context.submit(request(chosen), ForwardBackwardOutput, **options)

    def _find_form(
        self, request: Callable[[BodyFormat], Request[models.UntypedAPIFuture]], **options: Any
    ) -> PendingResult[ForwardBackwardOutput]:
        """Send a loss in the form that the server takes: protobuf, as current clients send it, else
        JSON.
        """
        context, known = self.context, self.context.known
        known.form = "proto"
        try:
            answer = context.send(request("proto"), **options)
        except Contradiction:
            # some servers fail over a body that they cannot read; `wires.protobuf` is about that
            answer = None
        if answer is None or answer.status in _UNREADABLE:
            known.form = "json"
            answer = context.send(request("json"), **options)
        return context.accept(request(known.form), answer, ForwardBackwardOutput)

    def request(
        self,
        form: BodyFormat,
        data: Sequence[Datum] = DATA,
        loss_fn: str = "cross_entropy",
        config: Mapping[str, float | str] | None = None,
        number: int = 1,
        *,
        backward: bool = True,
    ) -> Request[models.UntypedAPIFuture]:
        """Return the request of a loss in one of its forms."""
        if form == "proto":
            parts = proto.encode_forward_backward(
                self.model_id, number, data, loss_fn, config or {}, forward_only=not backward
            )
            return training_api.forward_backward(Binary(proto.MEDIA_TYPE, parts))
        what = models.ForwardBackwardInput(
            data=json.wire_data(data),
            loss_fn=loss_fn,
            loss_fn_config=None if config is None else dict(config),
        )
        chosen = (
            runs.forward_backward(forward_backward_input=what)
            if backward
            else runs.forward(forward_input=what)
        )
        return chosen.fill(self.model_id, number, None)

    def output(self, *args: Any, **options: Any) -> ForwardBackwardOutput:
        """Return the result of :meth:`loss` with the same arguments."""
        return self.context.result(self.loss(*args, **options))

    def logprobs(self, data: Sequence[Datum] = DATA) -> Floats:
        """Return the log-probability of each target of the data, in one row; computed without a
        gradient.

        With a gradient of zeros if the server has no forward pass, which is noted once.
        """
        lacking, number = self.context.known.lacking, self.number
        if "forward" not in lacking:
            try:
                output = self.output(data, backward=False)
                return logprobs_of(
                    output,
                    data,
                    "forward" if self.context.known.form == "json" else "forward_backward",
                )
            except Absent as error:
                lacking.add("forward")
                how = f"losses are read only as JSON, and {error}"
                self.context.note(
                    Observation(how, "no forward pass", outcome.Outcome.CONTRADICTION, "forward")
                )
                self.number = number
        return logprobs_of(self.output([without_weight(one) for one in data]), data)

    # ---------------------------------------------------------------------------------------- steps

    def step(
        self, params: models.AdamParams | None = None, *, number: int | None = None, **options: Any
    ) -> PendingResult[models.OptimStepResponse]:
        """Submit an optimizer step; without parameters one that is as long as the gradient."""
        self.context.need("training.step")
        chosen = params or self.context.gradient_params()
        return self.submit(runs.optim_step(adam_params=chosen), number, **options)

    def submit(
        self, request: runs.RunRequest[T], number: int | None = None, **options: Any
    ) -> PendingResult[T]:
        """Submit a request of the model."""
        filled = request.fill(self.model_id, self._take_number(number), None)
        return self.context.submit(filled, request.result.record, **options)

    def step_without_gradient(self) -> None:
        """Take a step that has nothing to apply; a refusal is noted, and leaves the
        model as it is.
        """
        try:
            self.context.result(self.step())
        except (Failed, Refused) as error:
            self.context.note_difference(
                f"a step without a gradient is refused: {error}",
                "step without a gradient",
                "optim_step",
            )

    def learn(self, data: Sequence[Datum] = DATA, params: models.AdamParams | None = None) -> None:
        """Compute a loss and take a step, and wait for both."""
        self.context.result(self.loss(data))
        self.context.result(self.step(params))

    # ---------------------------------------------------------------------------------------- saves

    def save(self, name: str, **fields: Any) -> PendingResult[models.SaveWeightsResponse]:
        """Submit a save to train on."""
        self.context.need("weights.save")
        self.context.cleanup.add(f"tinker://{self.model_id}/weights/{name}")
        return self.submit(runs.save_weights(path=name, **fields))

    def save_and_wait(self, name: str | None = None, **fields: Any) -> str:
        """Return the path of a finished save, under a new name unless one is given."""
        return self.context.cleanup.add(
            self.context.result(self.save(name or fresh_name(), **fields)).path
        )

    def save_for_sampler(self, **fields: Any) -> models.SaveWeightsForSamplerResponseInternal:
        """Return a finished save to sample from: with ``path`` under a name, with
        ``sampling_session_seq_id`` as a session.
        """
        if path := fields.get("path"):
            self.context.cleanup.add(f"tinker://{self.model_id}/sampler_weights/{path}")
        saved = self.context.result(self.submit(runs.save_weights_for_sampler(**fields)))
        wanted, found = (
            ("path", saved.path) if path else ("sampling_session_id", saved.sampling_session_id)
        )
        told = f"the result of save_weights_for_sampler has no `{wanted}`"
        self.context.require(found is not None, told, NO_RESULT, "save_weights_for_sampler")
        self.context.cleanup.checkpoints += [saved.path] if saved.path else []
        return saved

    def export(self) -> str:
        """Return the path of weights that are saved as files. Absent when the server does not do
        that.
        """
        name = fresh_name()
        path = self.context.cleanup.add(f"tinker://{self.model_id}/external_weights/{name}")
        with outcome.optional():
            saved = self.context.result(self.submit(runs.save_weights_external(path=name)))
        return self.context.cleanup.add(saved.path or path)

    def load(
        self, path: str, *, optimizer: bool = False
    ) -> PendingResult[models.LoadWeightsResponse]:
        """Submit a load as the first request of the model."""
        self.number = 2
        return self.submit(runs.load_weights(path=path, optimizer=optimizer), 1)

    def unload(self) -> models.UnloadModelResponse:
        """Unload the model, which needs no cleanup then."""
        found = self.context.result(self.submit(runs.unload_model(), 0))
        self.context.cleanup.models.remove(self.model_id)
        return found


class SamplingFixture:
    """One sampling session. Requests take the next number unless one is given."""

    def __init__(self, context: CheckContext, sampling_session_id: str) -> None:
        self.context = context
        self.sampling_session_id = sampling_session_id
        self.number: int = 0

    def body(
        self, prompt: Sequence[int] = PROMPT, *, number: int | None = None, **fields: Any
    ) -> models.SampleRequest:
        """Return a request; ``fields`` may be those of the request and those of its sampling
        parameters.
        """
        if number is None:
            number, self.number = self.number, self.number + 1
        params: dict[str, Any] = {
            "max_tokens": 5,
            "stop": [],
            **{name: fields.pop(name) for name in _PARAMS & fields.keys()},
        }
        return models.SampleRequest(
            prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(prompt))]),
            sampling_params=models.SamplingParams(**params),
            sampling_session_id=self.sampling_session_id,
            seq_id=number,
            **fields,
        )

    def submit(self, *args: Any, **fields: Any) -> PendingResult[SampleResponse]:
        """Submit the request of :meth:`body` with the same arguments."""
        self.context.need("sampling.sample")
        request = sampling_api.asample(
            self.body(*args, **fields), x_tinker_sampling_backpressure="1"
        )
        return self.context.submit(request, SampleResponse)

    def sample(self, *args: Any, **fields: Any) -> SampleResponse:
        """Return the result of :meth:`submit`."""
        return self.context.result(self.submit(*args, **fields))

    def scores(self) -> Floats:
        """Return the logprobs of the prompt after its first token."""
        found = self.context.prompt_scores(
            self.sample(prompt_logprobs=True, max_tokens=1).prompt_logprobs
        )
        return np.array([0.0 if value is None else value for value in found[1:]], np.float64)
