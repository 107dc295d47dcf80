"""One training run: its model, the order and numbers of its requests, and what their failures stop.

Operations are called from any thread and take their place in the order by that; everything else happens on the loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api

from tinker._futures import Subject
from tinker._http import SUBMIT, Fate, fate_of
from tinker._runtime import Runtime, run
from tinker._session import NotRunError, SessionContext, suggest_loss
from tinker._training.creation import Creation
from tinker._training.custom_loss import CustomStep, PreparedLoss
from tinker._training.loss_requests import LossJob, prepare_loss_requests
from tinker._training.numbers import Numbers, RunTarget
from tinker._training.order import Sequencer, Turn
from tinker._training.requests import RunRequest, save_for_sampling_session
from tinker.errors import SessionLostError
from tinker.futures import APIFuture, take_over
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput

S = TypeVar("S")
T = TypeVar("T")


class Model(msgspec.Struct, frozen=True):
    """A model that exists on the server; ``info`` None is one about which the server does not say anything, or not yet."""

    model_id: str
    info: models.GetInfoResponse | None = None


class Run(Protocol):
    """What a training client needs of its run."""

    @property
    def runtime(self) -> Runtime:
        """Return what the clients of the session share."""
        ...

    @property
    def model(self) -> Model | None:
        """Return the model, None before it exists."""
        ...

    @property
    def created(self) -> APIFuture[None]:
        """Return the creation of the run."""
        ...

    def info(self) -> models.GetInfoResponse:
        """Return what the model is."""
        ...

    @property
    def context_length(self) -> int | None:
        """Return the most tokens that the model takes; None where the server has not said so yet."""
        ...

    def send(self, request: RunRequest[T]) -> APIFuture[T]:
        """Send one request in its turn and wait for its result."""
        ...

    def compute_loss(self, operation: str, data: list[Datum], job: LossJob) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss that the server knows."""
        ...

    def compute_custom_loss(self, prepared: PreparedLoss) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss of the user's."""
        ...

    def save_for_sampling(self, kind: models.SamplingClientKind) -> SavedForSampling:
        """Save the weights under no name, for a sampling client."""
        ...


