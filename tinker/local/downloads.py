"""The one route outside the API: where the links to files lead."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tinker._wire import json
from tinker.local.engines import EngineError
from tinker.local.state import State
from tinker.local.storage.checkpoint_records import CheckpointKind, CheckpointRecord
from tinker.local.storage.checkpoints import Checkpoints
from tinker.local.storage.links import FILES_PATH
from tinker.local.storage.signing import InvalidToken
from tinker.local.storage.trace import TRACE_MEDIA_TYPE


def download_route(state: State) -> Route:
    """Make the route that links lead to."""

    async def download(request: Request) -> Response:
        try:
            claims = state.signer.read(request.path_params["token"])
        except InvalidToken as error:
            return Response(json.encode({"detail": f"the link is not valid: {error}"}), 403, media_type=json.MEDIA_TYPE)
        found = await state.offload_always(lambda: _find_file(state, claims))
        return found or Response(json.encode({"detail": "the file no longer exists"}), 404, media_type=json.MEDIA_TYPE)

    return Route(f"{FILES_PATH}/{{token}}/{{name:path}}", download, methods=["GET"])


def _find_file(state: State, claims: Mapping[str, Any]) -> Response | None:
    """Find the file; None when it is gone. Blocks."""
    if claims.get("what") == "trace":
        content = state.exports.content(claims["session"])
        return None if content is None else Response(content, media_type=TRACE_MEDIA_TYPE)
    if claims.get("what") not in ("file", "archive"):
        return None  # a token, but no link
    try:
        record = state.checkpoints.get(claims["run"], cast("CheckpointKind", claims["kind"]), claims["name"])
    except EngineError:
        return None
    if record is None:
        return None
    if claims["what"] == "archive":
        return _archive_response(state.checkpoints, record)
    file = state.checkpoints.files(record).get(claims["file"])
    return None if file is None else FileResponse(file, media_type="application/octet-stream", filename=file.name)


def _archive_response(checkpoints: Checkpoints, record: CheckpointRecord) -> Response:
    """Pack a checkpoint into a temporary file, which is removed once it is sent."""
    handle, name = tempfile.mkstemp(suffix=".tar.gz")
    with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for member, file in checkpoints.files(record).items():
            archive.add(file, member)
    remove = BackgroundTask(Path(name).unlink)
    return FileResponse(name, media_type="application/gzip", filename=f"{record.name}.tar.gz", background=remove)
