"""The metrics of a server in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tinker._installation import install_command
from tinker.local.errors import APIProblem
from tinker.local.state import State
from tinker.local.web.traffic import BOUNDS, DurationCounts, Traffic

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def write_metrics(state: State, traffic: Traffic) -> tuple[bytes, str]:
    """Return the metrics and their media type. Raises APIProblem 501 where prometheus_client is not installed."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        raise APIProblem(501, f"metrics need prometheus_client: {install_command('local')}") from None

    class ServerCollector(Collector):
        def collect(self) -> Iterable[Metric]:
            return [*_describe_traffic(traffic), *_describe_work(state)]

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ServerCollector())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _describe_traffic(traffic: Traffic) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily("tinker_requests", "Requests by operation and status.", labels=["operation", "status"])
    for (name, status), count in sorted(traffic.counts().items()):
        requests.add_metric([name, str(status)], count)
    yield requests
    seconds = HistogramMetricFamily("tinker_request_seconds", "Time to the end of an answer.", labels=["operation"])
    for name, durations in sorted(traffic.durations().items()):
        seconds.add_metric([name], _cumulate(durations), durations.seconds)
    yield seconds


def _cumulate(durations: DurationCounts) -> list[tuple[str, float]]:
    total = 0
    out: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], durations.buckets, strict=True):
        total += count
        out.append((bound, total))
    return out


def _describe_work(state: State) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    with state.lock:
        live = [session for session in state.store.sessions() if session.end is None]
        runs = sum(model.closed_reason is None for model in state.store.models())
        samplers = sum(len(session.samplers) for session in live)
        totals, names = state.usage.totals(), [engine.base_model for engine in state.served.engines]
        pending = {name: state.futures.count_pending(name) for name in names}
    tokens = CounterMetricFamily("tinker_tokens", "Tokens computed.", labels=["kind", "base_model"])
    for (kind, base_model), amount in sorted(totals.items(), key=str):
        if kind != "checkpoint":
            tokens.add_metric([kind, base_model or ""], amount)
    yield tokens
    waiting = GaugeMetricFamily("tinker_pending_requests", "Requests that wait or run.", labels=["kind", "base_model"])
    for name, counts in pending.items():
        for kind, count in counts.items():
            waiting.add_metric([kind, name], count)
    yield waiting
    yield GaugeMetricFamily("tinker_sessions", "Clients that are connected.", value=len(live))
    yield GaugeMetricFamily("tinker_training_runs", "Training runs in memory.", value=runs)
    yield GaugeMetricFamily("tinker_sampling_sessions", "Open sampling sessions.", value=samplers)
