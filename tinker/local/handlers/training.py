"""Handlers of models, losses, optimizer steps and training runs. What trains runs in the order of the model's requests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap

import attrs
from tinker_wire import models

from tinker._wire import proto
from tinker.local.call import APICall
from tinker.local.engines.protocol import Engine, EngineError, ExpectedLoss
from tinker.local.errors import APIProblem, make_not_found
from tinker.local.handlers.service import SCOPES
from tinker.local.naming import choose_engine_for, find_engine, tokenizer_for, visible_name
from tinker.local.operations.descriptions import describe_checkpoints, describe_model, list_runs
from tinker.local.operations.loss_requests import (
    SMALL_NBYTES,
    LossRequest,
    check_custom_loss,
    check_loss,
    compute_loss,
    decode_datum,
    find_small_shape,
    prepare_data,
    to_examples,
)
from tinker.local.operations.models import (
    NewModel,
    adapter_spec,
    check_spec,
    creation_step,
    optimizer_config,
    optimizer_family,
    step_params,
)
from tinker.local.operations.submission import enqueue_idempotent, fingerprint, fingerprint_protobuf, write_down
from tinker.local.state import State
from tinker.local.storage.futures import ServerFuture
from tinker.local.storage.sessions import UNLOADED, SmallLoss
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput


async def create_model(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Create an adapter under ``<session>:train:<n>``; the same number and body again return the same future."""
    request = call.read(models.CreateModelRequest)
    engine, base_model = choose_engine_for(state, await state.engines(), request.base_model)
    optimizer = optimizer_family(request.optimizer_config)
    spec = adapter_spec(request.lora_config)
    check_spec(state, spec)
    new = NewModel(
        base_model=base_model,
        engine_model=engine.base_model,
        requested_name=request.base_model,
        spec=spec,
        optimizer=optimizer,
        user_metadata=request.user_metadata,
    )

    def make(engine: Engine) -> models.CreateModelResponse:
        engine.create_adapter(model.model_id, spec)
        return models.CreateModelResponse(model_id=model.model_id)

    with state.lock() as shared, new.add(state, shared, request.session_id, request.model_seq_id) as model:
        return enqueue_idempotent(state, call, model, 0, fingerprint(request), creation_step(model, make))


async def get_info(state: State, call: APICall) -> models.GetInfoResponse:
    """Describe a model; also right after its creation was submitted."""
    request = call.read(models.GetInfoRequest)
    with state.lock() as shared:
        model = shared.store.model(request.model_id)
    engine = find_engine(await state.engines(), model.engine_model)
    if model.creation_error is not None:
        raise APIProblem(400, f"model {model.model_id!r} was not created: {model.creation_error}")
    name = visible_name(call, model.base_model, model.requested_name)
    return models.GetInfoResponse(
        model_id=model.model_id,
        model_data=models.ModelData(model_name=name, tokenizer_id=tokenizer_for(call, engine)),
        optimizer_config=optimizer_config(model.optimizer),
        is_lora=True,
        lora_rank=model.spec.rank,
        model_name=name,
    )


@attrs.frozen
class LossCall:
    """A request for a loss, in whichever form it came; ``data`` decodes its data."""

    model_id: str
    seq_id: int | None
    fingerprint: bytes
    loss: LossRequest
    data: Callable[[], list[Datum]]


