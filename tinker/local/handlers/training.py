"""Handlers of models, losses, optimizer steps and training runs. What trains runs in the order of
the model's requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

import attrs
import msgspec
import numpy as np
from tinker_wire import models

from tinker._wire import json, proto
from tinker.local.call import APICall, APIProblem, make_not_found, unprocessable
from tinker.local.engines import protocol
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    Engine,
    EngineError,
    ExpectedLoss,
    TrainingExample,
)
from tinker.local.handlers import common
from tinker.local.losses import LossGraph, check_graph
from tinker.local.state import SharedData, State
from tinker.local.storage import OWNER, CheckpointRecord, to_utc
from tinker.local.storage.futures import ServerFuture
from tinker.local.storage.records import RunHistory, attach_records
from tinker.local.storage.sessions import UNLOADED, ModelRecord, SessionRecord, SmallLoss
from tinker.types.model_input import Datum, EncodedTextChunk
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

ADAMW, DIMUON = "adamw", "dimuon"
OUTPUT_TYPE = "ArrayRecord"
CUSTOM = "custom"
RECORDED_LOSS = "stable_reinforce"
#: Every loss with its settings.
LOSS_SETTINGS = {
    **{name: [*form.config] for name, form in protocol.LOSS_FORMS.items()},
    CUSTOM: ["loss_id"],
}
SMALL_CELLS = 256  # a pass of more is not cheaper together with others
SMALL_NBYTES = 1 << 16  # of a request that is looked at when it arrives


async def create_model(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Create an adapter under ``<session>:train:<n>``; the same number and body again return the
    same future.
    """
    request = call.read(models.CreateModelRequest)
    engine, base_model = common.choose_engine_for(state, await state.engines(), request.base_model)
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

    with (
        state.lock() as shared,
        new.add(state, shared, request.session_id, request.model_seq_id) as model,
    ):
        return common.enqueue_idempotent(
            state, call, model, 0, common.fingerprint(request), partial(model.create, make)
        )


def optimizer_family(config: models.OptimizerConfig | None) -> str:
    """Return the name of an optimizer family; without a configuration ``adamw``. Raises APIProblem
    400 for an unknown one.
    """
    if config is None or isinstance(config, models.AdamOptimizerConfig):
        return ADAMW
    if isinstance(config, models.DimuonOptimizerConfig):
        if config.version != 1:
            raise APIProblem(
                400,
                f"version {config.version} of the optimizer 'dimuon' is not "
                "offered; this server has 1",
            )
        return DIMUON
    raise APIProblem(
        400,
        f"optimizer {_family_name(config)!r} is not offered; this server "
        f"has {ADAMW!r} and {DIMUON!r}",
    )


def optimizer_config(family: str) -> models.OptimizerConfig:
    """Return the inverse of :func:`optimizer_family`."""
    return models.DimuonOptimizerConfig() if family == DIMUON else models.AdamOptimizerConfig()


def _family_name(optimizer: models.OptimizerConfig | models.OptimizerParams) -> object:
    """Return the name of an optimizer family; those that the contract does not know are
    dictionaries.
    """
    return optimizer.get("type") if isinstance(optimizer, dict) else optimizer.type


def _step_params(model: ModelRecord, request: models.OptimStepRequest) -> Adam | Dimuon:
    """Return the step's parameters, by default Adam's. Raises EngineError for another family than
    the model's.
    """
    other = request.optimizer_params
    family = ADAMW if other is None else _family_name(other)
    if family != model.optimizer or (other is not None and request.adam_params is not None):
        given = (
            f"{ADAMW!r} and {_family_name(other)!r}"
            if other is not None and request.adam_params is not None
            else repr(family)
        )
        raise EngineError(
            f"the step has parameters of {given}; the optimizer of this model is "
            f"{model.optimizer!r}"
        )
    if isinstance(other, models.DimuonParams):
        return Dimuon(**msgspec.structs.asdict(other))
    return Adam(**msgspec.structs.asdict(request.adam_params or models.AdamParams()))


