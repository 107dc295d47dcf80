"""Counts of events, and custom counters, gauges and histograms."""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from tinker.observing.events import Event, FutureSettled, QueueChange, RequestAttempt, RequestRetry, TokensUsed
from tinker.observing.tables import encode_prometheus, tabulate, to_html, to_table

if TYPE_CHECKING:
    from rich.table import Table

KEPT_DURATIONS = 1000
#: The upper ends of the buckets of a duration, in seconds; one more bucket has everything above.
SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@attrs.frozen(kw_only=True)
class Summary:
    """The durations of one operation. Percentiles cover the last thousand, by the nearest rank.

    Attributes:
        count: The number of operations.
        failed: The number of failed operations.
        mean_seconds: The mean duration.
        longest_seconds: The longest duration.
        p50: The median in seconds.
        p95: The 95th percentile in seconds.
        p99: The 99th percentile in seconds.
        shortest_seconds: The shortest duration.
        buckets: The number of durations up to the upper bound of each bucket, in seconds, by bound. The last is infinite.
    """

    count: int
    failed: int
    mean_seconds: float
    longest_seconds: float
    p50: float
    p95: float
    p99: float
    shortest_seconds: float = 0.0
    buckets: Mapping[float, int] = attrs.field(factory=lambda: dict[float, int](), repr=False)


@attrs.frozen(kw_only=True)
class HistogramSummary:
    """A summary of one of your histograms. Percentiles cover the last thousand values, by the nearest rank.

    Attributes:
        count: The number of values.
        total: The sum of the values.
        mean: The mean of the values.
        smallest: The smallest value.
        largest: The largest value.
        p50: The median.
        p95: The 95th percentile.
        p99: The 99th percentile.
        buckets: The number of values up to the upper bound of each bucket, by bound. The last is infinite.
    """

    count: int
    total: float
    mean: float
    smallest: float
    largest: float
    p50: float
    p95: float
    p99: float
    buckets: Mapping[float, int] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Snapshot:
    """A snapshot of the counts of :class:`Metrics`.

    Attributes:
        attempts: The exchanges, by operation of the contract.
        futures: The outcomes, by method.
        retries: The number of retries, by operation of the contract.
        queue_changes: The number of queue changes, by state.
        sent_nbytes: The bytes of all bodies sent.
        received_nbytes: The bytes of all bodies received.
        tokens: The tokens by kind: ``trained``, ``prefilled``, ``cached``, ``sampled``.
        counters: Your counters by name.
        gauges: Your gauges by name.
        histograms: Your histograms by name.
    """

    attempts: Mapping[str, Summary]
    futures: Mapping[str, Summary]
    retries: Mapping[str, int]
    queue_changes: Mapping[str, int]
    sent_nbytes: int
    received_nbytes: int
    tokens: Mapping[str, int] = attrs.field(factory=lambda: dict[str, int]())
    counters: Mapping[str, float] = attrs.field(factory=lambda: dict[str, float]())
    gauges: Mapping[str, float] = attrs.field(factory=lambda: dict[str, float]())
    histograms: Mapping[str, HistogramSummary] = attrs.field(factory=lambda: dict[str, HistogramSummary]())


