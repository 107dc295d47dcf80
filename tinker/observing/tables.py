"""Counts for people and for scrapes: tables for terminals and notebooks, and Prometheus' text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

    from tinker.observing.metrics import HistogramSummary, Snapshot, Summary

_HEAD = ("What", "Count", "Failed", "Mean", "p50", "p95", "p99", "Longest")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


class CountRow(NamedTuple):
    """One line of a table."""

    cells: Sequence[str]


def tabulate(seen: Snapshot) -> list[CountRow]:
    """Return the counts as lines."""
    rows = [_duration_row(name, one) for name, one in seen.futures.items()]
    rows += [_duration_row(f"  exchange: {name}", one) for name, one in seen.attempts.items()]
    rows += [_number_row(f"retries: {name}", count) for name, count in seen.retries.items()]
    rows += [_number_row(f"queue: {name}", count) for name, count in seen.queue_changes.items()]
    rows += [_number_row(f"tokens {name}", count) for name, count in seen.tokens.items() if count]
    rows += [_number_row("bytes sent", seen.sent_nbytes), _number_row("bytes received", seen.received_nbytes)]
    rows += [_number_row(name, value) for name, value in {**seen.counters, **seen.gauges}.items()]
    return rows + [_histogram_row(name, one) for name, one in seen.histograms.items()]


def _duration_row(name: str, one: Summary) -> CountRow:
    times = (one.mean_seconds, one.p50, one.p95, one.p99, one.longest_seconds)
    return CountRow((name, f"{one.count:,}", f"{one.failed:,}", *(f"{seconds:.4f} s" for seconds in times)))


def _histogram_row(name: str, one: HistogramSummary) -> CountRow:
    return CountRow(
        (name, f"{one.count:,}", "", *(f"{value:g}" for value in (one.mean, one.p50, one.p95, one.p99, one.largest)))
    )


def _number_row(name: str, value: float) -> CountRow:
    return CountRow((name, f"{value:,}", *[""] * (len(_HEAD) - 2)))


def to_table(rows: Sequence[CountRow]) -> Table:
    """Return lines as rich prints them."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*_HEAD, title="Metrics")
    for row in rows:
        table.add_row(*map(Text, row.cells))
    return table


def to_html(rows: Sequence[CountRow]) -> str:
    """Return lines as a notebook shows them."""
    from html import escape

    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# --------------------------------------------------------------------------------------------------------------- Prometheus


def encode_prometheus(seen: Snapshot) -> str:
    """Return the counts in the text format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(seen))


def _lines(seen: Snapshot) -> Iterator[str]:
    for name, summaries in (("tinker_request_seconds", seen.attempts), ("tinker_operation_seconds", seen.futures)):
        yield from _durations(name, summaries)
    yield from _family("tinker_retries_total", "operation", seen.retries)
    yield from _family("tinker_queue_changes_total", "state", seen.queue_changes)
    yield from _family("tinker_tokens_total", "kind", seen.tokens)
    yield from _family("tinker_bytes_total", "direction", {"sent": seen.sent_nbytes, "received": seen.received_nbytes})
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
        yield from _buckets(name, _label("operation", operation), one.buckets, one.mean_seconds * one.count, one.count)
    failed = name.replace("_seconds", "_failures_total")
    yield from _family(failed, "operation", {operation: one.failed for operation, one in summaries.items()})


def _buckets(name: str, label: str, buckets: Mapping[float, int], total: float, count: int) -> Iterator[str]:
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
