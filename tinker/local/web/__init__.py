"""What people and monitors look at: the page, the document of the API, the metrics, and the log of
requests.
"""

from __future__ import annotations

import bisect
import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker._basics.installation import install_command
from tinker._wire import json
from tinker.local.call import APIProblem, Endpoint, answer_errors, error_response
from tinker.local.engines import read_resident
from tinker.local.engines.protocol import SAMPLER_GAP, Engine
from tinker.local.state import SharedData, State
from tinker.local.storage import CheckpointRecord
from tinker.local.storage.records import HistoryPoint, RunHistory
from tinker.local.storage.sessions import ModelRecord, SessionRecord
from tinker.local.v1 import read_any_credential

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
        counts = zip([*map(str, BOUNDS), "+Inf"], accumulate(durations.buckets), strict=True)
        seconds.add_metric([name], list(counts), durations.seconds)
    yield seconds


def _describe_work(state: State) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    with state.lock() as shared:
        live = [session for session in shared.store.sessions() if session.end is None]
        runs = [model for model in shared.store.models() if model.closed_reason is None]
        newest = {run: dict(run.history.points[-1].metrics) for run in runs if run.history.points}
        samplers = sum(len(session.samplers) for session in live)
        totals = shared.usage.totals()
        pending = {
            engine.base_model: state.futures.count_pending(engine.base_model)
            for engine in state.served.engines
        }
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


PageFacts: TypeAlias = dict[str, Any]
CHECKPOINT_COLUMNS = ("path", "kind", "base_model", "created_at", "expires_at", "nbytes")
MAX_ROWS = 200  # of each table, the newest
MAX_POINTS = 400  # of one curve that is drawn
MAX_BESIDE = 5  # runs in one chart, beside the one that is chosen


def describe_server(
    state: State,
    engines: Sequence[Engine],
    traffic: Traffic,
    records: Sequence[CheckpointRecord],
    query: QueryParams,
) -> PageFacts:
    """Return everything that the page shows; the curves of one ``run``, which may be empty, and of
    those ``beside`` it.

    The curves of the one are ``whole`` for those who do not draw them.
    """
    run, most = query.get("run", ""), math.inf if "whole" in query else MAX_POINTS
    with state.lock() as shared:
        # live ones first
        sessions = sorted(shared.store.sessions(), key=lambda session: session.end is not None)[
            :MAX_ROWS
        ]
        runs = sorted(shared.store.models(), key=lambda model: model.last_request_at, reverse=True)[
            :MAX_ROWS
        ]
        described = [
            *(_describe_run(model, state) for model in runs),
            *map(_describe_former_run, shared.former_runs),
        ]
        return {
            "now": state.now(),
            "clock": state.clock(),
            "models": [
                {
                    "base_model": engine.base_model,
                    "max_context_length": engine.max_context_length,
                    "pending": state.futures.count_pending(engine.base_model),
                    "restarts": list(engine.restarts),
                }
                for engine in engines
            ],
            "memory_bytes": read_resident(),
            "pending": state.futures.count_pending(),
            "requests": _describe_requests(traffic),
            "tokens": [
                {"kind": kind, "base_model": base_model, "count": count}
                for (kind, base_model), count in shared.usage.totals().items()
                if kind != "checkpoint"
            ],
            "sessions": [_describe_session(session, state.clock()) for session in sessions],
            "runs": described[:MAX_ROWS],
            "curves": _describe_curves_of(shared, run, most),
            "beside": {
                other: _describe_curves_of(shared, other)
                for other in query.getlist("beside")[:MAX_BESIDE]
            },
            "checkpoints": [
                {name: getattr(record, name) for name in CHECKPOINT_COLUMNS}
                for record in records[:MAX_ROWS]
            ],
            "stored_bytes": sum(record.nbytes for record in records),
        }


def describe_curves(
    points: Sequence[HistoryPoint], most: float = MAX_POINTS
) -> dict[str, list[list[float]]]:
    """Return for each metric its ``[step, value]``; of a longer curve the lowest and the highest of
    every few steps.
    """
    curves: dict[str, list[list[float]]] = {}
    for point in points:
        for name, value in point.metrics.items():
            if math.isfinite(value):
                curves.setdefault(name, []).append([point.step, value])
    return {
        name: curve if len(curve) <= most else _thin(curve, most) for name, curve in curves.items()
    }


