"""The ASGI application: one route for each operation of the contract, and the answer to everything that goes wrong."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from tinker_wire import models
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Operation

from tinker._wire import json
from tinker.local import (
    accounts,
    admin,
    answers,
    catalog,
    downloads,
    losses,
    optimizer,
    runs,
    sampling,
    service,
    sessions,
    training,
    weights,
)
from tinker.local.call import Call, credential, receive
from tinker.local.problem import Problem
from tinker.local.state import State

Handler: TypeAlias = Callable[[State, Call], Awaitable[msgspec.Struct | Response | None]]

log: logging.Logger = logging.getLogger("tinker.local")

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
        accounts.auth_token,
        accounts.get_api_key,
        accounts.delete_api_key,
        sessions.list_sessions,
        sessions.get_session,
        sessions.search_sessions,
        sessions.set_session_project,
        sessions.trace_export,
        training.create_model,
        training.get_info,
        training.unload_model,
        losses.forward_backward,
        losses.forward,
        losses.create_custom_loss,
        optimizer.optim_step,
        runs.list_training_runs,
        runs.get_training_run,
        weights.save_weights,
        weights.save_weights_for_sampler,
        weights.save_weights_external,
        weights.load_weights,
        catalog.weights_info,
        catalog.copy_weights,
        catalog.list_checkpoints,
        catalog.list_user_checkpoints,
        catalog.delete_checkpoint,
        catalog.publish_checkpoint,
        catalog.unpublish_checkpoint,
        catalog.set_checkpoint_ttl,
        catalog.get_external_weights_urls,
        catalog.get_checkpoint_archive,
        sampling.create_sampling_session,
        sampling.join_sampling_session,
        sampling.get_sampler,
        sampling.asample,
        answers.retrieve_future,
        answers.retrieve_futures,
        answers.cancel_future,
        admin.get_audit_log,
        admin.get_billing_usage,
        admin.get_checkpoint_storage_usage,
    )
}


class _CheckpointId(Convertor[str]):
    """``<kind>/<name>``, or a bare name, also one that is called like the operations that come behind it in a path."""

    regex = r"(?:[^/]+/[^/]+|(?!(?:weights|sampler_weights|external_weights)/)[^/]+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("checkpoint", _CheckpointId())


def create_app(state: State) -> Starlette:
    """The application that serves ``state``. Where lifespan events are sent, the end of the application closes it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        await state.aclose()

    routes = [_route(state, path) for path in sorted({row.path for row in OPERATIONS.values()}, key=_generality)]
    app = Starlette(routes=[*routes, downloads.route(state)], lifespan=lifespan, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False  # such a redirect decodes the path once more
    return app


def _generality(path: str) -> tuple[int, int, str]:
    """Routes are tried in order: fixed words before parameters, longer paths before shorter ones."""
    return path.count("{"), -path.count("/"), path


def _route(state: State, path: str) -> Route:
    """All operations of one path."""
    rows = {row.method: row for row in OPERATIONS.values() if row.path == path}
    handlers = {method: HANDLERS.get(row.operation_id, _not_implemented) for method, row in rows.items()}
    endpoints = {method: _endpoint(state, row, handlers[method]) for method, row in rows.items()}

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path.replace("{checkpoint_id}", "{checkpoint_id:checkpoint}"), endpoint, methods=list(endpoints))


def _endpoint(state: State, operation: Operation, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    profile = state.settings.profile

    async def answered(request: Request) -> Response:
        state.accounts.admit(operation.operation_id, credential(request.headers))
        _check_presence(profile.absent.get(operation.operation_id))
        call = await receive(request, operation, state.settings.max_request_bytes, state.offload)
        call = call.rewritten(profile)
        return _answer(await handler(state, call), lambda content: profile.reshaped(call.name, call.content, content))

    async def endpoint(request: Request) -> Response:
        try:
            return await answered(request)
        except Problem as problem:
            return _refusal(profile.refusal(problem))
        except RecursionError:
            return _refusal(Problem(422, "the body is nested too deeply"))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            log.exception("%s failed", operation.operation_id)
            return _refusal(Problem(500, f"{type(error).__name__}: {error}"))

    return endpoint


async def _not_implemented(state: State, call: Call) -> None:
    """An operation of the contract that has no handler yet."""
    raise Problem(501, f"this server does not implement {call.name}")


_ABSENT = {404: "Not Found", 405: "Method Not Allowed", 422: "Invalid checkpoint_id"}


def _check_presence(status: int | None) -> None:
    if status is not None:
        raise Problem(status, _ABSENT[status])


def _answer(value: msgspec.Struct | Response | None, reshaped: Callable[[bytes], bytes]) -> Response:
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=204)
    return Response(reshaped(json.encode(value)), media_type=json.MEDIA_TYPE)


def _refusal(problem: Problem) -> Response:
    body = json.encode(models.ErrorResponse(detail=problem.detail))
    return Response(body, problem.status, dict(problem.headers), json.MEDIA_TYPE)


async def _no_route(request: Request, error: Exception) -> Response:
    """An unknown path or method."""
    assert isinstance(error, HTTPException)
    return _refusal(Problem(error.status_code, f"{error.detail}: {request.method} {request.url.path}", error.headers))
