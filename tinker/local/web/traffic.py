"""Every request as it was answered: counted for the metrics, in Prometheus' format, and written to
the log.

A log names the route, never the path that was asked for: paths hold the tokens of links.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tinker_wire.operations import OPERATIONS

from tinker._installation import install_command
from tinker.local.engines.losses import SAMPLER_GAP
from tinker.local.errors import APIProblem
from tinker.local.state import State

if TYPE_CHECKING:
    from prometheus_client.core import Metric


BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NO_ROUTE = "no such path"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
log: logging.Logger = logging.getLogger("tinker.local.requests")
_OPERATIONS = {(row.method, row.path): name for name, row in OPERATIONS.items()}


@attrs.define
class DurationCounts:
    """How many requests took how long: ``buckets[i]`` those of at most ``BOUNDS[i]`` seconds, the
    last one the rest.
    """

    buckets: list[int] = attrs.field(factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Traffic:
    """The requests of one server since its start, by route and status. Usable from
    several threads.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], int] = {}
        self._durations: defaultdict[str, DurationCounts] = defaultdict(DurationCounts)

    def add(self, name: str, status: int, seconds: float) -> None:
        """Count one request."""
        with self._lock:
            self._counts[name, status] = self._counts.get((name, status), 0) + 1
            self._durations[name].add(seconds)

    def counts(self) -> dict[tuple[str, int], int]:
        """Return how many requests of each route were answered with each status."""
        with self._lock:
            return dict(self._counts)

    def durations(self) -> dict[str, DurationCounts]:
        """Return how long the requests of each route took."""
        with self._lock:
            return {
                name: attrs.evolve(counts, buckets=list(counts.buckets))
                for name, counts in self._durations.items()
            }


class TrafficWatch:
    """The application, each of whose answers is counted and logged."""

    def __init__(self, app: ASGIApp, traffic: Traffic, routes: Iterable[Route]) -> None:
        self._app, self._traffic = app, traffic
        self._paths: Mapping[int, str] = {id(route.endpoint): route.path for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 500, self._traffic.clock()

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        finally:
            self._note(scope, status, self._traffic.clock() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        path = self._paths.get(id(scope.get("endpoint")))
        plain = None if path is None else path.replace(":checkpoint}", "}")
        name = NO_ROUTE if plain is None else _OPERATIONS.get((method, plain), f"{method} {plain}")
        self._traffic.add(name, status, seconds)
        if log.isEnabledFor(logging.INFO):
            client = (scope.get("client") or ("-",))[0]
            log.info(
                "%s %s %s %d %.1f ms",
                client,
                method,
                plain or f"({NO_ROUTE})",
                status,
                seconds * 1000,
            )


def write_metrics(state: State, traffic: Traffic) -> tuple[bytes, str]:
    """Return the metrics and their media type. Raises APIProblem 501 where prometheus_client is not
    installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        raise APIProblem(
            501, f"metrics need prometheus_client: {install_command('local')}"
        ) from None

    class ServerCollector(Collector):
        def collect(self) -> Iterable[Metric]:
            return [*_describe_traffic(traffic), *_describe_work(state)]

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ServerCollector())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _describe_traffic(traffic: Traffic) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily(
        "tinker_requests", "Requests by operation and status.", labels=["operation", "status"]
    )
    for (name, status), count in sorted(traffic.counts().items()):
        requests.add_metric([name, str(status)], count)
    yield requests
    seconds = HistogramMetricFamily(
        "tinker_request_seconds", "Time to the end of an answer.", labels=["operation"]
    )
    for name, durations in sorted(traffic.durations().items()):
        seconds.add_metric([name], _cumulate(durations), durations.seconds)
    yield seconds


def _cumulate(durations: DurationCounts) -> list[tuple[str, float]]:
    return list(zip([*map(str, BOUNDS), "+Inf"], accumulate(durations.buckets), strict=True))


def _describe_work(state: State) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    with state.lock() as shared:
        live = [session for session in shared.store.sessions() if session.end is None]
        runs = [model for model in shared.store.models() if model.closed_reason is None]
        newest = {run: dict(run.history.points[-1].metrics) for run in runs if run.history.points}
        samplers = sum(len(session.samplers) for session in live)
        totals, names = (
            shared.usage.totals(),
            [engine.base_model for engine in state.served.engines],
        )
        pending = {name: state.futures.count_pending(name) for name in names}
    tokens = CounterMetricFamily("tinker_tokens", "Tokens computed.", labels=["kind", "base_model"])
    for (kind, base_model), amount in sorted(totals.items(), key=str):
        if kind != "checkpoint":
            tokens.add_metric([kind, base_model or ""], amount)
    yield tokens
    waiting = GaugeMetricFamily(
        "tinker_pending_requests", "Requests that wait or run.", labels=["kind", "base_model"]
    )
    for name, counts in pending.items():
        for kind, count in counts.items():
            waiting.add_metric([kind, name], count)
    yield waiting
    yield GaugeMetricFamily("tinker_sessions", "Clients that are connected.", value=len(live))
    yield GaugeMetricFamily("tinker_training_runs", "Training runs in memory.", value=len(runs))
    yield GaugeMetricFamily("tinker_sampling_sessions", "Open sampling sessions.", value=samplers)
    gap = GaugeMetricFamily(
        f"tinker_{SAMPLER_GAP}",
        "Difference of the log-probabilities of sampler and trainer in the last step of "
        "a run, in nats.",
        labels=["run", "statistic"],
    )
    for run, metrics in newest.items():
        for statistic in ("mean", "max"):
            if (value := metrics.get(f"{SAMPLER_GAP}:{statistic}")) is not None:
                gap.add_metric([run.model_id, statistic], value)
    yield gap
