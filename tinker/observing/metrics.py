"""Counts of events, custom counters, gauges and histograms, and snapshots of them."""

from __future__ import annotations

import bisect
import itertools
import math
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import attrs

from tinker._basics.events import (
    Event,
    FutureSettled,
    QueueChange,
    RequestAttempt,
    RequestRetry,
    TokensUsed,
)
from tinker._basics.shown import ShownAsTable

COLUMNS = ("What", "Count", "Failed", "Mean", "p50", "p95", "p99", "Longest")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


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
        buckets: The number of durations up to the upper bound of each bucket, in seconds, by bound.
            The last is infinite.
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
    """A summary of one of your histograms. Percentiles cover the last thousand values, by the
    nearest rank.

    Attributes:
        count: The number of values.
        total: The sum of the values.
        mean: The mean of the values.
        smallest: The smallest value.
        largest: The largest value.
        p50: The median.
        p95: The 95th percentile.
        p99: The 99th percentile.
        buckets: The number of values up to the upper bound of each bucket, by bound. The last is
            infinite.
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
    histograms: Mapping[str, HistogramSummary] = attrs.field(
        factory=lambda: dict[str, HistogramSummary]()
    )


def _duration_row(name: str, one: Summary) -> Sequence[str]:
    return (
        name,
        f"{one.count:,}",
        f"{one.failed:,}",
        *(
            f"{seconds:.4f} s"
            for seconds in (one.mean_seconds, one.p50, one.p95, one.p99, one.longest_seconds)
        ),
    )


def _histogram_row(name: str, one: HistogramSummary) -> Sequence[str]:
    return (
        name,
        f"{one.count:,}",
        "",
        *(f"{value:g}" for value in (one.mean, one.p50, one.p95, one.p99, one.largest)),
    )


def _number_row(name: str, value: float) -> Sequence[str]:
    return (name, f"{value:,}", *[""] * (len(COLUMNS) - 2))


# --------------------------------------------------------------------------------------- Prometheus


def _lines(seen: Snapshot) -> Iterator[str]:
    for name, summaries in (
        ("tinker_request_seconds", seen.attempts),
        ("tinker_operation_seconds", seen.futures),
    ):
        yield from _durations(name, summaries)
    yield from _family("tinker_retries_total", "operation", seen.retries)
    yield from _family("tinker_queue_changes_total", "state", seen.queue_changes)
    yield from _family("tinker_tokens_total", "kind", seen.tokens)
    yield from _family(
        "tinker_bytes_total",
        "direction",
        {"sent": seen.sent_nbytes, "received": seen.received_nbytes},
    )
    for kind, values in (("counter", seen.counters), ("gauge", seen.gauges)):
        for name, value in values.items():
            yield f"# TYPE {_name(name)} {kind}"
            yield f"{_name(name)} {_number(value)}"
    for name, one in seen.histograms.items():
        yield f"# TYPE {_name(name)} histogram"
        yield from _buckets(_name(name), "", one.buckets, one.total, one.count)


def _durations(name: str, summaries: Mapping[str, Summary]) -> Iterator[str]:
    if summaries:
        yield f"# TYPE {name} histogram"
    for operation, one in summaries.items():
        yield from _buckets(
            name,
            _label("operation", operation),
            one.buckets,
            one.mean_seconds * one.count,
            one.count,
        )
    yield from _family(
        name.replace("_seconds", "_failures_total"),
        "operation",
        {operation: one.failed for operation, one in summaries.items()},
    )


def _buckets(
    name: str, label: str, buckets: Mapping[float, int], total: float, count: int
) -> Iterator[str]:
    for end, below in buckets.items():
        labels = ",".join(filter(None, (label, _label("le", _number(end)))))
        yield f"{name}_bucket{{{labels}}} {below}"
    rest = f"{{{label}}}" if label else ""
    yield f"{name}_sum{rest} {_number(total)}"
    yield f"{name}_count{rest} {count}"


def _family(name: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    if values:
        yield f"# TYPE {name} counter"
    for key, value in values.items():
        yield f"{name}{{{_label(label, key)}}} {_number(value)}"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def _name(name: str) -> str:
    """Return a name with what Prometheus does not allow in it replaced."""
    clean = _NOT_IN_NAMES.sub("_", name)
    return f"_{clean}" if not clean or clean[0].isdigit() else clean


def _number(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


KEPT_DURATIONS = 1000
#: The upper ends of the buckets of a duration, in seconds; one more bucket has everything above.
SECONDS_BUCKETS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
)


class Metrics(ShownAsTable):
    """Observer that counts events, with counters, gauges and histograms of yours. One object may
    observe several clients.

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

    _title = "Metrics"
    _columns = COLUMNS

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def __repr__(self) -> str:
        """Return how much has been counted."""
        with self._lock:
            operations = sum(sum(tally.counts) for tally in self._futures.values())
            retries = sum(self._retries.values())
        return (
            f"<{type(self).__name__}: {operations} operations, {retries} retries; snapshot() "
            "returns the numbers>"
        )

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._attempts: dict[str, _Histogram] = defaultdict(_Histogram)
            self._futures: dict[str, _Histogram] = defaultdict(_Histogram)
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
                    self._attempts[event.operation].add(
                        event.seconds, failed=event.error is not None
                    )
                    self._sent_nbytes += event.sent_nbytes
                    self._received_nbytes += event.received_nbytes
                case RequestRetry():
                    self._retries[event.operation] += 1
                case QueueChange():
                    self._queue_changes[event.state] += 1
                case FutureSettled():
                    self._futures[event.operation].add(
                        event.seconds, failed=event.error is not None
                    )
                case TokensUsed(is_confirmed=True):
                    self._tokens.update(
                        {
                            name: getattr(event, name)
                            for name in ("trained", "prefilled", "cached", "sampled")
                        }
                    )
                case _:
                    pass

    # ----------------------------------------------------------------------------- your own numbers

    def increment(self, name: str, by: float = 1) -> None:
        """Increase one of your counters, which start at 0.

        Args:
            name: The name of the counter. Use letters, digits and ``_``, which every export keeps.
            by: The amount to add, at least 0.

        Raises:
            ValueError: The amount is negative or NaN.
        """
        if not by >= 0 or math.isinf(by):
            raise ValueError(
                f"by must be at least 0, got {by}; for values that can decrease, use a gauge"
            )
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

    def record(
        self, name: str, value: float, *, buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> None:
        """Add a value to one of your histograms.

        Args:
            name: The name of the histogram.
            value: The value.
            buckets: The increasing upper bounds of the buckets. The first call sets them. The
                default suits seconds.

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

    # -------------------------------------------------------------------------------------- reading

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the counts."""
        with self._lock:
            return Snapshot(
                attempts={name: tally.durations() for name, tally in self._attempts.items()},
                futures={name: tally.durations() for name, tally in self._futures.items()},
                retries=dict(self._retries),
                queue_changes=dict(self._queue_changes),
                sent_nbytes=self._sent_nbytes,
                received_nbytes=self._received_nbytes,
                tokens=dict(self._tokens),
                counters=dict(self._counters),
                gauges=dict(self._gauges),
                histograms={
                    name: histogram.summary() for name, histogram in self._histograms.items()
                },
            )

    def prometheus(self) -> str:
        """Return the counts in the Prometheus text format (version 0.0.4), for a metrics endpoint.

        >>> metrics = Metrics()
        >>> metrics.increment("episodes", 3)
        >>> print(metrics.prometheus().splitlines()[-1])
        episodes 3
        """
        return "".join(f"{line}\n" for line in _lines(self.snapshot()))

    def _rows(self) -> Sequence[Sequence[str]]:
        seen = self.snapshot()
        rows = [_duration_row(name, one) for name, one in seen.futures.items()]
        rows += [_duration_row(f"  exchange: {name}", one) for name, one in seen.attempts.items()]
        rows += [_number_row(f"retries: {name}", count) for name, count in seen.retries.items()]
        rows += [_number_row(f"queue: {name}", count) for name, count in seen.queue_changes.items()]
        rows += [
            _number_row(f"tokens {name}", count) for name, count in seen.tokens.items() if count
        ]
        rows += [
            _number_row("bytes sent", seen.sent_nbytes),
            _number_row("bytes received", seen.received_nbytes),
        ]
        rows += [
            _number_row(name, value) for name, value in {**seen.counters, **seen.gauges}.items()
        ]
        return rows + [_histogram_row(name, one) for name, one in seen.histograms.items()]


def _check_buckets(buckets: Sequence[float]) -> tuple[float, ...]:
    if (
        not buckets
        or any(not low < high for low, high in itertools.pairwise(buckets))
        or any(map(math.isnan, buckets))
    ):
        raise ValueError(f"buckets must increase, got {list(buckets)}")
    return tuple(float(one) for one in buckets if not math.isinf(one))


class _Histogram:
    """Values in buckets, the last of them, and how many of the operations that they belong to
    failed.
    """

    def __init__(self, ends: tuple[float, ...] = SECONDS_BUCKETS) -> None:
        self.ends = ends
        self.counts = [0] * (len(ends) + 1)
        self.failed = 0
        self.total = 0.0
        self.smallest, self.largest = math.inf, -math.inf
        self.last: deque[float] = deque(maxlen=KEPT_DURATIONS)

    def add(self, value: float, *, failed: bool = False) -> None:
        self.counts[bisect.bisect_left(self.ends, value)] += 1
        self.failed += failed
        self.total += value
        self.smallest, self.largest = min(self.smallest, value), max(self.largest, value)
        self.last.append(value)

    def summary(self) -> HistogramSummary:
        ordered, count = sorted(self.last), sum(self.counts)
        p50, p95, p99 = (
            ordered[math.ceil(len(ordered) * percent / 100) - 1] for percent in (50, 95, 99)
        )
        return HistogramSummary(
            count=count,
            total=self.total,
            mean=self.total / count,
            smallest=self.smallest,
            largest=self.largest,
            p50=p50,
            p95=p95,
            p99=p99,
            buckets=dict(
                zip((*self.ends, math.inf), itertools.accumulate(self.counts), strict=True)
            ),
        )

    def durations(self) -> Summary:
        one = self.summary()
        return Summary(
            count=one.count,
            failed=self.failed,
            mean_seconds=one.mean,
            longest_seconds=one.largest,
            shortest_seconds=one.smallest,
            p50=one.p50,
            p95=one.p95,
            p99=one.p99,
            buckets=one.buckets,
        )
