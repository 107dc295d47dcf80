"""Results: polled until they are there, alone or all of a client's together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import msgspec
import msgspec.structs
from tinker_wire import models, runs
from tinker_wire.api import futures as api
from tinker_wire.runtime import Request

from tinker._basics.events import QueueChange
from tinker._http import responses, retry
from tinker._http.limits import Budget
from tinker._http.messages import Purpose, RawResponse
from tinker._http.observers import Observers
from tinker._http.submission import Fail, Next, Pause, Retries
from tinker._http.transport import Reply, Transport
from tinker._loop import TaskScope
from tinker._wire import json, proto
from tinker.errors import (
    APIError,
    APIStatusError,
    RefusedResultError,
    RequestFailedError,
    TinkerError,
    copy_error,
)
from tinker.futures import APIFuture
from tinker.types.results import ForwardBackwardOutput, SampleResponse

logger = logging.getLogger("tinker")
T = TypeVar("T")

# A held poll lasts seconds. One that comes back faster than this is followed by a pause that
# doubles up to the longest.
_QUICK_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
# Larger responses are results; only small ones are looked into for a status.
_STATUS_NBYTES = 65536
_TRY_AGAIN = "try_again"
_PENDING_STATUSES = frozenset({"pending", "queued", "running", "in_progress"})
_METADATA_ONLY = "complete_metadata"
# Queue states that mean waiting, and what they mean where the server gives no reason.
_LIMITED = "paused_rate_limit"
_OF_SAMPLERS = frozenset({"sample", "sample_stream", "compute_logprobs"})
_LIMITED_SAMPLES = "the limit of concurrent sampler weights is reached"
_PAUSED = {
    _LIMITED: "the limit of concurrent training clients is reached",
    "paused_capacity": "the server has no free capacity",
}
_RUNNING = "active"
NOTICE_SECONDS = 60.0


class NotRunError(RequestFailedError):
    """The server did not run a request, because ``failed_operation`` had failed before it."""

    failed_operation: str = ""


class ResultSpec(msgspec.Struct, Generic[T], frozen=True):
    """What the contract promises as a result, and the public value of each form of it.

    ``from_json`` takes the record, and the bytes that it was read from. ``find_fault`` says why a
    value does not answer what was asked.
    """

    result: runs.Result[Any]
    from_json: Callable[[Any, bytes], T]
    from_proto: Callable[[bytes], T] | None = None
    find_fault: Callable[[T], str | None] | None = None


def json_only(result: runs.Result[T]) -> ResultSpec[T]:
    """Return a result that is always JSON and whose record is public."""
    return ResultSpec(result, lambda value, _: cast("T", value))


def loss_output(
    result: runs.Result[models.ForwardBackwardOutput],
    find_fault: Callable[[ForwardBackwardOutput], str | None],
) -> ResultSpec[ForwardBackwardOutput]:
    """Return the result of forward and forward_backward."""
    return ResultSpec(
        result,
        lambda value, _: json.public_loss_output(value),
        proto.decode_loss_output,
        find_fault=find_fault,
    )


def sample_response(
    sequence_ids: list[str], find_fault: Callable[[SampleResponse], str | None]
) -> ResultSpec[SampleResponse]:
    """Return the result of a sample, whose sequences take the ids of the submit response."""
    return ResultSpec(
        runs.ASAMPLE,
        lambda value, body: json.public_sample(value, sequence_ids, body),
        lambda body: proto.decode_sample(body, sequence_ids),
        find_fault,
    )


def report_pause(observers: Observers, operation: str, state: str, reason: str | None) -> None:
    """Log that the server has paused an operation, at most once a minute."""
    fallback = (
        _LIMITED_SAMPLES if state == _LIMITED and operation in _OF_SAMPLERS else _PAUSED.get(state)
    )
    if fallback is not None and observers.should_log(f"{operation} {state}", NOTICE_SECONDS):
        logger.warning("%s is paused by the server: %s (%s)", operation, reason or fallback, state)


class Pace(msgspec.Struct):
    """The pauses after responses that came at once and said nothing new: each twice as long as the
    last, up to a second.
    """

    _pause: float = _FIRST_PAUSE

    def after(self, seconds: float) -> Next:
        """Return the pause after a poll that took so long: none, if the server held it."""
        if seconds >= _QUICK_SECONDS:
            self.reset()
            return Next()
        pause, self._pause = Pause(self._pause), min(2 * self._pause, _LONGEST_PAUSE)
        return pause

    def reset(self) -> None:
        """Start with short pauses again."""
        self._pause = _FIRST_PAUSE


class ResultPoller(msgspec.Struct, frozen=True):
    """The polls for the results of one session."""

    transport: Transport
    result_nbytes: Budget
    json_results: bool = False

    def wait(
        self,
        submission: Reply[models.UntypedAPIFuture],
        spec: ResultSpec[T],
        future: APIFuture[Any],
        *,
        result_nbytes: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Wait for the result, as long as the server says that it is coming.

        There is no deadline of its own: a queue may be long, and a server that says so is alive. A
        server that answers nothing but errors for five minutes ends the wait with the last of them.
        ``result_nbytes`` is the size of a result that is known to be there.
        """
        now, request_id = self.transport.clock.monotonic(), submission.value.request_id
        future.progress.note_submitted(request_id, now)
        poll = _Poll(
            self, request_id, spec, future, submission.elapsed_seconds, now, result_nbytes or None
        )
        return self.transport.drive(poll)