@attrs.frozen(kw_only=True)
class NewModel:
    """A model to create. ``engine_model`` is the engine's name for it, ``requested_name`` the
    client's.
    """

    base_model: str
    engine_model: str
    requested_name: str | None = None
    spec: AdapterSpec
    optimizer: str
    user_metadata: models.Metadata | None

    @contextlib.contextmanager
    def add(
        self, state: State, shared: SharedData, session_id: str, number: int
    ) -> Generator[ModelRecord]:
        """Yield the model of that number, the existing one or a new one, which is discarded when
        the block fails.
        """
        state.require_open()
        session = shared.store.live_session(session_id)
        before = len(session.models)
        model = shared.store.add_model(
            session,
            number,
            lambda model_id: ModelRecord(
                **attrs.asdict(self, recurse=False),
                model_id=model_id,
                session=session,
                queue=state.new_queue(self.engine_model),
                history=RunHistory(state.journal, model_id, self.base_model, self.spec.rank),
                created_at=(now := state.now()),
                last_request_at=now,
            ),
        )
        try:
            yield model
        except Exception:
            if len(session.models) > before:
                state.discard_model(model)
            raise


def check_spec(state: State, spec: AdapterSpec) -> None:
    """Raise APIProblem 400 for a rank or a scale that is out of range."""
    limit = state.settings.max_rank
    if not 1 <= spec.rank <= limit:
        raise APIProblem(400, f"rank is {spec.rank}; this server takes ranks from 1 to {limit}")
    if not 0 < spec.lora_alpha < math.inf:
        raise APIProblem(400, f"lora_alpha is {spec.lora_alpha}; it must be more than 0")


def adapter_spec(config: models.LoraConfig | None) -> AdapterSpec:
    """Return the engine's specification; without a configuration its defaults."""
    if config is None:
        return AdapterSpec()
    given = msgspec.structs.asdict(config)
    # both have the same fields
    return AdapterSpec(**{name: value for name, value in given.items() if value is not None})


def lora_config(spec: AdapterSpec) -> models.LoraConfig:
    """Return the inverse of :func:`adapter_spec`."""
    config = models.LoraConfig(**attrs.asdict(spec))
    return (
        msgspec.structs.replace(config, lora_alpha=None)
        if spec.lora_alpha == protocol.LORA_ALPHA
        else config
    )


async def get_info(state: State, call: APICall) -> models.GetInfoResponse:
    """Describe a model; also right after its creation was submitted."""
    request = call.read(models.GetInfoRequest)
    with state.lock() as shared:
        model = shared.store.model(request.model_id)
    engine = common.find_engine(await state.engines(), model.engine_model)
    if model.creation_error is not None:
        raise APIProblem(400, f"model {model.model_id!r} was not created: {model.creation_error}")
    name = common.visible_name(call, model.base_model, model.requested_name)
    return models.GetInfoResponse(
        model_id=model.model_id,
        model_data=models.ModelData(
            model_name=name, tokenizer_id=common.tokenizer_for(call, engine)
        ),
        optimizer_config=optimizer_config(model.optimizer),
        is_lora=True,
        lora_rank=model.spec.rank,
        model_name=name,
    )


@attrs.define(eq=False)
class LossRequest:
    """A request for a loss, in whichever form it came; ``data`` decodes its data."""

    model_id: str
    seq_id: int | None
    fingerprint: bytes
    name: str
    options: Mapping[str, float | str]
    data: Callable[[], list[Datum]]
    backward: bool