class TrainingRun:
    """A run that is being created from now on. ``created`` is the future of that; operations wait for it by their order."""

    def __init__(self, runtime: Runtime, operation: str, creation: Creation) -> None:
        self.runtime: Runtime = runtime
        self.model: Model | None = None
        self.creation: Creation = creation
        self._session_id: str | None = None
        self._order = Sequencer(runtime.transport.findings)
        self._subject = Subject(user_metadata=creation.user_metadata)
        now = self._order.now()
        self.created: APIFuture[None] = run(runtime, operation, self._create, creation, now, subject=self._subject)

    # ----------------------------------------------------------------------------------------- operations, from any thread

    def send(self, request: RunRequest[T]) -> APIFuture[T]:
        """Send one request in its turn and wait for its result."""
        return run(self.runtime, request.operation, self._send, request, self._order.now(), parent=self.created)

    def compute_loss(self, operation: str, data: list[Datum], job: LossJob) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss that the server knows, in as many requests as the data takes."""
        return run(self.runtime, operation, self._compute_loss, data, job, self._order.now(), parent=self.created)

    def compute_custom_loss(self, prepared: PreparedLoss) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss of the user's: a forward pass, the user's function, and a backward pass, in one turn."""
        now = self._order.now()
        return run(self.runtime, "forward_backward_custom", self._compute_custom_loss, prepared, now, parent=self.created)

    def save_for_sampling(self, kind: models.SamplingClientKind) -> SavedForSampling:
        """Save the weights under no name, for a sampling client."""
        return SavedForSampling(self, self.send(save_for_sampling_session(kind, self.runtime.session.sampler_numbers)))

    # ---------------------------------------------------------------------------------------------------------- the model

    def info(self) -> models.GetInfoResponse:
        """Return what the model is; call when it is created. LookupError when the server does not say."""
        assert self.model is not None
        if self.model.info is None:
            raise LookupError("this server does not describe its models (it does not support get_info)")
        return self.model.info

    @property
    def context_length(self) -> int | None:
        """Return the most tokens that the model takes; None where the server has not said so yet."""
        return self.runtime.server.context_lengths.get(self.base_model)

    @property
    def base_model(self) -> str | None:
        """Return the name of the base model, where it was given or told."""
        info = None if self.model is None else self.model.info
        told = None if info is None else info.model_data.model_name or info.model_name
        return told or self.creation.base_model

    async def _create(self, future: APIFuture[None], creation: Creation, called: int) -> None:
        session = self.runtime.session
        async with self._order.take_turn(future, called) as numbers:
            try:
                created = await session.in_session(partial(creation.create, self.runtime, numbers, future))
            except BaseException as error:
                self._order.end(future, error)
                raise
            self._session_id, model_id = created
            self.model = Model(model_id)
            self._subject.training_run_id = model_id
        self.model = Model(model_id, await self._get_info(model_id))
        self._subject.base_model = self.base_model

    async def _get_info(self, model_id: str) -> models.GetInfoResponse | None:
        request = training_api.get_info(models.GetInfoRequest(model_id=model_id))
        return await self.runtime.transport.send_optional(request, SUBMIT)

    # ----------------------------------------------------------------------------------------------- requests, on the loop

    async def _send(self, future: APIFuture[T], request: RunRequest[T], called: int) -> T:
        turn = self._order.take_turn(future, called)
        async with self._turn(turn, changes_run=request.changes_run) as (numbers, target):
            send = partial(request.submit, self.runtime.transport, target, numbers)
            submission = await send()
        context = await self.runtime.session.ensure_started()
        async with self._result_of(turn, changes_run=request.changes_run):
            wait = partial(context.results.wait, spec=request.spec, future=future)
            return await self._await_result(turn, submission, wait, send)

    async def _compute_loss(
        self, future: APIFuture[ForwardBackwardOutput], data: Sequence[Datum], job: LossJob, called: int
    ) -> ForwardBackwardOutput:
        changes_run = not job.forward_only
        async with self._preparation(future, called, changes_run=changes_run) as (turn, context):
            requests = await prepare_loss_requests(self.runtime.transport, context, data, job)
        try:
            async with self._turn(turn, changes_run=changes_run) as (numbers, target):
                send = partial(requests.submit, numbers, target, future)
                accepted = await send()
            async with self._result_of(turn, changes_run=changes_run):
                return await self._await_result(turn, accepted, partial(requests.result, future=future), send)
        except Exception as error:
            suggest_loss(error, job.loss_fn)
            raise

    async def _await_result(
        self, turn: Turn, sent: S, wait: Callable[[S], Awaitable[T]], send: Callable[[], Awaitable[S]]
    ) -> T:
        """Wait for the result of what was sent; where it refuses the number, send it again, once."""
        try:
            return await wait(sent)
        except Exception as error:
            if not self._order.can_repeat(turn, error):
                raise
        with turn.future.shield():
            sent = await send()
        return await wait(sent)

    async def _compute_custom_loss(
        self, future: APIFuture[ForwardBackwardOutput], prepared: PreparedLoss, called: int
    ) -> ForwardBackwardOutput:
        async with self._preparation(future, called) as (turn, context):
            forward = await prepared.forward(self.runtime.transport, context)
            step = CustomStep(self.runtime.thread, prepared, forward, future)
        async with self._turn(turn) as (numbers, target):
            submitted = await step.submit(numbers, target)
        async with self._result_of(turn):
            return await step.result(submitted)

    # ------------------------------------------------------------------------------------------ turns, and what failures stop

    @asynccontextmanager
    async def _preparation(
        self, future: APIFuture[Any], called: int, *, changes_run: bool = True
    ) -> AsyncGenerator[tuple[Turn, SessionContext]]:
        """Hold what is done ahead of the operation's turn, in the session; when it fails, the turn is given up."""
        turn = self._order.take_turn(future, called)
        try:
            yield turn, await self.runtime.session.ensure_started()
        except BaseException as error:
            if changes_run and isinstance(error, Exception):
                self._order.block(turn, error)
            turn.leave()
            raise

    @asynccontextmanager
    async def _turn(self, turn: Turn, *, changes_run: bool = True) -> AsyncGenerator[tuple[Numbers, RunTarget]]:
        """Hold what is sent in the turn. What has begun to be sent is sent to the end, also when the future is cancelled."""
        async with turn as numbers:
            assert self.model is not None
            with turn.future.shield():
                try:
                    yield numbers, RunTarget(self.model.model_id, self._order.known_failure)
                except Exception as error:
                    await self._fail(turn, error, stops=changes_run or fate_of(error) is Fate.UNKNOWN)
                    raise

    @asynccontextmanager
    async def _result_of(self, turn: Turn, *, changes_run: bool = True) -> AsyncGenerator[None]:
        """Hold the wait for the result of what the server has accepted."""
        try:
            yield
        except Exception as error:
            await self._fail(turn, error, stops=changes_run)
            raise

    async def _fail(self, turn: Turn, error: Exception, *, stops: bool) -> None:
        """Note a failure, which, if it ``stops`` later requests, does so until the user has its error.

        Raises SessionLostError or PrecedingRequestFailed in the place of ``error`` where that is what it means.
        """
        if isinstance(error, NotRunError):
            raise await self._order.explain_stop(turn, error)
        self._order.numbers.expect(turn.last_number, error)
        lost: SessionLostError | None = None
        if self._session_id is not None:
            lost = await self.runtime.session.explain_loss(self._session_id, error)
        if stops:
            self._order.block(turn, lost or error)
        if lost is not None:
            raise lost from error


class SavedForSampling(msgspec.Struct, frozen=True):
    """Weights of a run that are saved for a sampling client: where its sampling session comes from."""

    run: TrainingRun
    saved: APIFuture[str]

    @property
    def training_run_id(self) -> str | None:
        """Return the run, once it is created."""
        return None if self.run.model is None else self.run.model.model_id

    @property
    def user_metadata(self) -> Mapping[str, object] | None:
        """Return what the user says of the run."""
        return self.run.creation.user_metadata

    @property
    def base_model(self) -> str | None:
        """Return the base model of the run, where it is known."""
        return self.run.base_model

    async def open_session(self, runtime: Runtime, context: SessionContext) -> str:
        """Return the id of the sampling session, when the weights are saved."""
        return await take_over(self.saved)

    async def find_base_model(self, runtime: Runtime, sampling_session_id: str) -> str:
        """Return the base model of the run, once it is created. LookupError when nobody has said it."""
        await self.run.created
        if self.base_model is None:
            raise LookupError("this server does not report the base model of the run")
        return self.base_model
