"""Links to files that need no credentials and end, and the one route that they lead to, outside the API.

A link is a signed token that says which file it is for; its last part is only a name to save the file under.
"""

from __future__ import annotations

import datetime
import os
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import attrs
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tinker._wire import json
from tinker.local import trace
from tinker.local.checkpoints import CheckpointRecord, Checkpoints, Kind
from tinker.local.engines.protocol import EngineError
from tinker.local.ledger import time_of_day
from tinker.local.settings import Settings
from tinker.local.signing import BadToken, Signer

if TYPE_CHECKING:
    from tinker.local.call import Call
    from tinker.local.state import State
    from tinker.local.store import Session

PREFIX = "/files"


class Links:
    """Makes links. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, settings: Settings, signer: Signer, now: Callable[[], float]) -> None:
        self._settings, self._signer, self._now = settings, signer, now

    def expires(self) -> datetime.datetime:
        """The end of a link that is made now."""
        return time_of_day(int(self._now()) + int(self._settings.link_seconds))

    def url(self, call: Call, what: str, record: CheckpointRecord, name: str) -> str:
        """To a ``file`` of a checkpoint, or to an ``archive`` of all."""
        about = {"what": what, "run": record.training_run_id, "kind": record.kind, "name": record.name, "file": name}
        return self._url(call, about, name)

    def trace_url(self, call: Call, session: Session) -> str:
        """To the exported trace of a session."""
        return self._url(call, {"what": "trace", "session": session.session_id}, "trace.json")

    def _url(self, call: Call, claims: Mapping[str, object], name: str) -> str:
        base = self._settings.public_url or call.base_url
        token = self._signer.sign(claims, self._settings.link_seconds)
        return f"{base.rstrip('/')}{PREFIX}/{token}/{quote(name)}"


@attrs.define
class Export:
    """A trace that is being made (``content`` None) or was made; nobody fetches it after ``until``."""

    until: float
    content: bytes | None = None


class Exports:
    """The traces that were asked for, by session."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._made: dict[str, Export] = {}

    def ready(self, session: Session) -> bool:
        """Whether the trace is there; if nobody asked for it lately, it is begun."""
        state = self._state
        with state.lock:
            now = state.clock()
            self._made = {name: export for name, export in self._made.items() if export.until > now}
            if session.session_id not in self._made:
                export = self._made[session.session_id] = Export(now + state.settings.link_seconds)
                state.errand(lambda: self._make(session, export))
                return False
            return self._made[session.session_id].content is not None

    def content(self, session_id: str) -> bytes | None:
        """The trace of that session, if there is one."""
        export = self._made.get(session_id)
        return None if export is None else export.content

    def _make(self, session: Session, export: Export) -> None:
        with self._state.lock:
            spans = [attrs.evolve(span) for span in session.spans]
        export.content = trace.encode(spans, session.started, self._state.clock())


def route(state: State) -> Route:
    """Where links lead."""

    async def download(request: Request) -> Response:
        try:
            claims = state.signer.read(request.path_params["token"])
        except BadToken as error:
            return Response(json.encode({"detail": f"the link is not good: {error}"}), 403, media_type=json.MEDIA_TYPE)
        found = await state.offload_always(lambda: _found(state, claims))
        return found or Response(json.encode({"detail": "the file is gone"}), 404, media_type=json.MEDIA_TYPE)

    return Route(f"{PREFIX}/{{token}}/{{name:path}}", download, methods=["GET"])


def _found(state: State, claims: Mapping[str, Any]) -> Response | None:
    """The file; None when it is gone. Blocks."""
    if claims.get("what") == "trace":
        content = state.exports.content(claims["session"])
        return None if content is None else Response(content, media_type=trace.MEDIA_TYPE)
    if claims.get("what") not in ("file", "archive"):
        return None  # a token, but no link
    try:
        record = state.checkpoints.get(claims["run"], cast("Kind", claims["kind"]), claims["name"])
    except EngineError:
        return None
    if record is None:
        return None
    if claims["what"] == "archive":
        return _archive(state.checkpoints, record)
    file = state.checkpoints.files(record).get(claims["file"])
    return None if file is None else FileResponse(file, media_type="application/octet-stream", filename=file.name)


def _archive(checkpoints: Checkpoints, record: CheckpointRecord) -> Response:
    """A temporary file, removed once it is sent."""
    handle, name = tempfile.mkstemp(suffix=".tar.gz")
    with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for member, file in checkpoints.files(record).items():
            archive.add(file, member)
    remove = BackgroundTask(Path(name).unlink)
    return FileResponse(name, media_type="application/gzip", filename=f"{record.name}.tar.gz", background=remove)