def _thin(curve: list[list[float]], most: float) -> list[list[float]]:
    """Return the extremes of groups of steps, and the last point. A group stays the same while the
    curve grows.
    """
    size, groups = 1, dict[float, list[list[float]]]()
    while (curve[-1][0] - curve[0][0]) / size > most / 2 - 3:
        size *= 2
    for point in curve:
        groups.setdefault(point[0] // size, []).append(point)
    shown = [
        (*(edge(group, key=itemgetter(1)) for edge in (min, max)), curve[-1])
        for group in groups.values()
    ]
    return [
        point
        for group, kept in zip(groups.values(), shown, strict=True)
        for point in group
        if point in kept
    ]


def _describe_requests(traffic: Traffic) -> PageFacts:
    counts = traffic.counts()
    # as doctor gets
    refused = [
        (status, name, n) for (name, status), n in counts.items() if status >= 400 and status != 405
    ]
    return {"total": sum(counts.values()), "refused": sorted(refused)}


def _describe_session(session: SessionRecord, clock: float) -> PageFacts:
    return {
        "id": session.session_id,
        "name": session.request.display_name,
        "project": session.project_id,
        "created_at": session.created_at,
        "silent_seconds": max(0.0, clock - session.last_seen),
        "alive": session.end is None,
        "runs": len(session.models),
        "samplers": len(session.samplers),
        "sdk": session.request.sdk_version,
    }


def _describe_curves_of(
    shared: SharedData, run: str, most: float = MAX_POINTS
) -> dict[str, list[list[float]]]:
    """Describe the curves of a run, also of one that an earlier process of this server had."""
    model = shared.store.find_model(run)
    found = (
        [one for one in shared.former_runs if one.model_id == run]
        if model is None
        else [model.history]
    )
    parts = [describe_curves([*part], most) for one in found for part in (one.points, one.reports)]
    return {name: curve for curves in parts for name, curve in curves.items()}


def _describe_run(model: ModelRecord, state: State) -> PageFacts:
    """Describe a run, which is idle while its client is silent."""
    named = dict(model.user_metadata or {})
    fault = model.queue.fault if "diverged" in (model.queue.fault or "") else None
    waiting = (
        "idle"
        if state.clock() - model.session.last_seen > state.settings.silent_session_seconds
        else "open"
    )
    return {
        "id": model.model_id,
        "name": named.pop("name", None),
        "project": model.session.project_id,
        "tags": [
            *sorted(model.session.request.tags),
            *(f"{key}={value}" for key, value in named.items()),
        ],
        "base_model": model.base_model,
        "rank": model.spec.rank,
        **_describe_steps(model.history, model.created_at, model.last_request_at),
        "state": "failed"
        if model.creation_error
        else "diverged"
        if fault
        else "ended"
        if model.closed_reason
        else waiting,
        "reason": model.creation_error or fault or model.closed_reason or "",
    }


def _describe_former_run(run: RunHistory) -> PageFacts:
    last = run.points[-1].at if run.points else 0.0
    return {
        "id": run.model_id,
        "base_model": run.base_model,
        "rank": run.rank,
        **_describe_steps(run, last, last),
        "state": "ended",
        "reason": "ended before the server was started again",
    }


def _describe_steps(history: RunHistory, begun_at: float, last_request_at: float) -> PageFacts:
    """Describe steps and times; a run of an earlier process was begun before its first step that is
    kept.
    """
    last = {
        name: value
        for one in (history.points, history.reports)
        if one
        for name, value in one[-1].metrics.items()
    }
    return {
        "steps": history.step_count,
        "metrics": {name: value for name, value in last.items() if math.isfinite(value)},
        "begun_at": min([begun_at, *(point.at for point in [*history.points][:1])]),
        "last_request_at": last_request_at,
    }


ASSETS = Path(__file__).with_name("assets")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": json.MEDIA_TYPE,
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Swagger UI writes styles into its page.
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def web_routes(state: State, traffic: Traffic) -> list[Route]:
    """Make the routes of the pages, their files, the document of the API and the metrics."""

    async def metrics(request: Request) -> Response:
        state.accounts.admit("metrics", read_any_credential(request.headers))
        content, media_type = await state.offload_always(lambda: write_metrics(state, traffic))
        return Response(content, media_type=media_type)

    async def health(_: Request) -> Response:
        return Response(json.encode(models.HealthResponse(status="ok")), media_type=json.MEDIA_TYPE)

    async def overview(request: Request) -> Response:
        state.accounts.admit("overview", read_any_credential(request.headers))
        records = await state.offload_always(state.checkpoints.list)
        facts = describe_server(
            state, await state.engines(), traffic, records, request.query_params
        )
        return Response(
            json.encode(facts),
            headers={**HEADERS, "cache-control": "no-store"},
            media_type=json.MEDIA_TYPE,
        )

    return [
        Route("/", _page("index.html"), methods=["GET"]),
        Route("/docs", _page("docs.html", DOCS_POLICY), methods=["GET"]),
        # for what asks before it reads a page
        Route("/favicon.ico", _page("icon.svg"), methods=["GET"]),
        Route("/openapi.json", _page("openapi.json"), methods=["GET"]),
        *(
            Route(f"/assets/{file.name}", _page(file.name), methods=["GET"])
            for file in sorted(ASSETS.iterdir())
        ),
        Route("/health", health, methods=["GET"]),  # where load balancers and containers look
        Route("/overview", answer_errors(overview, _refuse), methods=["GET"]),
        Route("/metrics", answer_errors(metrics, _refuse), methods=["GET"]),
    ]


def _page(name: str, policy: str = POLICY) -> Endpoint:
    """Return an endpoint that answers one file."""
    file, headers = ASSETS / name, {**HEADERS, "content-security-policy": policy}

    async def endpoint(request: Request) -> Response:
        return Response(file.read_bytes(), headers=headers, media_type=MEDIA_TYPES[file.suffix])

    return endpoint


def _refuse(problem: APIProblem) -> Response:
    response = error_response(problem)
    response.headers.update(HEADERS)
    return response
