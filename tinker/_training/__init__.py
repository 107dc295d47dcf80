"""One training run: how its model comes into being, and its requests in their order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import attrs
import msgspec
from tinker_wire import models, runs
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api

from tinker._futures import EventLabels
from tinker._http import retry
from tinker._runtime import Runtime, run
from tinker._session import Session, SessionContext
from tinker._session.results import json_only
from tinker._training.losses import CustomStep, LossJob, PreparedLoss, prepare_loss_requests
from tinker._training.order import Numbers, Sequencer, Turn
from tinker._training.requests import RunRequest, save_for_sampling_session
from tinker._validate import explain_refused_loss, explain_refused_models
from tinker.errors import APIStatusError
from tinker.futures import APIFuture, on_done, take_over
from tinker.types.model_input import Datum
from tinker.types.params import LoraConfig, OptimizerConfig, ParsedCheckpointTinkerPath
from tinker.types.results import ForwardBackwardOutput

S = TypeVar("S")
T = TypeVar("T")

# The defaults of the SDKs.
DEFAULT_RANK = 32


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A new adapter over a base model."""

    base_model: str
    lora: LoraConfig
    optimizer: OptimizerConfig | None
    user_metadata: dict[str, object] | None

    async def create(
        self, runtime: Runtime, numbers: Numbers, future: APIFuture[Any], context: SessionContext, /
    ) -> str:
        """Create the model and return its id."""
        body = models.CreateModelRequest(
            session_id=context.session_id,
            model_seq_id=next(runtime.session.model_numbers),
            base_model=self.base_model,
            user_metadata=self.user_metadata,
            lora_config=self.lora,
            optimizer_config=self.optimizer or models.AdamOptimizerConfig(),
        )
        with explain_refused_models(self.base_model, runtime.server.known_models):
            return await _create(future, context, body)


@attrs.frozen(kw_only=True)
class SavedAdapter:
    """A model that starts from saved weights. ``optimizer`` is the kind of a fresh one."""

    path: str
    base_model: str | None = None
    user_metadata: dict[str, object] | None
    weights_access_token: str | None = attrs.field(default=None, repr=False)
    optimizer: OptimizerConfig | None = None
    with_optimizer: bool

    async def create(
        self, runtime: Runtime, numbers: Numbers, future: APIFuture[Any], context: SessionContext, /
    ) -> str:
        """Create the model by loading, else create one and load into it; return its id."""
        number = next(runtime.session.model_numbers)
        body = models.LoadWeightsRequest(
            session_id=context.session_id,
            model_seq_id=number,
            base_model=self.base_model,
            user_metadata=self.user_metadata,
            path=self.path,
            optimizer=self.with_optimizer,
            optimizer_config=self.optimizer,
            weights_access_token=self.weights_access_token,
        )
        try:
            submission = await runtime.transport.send(weights_api.load_weights(body), retry.SUBMIT)
        except APIStatusError as error:
            if not retry.is_format_refused(error):
                raise
            if error.may_have_arrived:  # the server may have given the number to a model
                body = msgspec.structs.replace(
                    body, model_seq_id=next(runtime.session.model_numbers)
                )
            return await _create_then_load(runtime, numbers, future, context, body)
        loaded = await context.results.wait(submission, json_only(runs.LOAD_WEIGHTS), future)
        return loaded.model_id or f"{context.session_id}:train:{number}"


Creation: TypeAlias = NewAdapter | SavedAdapter
"""Makes the model of a run; ``create`` may use numbers of the run for that."""


async def _create(
    future: APIFuture[Any], context: SessionContext, body: models.CreateModelRequest
) -> str:
    created = json_only(runs.CREATE_MODEL)
    return (await context.submit(training_api.create_model(body), created, future)).model_id


async def _create_then_load(
    runtime: Runtime,
    numbers: Numbers,
    future: APIFuture[Any],
    context: SessionContext,
    body: models.LoadWeightsRequest,
) -> str:
    """Return the id of a new model that holds the weights; the load is the run's first request."""
    base_model, lora = await _find_origin(runtime, body.path)
    assert body.model_seq_id is not None
    create = models.CreateModelRequest(
        session_id=context.session_id,
        model_seq_id=body.model_seq_id,
        base_model=body.base_model or base_model,
        user_metadata=body.user_metadata,
        lora_config=lora,
        optimizer_config=body.optimizer_config or models.AdamOptimizerConfig(),
    )
    model_id = await _create(future, context, create)
    load = runs.load_weights(
        path=body.path,
        optimizer=body.optimizer,
        weights_access_token=body.weights_access_token,
    )
    await context.submit(load.fill(model_id, numbers.take(), None), json_only(load.result), future)
    return model_id