class _Poll(msgspec.Struct, Generic[T], eq=False):
    """The state of one wait."""

    poller: ResultPoller
    request_id: str
    spec: ResultSpec[T]
    future: APIFuture[Any]
    submission_seconds: float
    last_sign: float  # when the server last said that the result is coming
    result_nbytes: int | None  # known once the server has told the size instead of the result
    pace: Pace = msgspec.field(default_factory=Pace)
    iteration: int = 0
    _started: float = 0.0
    _retries: Retries | None = None  # since the last sign
    operation: str = api.retrieve_future.__name__

    async def attempt(self, step: Next) -> T | Next:
        """Poll once."""
        transport, nbytes = self.poller.transport, self.result_nbytes
        request, self._started = self._request(), transport.clock.monotonic()
        self.iteration += 1
        prepared = transport.prepare(request, Purpose.POLL)
        if nbytes is None:
            found = self._read(await transport.send_once(prepared))
        else:
            async with self.poller.result_nbytes.take(nbytes):
                found = self._read(await transport.send_once(prepared))
        if not isinstance(found, Next):
            self.future.progress.note_fetched(transport.clock.monotonic())
        return found

    async def fail(self, error: Exception) -> Next:
        if not isinstance(error, APIError):
            return Fail(error)
        if retry.is_pending(error) and (status := self._read_pending(error)) is not None:
            return self._keep_waiting(status)
        if isinstance(error, APIStatusError) and retry.is_failed_result(error):
            # the server's text, else the body as it is
            detail = responses.find_explanation(error.body) or error.body or str(error)
            failure = self._result_error(detail, None, RefusedResultError)
            failure.__cause__ = error
            return Fail(failure)
        transport = self.poller.transport
        if self._retries is None:
            self._retries = transport.open_retries(retry.POLL, self.last_sign)
        step = self._retries.after(error, transport.clock.monotonic())
        if isinstance(step, Fail):
            error.add_note(self._describe(error))
        return step

    def _note_sign(self) -> None:
        """Forget earlier failures, because the server made progress."""
        self.last_sign, self._retries = self.poller.transport.clock.monotonic(), None

    def _request(self) -> Request[Any]:
        request = api.retrieve_future(
            models.FutureRetrieveRequest(
                request_id=self.request_id, allow_metadata_only=self.result_nbytes is None
            ),
            expected=self.spec.result.record,
            x_tinker_request_iteration=self.iteration,
            x_tinker_request_type=self.spec.result.request_type,
            x_tinker_create_promise_roundtrip_time=self.submission_seconds
            if self.iteration == 0
            else None,
        )
        return (
            msgspec.structs.replace(request, accepts=(json.MEDIA_TYPE,))
            if self.poller.json_results
            else request
        )

    def _read(self, response: RawResponse) -> T | Next:
        """Return the result, or the step to the next poll."""
        is_proto = response.media_type == proto.MEDIA_TYPE
        if not is_proto and (status := self._read_status(response)) is not None:
            if status.error is None and status.status == _METADATA_ONLY:
                self._note_size(status, response)
                return Next()
            if (step := self._not_yet(status)) is not None:
                return step
        try:
            result = self._decode(response, is_proto)
        except Exception as error:
            raise responses.undecodable(response, error, self.future.operation) from error
        if self.spec.find_fault is not None and (fault := self.spec.find_fault(result)) is not None:
            raise self._invalid(response, fault)
        return result

    def _read_status(self, response: RawResponse) -> models.FutureStatus | None:
        """Read the future's status from a small JSON response; None where there can be none."""
        if not 0 < len(response.content) <= _STATUS_NBYTES:
            return None
        try:
            status = json.decode(response.content, models.FutureStatus)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise responses.undecodable(response, error, self.future.operation) from error
        if status.request_id not in (None, self.request_id):
            raise self._invalid(
                response,
                f"the status is of the request {status.request_id}, not of {self.request_id}",
            )
        return status

    def _decode(self, response: RawResponse, is_proto: bool) -> T:
        """Return the result in a response; any exception if there is none."""
        spec, body = self.spec, response.content
        if not body:
            raise ValueError(f"the body is empty (status {response.status})")
        if is_proto:
            if spec.from_proto is None:
                raise ValueError("the body is protobuf instead of JSON")
            return spec.from_proto(body)
        return spec.from_json(json.decode(body, spec.result.record), body)

    def _invalid(self, response: RawResponse, fault: str) -> APIError:
        return responses.invalid_response(response, fault, self.future.operation)

    def _note_size(self, status: models.FutureStatus, response: RawResponse) -> None:
        """Note the size of a result that is there. The next poll asks for all of it; a second size
        instead is an error.
        """
        if self.result_nbytes is not None:
            raise self._invalid(response, "the server sent the size again instead of the result")
        self._note_sign()
        self.result_nbytes = max(0, status.response_payload_size or 0)

    def _not_yet(self, status: models.FutureStatus) -> Next | None:
        """Return the step to the next poll if one is needed; raises when the request failed."""
        if status.error is not None:
            kind = RequestFailedError if status.failed_operation is None else NotRunError
            raise self._result_error(status.error, status.category, kind, status.failed_operation)
        if status.type == _TRY_AGAIN or status.status in _PENDING_STATUSES:
            return self._keep_waiting(status)
        if status.status == "failed":
            raise self._result_error(status.detail, status.category)
        return None

    def _keep_waiting(self, status: models.FutureStatus) -> Next:
        self._note_sign()
        self._report_queue(status)
        return self.pace.after(self.last_sign - self._started)

    def _read_pending(self, error: APIError) -> models.FutureStatus | None:
        """Return what a 408 says about the request; None where it may be a proxy's, which knows
        nothing about it.
        """
        with contextlib.suppress(msgspec.ValidationError):
            status = msgspec.convert(error.body, models.FutureStatus)
            return status if status.request_id in (None, self.request_id) else None
        return None

    def _result_error(
        self,
        detail: object,
        category: str | None,
        kind: type[RequestFailedError] = RequestFailedError,
        failed_operation: str | None = None,
    ) -> RequestFailedError:
        text = detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()
        known = (
            category.lower()
            if category is not None and category.lower() in ("user", "server")
            else "unknown"
        )
        error = kind(
            f"{self.future.operation} failed on the server: {responses.shorten(text)} "
            f"(request {self.request_id}, category {known})",
            self.request_id,
            known,
            reason=text,
        )
        error.operation = self.future.operation
        if isinstance(error, NotRunError):
            error.failed_operation = failed_operation or ""
        return error

    def _describe(self, error: APIError) -> str:
        """Describe the request whose wait ends with ``error``."""
        future, now = self.future, self.poller.transport.clock.monotonic()
        since = (
            ""
            if future.timings.submitted is None
            else f" {now - future.timings.submitted:.1f} s before"
        )
        state = f"; the last queue state was {future.queue_state}" if future.queue_state else ""
        lost = (
            "; the server no longer has its result, and the client does not know whether it ran"
            if retry.is_lost(error)
            else ""
        )
        return f"{future.operation}: request {self.request_id} was accepted{since}{state}{lost}"

    def _report_queue(self, status: models.FutureStatus) -> None:
        state, reason, operation = (
            status.queue_state,
            status.queue_state_reason,
            self.future.operation,
        )
        if state is None:
            return
        observers = self.poller.transport.observers
        report_pause(observers, operation, state, reason)
        if state == _RUNNING:
            self.future.progress.note_running(observers.clock.monotonic())
        if self.future.progress.note_queue(state, reason) and observers:
            observers.notify(
                QueueChange(
                    operation=operation, request_id=self.request_id, state=state, reason=reason
                )
            )


