"""Counts at one moment, as rows of a table and in the text format of Prometheus."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

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


def tabulate(seen: Snapshot) -> list[Sequence[str]]:
    """Return the counts as rows of a table."""
    rows = [_duration_row(name, one) for name, one in seen.futures.items()]
    rows += [_duration_row(f"  exchange: {name}", one) for name, one in seen.attempts.items()]
    rows += [_number_row(f"retries: {name}", count) for name, count in seen.retries.items()]
    rows += [_number_row(f"queue: {name}", count) for name, count in seen.queue_changes.items()]
    rows += [_number_row(f"tokens {name}", count) for name, count in seen.tokens.items() if count]
    rows += [
        _number_row("bytes sent", seen.sent_nbytes),
        _number_row("bytes received", seen.received_nbytes),
    ]
    rows += [_number_row(name, value) for name, value in {**seen.counters, **seen.gauges}.items()]
    return rows + [_histogram_row(name, one) for name, one in seen.histograms.items()]


def _duration_row(name: str, one: Summary) -> Sequence[str]:
    times = (one.mean_seconds, one.p50, one.p95, one.p99, one.longest_seconds)
    return (name, f"{one.count:,}", f"{one.failed:,}", *(f"{seconds:.4f} s" for seconds in times))


def _histogram_row(name: str, one: HistogramSummary) -> Sequence[str]:
    values = (one.mean, one.p50, one.p95, one.p99, one.largest)
    return (name, f"{one.count:,}", "", *(f"{value:g}" for value in values))


def _number_row(name: str, value: float) -> Sequence[str]:
    return (name, f"{value:,}", *[""] * (len(COLUMNS) - 2))


# --------------------------------------------------------------------------------------- Prometheus


def encode_prometheus(seen: Snapshot) -> str:
    """Return the counts in the text format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(seen))


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
    failed = name.replace("_seconds", "_failures_total")
    yield from _family(
        failed, "operation", {operation: one.failed for operation, one in summaries.items()}
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