async def _find_origin(runtime: Runtime, path: str) -> tuple[str, models.LoraConfig]:
    """Ask the checkpoint, or its training run on servers that do not know that, for the base model
    and the adapter.
    """
    transport = runtime.transport
    info = await transport.send_optional(
        weights_api.weights_info(models.WeightsInfoRequest(tinker_path=path)), retry.SUBMIT
    )
    if info is None:
        run_id = ParsedCheckpointTinkerPath.from_tinker_path(path).training_run_id
        run = (
            await transport.send(
                training_api.get_training_run(training_run_id=run_id), retry.SUBMIT
            )
        ).value
        return run.base_model, models.LoraConfig(rank=run.lora_rank or DEFAULT_RANK)
    lora = models.LoraConfig(
        rank=info.lora_rank or DEFAULT_RANK,
        train_unembed=info.train_unembed is not False,
        train_mlp=info.train_mlp is not False,
        train_attn=info.train_attn is not False,
    )
    return info.base_model, lora


class Model(msgspec.Struct, frozen=True):
    """A model on the server; ``info`` is None if the server does not describe it,
    or has not yet.
    """

    model_id: str
    info: models.GetInfoResponse | None = None


class TrainingRun:
    """A training run. ``created`` is the future of its creation, which comes first in the order of
    its operations.

    ``on_call`` is called with the future of each request.
    """

    def __init__(self, runtime: Runtime, operation: str, creation: Creation) -> None:
        self.runtime: Runtime = runtime
        self.model: Model | None = None
        self.creation: Creation = creation
        self._session: Session = runtime.session
        self.on_call: Callable[[APIFuture[Any]], object] | None = None
        self._order = Sequencer(runtime.transport.findings)
        self._labels = EventLabels(user_metadata=creation.user_metadata)
        called = self._order.now()
        self.created: APIFuture[None] = run(
            runtime,
            operation,
            lambda future: self._create(future, called, creation),
            labels=self._labels,
        )
        on_done(self.created, self._order.end_without_model)

    # ------------------------------------------------------------------ operations, from any thread

    def send(self, request: RunRequest[T]) -> APIFuture[T]:
        """Send one request in its turn and wait for its result."""
        return self._start(
            request.operation, lambda future, called: self._send(future, called, request)
        )

    def compute_loss(
        self, operation: str, data: list[Datum], job: LossJob
    ) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss of the server, in as many requests as the data needs."""
        return self._start(
            operation, lambda future, called: self._compute_loss(future, called, data, job)
        )

    def compute_custom_loss(self, prepared: PreparedLoss) -> APIFuture[ForwardBackwardOutput]:
        """Compute a custom loss in one turn: a forward pass, the user's function, a
        backward pass.
        """
        return self._start(
            "forward_backward_custom",
            lambda future, called: self._compute_custom_loss(future, called, prepared),
        )

    def _start(
        self, operation: str, function: Callable[[APIFuture[T], int], Coroutine[Any, Any, T]]
    ) -> APIFuture[T]:
        called = self._order.now()
        future = run(
            self.runtime, operation, lambda future: function(future, called), parent=self.created
        )
        if self.on_call is not None:
            self.on_call(future)
        return future

    def save_for_sampling(self, kind: models.SamplingClientKind) -> SavedForSampling:
        """Save the weights under no name, for a sampling client."""
        request = save_for_sampling_session(kind, next(self._session.sampler_numbers))
        return SavedForSampling(self, self.send(request))

    # ------------------------------------------------------------------------------------ the model

    def info(self) -> models.GetInfoResponse:
        """Return the description of the model, once it is created. Raises LookupError if the server
        has none.
        """
        assert self.model is not None
        if self.model.info is None:
            raise LookupError(
                "this server does not describe its models (it does not support get_info)"
            )
        return self.model.info

    @property
    def context_length(self) -> int | None:
        """Return the context length of the model; None if the server has not reported it yet."""
        return self.runtime.server.context_lengths.get(self.base_model)

    @property
    def base_model(self) -> str | None:
        """Return the name of the base model, if the caller or the server provided it."""
        info = None if self.model is None else self.model.info
        provided = None if info is None else info.model_data.model_name or info.model_name
        return provided or self.creation.base_model

    async def _create(self, future: APIFuture[None], called: int, creation: Creation) -> None:
        turn = self._order.take_turn(future, called)
        try:
            context, model_id = await self._session.in_session(
                partial(creation.create, self.runtime, self._order.numbers, future)
            )
            # of the model: another session may take the place of a lost one
            self._order.explain = partial(self._session.session_lost_error, context.session_id)
            self.model, self._order.model_id = Model(model_id), model_id
            self._labels.training_run_id = model_id
        except BaseException as error:
            self._order.end(future, error)
            raise
        finally:
            turn.leave()
        self.model = Model(model_id, await self._get_info(model_id))
        self._labels.base_model = self.base_model

    async def _get_info(self, model_id: str) -> models.GetInfoResponse | None:
        request = training_api.get_info(models.GetInfoRequest(model_id=model_id))
        return await self.runtime.transport.send_optional(request, retry.SUBMIT)

    # ------------------------------------------------------------------------ requests, on the loop

    async def _send(self, future: APIFuture[T], called: int, request: RunRequest[T]) -> T:
        turn = self._order.take_turn(future, called, changes_run=request.changes_run)
        async with turn as numbers:
            context = self._session.context or await self._session.ensure_started()
            send = partial(request.submit, self.runtime.transport, turn.target, numbers)
            submission = await send()
        async with turn.result():
            wait = partial(context.results.wait, spec=request.spec, future=future)
            return await self._await_result(turn, submission, wait, send)

    async def _compute_loss(
        self,
        future: APIFuture[ForwardBackwardOutput],
        called: int,
        data: Sequence[Datum],
        job: LossJob,
    ) -> ForwardBackwardOutput:
        turn = self._order.take_turn(future, called, changes_run=not job.forward_only)
        with turn.preparation():
            context = self._session.context or await self._session.ensure_started()
            requests = await prepare_loss_requests(self.runtime.transport, context, data, job)
        try:
            async with turn as numbers:
                send = partial(requests.submit, numbers, turn.target, future)
                accepted = await send()
            async with turn.result():
                return await self._await_result(
                    turn, accepted, partial(requests.result, future=future), send
                )
        except Exception as error:
            explain_refused_loss(error, job.loss_fn)
            raise

    async def _await_result(
        self,
        turn: Turn,
        sent: S,
        wait: Callable[[S], Awaitable[T]],
        send: Callable[[], Awaitable[S]],
    ) -> T:
        """Wait for a submitted request; if its result refuses the number, send it again, once."""
        try:
            return await wait(sent)
        except Exception as error:
            if not self._order.can_repeat(turn, error):
                raise
        with turn.resending():
            sent = await send()
        return await wait(sent)

    async def _compute_custom_loss(
        self, future: APIFuture[ForwardBackwardOutput], called: int, prepared: PreparedLoss
    ) -> ForwardBackwardOutput:
        turn = self._order.take_turn(future, called)
        with turn.preparation():
            context = self._session.context or await self._session.ensure_started()
            forward = await prepared.forward(self.runtime.transport, context)
            step = CustomStep(self.runtime.thread, prepared, forward, future)
        async with turn as numbers:
            submitted = await step.submit(numbers, turn.target)
        async with turn.result():
            return await step.result(submitted)


class SavedForSampling(msgspec.Struct, frozen=True):
    """The weights of a run, saved for a sampling client: the source of its sampling session."""

    run: TrainingRun
    saved: APIFuture[str]

    @property
    def training_run_id(self) -> str | None:
        """Return the run, once it is created."""
        return None if self.run.model is None else self.run.model.model_id

    @property
    def user_metadata(self) -> Mapping[str, object] | None:
        """Return the user's metadata of the run."""
        return self.run.creation.user_metadata

    @property
    def base_model(self) -> str | None:
        """Return the base model of the run, if known."""
        return self.run.base_model

    async def open_session(self, runtime: Runtime, context: SessionContext) -> str:
        """Return the id of the sampling session, when the weights are saved."""
        return await take_over(self.saved)

    async def find_base_model(self, runtime: Runtime, sampling_session_id: str) -> str:
        """Return the base model of the run, once it is created. Raises LookupError if the server
        does not report it.
        """
        await self.run.created
        if self.base_model is None:
            raise LookupError("this server does not report the base model of the run")
        return self.base_model
