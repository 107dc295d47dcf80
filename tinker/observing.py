"""What a client does, as values that programs can look at: attempts, retries, queue states, futures; and counts made of them.

    service = tinker.ServiceClient(observers=[print])

An observer is called with one value after the other, on the thread of this package that does all I/O (a future that is
cancelled, on the thread that cancels it), so it must not block. What it raises is logged once and otherwise ignored. Nobody
observing costs nothing.

Times are those of the client's monotonic clock, in seconds.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import attrs

KEPT_DURATIONS = 1000


class Timings(NamedTuple):
    """When a request got how far; None where it did not, or not yet.

    ``queued`` is when the method was called, ``submitted`` when the server had accepted the request, ``running`` when the
    server first said that it is at work on it (it need not say so), ``fetched`` when the result was here. Where an operation
    makes several requests, the first of them is accepted and running, and the last one is fetched.
    """

    queued: float | None = None
    submitted: float | None = None
    running: float | None = None
    fetched: float | None = None


@attrs.frozen(kw_only=True)
class RequestAttempt:
    """One exchange with the server ended: ``status`` None is no answer, which ``error`` explains unless it was given up.

    ``operation`` is the name in the contract, such as ``optim_step`` or ``retrieve_future``; waiting for a result takes several
    of the latter, of which those with the status 408 say no more than that it is not there yet.
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
    """An attempt failed for ``error``, the ``failures``-th in a row, and the next one comes after ``delay_seconds``."""

    operation: str
    failures: int
    delay_seconds: float
    error: Exception


@attrs.frozen(kw_only=True)
class QueueChange:
    """The server said something new about a request that waits: ``state`` is ``active``, ``paused_capacity``, ..."""

    operation: str
    request_id: str
    state: str
    reason: str | None


@attrs.frozen(kw_only=True)
class FutureSettled:
    """A future has its outcome: ``error`` None and not ``cancelled`` is a result. ``operation`` is the method's name."""

    operation: str
    request_id: str | None
    seconds: float
    timings: Timings
    error: BaseException | None
    cancelled: bool


QueueCallback: TypeAlias = Callable[[str, str | None], object]


class QueueStateObserver(Protocol):
    """An object that is told what the server says of the queue."""

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """The state and, where the server gives one, the reason for it, meant for people."""
        ...


QueueObserver: TypeAlias = QueueCallback | QueueStateObserver
Event: TypeAlias = RequestAttempt | RequestRetry | QueueChange | FutureSettled
Observer: TypeAlias = Callable[[Event], object]


@attrs.frozen(kw_only=True)
class Summary:
    """Of how many, how many failed, and how long they took; percentiles are of the last thousand, by the nearest rank."""

    count: int
    failed: int
    mean_seconds: float
    longest_seconds: float
    p50: float
    p95: float
    p99: float


@attrs.frozen(kw_only=True)
class Snapshot:
    """What :class:`Metrics` counted: by operation, and changes of the queue by state."""

    attempts: Mapping[str, Summary]
    futures: Mapping[str, Summary]
    retries: Mapping[str, int]
    queue_changes: Mapping[str, int]
    sent_nbytes: int
    received_nbytes: int


class Metrics:
    """An observer that counts. One may observe several clients.

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
        """The counts of now."""
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
