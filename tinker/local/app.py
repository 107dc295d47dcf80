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
from tinker.local.call import APICall, read_credential, receive
from tinker.local.downloads import download_route
from tinker.local.errors import APIProblem
from tinker.local.handlers import admin, auth, futures, sampling, service, telemetry, training, weights
from tinker.local.state import State

Handler: TypeAlias = Callable[[State, APICall], Awaitable[msgspec.Struct | Response | None]]
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
        telemetry.telemetry,
        auth.auth_token,
        auth.get_api_key,
        auth.delete_api_key,
        service.list_sessions,
        service.get_session,
        service.search_sessions,
        service.set_session_project,
        service.trace_export,
        training.create_model,
        training.get_info,
        training.unload_model,
        training.forward_backward,
        training.forward,
        training.create_custom_loss,
        training.optim_step,
        training.list_training_runs,
        training.get_training_run,
        weights.save_weights,
        weights.save_weights_for_sampler,
        weights.save_weights_external,
        weights.load_weights,
        weights.weights_info,
        weights.copy_weights,
        weights.list_checkpoints,
        weights.list_user_checkpoints,
        weights.delete_checkpoint,
        weights.publish_checkpoint,
        weights.unpublish_checkpoint,
        weights.set_checkpoint_ttl,
        weights.get_external_weights_urls,
        weights.get_checkpoint_archive,
        sampling.create_sampling_session,
        sampling.join_sampling_session,
        sampling.get_sampler,
        sampling.asample,
        futures.retrieve_future,
        futures.retrieve_futures,
        futures.cancel_future,
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
    """Return the application that serves ``state``. Where lifespan events are sent, its end closes the state."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        await state.aclose()

    routes = [_route(state, path) for path in sorted({row.path for row in OPERATIONS.values()}, key=_generality)]
    app = Starlette(routes=[*routes, download_route(state)], lifespan=lifespan, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False  # such a redirect decodes the path once more
    return app


def _generality(path: str) -> tuple[int, int, str]:
    """Sort routes, which are tried in order: fixed words before parameters, longer paths before shorter ones."""
    return path.count("{"), -path.count("/"), path


def _route(state: State, path: str) -> Route:
    """Make the route of one path, with all its operations."""
    rows = {row.method: row for row in OPERATIONS.values() if row.path == path}
    handlers = {method: HANDLERS.get(row.operation_id, _refuse_missing_handler) for method, row in rows.items()}
    endpoints = {method: _endpoint(state, row, handlers[method]) for method, row in rows.items()}

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path.replace("{checkpoint_id}", "{checkpoint_id:checkpoint}"), endpoint, methods=list(endpoints))


def _endpoint(state: State, operation: Operation, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    profile = state.settings.profile

    async def respond(request: Request) -> Response:
        state.accounts.admit(operation.operation_id, read_credential(request.headers))
        _check_offered(profile.absent.get(operation.operation_id))
        call = await receive(request, operation, state.settings.max_request_bytes, state.offload)
        call = call.apply(profile)
        return _to_response(
            await handler(state, call), lambda content: profile.rewrite_answer(call.name, call.content, content)
        )

    async def endpoint(request: Request) -> Response:
        try:
            return await respond(request)
        except APIProblem as problem:
            return _error_response(profile.rewrite_problem(problem))
        except RecursionError:
            return _error_response(APIProblem(422, "the body is nested too deeply"))
        except ClientDisconnect:
            return Response(status_code=499)  # the client is gone
        except Exception as error:
            log.exception("%s failed", operation.operation_id)
            return _error_response(APIProblem(500, f"{type(error).__name__}: {error}"))

    return endpoint


async def _refuse_missing_handler(state: State, call: APICall) -> None:
    """Refuse an operation of the contract that has no handler yet."""
    raise APIProblem(501, f"this server does not implement {call.name}")


_NOT_OFFERED = {404: "Not Found", 405: "Method Not Allowed", 422: "Invalid checkpoint_id"}


def _check_offered(status: int | None) -> None:
    if status is not None:
        raise APIProblem(status, _NOT_OFFERED[status])


def _to_response(value: msgspec.Struct | Response | None, reshaped: Callable[[bytes], bytes]) -> Response:
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=204)
    return Response(reshaped(json.encode(value)), media_type=json.MEDIA_TYPE)


def _error_response(problem: APIProblem) -> Response:
    body = json.encode(models.ErrorResponse(detail=problem.detail))
    return Response(body, problem.status, dict(problem.headers), json.MEDIA_TYPE)


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method."""
    assert isinstance(error, HTTPException)
    return _error_response(APIProblem(error.status_code, f"{error.detail}: {request.method} {request.url.path}", error.headers))
