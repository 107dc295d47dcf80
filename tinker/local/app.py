"""The ASGI application: one route for each operation of the contract, and the answer to everything
that goes wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Operation

from tinker._wire import json
from tinker.local import handlers
from tinker.local.bodies import UnknownFields
from tinker.local.call import APICall, read_credential, receive
from tinker.local.errors import APIProblem, Endpoint, answer_errors, error_response
from tinker.local.files import download_route, upload_route
from tinker.local.recovery import recover
from tinker.local.state import State
from tinker.local.storage.trace import in_trace
from tinker.local.v1.answers import describe_error
from tinker.local.v1.routes import v1_routes
from tinker.local.web.pages import web_routes
from tinker.local.web.traffic import Traffic, TrafficWatch

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

    def to_string(self, value: str) -> str:
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
        for path in sorted({row.path for row in OPERATIONS.values()}, key=_generality)
    ]
    traffic = Traffic(state.clock)
    routes += [
        download_route(state),
        upload_route(state),
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


def _generality(path: str) -> tuple[int, int, str]:
    """Sort routes, which are tried in order: fixed words before parameters, longer paths before
    shorter ones.
    """
    return path.count("{"), -path.count("/"), path


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
