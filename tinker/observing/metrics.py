"""Counts made of events."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

import attrs

from tinker.observing.events import Event, FutureSettled, QueueChange, RequestAttempt, RequestRetry

KEPT_DURATIONS = 1000


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