async def forward_backward(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Compute a loss and its gradient, or the loss alone where a protobuf body says so."""
    if call.is_proto:
        return _enqueue_loss(state, call, await _read_protobuf(state, call))
    return _enqueue_loss(state, call, await _read_json(state, call, models.ForwardBackwardRequest))


async def forward(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Compute a loss alone."""
    return _enqueue_loss(state, call, await _read_json(state, call, models.ForwardRequest))


async def _read_protobuf(state: State, call: APICall) -> LossCall:
    def read() -> tuple[proto.ForwardBackwardCall, bytes]:
        request = proto.decode_forward_backward(call.content)
        return request, fingerprint_protobuf(request)

    profile = state.settings.profile
    if not profile.protobuf:
        raise profile.protobuf_problem
    try:
        request, same = await state.offload(len(call.content), read)
    except proto.ProtoError as error:
        raise APIProblem(422, f"the body is not a ForwardBackwardRequest: {error}") from error
    loss = LossRequest(request.loss_fn, request.loss_fn_config, backward=not request.forward_only)
    profile.check_loss(loss.name, loss.options, request.data)
    return LossCall(request.model_id, request.seq_id, same, loss, lambda: request.data)


async def _read_json(
    state: State, call: APICall, kind: type[models.ForwardRequest] | type[models.ForwardBackwardRequest]
) -> LossCall:
    def read() -> tuple[models.ForwardRequest | models.ForwardBackwardRequest, bytes]:
        request = call.read(kind)
        return request, fingerprint(request)

    request, same = await state.offload(len(call.content), read)
    backward = isinstance(request, models.ForwardBackwardRequest)
    what = request.forward_backward_input if isinstance(request, models.ForwardBackwardRequest) else request.forward_input
    loss = LossRequest(what.loss_fn, what.loss_fn_config or {}, backward=backward)
    state.settings.profile.check_loss(loss.name, loss.options, what.data)
    return LossCall(request.model_id, request.seq_id, same, loss, lambda: list(starmap(decode_datum, enumerate(what.data))))


def _enqueue_loss(state: State, call: APICall, request: LossCall) -> models.UntypedAPIFuture:
    loss, data = request.loss, request.data

    def prepare() -> None:
        nonlocal data
        data = prepare_data(shared, model, loss, data)

    def run(engine: Engine) -> ForwardBackwardOutput:
        model.require_ready()
        return compute_loss(state, engine, model, loss, data())

    def expect(engine: Engine) -> ExpectedLoss:
        examples = to_examples(engine, data())
        return ExpectedLoss(adapter_id=model.model_id, data=examples, loss_fn=loss.name, config=loss.options)

    def find_small() -> SmallLoss | None:
        engine = state.served.find(model.engine_model).engine
        if engine is None or not engine.shares_passes or len(call.content) > SMALL_NBYTES:
            return None
        if state.journal.is_kept:  # a restarted server repeats each gradient alone
            return None
        try:
            shape = find_small_shape(loss, data())
        except EngineError:
            return None  # which its run reports
        return None if shape is None else SmallLoss(shape, expect)

    with state.lock() as shared:
        model = shared.store.model(request.model_id)
        return enqueue_idempotent(
            state,
            call,
            model,
            model.queue.assign_number(request.seq_id),
            request.fingerprint,
            run,
            operation=call.name if loss.backward else "forward",
            small=find_small,
            check=lambda: check_loss(loss),
            prepare=prepare,
        )


async def create_custom_loss(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Store a traced loss under an id, checked at once (APIProblem 400). The same again returns the same future."""
    request = call.read(models.CreateCustomLossRequest)
    request_fingerprint = fingerprint(request)
    with state.lock() as shared:
        state.require_open()
        session = shared.store.live_session(request.session_id)
        key = f"{session.session_id}:custom_loss:{request.custom_loss_seq_id}"
        request_id = state.futures.find_request_id(key, request_fingerprint)
        if request_id is None:
            if len(session.losses) >= state.settings.max_custom_losses:
                limit = f"max_custom_losses={state.settings.max_custom_losses}"
                raise APIProblem(403, f"this session has as many custom losses as it may have ({limit})", code="limit_reached")
            loss = check_custom_loss(request)
            span = session.new_span(call.name, session.session_id)
            future = state.futures.open(ServerFuture(key, request_fingerprint, span=span))
            write_down(state, call, key, lambda: state.futures.forget(future), request_id=key)
            session.losses[key] = loss
            state.futures.resolve(future, models.CreateCustomLossResponse(loss_id=key))
            request_id = future.request_id
    return models.UntypedAPIFuture(request_id=request_id)


async def optim_step(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Apply one step of the model's optimizer; another family's parameters make the request fail."""
    request = call.read(models.OptimStepRequest)

    def run(engine: Engine) -> models.OptimStepResponse:
        model.require_ready()
        metrics = engine.optim_step(model.model_id, step_params(model, request))
        with state.lock():
            model.history.add_step(metrics, state.now())
        return models.OptimStepResponse(metrics=metrics)

    with state.lock() as shared:
        model = shared.store.model(request.model_id)
        return enqueue_idempotent(state, call, model, model.queue.assign_number(request.seq_id), fingerprint(request), run)


async def unload_model(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Free a model once its submitted requests have run; its checkpoints stay, and later requests are refused."""
    request = call.read(models.UnloadModelRequest)

    def run(engine: Engine) -> models.UnloadModelResponse:
        engine.drop_adapter(model.model_id)
        return models.UnloadModelResponse(model_id=model.model_id)

    with state.lock() as shared:
        model = shared.store.model(request.model_id)
        answer = enqueue_idempotent(state, call, model, model.queue.assign_number(None), fingerprint(request), run)
        shared.store.close_model(model, UNLOADED)
        return answer


async def list_training_runs(state: State, call: APICall) -> models.TrainingRunsResponse:
    """Return a page of all runs, the most recently used first; of one project where the query names it."""
    limit, offset = call.query_integer("limit", 20), call.query_integer("offset", 0)
    call.query_choice("access_scope", SCOPES)
    runs = await state.offload_always(lambda: list_runs(state, call.query.get("project_id")))
    cursor = models.Cursor(offset=offset, limit=limit, total_count=len(runs))
    return models.TrainingRunsResponse(training_runs=runs[offset : offset + limit], cursor=cursor)


async def get_training_run(state: State, call: APICall) -> models.TrainingRun:
    """Return one run. Raises APIProblem 404 when it is unknown."""
    call.query_choice("access_scope", SCOPES)
    wanted = call.path["training_run_id"]
    records = await state.offload_always(lambda: state.checkpoints.list(wanted))
    with state.lock() as shared:
        model = shared.store.find_model(wanted)
    if model is not None:
        return describe_model(model, records)
    if records:
        return describe_checkpoints(records)
    raise make_not_found("training_run_not_found", wanted)
