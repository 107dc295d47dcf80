"""The ASGI application: a route for each operation and for files; and servers in this process."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import hashlib
import os
import re
import tarfile
import threading
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Operation

from tinker._wire import json
from tinker.local import handlers
from tinker.local.call import (
    APICall,
    APIProblem,
    Endpoint,
    UnknownFields,
    answer_errors,
    error_response,
    read_credential,
    read_pieces,
    receive,
)
from tinker.local.engines import (
    PACKAGED_MODEL,
    TOY_MODEL,
    EngineName,
    check_source,
    choose_engine,
    open_engine,
)
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.scheduling import OpenEngine
from tinker.local.settings import Settings
from tinker.local.state import State, recover
from tinker.local.storage import (
    FILES_PATH,
    AdapterUpload,
    CheckpointKind,
    CheckpointRecord,
    InvalidToken,
    make_data_folder,
)
from tinker.local.storage.futures import in_trace
from tinker.local.v1 import describe_error, v1_routes
from tinker.local.web import Traffic, TrafficWatch, web_routes
from tinker_records import find_closest


def file_routes(state: State) -> list[Route]:
    """Make the routes that links lead to, to files and to those of uploads."""

    async def download(request: Request) -> Response:
        claims = _read_link(state, request)
        found = await state.offload_always(lambda: _find_file(state, claims))
        if found is None:
            raise APIProblem(404, "the file no longer exists")
        return found

    async def upload(request: Request) -> Response:
        found, name = _find_upload(state, request)
        digest = await _receive_file(state, request, found, name)
        return Response(None, 200, {"repr-digest": f"sha-256=:{digest}:"})

    path = f"{FILES_PATH}/{{token}}/{{name:path}}"
    return [
        Route(path, answer_errors(download), methods=["GET"]),
        Route(path, answer_errors(upload), methods=["PUT"]),
    ]


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
        return None if content is None else Response(content, media_type=json.MEDIA_TYPE)
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
    packed = _PackedFile(
        state.archives.path() / uuid.uuid4().hex,
        media_type="application/gzip",
        filename=f"{record.name}.tar.gz",
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


Handler: TypeAlias = Callable[[State, APICall], Awaitable[msgspec.Struct | Response | None]]
#: By the id of the operation; the handler has that name, in the file of its tag.
HANDLERS: Mapping[str, Handler] = {
    name: getattr(getattr(handlers, operation.tag), name)
    for name, operation in OPERATIONS.items()
    if hasattr(getattr(handlers, operation.tag), name)
}


class _CheckpointId(Convertor[str]):
    """``<kind>/<name>``, or a bare name, even one equal to an operation that may follow it in a
    path.
    """

    regex = r"(?:[^/]+/[^/]+|(?!(?:weights|sampler_weights|external_weights)/)[^/]+)"

    def convert(self, value: str) -> str:
        return value


register_url_convertor("checkpoint", _CheckpointId())


def create_app(state: State) -> Starlette:
    """Return the application that serves ``state``. Where lifespan events are sent, its end closes
    the state.

    A state with a journal needs them: before it serves, it continues with what it holds.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await recover(state, HANDLERS)
        state.notify()  # periodic tasks run without a request
        yield
        try:
            await state.aclose()
        except OSError as error:
            state.close_error = error

    unread = UnknownFields(strict=state.settings.strict)
    routes = [
        _route(state, unread, path)
        # fixed words before parameters, longer paths before shorter ones
        for path in sorted(
            {row.path for row in OPERATIONS.values()},
            key=lambda path: (path.count("{"), -path.count("/"), path),
        )
    ]
    traffic = Traffic(state.clock)
    routes += [
        *file_routes(state),
        *v1_routes(state, unread),
        *web_routes(state, traffic),
    ]
    app = Starlette(
        routes=[_FixedPaths(routes), *routes],
        middleware=[Middleware(TrafficWatch, traffic=traffic, routes=routes)],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False  # such a redirect decodes the path once more
    return app


class _FixedPaths(BaseRoute):
    """The routes without parameters, each found by its path at once. Where the server is mounted,
    none is found.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = {route.path: route for route in routes if not route.param_convertors}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        route = self._routes.get(scope["path"])
        if route is None:
            return Match.NONE, {}
        match, found = route.matches(scope)
        return match, {**found, "route": route}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._routes[scope["path"]].handle(scope, receive, send)


def _route(state: State, unread: UnknownFields, path: str) -> Route:
    """Make the route of one path, with all its operations."""
    rows = {row.method: row for row in OPERATIONS.values() if row.path == path}
    endpoints = {
        method: _endpoint(
            state, unread, row, HANDLERS.get(row.operation_id, _refuse_missing_handler)
        )
        for method, row in rows.items()
    }

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(
        path.replace("{checkpoint_id}", "{checkpoint_id:checkpoint}"),
        endpoint,
        methods=list(endpoints),
    )


def _endpoint(
    state: State, unread: UnknownFields, operation: Operation, handler: Handler
) -> Endpoint:
    profile = state.settings.profile

    async def respond(request: Request) -> Response:
        state.accounts.admit(operation.operation_id, read_credential(request.headers))
        if (status := profile.absent.get(operation.operation_id)) is not None:
            raise APIProblem(status, _NOT_OFFERED[status])
        call = await receive(request, operation, state.settings.max_request_bytes, state.offload)
        call = call.apply(profile)
        notes = unread.check(call.name, call.content, None if call.is_proto else operation.body)
        with in_trace(call.name, call.headers.get("traceparent")):
            answer = await handler(state, call)
        state.journal.flush()
        response = _to_response(
            answer, lambda content: profile.rewrite_answer(call.name, call.content, content)
        )
        response.headers.update(notes)
        return response

    return answer_errors(respond, lambda problem: error_response(profile.rewrite_problem(problem)))


async def _refuse_missing_handler(state: State, call: APICall) -> None:
    """Refuse an operation of the contract that has no handler yet."""
    raise APIProblem(501, f"this server does not implement {call.name}")


_NOT_OFFERED = {404: "Not Found", 405: "Method Not Allowed", 422: "Invalid checkpoint_id"}


def _to_response(
    value: msgspec.Struct | Response | None, reshaped: Callable[[bytes], bytes]
) -> Response:
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=204)
    return Response(reshaped(json.encode(value)), media_type=json.MEDIA_TYPE)


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}"
    if request.url.path.startswith("/v1/"):
        detail += (
            " is not supported; this server has POST chat/completions, POST completions and GET "
            "models below /v1"
        )
        return JSONResponse(
            describe_error(error.status_code, detail), error.status_code, error.headers
        )
    return error_response(APIProblem(error.status_code, detail, error.headers))


SCHEME = "local://"
TOY = "toy"
OPTIONS = ("engine", "profile", "device", "dtype", "device_map", "quantize", "recompute")
_lock = threading.Lock()
_running: dict[tuple[str, Path], tuple[State, ASGIApp]] = {}


#: Called in the engine's thread with the name of the loading model, or None when loading is done.
Listener: TypeAlias = Callable[[str | None], object]


class Loading:
    """The model loading in this process, and its listeners. Loading does not count against a
    request's deadline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what: str | None = None
        self._listeners: list[Listener] = []

    def open(self, what: str, open_engine: OpenEngine) -> Engine:
        """Open an engine, notifying the listeners before and after."""
        self._change(what)
        try:
            return open_engine()
        finally:
            self._change(None)

    def watch(self, listener: Listener) -> None:
        """Call this listener with what loads now, and then on every change."""
        with self._lock:
            self._listeners.append(listener)
            listener(self._what)

    def unwatch(self, listener: Listener) -> None:
        """Remove a listener."""
        with self._lock:
            self._listeners.remove(listener)

    def _change(self, what: str | None) -> None:
        with self._lock:
            self._what = what
            for listener in self._listeners:
                listener(what)


def in_process_app(url: str, data_dir: Path | None = None) -> ASGIApp:
    """Return the application behind a ``local://`` URL; the same one each time, made on the first
    call, opened on first use.

    ``local://`` trains the packaged model in numpy, or with torch as ``local://?engine=torch``.
    ``local://toy`` is a toy. ``local:///absolute/path`` and ``local://org/name`` load that model
    with torch. A query sets what the server passes for, as in ``local://toy?profile=skyrl``, and
    where it computes, as in ``local://org/name?device=cuda:1&dtype=float16``, each as in
    :class:`Settings`. ``data_dir`` None means ``~/.tinker/local``. A child process made by ``fork``
    starts with none. ValueError for another scheme or query, FileNotFoundError for a path where
    there is no directory, OSError for a name that neither the hub nor its cache has, and for a
    ``data_dir`` that cannot be written.
    """
    name, options = _parse_url(url)
    engine, model = _choose_model(name, options.pop("engine", None))
    settings = Settings(data_dir=data_dir, **options)
    key = (url, settings.data_dir)
    if key not in _running:
        check_source(
            engine, model, {known: f"{SCHEME}{known}" for known in (TOY, TOY_MODEL, PACKAGED_MODEL)}
        )
        if data_dir is not None:  # the default one is made on the first save, as few need it
            try:
                make_data_folder(settings.data_dir)
            except OSError as error:
                raise OSError(f"{error}; set TINKER_LOCAL_DIR to another") from error
    with _lock:
        if key not in _running:
            loading = Loading()
            state = State(_engine_opener(engine, model, settings, loading), settings)
            app = create_app(state)
            app.state.loading = loading  # for the client, whose requests wait for it
            _running[key] = state, app
        return _running[key][1]


def close_in_process() -> None:
    """End every server of this process: pending requests fail, and the next call starts afresh."""
    with _lock:
        states = [state for state, _ in _running.values()]
        _running.clear()
    for state in states:
        state.close()


def _parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """Return the model's name, empty for the default one, and the settings of the query."""
    if not url.startswith(SCHEME):
        raise ValueError(
            f"a server in this process has a URL that starts with {SCHEME}, not {url!r}"
        )
    name, _, query = url.removeprefix(SCHEME).partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    for unknown in given.keys() - set(OPTIONS):
        meant = find_closest(unknown, OPTIONS)
        advice = "" if meant is None else f"; for {unknown!r}, did you mean {meant!r}?"
        raise ValueError(
            f"the query of {url!r} may contain {', '.join(OPTIONS)}, and nothing else{advice}"
        )
    return name, given


def _choose_model(name: str, engine: str | None) -> tuple[EngineName | None, str | None]:
    """Return the engine and the model of a URL. Raises ValueError for an engine
    that there is not.
    """
    known: tuple[EngineName, ...] = ("toy",) if name == TOY else get_args(EngineName)
    if engine not in (None, *known):
        raise ValueError(
            f"engine is {engine!r}; for {SCHEME}{name} it must be one of {', '.join(known)}"
        )
    return (
        ("toy", None)
        if name == TOY
        else (next((one for one in known if one == engine), None), name or None)
    )


def _engine_opener(
    engine: EngineName | None, model: str | None, settings: Settings, loading: Loading
) -> OpenEngine:
    opener = functools.partial(open_engine, engine, model, settings.placement)
    if choose_engine(engine, model) != "torch":
        return opener
    return functools.partial(loading.open, f"torch and {model or PACKAGED_MODEL}", opener)


def _reset_after_fork() -> None:
    """Start with no servers: the parent's threads do not exist here, and its locks may be held by
    them.
    """
    global _lock
    _lock = threading.Lock()
    _running.clear()


atexit.register(close_in_process)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
