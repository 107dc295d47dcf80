"""A step with a loss of the user's: a forward pass, the user's function, a backward pass with its gradient.

With C the loss and g its gradient by the log-probabilities of the targets, the cross entropy with weights -g has the gradient
of C by the model's parameters. So the server needs to know cross entropy only.

The whole step is one place in the order of its client: later requests are numbered and sent after the backward pass is, so
they may be called at once. Numbers are given as requests are sent, so a step that fails half-way leaves no hole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api

from tinker._http import Transport
from tinker._loop import LoopThread
from tinker._runtime import Runtime
from tinker._session import SessionContext, json_only
from tinker._training.evaluation import Evaluate, Evaluated, Logprobs, evaluate_with_reports, evaluator
from tinker._training.loss_requests import LossJob, LossRequests, SubmitReply, prepare_loss_requests
from tinker._training.numbers import Numbers, RunTarget
from tinker._training.tracing import LOGPROBS, TracedLoss
from tinker._validate import check_data
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.futures import APIFuture
from tinker.observing import CustomLossEvaluated, CustomLossStarted, Event
from tinker.types._numpy import np
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData, dimensions

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORWARD = LossJob("cross_entropy", None, forward_only=True, needs_logprobs=True)
_BACKWARD = LossJob("cross_entropy", None, forward_only=False)
_LOSS, _SURROGATE = "loss:sum", "surrogate_loss:sum"


def check_handle(handle: LossHandle, data: Sequence[Datum], session_id: str | None) -> None:
    """Raise ValueError unless the loss is of this session and each datum, which is named, has the inputs it was traced for."""
    if handle.session_id != session_id:
        raise ValueError(f"the loss {handle.name!r} belongs to another session; create it with this client's ServiceClient")
    for index, datum in enumerate(data):
        for one in handle.inputs:
            name = "target_tokens" if one.name == LOGPROBS else one.name
            tensor = datum.loss_fn_inputs.get(name)
            if tensor is None:
                raise ValueError(f"datum[{index}].loss_fn_inputs is missing {name}, which the loss {handle.name!r} needs")
            if len(dimensions(tensor)) != one.rank:
                shape = dimensions(tensor)
                raise ValueError(f"datum[{index}]: {name} has shape {shape}, but {handle.name!r} takes {one.rank} dimensions")


async def create_handle(future: APIFuture[LossHandle], runtime: Runtime, traced: TracedLoss) -> LossHandle:
    """Upload a traced loss where the server asks for losses, and return its handle. ValueError when the session has it."""
    session = runtime.session
    context = await session.ensure_started()
    handle = LossHandle(traced.name, traced.inputs, context.session_id, traced.module)
    if handle.key in session.loss_keys:
        raise ValueError(f"this session already created the loss {traced.name!r}; reuse its LossHandle")
    session.loss_keys.add(handle.key)
    if not context.config.custom_loss_server_side:
        return handle
    body = models.CreateCustomLossRequest(
        session_id=context.session_id,
        custom_loss_seq_id=next(session.loss_numbers),
        name=traced.name,
        inputs=traced.inputs,
        graph=traced.graph,
    )
    try:
        created = await context.submit(training_api.create_custom_loss(body), _CREATED, future)
    except BaseException:
        session.loss_keys.discard(handle.key)
        raise
    return replace(handle, loss_id=created.loss_id)


_CREATED = json_only("CreateCustomLoss", models.CreateCustomLossResponse)

# ------------------------------------------------------------------------------------------------------------------ the step


class PreparedLoss(msgspec.Struct, frozen=True):
    """A step whose arguments are checked: the user's datums, those of the forward pass, and the loss."""

    data: list[Datum]
    reduced: list[Datum]
    evaluate: Evaluate

    async def forward(self, transport: Transport, context: SessionContext) -> LossRequests:
        """Cut and encode the forward pass."""
        return await prepare_loss_requests(transport, context, self.reduced, _FORWARD)


def prepare_loss(data: Sequence[Datum], loss_fn: CustomLossFn | LossWithGradients | LossHandle) -> PreparedLoss:
    """Check the arguments of a step; errors as of :func:`evaluator` and ``forward_backward``."""
    evaluate = evaluator(loss_fn)
    reduced = [_to_cross_entropy(datum) for datum in data]
    check_data(reduced, "cross_entropy")
    if isinstance(loss_fn, LossWithGradients) and loss_fn.check is not None:
        loss_fn.check(list(data))
    return PreparedLoss(list(data), reduced, evaluate)


