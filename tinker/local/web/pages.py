"""The routes for browsers and monitors: the page, its data as one JSON document, its files, and the
metrics.

Pages and their files hold no data and fetch nothing from elsewhere, so they need no key; what they
show is asked for with one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker_wire import models

from tinker._wire import json
from tinker.local.engines.opening import read_resident
from tinker.local.engines.protocol import Engine
from tinker.local.errors import APIProblem, Endpoint, answer_errors, error_response
from tinker.local.state import SharedData, State
from tinker.local.storage.checkpoints import CheckpointRecord
from tinker.local.storage.records import HistoryPoint, RunHistory
from tinker.local.storage.sessions import ModelRecord, SessionRecord
from tinker.local.v1.routes import read_any_credential
from tinker.local.web.traffic import Traffic, write_metrics

PageFacts: TypeAlias = dict[str, Any]
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
            "models": [_describe_model(state, engine) for engine in engines],
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
            "checkpoints": [_describe_checkpoint(record) for record in records[:MAX_ROWS]],
            "stored_bytes": sum(record.nbytes for record in records),
        }


def _describe_model(state: State, engine: Engine) -> PageFacts:
    return {
        "base_model": engine.base_model,
        "max_context_length": engine.max_context_length,
        "pending": state.futures.count_pending(engine.base_model),
        "restarts": list(engine.restarts),
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


def _describe_checkpoint(record: CheckpointRecord) -> PageFacts:
    return {
        "path": record.path,
        "kind": record.kind,
        "base_model": record.base_model,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "nbytes": record.nbytes,
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
