"""The routes outside the API, where links to files lead: downloads by GET, files of an upload by
PUT.

A link is a signed token, which needs no credentials; nothing else of the request decides which file
is read or written.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tarfile
import uuid
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tinker.local.call import read_pieces
from tinker.local.engines.protocol import EngineError
from tinker.local.errors import APIProblem, answer_errors
from tinker.local.state import State
from tinker.local.storage.access import FILES_PATH, InvalidToken
from tinker.local.storage.checkpoints import CheckpointKind, CheckpointRecord
from tinker.local.storage.trace import TRACE_MEDIA_TYPE
from tinker.local.storage.uploads import AdapterUpload


def download_route(state: State) -> Route:
    """Make the route that links lead to."""

    async def download(request: Request) -> Response:
        claims = _read_link(state, request)
        found = await state.offload_always(lambda: _find_file(state, claims))
        if found is None:
            raise APIProblem(404, "the file no longer exists")
        return found

    return Route(f"{FILES_PATH}/{{token}}/{{name:path}}", answer_errors(download), methods=["GET"])


def _read_link(state: State, request: Request) -> dict[str, Any]:
    """Return the claims of a link. Raises APIProblem 403 for one that is not valid."""
    try:
        return state.signer.read(request.path_params["token"])
    except InvalidToken as error:
        raise APIProblem(403, f"the link is not valid: {error}") from error


def _find_file(state: State, claims: Mapping[str, Any]) -> Response | None:
    """Find the file; None if it no longer exists. Blocks."""
    if claims.get("what") == "trace":
        content = state.exports.content(claims["session"])
        return None if content is None else Response(content, media_type=TRACE_MEDIA_TYPE)
    if claims.get("what") not in ("file", "archive"):
        return None  # a token, but no link
    try:
        record = state.checkpoints.get(
            claims["run"], cast("CheckpointKind", claims["kind"]), claims["name"]
        )
    except EngineError:
        return None
    if record is None:
        return None
    if claims["what"] == "archive":
        return _archive_response(state, record)
    file = state.checkpoints.files(record).get(claims["file"])
    return (
        None
        if file is None
        else FileResponse(file, media_type="application/octet-stream", filename=file.name)
    )


class _PackedFile(FileResponse):
    """A file that is removed once it is sent, in part or as a whole, or refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _remove(self.path)


def _archive_response(state: State, record: CheckpointRecord) -> Response:
    """Pack a checkpoint into a file of this server, which goes at the latest with it, or with the
    start of the next one.
    """
    name = f"{record.name}.tar.gz"
    packed = _PackedFile(
        state.archives.path() / uuid.uuid4().hex, media_type="application/gzip", filename=name
    )
    try:
        with tarfile.open(packed.path, mode="w:gz") as archive:
            for member, file in state.checkpoints.files(record).items():
                archive.add(file, member)
    except BaseException:
        _remove(packed.path)
        raise
    return packed


def _remove(path: str | PathLike[str]) -> None:
    Path(path).unlink(missing_ok=True)


PIECE_NBYTES = 1 << 20
RETRY = {"x-should-retry": "true"}
_DIGEST = re.compile(r"\bsha-256=:([A-Za-z0-9+/=]+):")


def upload_route(state: State) -> Route:
    """Make the route that links to files of uploads lead to."""

    async def receive(request: Request) -> Response:
        upload, name = _find_upload(state, request)
        digest = await _receive_file(state, request, upload, name)
        return Response(None, 200, {"repr-digest": f"sha-256=:{digest}:"})

    return Route(f"{FILES_PATH}/{{token}}/{{name:path}}", answer_errors(receive), methods=["PUT"])


def _find_upload(state: State, request: Request) -> tuple[AdapterUpload, str]:
    """Return the upload and the file that the link is for. Raises APIProblem 403, 404, or 409 when
    it is finished.
    """
    claims = _read_link(state, request)
    if claims.get("what") != "upload":
        raise APIProblem(403, "the link is not one to send a file to")
    with state.lock() as shared:
        upload = shared.uploads.find(claims["upload"])
    if upload is None:
        raise APIProblem(404, "the upload is no longer known")
    if upload.tinker_path is not None:
        raise APIProblem(409, f"the upload is finished: {upload.tinker_path}")
    return upload, claims["file"]


async def _receive_file(state: State, request: Request, upload: AdapterUpload, name: str) -> str:
    """Write the body, and move it in place when it is complete and matches its digest. Returns the
    SHA-256 in base64.
    """
    with upload.receiving(state.now) as part:
        digest = await _write(state, request, part, name)
        wanted = _DIGEST.search(request.headers.get("content-digest", ""))
        if wanted is not None and wanted[1] != digest:
            raise APIProblem(
                400, f"{name}: what arrived differs from its Content-Digest; send it again", RETRY
            )
        with state.lock():
            if upload.tinker_path is None:
                upload.put(part, name)
        return digest


async def _write(state: State, request: Request, part: Path, name: str) -> str:
    hashed, held, limit = hashlib.sha256(), bytearray(), state.settings.max_upload_bytes
    too_large = APIProblem(413, f"{name} is larger than {limit} bytes (max_upload_bytes)")

    def store(piece: bytes) -> None:
        hashed.update(piece)
        file.write(piece)

    with part.open("xb") as file:
        async for piece in read_pieces(request, limit, too_large):
            held += piece
            if len(held) >= PIECE_NBYTES:
                taken, held = bytes(held), bytearray()
                await state.offload(len(taken), partial(store, taken))
        store(bytes(held))
    return base64.b64encode(hashed.digest()).decode()