# -------------------------------------------------------------------------- the tokens of a request


#: A sample that no poll has reported for so long asks for itself: a server that was restarted may
#: not know that it was done.
UNREPORTED_SECONDS = 900.0


class SessionPoller:
    """The completions of one sampling client. It polls only while somebody waits, or it has fetched
    results to report.
    """

    operation: str = api.retrieve_futures.__name__

    def __init__(
        self, transport: Transport, tasks: TaskScope, target: models.SamplingSessionFuturesTarget
    ) -> None:
        self._transport = transport
        self._tasks = tasks
        self._target = target
        self._task = f"completions of {target.sampling_session_id}, {id(self)}"
        self._cursor = 0
        # since when, and who
        self._waiting: dict[str, tuple[float, asyncio.Future[int | None]]] = {}
        # What is done and not waited for yet, and how many submissions had begun then; one of those
        # may wait for it.
        self._early: dict[str, tuple[int | None, int]] = {}
        self._begun = itertools.count(1)
        self._submitting: dict[int, None] = {}  # in the order of their beginnings
        self._newest = 0
        self._fetched: set[str] = set()
        self._absent = False
        self._pace, self._retries = Pace(), transport.open_retries(retry.POLL)

    @contextmanager
    def submission(self) -> Generator[int]:
        """Track one submission, so that a completion that comes before its response is not missed.
        For :meth:`fetch`.
        """
        self._newest = number = next(self._begun)
        self._submitting[number] = None
        try:
            yield number
        finally:
            self._end_submission(number)

    def _end_submission(self, number: int) -> None:
        """Forget completions from before the oldest submission that is still under way: nobody will
        wait for them.
        """
        self._submitting.pop(number, None)
        oldest = next(iter(self._submitting), self._newest + 1)
        while self._early and next(iter(self._early.values()))[1] < oldest:
            del self._early[next(iter(self._early))]

    async def fetch(
        self, request_id: str, submission: int, get: Callable[[int | None], Awaitable[T]]
    ) -> T:
        """Return what ``get(size)`` does, once the request of a submission is done; then report,
        with the next poll, that its result was fetched, so that the server may drop it.

        ``size`` is that of the result, where it is known.
        """
        size = await self.wait(request_id, submission)
        try:
            return await get(size)
        finally:
            if not self._absent:
                self._fetched.add(request_id)
                self._tasks.background(self._task, self._poll)

    async def wait(self, request_id: str, submission: int) -> int | None:
        """Wait until the request of a submission is done; return the size of its result, None if
        unknown or failed.

        Also None, at once, on a server that turns out not to have the endpoint, and when it has not
        been reported for long.
        """
        early = self._early.pop(request_id, None)
        self._end_submission(submission)
        if early is not None or self._absent:
            return None if early is None else early[0]
        waiter: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = self._transport.clock.monotonic(), waiter
        try:
            self._tasks.join(self._task, self._poll)
            return await self._tasks.wait(lambda: waiter)
        finally:
            self._waiting.pop(request_id, None)

    async def _poll(self) -> None:
        """Poll until nobody waits; a failure is the error of everybody who does."""
        self._pace, self._retries = Pace(), self._transport.open_retries(retry.POLL)
        try:
            await self._transport.drive(self)
        except TinkerError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("asking for completed samples failed")
            failure = TinkerError(
                f"asking for completed samples failed: {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
            self._fail(failure)

    async def attempt(self, step: Next) -> Next | None:
        """Poll once, if anybody waits or there is something to report."""
        if self._absent or not (self._waiting or self._fetched):
            return None
        started = self._transport.clock.monotonic()
        has_news = await self._poll_once()
        now = self._transport.clock.monotonic()
        self._retries.reset(now)
        self._release(now - UNREPORTED_SECONDS)
        if has_news:
            self._pace.reset()
        return Next() if has_news or not self._waiting else self._pace.after(now - started)

    async def fail(self, error: Exception) -> Next:
        if not isinstance(error, APIError):
            return Fail(error)
        if retry.is_absent(error):
            self._transport.findings.note_absence(self.operation, error)
            self._absent = True
            self._release(math.inf)
            return Next()
        return self._retries.after(error, self._transport.clock.monotonic())

    async def _poll_once(self) -> bool:
        """Poll once; return whether a waiter was resolved."""
        reported = frozenset(self._fetched)
        request = api.retrieve_futures(
            models.FuturesRetrieveRequest(
                target=self._target,
                prev_cursor=self._cursor,
                timeout=None if self._waiting else 0.0,
                retrieved_request_ids=sorted(reported),
            )
        )
        response = await self._transport.send_once(self._transport.prepare(request, Purpose.POLL))
        answer = responses.decode_json(response, models.FuturesRetrieveResponse)
        self._fetched -= reported
        self._cursor = answer.cursor
        return sum(map(self._done, answer.completions)) > 0

    def _done(self, completion: models.FutureCompletion) -> bool:
        """Resolve the waiter; return whether there was one."""
        if isinstance(completion, dict):  # a state of tomorrow: fetching it tells what it is
            request_id, size = str(completion.get("request_id")), None
        else:
            request_id = completion.request_id
            size = (
                completion.response_payload_uncompressed_size
                if isinstance(completion, models.FutureFinished)
                else None
            )
        _, waiter = self._waiting.pop(request_id, (0.0, None))
        if waiter is None and self._submitting:
            self._early.pop(request_id, None)  # the newest is the last
            self._early[request_id] = size, self._newest
        elif waiter is not None and not waiter.done():
            waiter.set_result(size)
        return waiter is not None

    def _release(self, before: float) -> None:
        """Let every sample that has waited since before a moment poll for itself."""
        for since, waiter in self._waiting.values():
            if since < before and not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: TinkerError) -> None:
        self._fetched.clear()
        for _, waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(copy_error(error))
