"""Samples of the contract for these endpoints: submitted by the same handlers, and waited for here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import cast

import attrs
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker._wire import json
from tinker.local.call import APICall
from tinker.local.engines import Engine, EngineError
from tinker.local.errors import APIProblem
from tinker.local.handlers import futures, sampling
from tinker.local.naming import choose_engine_for, find_engine
from tinker.local.state import State
from tinker.local.storage.results import RequestFailure
from tinker.local.v1.bodies import SCHEME
from tinker.types.results import SampleResponse

LOOK_SECONDS = 1.0  # between two looks whether the client is still there


async def find_model_engine(state: State, name: str) -> Engine:
    """Return the engine of a base model or of a checkpoint to sample from. Raises APIProblem 404 for another name."""
    engines = await state.engines()
    try:
        if name.startswith(SCHEME):
            record, _ = await state.offload_always(lambda: state.checkpoints.find(name, "sampler_weights"))
            return find_engine(engines, record.engine_model)
        return choose_engine_for(state, engines, name)[0]
    except EngineError as error:
        raise APIProblem(404, str(error)) from error
    except APIProblem as problem:
        raise APIProblem(404, problem.detail) from problem


async def sample(state: State, request: Request, call: APICall, wanted: models.SampleRequest) -> SampleResponse:
    """Sample, and wait for the whole result. The work ends when the client goes. APIProblem when it fails."""
    promise = await sampling.asample(state, _to_call(call, "asample", wanted))
    future = state.futures.find(promise.request_id)
    try:
        while (outcome := await future.wait(LOOK_SECONDS)) is None:
            if await request.is_disconnected():
                raise ClientDisconnect
    finally:
        if future.outcome is None:
            await futures.cancel_future(
                state, _to_call(call, "cancel_future", models.CancelFutureRequest(request_id=promise.request_id))
            )
        state.futures.release(promise.request_id)
    if isinstance(outcome, RequestFailure):
        raise to_problem(outcome.error, outcome.category)
    assert isinstance(outcome, SampleResponse)
    return outcome


async def stream(state: State, call: APICall, wanted: models.SampleRequest) -> AsyncGenerator[models.SampleStreamEvent | None]:
    """Return the events of a sample as they come, None where there is nothing but a sign of life.

    Raises APIProblem before the first event when the sample is refused. Closing the generator ends the work.
    """
    response = await sampling.stream_sample(state, _to_call(call, "stream_sample", wanted))
    assert isinstance(response, StreamingResponse)
    return _read_events(cast("AsyncGenerator[bytes]", response.body_iterator))


async def _read_events(source: AsyncGenerator[bytes]) -> AsyncGenerator[models.SampleStreamEvent | None]:
    async with contextlib.aclosing(source) as blocks:
        async for block in blocks:
            for line in block.split(b"\n\n"):
                if line.startswith(b"data: "):
                    yield json.decode(line.removeprefix(b"data: "), models.SampleStreamEvent)
                elif line:
                    yield None


def to_problem(error: str, category: str | None) -> APIProblem:
    """Return the refusal that a failed request is: 400 where it is the client's fault, else 500."""
    return APIProblem(400 if category == "user" else 500, error)


def _to_call(call: APICall, operation: str, body: msgspec.Struct) -> APICall:
    headers = {name: value for name, value in call.headers.items() if name in ("x-api-key", "traceparent")}
    return attrs.evolve(call, operation=OPERATIONS[operation], headers=headers, content=json.encode(body))
