"""Observe a client: its attempts, retries, queue states and futures, as values for programs, and counts made of them.

    service = tinker.ServiceClient(observers=[print])

An observer is called with one value after the other, on the thread of this package that does all I/O (for a cancelled future,
on the thread that cancels it), so it must not block. An exception of an observer is logged once and otherwise ignored. A client
without observers pays nothing.

Times are those of the client's monotonic clock, in seconds.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import attrs

KEPT_DURATIONS = 1000


class Timings(NamedTuple):
    """Hold the times of a request; None for a stage that it did not reach, or not yet.

    Where an operation makes several requests, ``submitted`` and ``running`` are of the first of them, ``fetched`` of the last.

    Attributes:
        queued: When the method was called.
        submitted: When the server had accepted the request.
        running: When the server first said that it is working on the request, which it need not say.
        fetched: When the result was here.
    """

    queued: float | None = None
    submitted: float | None = None
    running: float | None = None
    fetched: float | None = None


@attrs.frozen(kw_only=True)
class RequestAttempt:
    """Report that one exchange with the server ended.

    Waiting for a result takes several attempts of ``retrieve_future``; those with the status 408 only say that it is not there
    yet.

    Attributes:
        operation: The name in the contract, such as ``optim_step`` or ``retrieve_future``.
        started: When the attempt began.
        seconds: How long the attempt took.
        sent_nbytes: The size of the body that was sent.
        status: The HTTP status; None when no answer came.
        received_nbytes: The size of the body of the answer.
        error: The reason for a failure; None for success, and for an attempt that was given up.
    """

    operation: str
    started: float
    seconds: float
    sent_nbytes: int
    status: int | None
    received_nbytes: int
    error: Exception | None


@attrs.frozen(kw_only=True)
class RequestRetry:
    """Report that an attempt failed and another one will follow.

    Attributes:
        operation: The name in the contract.
        failures: The number of failures in a row.
        delay_seconds: The time until the next attempt.
        error: The error of the failed attempt.
    """

    operation: str
    failures: int
    delay_seconds: float
    error: Exception


@attrs.frozen(kw_only=True)
class QueueChange:
    """Report that the server said something new about a waiting request.

    Attributes:
        operation: The name of the method.
        request_id: The server's id of the request.
        state: The state of the queue: ``active``, ``paused_capacity``, ...
        reason: The server's reason for people; None where it gave none.
    """

    operation: str
    request_id: str
    state: str
    reason: str | None


@attrs.frozen(kw_only=True)
class FutureSettled:
    """Report that a future has its outcome: a result when ``error`` is None and ``cancelled`` is False.

    Attributes:
        operation: The name of the method.
        request_id: The server's id of the request; None when it was never accepted.
        seconds: The time from the call to the outcome.
        timings: The times of the stages in between.
        error: The error of the operation; None for success.
        cancelled: Whether the future was cancelled.
    """

    operation: str
    request_id: str | None
    seconds: float
    timings: Timings
    error: BaseException | None
    cancelled: bool


@attrs.frozen(kw_only=True)
class CircuitChange:
    """Report that a circuit breaker changed its state.

    Attributes:
        circuit: The name of the circuit; a client has one for each server, credential and kind of call.
        state: The new state, ``closed``, ``open`` or ``half_open``.
        failures: The number of failures in a row.
    """

    circuit: str
    state: CircuitState
    failures: int


@attrs.frozen(kw_only=True)
class RecoveryChange:
    """Report a stage of the recovery of a training run, see :mod:`tinker.recovery`.

    Attributes:
        run_id: The run that was lost.
        stage: What happened: the loss was ``detected``, an attempt ``started``, ``failed`` or ``completed``, or no attempt is
            left and the recovery is ``exhausted``. ``unknown`` means that a monitor could not ask for the run's state.
        attempt: The number of the attempt, from 1; 0 before the first.
        path: The checkpoint of the attempt; None for a run that begins anew, and where there is no attempt.
        error: The loss, or the failure of the attempt; None where it started or completed.
    """

    run_id: str
    stage: RecoveryStage
    attempt: int = 0
    path: str | None = None
    error: Exception | None = None


RecoveryStage: TypeAlias = Literal["detected", "started", "failed", "completed", "exhausted", "unknown"]
CircuitState: TypeAlias = Literal["closed", "open", "half_open"]
QueueCallback: TypeAlias = Callable[[str, str | None], object]


class QueueStateObserver(Protocol):
    """Define the object that :meth:`APIFuture.observe_queue` accepts instead of a function."""

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """Receive a state of the queue.

        Args:
            queue_state: The state, such as ``paused_capacity``.
            queue_state_reason: The server's reason for people; None where it gave none.
        """
        ...


QueueObserver: TypeAlias = QueueCallback | QueueStateObserver
Event: TypeAlias = RequestAttempt | RequestRetry | QueueChange | FutureSettled | CircuitChange | RecoveryChange
Observer: TypeAlias = Callable[[Event], object]


@attrs.frozen(kw_only=True)
class Summary:
    """Summarize durations of one operation. Percentiles are of the last thousand, by the nearest rank.

    Attributes:
        count: How many there were.
        failed: How many of them failed.
        mean_seconds: The mean duration.
        longest_seconds: The longest duration.
        p50: The median in seconds.
        p95: The 95th percentile in seconds.
        p99: The 99th percentile in seconds.
    """

    count: int
    failed: int
    mean_seconds: float
    longest_seconds: float
    p50: float
    p95: float
    p99: float


@attrs.frozen(kw_only=True)
class Snapshot:
    """Hold the counts of :class:`Metrics` at one time.

    Attributes:
        attempts: The exchanges, by operation of the contract.
        futures: The outcomes, by method.
        retries: The number of retries, by operation of the contract.
        queue_changes: The number of changes of the queue, by state.
        sent_nbytes: The bytes of all bodies sent.
        received_nbytes: The bytes of all bodies received.
    """

    attempts: Mapping[str, Summary]
    futures: Mapping[str, Summary]
    retries: Mapping[str, int]
    queue_changes: Mapping[str, int]
    sent_nbytes: int
    received_nbytes: int


class Metrics:
    """Count events. One counter may observe several clients.

    >>> import tinker
    >>> from tinker.observing import Metrics
    >>> metrics = Metrics()
    >>> service = tinker.ServiceClient(base_url="local://toy", observers=[metrics])
    >>> training = service.create_lora_training_client("tinker/toy", rank=4)
    >>> losses = [training.optim_step(tinker.AdamParams()).result(timeout=30) for _ in range(5)]
    >>> seen = metrics.snapshot()
    >>> seen.futures["optim_step"].count, seen.attempts["optim_step"].count, seen.retries
    (5, 5, {})
    >>> seen.futures["optim_step"].p50 <= seen.futures["optim_step"].p99
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._attempts: dict[str, _Tally] = defaultdict(_Tally)
            self._futures: dict[str, _Tally] = defaultdict(_Tally)
            self._retries: Counter[str] = Counter()
            self._queue_changes: Counter[str] = Counter()
            self._sent_nbytes = self._received_nbytes = 0

    def __call__(self, event: Event) -> None:
        """Count one event."""
        with self._lock:
            match event:
                case RequestAttempt():
                    self._attempts[event.operation].add(event.seconds, failed=event.error is not None)
                    self._sent_nbytes += event.sent_nbytes
                    self._received_nbytes += event.received_nbytes
                case RequestRetry():
                    self._retries[event.operation] += 1
                case QueueChange():
                    self._queue_changes[event.state] += 1
                case FutureSettled():
                    self._futures[event.operation].add(event.seconds, failed=event.error is not None)

    def snapshot(self) -> Snapshot:
        """Return the present counts."""
        with self._lock:
            return Snapshot(
                attempts={name: tally.summary() for name, tally in self._attempts.items()},
                futures={name: tally.summary() for name, tally in self._futures.items()},
                retries=dict(self._retries),
                queue_changes=dict(self._queue_changes),
                sent_nbytes=self._sent_nbytes,
                received_nbytes=self._received_nbytes,
            )


@attrs.define
class _Tally:
    count: int = 0
    failed: int = 0
    total: float = 0.0
    longest: float = 0.0
    last: deque[float] = attrs.field(factory=lambda: deque[float](maxlen=KEPT_DURATIONS))

    def add(self, seconds: float, *, failed: bool) -> None:
        self.count += 1
        self.failed += failed
        self.total += seconds
        self.longest = max(self.longest, seconds)
        self.last.append(seconds)

    def summary(self) -> Summary:
        ordered = sorted(self.last)
        return Summary(
            count=self.count,
            failed=self.failed,
            mean_seconds=self.total / self.count,
            longest_seconds=self.longest,
            p50=_percentile(ordered, 50),
            p95=_percentile(ordered, 95),
            p99=_percentile(ordered, 99),
        )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