def _to_cross_entropy(datum: Datum) -> Datum:
    """Return the datum as cross entropy takes it; the weights do not matter to the log-probabilities."""
    if not isinstance(datum, Datum):  # pyright: ignore[reportUnnecessaryIsInstance]
        return datum  # refused with its index
    inputs = datum.loss_fn_inputs
    kept: dict[str, object] = {name: inputs[name] for name in ("target_tokens", "weights") if name in inputs}
    if "weights" not in kept and "target_tokens" in kept:
        kept["weights"] = np.zeros(dimensions(inputs["target_tokens"]), np.float32)
    return attrs.evolve(datum, loss_fn_inputs=kept)


class CustomStep(msgspec.Struct, frozen=True):
    """One step, ready for its turn."""

    thread: LoopThread
    prepared: PreparedLoss
    forward: LossRequests
    future: APIFuture[ForwardBackwardOutput]

    async def submit(self, numbers: Numbers, target: RunTarget) -> SubmittedStep:
        """Do everything but waiting for the last results; holds the turn meanwhile."""
        output = await self.forward.result(await self.forward.submit(numbers, target, self.future), self.future)
        logprobs = _logprobs(self.prepared.reduced, output)
        evaluated = await self._evaluate(logprobs)
        weighted = [_set_weights(*pair) for pair in zip(self.prepared.reduced, evaluated.gradients, strict=True)]
        backward = self.forward.again(weighted, _BACKWARD)
        await backward.encode()
        return SubmittedStep(evaluated, backward, await backward.submit(numbers, target, self.future))

    async def _evaluate(self, logprobs: Logprobs) -> Evaluated:
        """Call the user's function on a separate thread; observers get its start, its reports and its end."""
        observers, operation = self.forward.transport.observers, self.future.operation
        if not observers:
            return await self.thread.run_in_user_thread(partial(self.prepared.evaluate, self.prepared.data, logprobs))
        began, reports = observers.clock.monotonic(), list[Event]()
        observers.notify(CustomLossStarted(operation=operation, datum_count=len(self.prepared.data)))
        evaluate = partial(evaluate_with_reports, reports, self.prepared.evaluate, self.prepared.data, logprobs)
        ended = partial(CustomLossEvaluated, operation=operation)
        try:
            evaluated = await self.thread.run_in_user_thread(evaluate)
            ended = partial(ended, loss=evaluated.loss, metrics=evaluated.metrics)
            return evaluated
        except BaseException as error:
            ended = partial(ended, error=error)
            raise
        finally:
            for event in reports:
                observers.notify(event)
            observers.notify(ended(seconds=observers.clock.monotonic() - began))

    async def result(self, submitted: SubmittedStep) -> ForwardBackwardOutput:
        """Return the result of the backward pass, with the user's loss and metrics in it."""
        output = await submitted.backward.result(submitted.accepted, self.future)
        return attrs.evolve(output, metrics=_merge_metrics(output.metrics, submitted.evaluated))


class SubmittedStep(msgspec.Struct, frozen=True):
    """A step whose backward pass the server has accepted."""

    evaluated: Evaluated
    backward: LossRequests
    accepted: list[SubmitReply]


def _logprobs(data: Sequence[Datum], output: ForwardBackwardOutput) -> Logprobs:
    """Return the log-probabilities of each datum, writable and in the shape of its targets."""
    shapes = (dimensions(datum.loss_fn_inputs["target_tokens"]) for datum in data)
    return [
        np.array(fields["logprobs"].to_numpy(), np.float32).reshape(shape)
        for fields, shape in zip(output.loss_fn_outputs, shapes, strict=True)
    ]


def _set_weights(datum: Datum, gradient: NDArray[np.float32]) -> Datum:
    sparse = datum.loss_fn_inputs["target_tokens"].is_sparse
    weights = TensorData.from_numpy_sparse(-gradient) if sparse else TensorData.from_numpy(-gradient)
    return attrs.evolve(datum, loss_fn_inputs={**datum.loss_fn_inputs, "weights": weights})


def _merge_metrics(server: Mapping[str, float], evaluated: Evaluated) -> dict[str, float]:
    metrics = {(_SURROGATE if name == _LOSS else name): value for name, value in server.items()}
    return {**metrics, **evaluated.metrics, _LOSS: evaluated.loss}