async def forward_backward(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Compute a loss and its gradient, or the loss alone where a protobuf body says so."""
    loss = await (
        _read_protobuf(state, call)
        if call.is_proto
        else _read_json(state, call, models.ForwardBackwardRequest)
    )
    return _enqueue_loss(state, call, loss)


async def forward(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Compute a loss alone."""
    return _enqueue_loss(state, call, await _read_json(state, call, models.ForwardRequest))


def _fingerprint_protobuf(call: proto.ForwardBackwardCall) -> bytes:
    """Compute a :func:`fingerprint` of a protobuf request, whose maps have no order."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(
        common.canonical_json.encode((call.loss_fn, call.loss_fn_config, call.forward_only))
    )
    for datum in call.data:
        for chunk in datum.model_input.chunks:
            digest.update(
                chunk.array.data if isinstance(chunk, EncodedTextChunk) else repr(chunk).encode()
            )
        digest.update(repr((datum.model_input_spans, datum.loss_fn_input_spans)).encode())
        for name, tensor in sorted(datum.loss_fn_inputs.items()):
            indices = (tensor.sparse_crow_indices, tensor.sparse_col_indices)
            digest.update(common.canonical_json.encode((name, tensor.dtype, tensor.shape, indices)))
            digest.update(np.ascontiguousarray(tensor.values).data)
    return digest.digest()


async def _read_protobuf(state: State, call: APICall) -> LossRequest:
    def read() -> tuple[proto.ForwardBackwardCall, bytes]:
        request = proto.decode_forward_backward(call.content)
        return request, _fingerprint_protobuf(request)

    profile = state.settings.profile
    if not profile.protobuf:
        raise profile.protobuf_problem
    try:
        request, same = await state.offload(len(call.content), read)
    except proto.ProtoError as error:
        raise APIProblem(422, f"the body is not a ForwardBackwardRequest: {error}") from error
    profile.check_loss(request.loss_fn, request.loss_fn_config, request.data)
    return LossRequest(
        request.model_id,
        request.seq_id,
        same,
        request.loss_fn,
        request.loss_fn_config,
        lambda: request.data,
        not request.forward_only,
    )


async def _read_json(
    state: State,
    call: APICall,
    kind: type[models.ForwardRequest] | type[models.ForwardBackwardRequest],
) -> LossRequest:
    def read() -> tuple[models.ForwardRequest | models.ForwardBackwardRequest, bytes]:
        request = call.read(kind)
        return request, common.fingerprint(request)

    request, same = await state.offload(len(call.content), read)
    backward = isinstance(request, models.ForwardBackwardRequest)
    what = (
        request.forward_backward_input
        if isinstance(request, models.ForwardBackwardRequest)
        else request.forward_input
    )
    options, data = what.loss_fn_config or {}, what.data
    state.settings.profile.check_loss(what.loss_fn, options, data)
    return LossRequest(
        request.model_id,
        request.seq_id,
        same,
        what.loss_fn,
        options,
        lambda: _decode_data(data),
        backward,
    )


def _decode_data(data: Sequence[models.Datum]) -> list[Datum]:
    decoded: list[Datum] = []
    for index, datum in enumerate(data):
        with protocol.explain(f"data[{index}]", ValueError, OverflowError):
            decoded.append(json.public_datum(datum))
    return decoded


def _enqueue_loss(state: State, call: APICall, loss: LossRequest) -> models.UntypedAPIFuture:
    with state.lock() as shared:
        model = shared.store.model(loss.model_id)
        return common.enqueue_idempotent(
            state,
            call,
            model,
            model.queue.assign_number(loss.seq_id),
            loss.fingerprint,
            partial(_compute_loss, state, model, loss),
            operation=call.name if loss.backward else "forward",
            small=partial(_find_small, state, call, model, loss),
            check=partial(_check_loss, loss),
            prepare=partial(_attach_records, shared, model, loss),
        )


def _check_loss(loss: LossRequest) -> None:
    """Raise APIProblem 422 for a loss or a setting that is unknown."""
    try:
        if loss.name != CUSTOM:
            protocol.resolve_loss(loss.name, loss.options)
    except EngineError as error:
        raise unprocessable("loss_fn", str(error)) from error


def _attach_records(shared: SharedData, model: ModelRecord, loss: LossRequest) -> None:
    """Add the recorded log-probabilities if the loss needs them. Raises APIProblem 422 for
    sequences that it cannot name.
    """
    if loss.name == RECORDED_LOSS:
        shared.recorded.announce()
        try:
            found = attach_records(
                loss.data(), lambda name: shared.recorded.find(name, model.session.session_id)
            )
        except EngineError as error:
            raise unprocessable("data", f"{RECORDED_LOSS}: {error}") from error
        loss.data = lambda: found


def _compute_loss(
    state: State, model: ModelRecord, loss: LossRequest, engine: Engine
) -> ForwardBackwardOutput:
    model.require_ready()
    data = loss.data()
    if not data:
        raise EngineError("the request has no data")
    examples = _to_examples(engine, data)
    if loss.name == CUSTOM:
        result = _find_custom_loss(model.session, loss.options).run(
            engine, model.model_id, examples, backward=loss.backward
        )
    else:
        result = engine.forward_backward(
            model.model_id, examples, loss.name, loss.options, backward=loss.backward
        )
    with state.lock() as shared:
        if loss.backward:
            weights = [
                np.asarray(example.loss_inputs.get("weights", 0), np.float32)
                for example in examples
            ]
            is_gradient = loss.name == "cross_entropy" and any(
                one.min(initial=0) < 0 for one in weights
            )
            model.history.add_loss(
                result.metrics, is_sum=loss.name != "cross_entropy", is_gradient=is_gradient
            )
        shared.usage.count(
            "training",
            sum(len(one.tokens) for one in examples),
            model.session.usage_key(model.base_model),
        )
    outputs = [
        {name: TensorData.from_numpy(array) for name, array in fields.items()}
        for fields in result.outputs
    ]
    output = ForwardBackwardOutput(OUTPUT_TYPE, outputs, dict(result.metrics))
    return state.settings.profile.loss_output(output, examples, loss.name, loss.options)


def _find_custom_loss(session: SessionRecord, options: Mapping[str, float | str]) -> LossGraph:
    wanted = options.get("loss_id")
    if set(options) != {"loss_id"} or not isinstance(wanted, str):
        raise EngineError(
            "the loss 'custom' takes the loss_fn_config {'loss_id': ...}, with an id of "
            "create_custom_loss"
        )
    if wanted not in session.losses:
        raise EngineError(
            f"there is no custom loss {wanted!r} in the session of this model; make it with "
            "create_custom_loss"
        )
    return session.losses[wanted]


def _find_small(
    state: State, call: APICall, model: ModelRecord, loss: LossRequest
) -> SmallLoss | None:
    """Return how a gradient of a little text may share a pass; None for another request."""
    engine = state.served.find(model.engine_model).engine
    if engine is None or not engine.shares_passes or len(call.content) > SMALL_NBYTES:
        return None
    # a restarted server repeats each gradient alone
    if state.journal.is_kept or not loss.backward or loss.name == CUSTOM:
        return None
    try:
        data = loss.data()
    except EngineError:
        return None  # which its run reports
    chunks = [chunk for datum in data for chunk in datum.model_input.chunks]
    longest = max((datum.model_input.length for datum in data), default=0)
    if not 0 < len(data) * longest <= SMALL_CELLS or not all(
        isinstance(chunk, EncodedTextChunk) for chunk in chunks
    ):
        return None
    return SmallLoss(
        (len(data), longest),
        lambda engine: ExpectedLoss(
            adapter_id=model.model_id,
            data=_to_examples(engine, loss.data()),
            loss_fn=loss.name,
            config=loss.options,
        ),
    )


def _to_examples(engine: Engine, data: Sequence[Datum]) -> list[TrainingExample]:
    """Return the data as the engine takes them. Raises EngineError for what it cannot read."""
    examples: list[TrainingExample] = []
    for index, datum in enumerate(data):
        tokens, images = common.read_input(engine, datum.model_input, f"data[{index}]")
        inputs = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
        examples.append(TrainingExample(tokens=tokens, images=images, loss_inputs=inputs))
    return examples


async def create_custom_loss(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Store a traced loss under an id, checked at once (APIProblem 400). The same again returns the
    same future.
    """
    request = call.read(models.CreateCustomLossRequest)
    request_fingerprint = common.fingerprint(request)
    with state.lock() as shared:
        state.require_open()
        session = shared.store.live_session(request.session_id)
        key = f"{session.session_id}:custom_loss:{request.custom_loss_seq_id}"
        request_id = state.futures.find_request_id(key, request_fingerprint)
        if request_id is None:
            if len(session.losses) >= state.settings.max_custom_losses:
                raise APIProblem(
                    403,
                    "this session has as many custom losses as it may have "
                    f"(max_custom_losses={state.settings.max_custom_losses})",
                    code="limit_reached",
                )
            try:
                loss = check_graph(request.name, request.inputs, request.graph)
            except EngineError as error:
                raise APIProblem(400, f"the custom loss {request.name!r}: {error}") from error
            span = session.new_span(call.name, session.session_id)
            future = state.futures.open(ServerFuture(key, request_fingerprint, span=span))
            common.write_down(
                state, call, key, lambda: state.futures.forget(future), request_id=key
            )
            session.losses[key] = loss
            state.futures.resolve(future, models.CreateCustomLossResponse(loss_id=key))
            request_id = future.request_id
    return models.UntypedAPIFuture(request_id=request_id)


async def optim_step(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Apply one step of the model's optimizer; another family's parameters make the
    request fail.
    """
    request = call.read(models.OptimStepRequest)

    def run(engine: Engine) -> models.OptimStepResponse:
        model.require_ready()
        metrics = engine.optim_step(model.model_id, _step_params(model, request))
        with state.lock():
            model.history.add_step(metrics, state.now())
        return models.OptimStepResponse(metrics=metrics)

    with state.lock() as shared:
        model = shared.store.model(request.model_id)
        return common.enqueue_idempotent(
            state,
            call,
            model,
            model.queue.assign_number(request.seq_id),
            common.fingerprint(request),
            run,
        )


async def unload_model(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Free a model once its submitted requests have run; its checkpoints stay, and later requests
    are refused.
    """
    request = call.read(models.UnloadModelRequest)

    def run(engine: Engine) -> models.UnloadModelResponse:
        engine.drop_adapter(model.model_id)
        return models.UnloadModelResponse(model_id=model.model_id)

    with state.lock() as shared:
        model = shared.store.model(request.model_id)
        answer = common.enqueue_idempotent(
            state, call, model, model.queue.assign_number(None), common.fingerprint(request), run
        )
        shared.store.close_model(model, UNLOADED)
        return answer


async def list_training_runs(state: State, call: APICall) -> models.TrainingRunsResponse:
    """Return a page of all runs, the most recently used first; of one project where the query names
    it.
    """
    limit, offset = call.query_integer("limit", 20), call.query_integer("offset", 0)
    call.check_scope()
    runs = await state.offload_always(lambda: list_runs(state, call.query.get("project_id")))
    cursor = models.Cursor(offset=offset, limit=limit, total_count=len(runs))
    return models.TrainingRunsResponse(training_runs=runs[offset : offset + limit], cursor=cursor)


async def get_training_run(state: State, call: APICall) -> models.TrainingRun:
    """Return one run. Raises APIProblem 404 when it is unknown."""
    call.check_scope()
    wanted = call.path["training_run_id"]
    records = await state.offload_always(lambda: state.checkpoints.list(wanted))
    with state.lock() as shared:
        model = shared.store.find_model(wanted)
    if model is None and not records:
        raise make_not_found("training_run_not_found", wanted)
    return _describe_run(records, model)


def list_runs(state: State, project_id: str | None) -> list[models.TrainingRun]:
    """List all runs, the newest first."""
    checkpoints: dict[str, list[CheckpointRecord]] = {}
    for record in state.checkpoints.list():
        checkpoints.setdefault(record.training_run_id, []).append(record)
    with state.lock() as shared:
        known = {model.model_id: model for model in shared.store.models()}
    runs = [
        _describe_run(checkpoints.get(model.model_id, []), model)
        for model in known.values()
        if project_id in (None, model.session.project_id)
    ]
    runs += [
        _describe_run(records)
        for run, records in checkpoints.items()
        if run not in known and project_id in (None, records[0].project_id)
    ]
    return sorted(runs, key=lambda run: (run.last_request_time, run.training_run_id), reverse=True)


def _describe_run(
    records: Sequence[CheckpointRecord], model: ModelRecord | None = None
) -> models.TrainingRun:
    """Describe a run by its model, or without one by its checkpoints, the newest of which is the
    first.
    """
    newest = {record.kind: common.public_checkpoint(record) for record in reversed(records)}
    return models.TrainingRun(
        training_run_id=records[0].training_run_id if model is None else model.model_id,
        base_model=records[0].base_model if model is None else model.base_model,
        model_owner=OWNER,
        is_lora=True,
        corrupted=model is not None and model.creation_error is not None,
        lora_rank=records[0].lora_config.rank if model is None else model.spec.rank,
        last_request_time=to_utc(records[0].created_at if model is None else model.last_request_at),
        last_checkpoint=newest.get("weights"),
        last_sampler_checkpoint=newest.get("sampler_weights"),
        user_metadata=common.to_string_map(
            records[0].run_metadata if model is None else model.user_metadata
        ),
    )
