"""What the page shows, as one JSON document: read from the state, changed by nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tinker.local.engines.protocol import Engine
from tinker.local.state import SharedData, State
from tinker.local.storage.checkpoint_records import CheckpointRecord
from tinker.local.storage.records import HistoryPoint, RunHistory
from tinker.local.storage.sessions import ModelRecord, SessionRecord
from tinker.local.web.traffic import Traffic

PageFacts: TypeAlias = dict[str, Any]
MAX_ROWS = 200  # of each table, the newest
MAX_POINTS = 400  # of one curve


def describe_server(
    state: State, engines: Sequence[Engine], traffic: Traffic, records: Sequence[CheckpointRecord], run: str
) -> PageFacts:
    """Return everything that the page shows; the curves of one run, which may be empty."""
    with state.lock() as shared:
        sessions = shared.store.sessions()[:MAX_ROWS]
        runs = sorted(shared.store.models(), key=lambda model: model.last_request_at, reverse=True)[:MAX_ROWS]
        history = _find_history(shared, run)
        return {
            "now": state.now(),
            "clock": state.clock(),
            "models": [_describe_model(state, engine) for engine in engines],
            "memory_bytes": read_memory(),
            "pending": state.futures.count_pending(),
            "requests": _describe_requests(traffic),
            "tokens": [
                {"kind": kind, "base_model": base_model, "count": count}
                for (kind, base_model), count in shared.usage.totals().items()
                if kind != "checkpoint"
            ],
            "sessions": [_describe_session(session, state.clock()) for session in sessions],
            "runs": [*(_describe_run(model) for model in runs), *map(_describe_former_run, shared.former_runs)][:MAX_ROWS],
            "curves": {} if history is None else describe_curves(list(history.points)),
            "checkpoints": [_describe_checkpoint(record) for record in records[:MAX_ROWS]],
            "stored_bytes": sum(record.nbytes for record in records),
        }


def _describe_model(state: State, engine: Engine) -> PageFacts:
    pending = state.futures.count_pending(engine.base_model)
    return {"base_model": engine.base_model, "max_context_length": engine.max_context_length, "pending": pending}


def read_memory() -> int | None:
    """Return the bytes of memory that this process holds; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def describe_curves(points: Sequence[HistoryPoint]) -> dict[str, list[list[float]]]:
    """Return for each metric its ``[step, value]``, at most MAX_POINTS of them: of longer runs every n-th, and the last."""
    every = math.ceil(len(points) / MAX_POINTS) or 1
    shown = [point for place, point in enumerate(reversed(points)) if place % every == 0][::-1]
    curves: dict[str, list[list[float]]] = {}
    for point in shown:
        for name, value in point.metrics.items():
            if math.isfinite(value):
                curves.setdefault(name, []).append([point.step, value])
    return curves


def _describe_requests(traffic: Traffic) -> PageFacts:
    counts = traffic.counts()
    failed = sum(count for (_, status), count in counts.items() if status >= 400)
    return {"total": sum(counts.values()), "refused": failed}


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


def _find_history(shared: SharedData, run: str) -> RunHistory | None:
    """Find the history of a run, also of one that an earlier process of this server had."""
    model = shared.store.find_model(run)
    if model is not None:
        return model.history
    return next((one for one in shared.former_runs if one.model_id == run), None)


def _describe_run(model: ModelRecord) -> PageFacts:
    return {
        "id": model.model_id,
        "base_model": model.base_model,
        "rank": model.spec.rank,
        **_describe_steps(model.history),
        "last_request_at": model.last_request_at,
        "state": model.closed_reason or model.creation_error or "open",
    }


def _describe_former_run(run: RunHistory) -> PageFacts:
    return {
        "id": run.model_id,
        "base_model": run.base_model,
        "rank": run.rank,
        **_describe_steps(run),
        "last_request_at": run.points[-1].at if run.points else 0.0,
        "state": "ended before the server was started again",
    }


def _describe_steps(history: RunHistory) -> PageFacts:
    last = history.points[-1].metrics if history.points else dict[str, float]()
    return {"steps": history.step_count, "metrics": {name: value for name, value in last.items() if math.isfinite(value)}}


def _describe_checkpoint(record: CheckpointRecord) -> PageFacts:
    return {
        "path": record.path,
        "kind": record.kind,
        "base_model": record.base_model,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "nbytes": record.nbytes,
    }
