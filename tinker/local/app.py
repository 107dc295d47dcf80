"""The ASGI application: one route for each operation of the contract, and the answer to everything that goes wrong."""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from tinker_wire import models
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Operation

from tinker._wire import json
from tinker.local import answers, sampling, service, training, weights
from tinker.local.call import Call, receive
from tinker.local.problem import Problem
from tinker.local.state import State

Handler: TypeAlias = Callable[[State, Call], Awaitable[msgspec.Struct | Response | None]]

log = logging.getLogger("tinker.local")

HANDLERS: Mapping[str, Handler] = {
    handler.__name__: handler
    for handler in (
        service.healthz,
        service.client_config,
        service.client_dynamic_config,
        service.create_session,
        service.session_heartbeat,
        service.finish_session,
        service.get_server_capabilities,
        service.telemetry,
        training.create_model,
        training.get_info,
        training.forward_backward,
        training.forward,
        training.optim_step,
        weights.save_weights,
        weights.save_weights_for_sampler,
        weights.load_weights,
        sampling.create_sampling_session,
        sampling.get_sampler,
        sampling.asample,
        answers.retrieve_future,
    )
}
OPEN_TO_ALL = frozenset({service.healthz.__name__})


def create_app(state: State) -> Starlette:
    """The application that serves ``state``. Where lifespan events are sent, the end of the application closes it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        await state.aclose()

    routes = [
        Route(operation.path, _endpoint(state, operation, HANDLERS[name]), methods=[operation.method])
        for name, operation in OPERATIONS.items()
        if name in HANDLERS
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})


def _endpoint(state: State, operation: Operation, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            _check_key(state, operation, request)
            call = await receive(request, operation, state.settings.max_request_bytes, state.offload)
            return _answer(await handler(state, call))
        except Problem as problem:
            return _refusal(problem)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            log.exception("%s failed", operation.operation_id)
            return _refusal(Problem(500, f"{type(error).__name__}: {error}"))

    return endpoint


def _check_key(state: State, operation: Operation, request: Request) -> None:
    expected = state.settings.api_key
    if expected is None or operation.operation_id in OPEN_TO_ALL:
        return
    given = request.headers.get("x-api-key", "").encode("latin-1")  # the bytes as they came
    if not hmac.compare_digest(given, expected.encode()):
        raise Problem(401, "the key in X-API-Key is missing or is not the one this server was started with")


def _answer(value: msgspec.Struct | Response | None) -> Response:
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=204)
    return Response(json.encode(value), media_type=json.MEDIA_TYPE)


def _refusal(problem: Problem) -> Response:
    body = json.encode(models.ErrorResponse(detail=problem.detail))
    return Response(body, problem.status, dict(problem.headers), json.MEDIA_TYPE)


async def _no_route(request: Request, error: Exception) -> Response:
    """An unknown path or method."""
    assert isinstance(error, HTTPException)
    return _refusal(Problem(error.status_code, f"{error.detail}: {request.method} {request.url.path}", error.headers))