class Metrics:
    """Observer that counts events, with counters, gauges and histograms of yours. One object may observe several clients.

    It is shown as a table by rich and in notebooks. :meth:`prometheus` returns text for a scrape.

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

    def __repr__(self) -> str:
        """Return how much has been counted."""
        with self._lock:
            operations = sum(tally.seconds.count for tally in self._futures.values())
            retries = sum(self._retries.values())
        return f"<{type(self).__name__}: {operations} operations, {retries} retries; snapshot() returns the numbers>"

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._attempts: dict[str, _Tally] = defaultdict(_Tally)
            self._futures: dict[str, _Tally] = defaultdict(_Tally)
            self._retries: Counter[str] = Counter()
            self._queue_changes: Counter[str] = Counter()
            self._tokens: Counter[str] = Counter()
            self._sent_nbytes = self._received_nbytes = 0
            self._counters: dict[str, float] = {}
            self._gauges: dict[str, float] = {}
            self._histograms: dict[str, _Histogram] = {}

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
                case TokensUsed(is_confirmed=True):
                    self._tokens.update({name: getattr(event, name) for name in ("trained", "prefilled", "cached", "sampled")})
                case _:
                    pass

    # ------------------------------------------------------------------------------------------------------ your own numbers

    def increment(self, name: str, by: float = 1) -> None:
        """Increase one of your counters, which start at 0.

        Args:
            name: The name of the counter. Use letters, digits and ``_``, which every export keeps.
            by: The amount to add, at least 0.

        Raises:
            ValueError: The amount is negative or NaN.
        """
        if not by >= 0 or math.isinf(by):
            raise ValueError(f"by must be at least 0, got {by}; for values that can decrease, use a gauge")
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + by

    def set_gauge(self, name: str, value: float) -> None:
        """Set one of your gauges: a number that can rise and fall, such as a learning rate.

        Args:
            name: The name of the gauge.
            value: The new value.
        """
        with self._lock:
            self._gauges[name] = float(value)

    def record(self, name: str, value: float, *, buckets: Sequence[float] = SECONDS_BUCKETS) -> None:
        """Add a value to one of your histograms.

        Args:
            name: The name of the histogram.
            value: The value.
            buckets: The increasing upper bounds of the buckets. The first call sets them. The default suits seconds.

        Raises:
            ValueError: The value is NaN, or the buckets do not increase.
        """
        if math.isnan(value):
            raise ValueError(f"{name}: NaN cannot be recorded")
        with self._lock:
            found = self._histograms.get(name)
            if found is None:
                found = self._histograms[name] = _Histogram(_check_buckets(buckets))
            found.add(float(value))

    # --------------------------------------------------------------------------------------------------------------- reading

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the counts."""
        with self._lock:
            return Snapshot(
                attempts={name: tally.summary() for name, tally in self._attempts.items()},
                futures={name: tally.summary() for name, tally in self._futures.items()},
                retries=dict(self._retries),
                queue_changes=dict(self._queue_changes),
                sent_nbytes=self._sent_nbytes,
                received_nbytes=self._received_nbytes,
                tokens=dict(self._tokens),
                counters=dict(self._counters),
                gauges=dict(self._gauges),
                histograms={name: histogram.summary() for name, histogram in self._histograms.items()},
            )

    def prometheus(self) -> str:
        """Return the counts in the Prometheus text format, for a metrics endpoint.

        >>> metrics = Metrics()
        >>> metrics.increment("episodes", 3)
        >>> print(metrics.prometheus().splitlines()[-1])
        episodes 3
        """
        return encode_prometheus(self.snapshot())

    def __rich__(self) -> Table:
        return to_table(tabulate(self.snapshot()))

    def _repr_html_(self) -> str:
        return to_html(tabulate(self.snapshot()))


def _check_buckets(buckets: Sequence[float]) -> tuple[float, ...]:
    if not buckets or any(not low < high for low, high in itertools.pairwise(buckets)) or any(map(math.isnan, buckets)):
        raise ValueError(f"buckets must increase, got {list(buckets)}")
    return tuple(float(one) for one in buckets if not math.isinf(one))


class _Histogram:
    """Values in buckets, and the last of them."""

    def __init__(self, ends: tuple[float, ...]) -> None:
        self.ends = ends
        self.counts = [0] * (len(ends) + 1)
        self.total = 0.0
        self.smallest, self.largest = math.inf, -math.inf
        self.last: deque[float] = deque(maxlen=KEPT_DURATIONS)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.ends, value)] += 1
        self.total += value
        self.smallest, self.largest = min(self.smallest, value), max(self.largest, value)
        self.last.append(value)

    def buckets(self) -> dict[float, int]:
        """Return how many values are at most each end; the last end is infinite."""
        found: dict[float, int] = {}
        below = 0
        for end, count in zip((*self.ends, math.inf), self.counts, strict=True):
            below += count
            found[end] = below
        return found

    def percentiles(self) -> tuple[float, float, float]:
        ordered = sorted(self.last)
        return _percentile(ordered, 50), _percentile(ordered, 95), _percentile(ordered, 99)

    def summary(self) -> HistogramSummary:
        p50, p95, p99 = self.percentiles()
        return HistogramSummary(
            count=self.count,
            total=self.total,
            mean=self.total / self.count,
            smallest=self.smallest,
            largest=self.largest,
            p50=p50,
            p95=p95,
            p99=p99,
            buckets=self.buckets(),
        )


class _Tally:
    """Durations, and how many of what they are of failed."""

    def __init__(self) -> None:
        self.failed = 0
        self.seconds = _Histogram(SECONDS_BUCKETS)

    def add(self, seconds: float, *, failed: bool) -> None:
        self.failed += failed
        self.seconds.add(seconds)

    def summary(self) -> Summary:
        p50, p95, p99 = self.seconds.percentiles()
        return Summary(
            count=self.seconds.count,
            failed=self.failed,
            mean_seconds=self.seconds.total / self.seconds.count,
            longest_seconds=self.seconds.largest,
            shortest_seconds=self.seconds.smallest,
            p50=p50,
            p95=p95,
            p99=p99,
            buckets=self.seconds.buckets(),
        )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
