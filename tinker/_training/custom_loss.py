"""A step with a loss of the user's: a forward pass, the user's function, a backward pass with its
gradient.

With C the loss and g its gradient by the log-probabilities of the targets, the cross entropy with
weights -g has the gradient of C by the model's parameters. So the server needs to know cross
entropy only.

The whole step is one place in the order of its client: later requests are numbered and sent after
the backward pass is, so they may be called at once. Numbers are given as requests are sent, so a
step that fails half-way leaves no hole.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api

from tinker._http import Transport
from tinker._installation import install_command
from tinker._loop import LoopThread
from tinker._runtime import Runtime
from tinker._session import SessionContext, json_only
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
from tinker.types.tensor_data import TensorData, dimensions, is_torch

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# ------------------------------------------------------------------------------ the user's function

Logprobs: TypeAlias = list["NDArray[np.float32]"]


class Evaluated(msgspec.Struct, frozen=True):
    """The result of the user's function: the loss, its gradient by the log-probabilities of each
    datum, and metrics.
    """

    loss: float
    gradients: Logprobs
    metrics: Mapping[str, float]


Evaluate: TypeAlias = Callable[[list[Datum], Logprobs], Evaluated]


def evaluator(loss_fn: CustomLossFn | LossWithGradients | LossHandle) -> Evaluate:
    """Choose how to evaluate a loss. ImportError when torch is needed and missing, TypeError for
    other objects.
    """
    if isinstance(loss_fn, LossWithGradients):
        return partial(_with_gradients, loss_fn)
    function = partial(_sum_losses, loss_fn) if isinstance(loss_fn, LossHandle) else loss_fn
    if not callable(function):
        raise TypeError(
            "loss_fn must be a function, with_gradients(function) or a LossHandle, got "
            f"{type(loss_fn).__name__}"
        )
    _check_parameters(function)
    require_torch()
    return partial(_by_torch, function)


def _check_parameters(function: Callable[..., object]) -> None:
    """Raise TypeError for a function that cannot be called with the data and the
    log-probabilities.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind((), ())
    except TypeError as error:
        raise TypeError(
            "a custom loss is called as loss_fn(data, logprobs), but "
            f"this function takes {signature}"
        ) from error


def require_torch() -> None:
    """Raise ImportError when torch is not installed, which says what to do without it."""
    if importlib.util.find_spec("torch") is None:
        raise ImportError(
            f"PyTorch is not installed; a custom loss needs it: {install_command('torch')}, "
            "or let the loss compute its gradient: tinker.with_gradients(loss_fn)"
        )


def _with_gradients(loss_fn: LossWithGradients, data: list[Datum], logprobs: Logprobs) -> Evaluated:
    __tracebackhide__ = True
    return read_gradients(loss_fn.fn(data, logprobs), logprobs)


def read_gradients(returned: object, logprobs: Logprobs) -> Evaluated:
    """Read the result of a loss that computes its gradient; ValueError unless it fits the
    log-probabilities.
    """
    if not is_tuple(returned, 2, 3):
        raise ValueError(
            "the custom loss must return (loss, gradients) or (loss, gradients, metrics)"
        )
    loss = read_number("the custom loss", returned[0])
    gradients = [np.asarray(gradient, np.float32) for gradient in returned[1]]
    metrics = read_metrics(returned[2] if len(returned) == 3 else {})
    return check_evaluation(Evaluated(loss, gradients, metrics), logprobs)


def is_tuple(value: object, *lengths: int) -> TypeGuard[tuple[Any, ...]]:
    """Return whether the value is a tuple of one of these lengths."""
    return isinstance(value, tuple) and len(cast("Sequence[object]", value)) in lengths


def make_leaves(logprobs: Logprobs) -> list[torch.Tensor]:
    """Return the log-probabilities as tensors by which torch can differentiate; the memory is
    shared.
    """
    import torch

    return [torch.from_numpy(part).requires_grad_() for part in logprobs]  # pyright: ignore[reportUnknownMemberType]


def _by_torch(loss_fn: CustomLossFn, data: list[Datum], logprobs: Logprobs) -> Evaluated:
    import torch

    __tracebackhide__ = True
    leaves = make_leaves(logprobs)
    with torch.enable_grad():
        returned: Any = loss_fn(data, leaves)
        if not is_tuple(returned, 2):
            advice = ": return loss, {}" if isinstance(returned, torch.Tensor) else ""
            raise ValueError(
                "the custom loss must return (loss, metrics), got "
                f"{type(returned).__name__}{advice}"
            )
        loss, metrics = cast("tuple[torch.Tensor, Mapping[str, float]]", returned)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                "the custom loss must return the loss as a tensor with one value, got "
                f"{describe_value(loss)}"
            )
        if not loss.requires_grad:
            raise ValueError(
                "the custom loss does not depend on the log-probabilities, or "
                "was detached from them"
            )
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [_gradient(index, leaf) for index, leaf in enumerate(leaves)]
    return check_evaluation(
        Evaluated(read_number("the custom loss", loss), gradients, read_metrics(metrics)), logprobs
    )


def _gradient(index: int, leaf: torch.Tensor) -> NDArray[np.float32]:
    if leaf.grad is None:
        raise ValueError(
            f"the custom loss does not depend on logprobs[{index}], so it has no gradient there; "
            f"leave out data[{index}], "
            f"or add 0 * logprobs[{index}].sum()"
        )
    return leaf.grad.numpy()


def check_evaluation(evaluated: Evaluated, logprobs: Logprobs) -> Evaluated:
    """Return the evaluation; ValueError unless its gradients are finite and have the shapes of the
    log-probabilities.
    """
    if len(evaluated.gradients) != len(logprobs):
        raise ValueError(
            f"the custom loss returned {len(evaluated.gradients)} "
            f"gradients for {len(logprobs)} datums"
        )
    for index, (gradient, part) in enumerate(zip(evaluated.gradients, logprobs, strict=True)):
        if gradient.shape != part.shape:
            shapes = (
                f"shape {list(gradient.shape)}, but the log-probabilities have {list(part.shape)}"
            )
            raise ValueError(f"the gradient of the custom loss for data[{index}] has {shapes}")
        if not np.isfinite(gradient).all():
            raise ValueError(
                f"the gradient of the custom loss for data[{index}] contains NaN or infinity"
            )
    return evaluated


def read_metrics(metrics: object) -> dict[str, float]:
    """Read the metrics of a loss; ValueError unless they are a mapping of names to numbers."""
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"the metrics of the custom loss must be a mapping, got {type(metrics).__name__}"
        )
    named = cast("Mapping[str, Any]", metrics).items()
    return {
        str(name): read_number(f"metrics[{name!r}] of the custom loss", value)
        for name, value in named
    }


def read_number(what: str, value: Any) -> float:
    """Return a number, also of a tensor with one value; ValueError for anything else."""
    try:
        return float(value.detach() if is_torch(value) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{what} must be a number, got {describe_value(value)}") from None


def describe_value(value: object) -> str:
    """Describe a value: the shape of a tensor, with how to make it one number,
    otherwise the type.
    """
    if not is_torch(value):
        return type(value).__name__ + (": leave out .item()" if isinstance(value, float) else "")
    return f"a tensor of shape {list(value.shape)}" + (
        ": use .sum() or .mean()" if value.numel() > 1 else ""
    )


def _sum_losses(
    handle: LossHandle, data: list[Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return a loss per datum over all of them: losses added up, metrics as their names say."""
    import torch

    losses: list[torch.Tensor] = []
    totals: dict[str, float] = {}
    for datum, leaf in zip(data, logprobs, strict=True):
        inputs = [datum.loss_fn_inputs[name].to_torch() for name in handle.input_names]
        loss, metrics = handle.graph(leaf, *inputs)
        losses.append(loss)
        for name, value in metrics.items():
            totals[name] = totals.get(name, 0.0) + read_number(
                f"metrics[{name!r}] of the custom loss", value
            )
    means = {name: total / len(data) for name, total in totals.items() if name.endswith(":mean")}
    return torch.stack(losses).sum(), {**totals, **means}


# ----------------------------------------------------------------------------- reports to observers

_reports: ContextVar[list[Event] | None] = ContextVar("reports of a loss", default=None)


def report(event: Event) -> None:
    """Keep an event for the observers of the client for which a loss is being evaluated; without
    any, forget it.
    """
    if (reports := _reports.get()) is not None:
        reports.append(event)


def evaluate_with_reports(
    reports: list[Event], evaluate: Evaluate, data: list[Datum], logprobs: Logprobs
) -> Evaluated:
    """Evaluate a loss; its reports are in ``reports`` afterwards, also when it fails."""
    token = _reports.set(reports)
    try:
        return evaluate(data, logprobs)
    finally:
        _reports.reset(token)


# ------------------------------------------------------------------------- losses that were created

_FORWARD = LossJob("cross_entropy", None, forward_only=True, needs_logprobs=True)
_BACKWARD = LossJob("cross_entropy", None, forward_only=False)
_LOSS, _SURROGATE = "loss:sum", "surrogate_loss:sum"


def check_handle(handle: LossHandle, data: Sequence[Datum], session_id: str | None) -> None:
    """Raise ValueError unless the loss is of this session and each datum, which is named, has the
    inputs it was traced for.
    """
    if handle.session_id != session_id:
        raise ValueError(
            f"the loss {handle.name!r} belongs to another session; create it "
            "with this client's ServiceClient"
        )
    for index, datum in enumerate(data):
        for one in handle.inputs:
            name = "target_tokens" if one.name == LOGPROBS else one.name
            tensor = datum.loss_fn_inputs.get(name)
            if tensor is None:
                raise ValueError(
                    f"datum[{index}].loss_fn_inputs is missing {name}, which the loss "
                    f"{handle.name!r} needs"
                )
            if len(dimensions(tensor)) != one.rank:
                shape = dimensions(tensor)
                raise ValueError(
                    f"datum[{index}]: {name} has shape {shape}, but {handle.name!r} takes "
                    f"{one.rank} dimensions"
                )


async def create_handle(
    future: APIFuture[LossHandle], runtime: Runtime, traced: TracedLoss
) -> LossHandle:
    """Upload a traced loss where the server asks for losses, and return its handle. ValueError when
    the session has it.
    """
    session = runtime.session
    context = await session.ensure_started()
    handle = LossHandle(traced.name, traced.inputs, context.session_id, traced.module)
    if handle.key in session.loss_keys:
        raise ValueError(
            f"this session already created the loss {traced.name!r}; reuse its LossHandle"
        )
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

# ----------------------------------------------------------------------------------------- the step


class PreparedLoss(msgspec.Struct, frozen=True):
    """A step whose arguments are checked: the user's datums, those of the forward pass, and the
    loss.
    """

    data: list[Datum]
    reduced: list[Datum]
    evaluate: Evaluate

    async def forward(self, transport: Transport, context: SessionContext) -> LossRequests:
        """Cut and encode the forward pass."""
        return await prepare_loss_requests(transport, context, self.reduced, _FORWARD)


def prepare_loss(
    data: Sequence[Datum], loss_fn: CustomLossFn | LossWithGradients | LossHandle
) -> PreparedLoss:
    """Check the arguments of a step; errors as of :func:`evaluator` and ``forward_backward``."""
    evaluate = evaluator(loss_fn)
    reduced = [_to_cross_entropy(datum) for datum in data]
    check_data(reduced, "cross_entropy")
    if isinstance(loss_fn, LossWithGradients) and loss_fn.check is not None:
        loss_fn.check(list(data))
    return PreparedLoss(list(data), reduced, evaluate)


def _to_cross_entropy(datum: Datum) -> Datum:
    """Return the datum as cross entropy takes it; the weights do not matter to the
    log-probabilities.
    """
    if not isinstance(datum, Datum):  # pyright: ignore[reportUnnecessaryIsInstance]
        return datum  # refused with its index
    inputs = datum.loss_fn_inputs
    kept: dict[str, object] = {
        name: inputs[name] for name in ("target_tokens", "weights") if name in inputs
    }
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
        output = await self.forward.result(
            await self.forward.submit(numbers, target, self.future), self.future
        )
        logprobs = _logprobs(self.prepared.reduced, output)
        evaluated = await self._evaluate(logprobs)
        weighted = [
            _set_weights(*pair)
            for pair in zip(self.prepared.reduced, evaluated.gradients, strict=True)
        ]
        backward = self.forward.again(weighted, _BACKWARD)
        await backward.encode()
        return SubmittedStep(
            evaluated, backward, await backward.submit(numbers, target, self.future)
        )

    async def _evaluate(self, logprobs: Logprobs) -> Evaluated:
        """Call the user's function on a separate thread; observers get its start, its reports and
        its end.
        """
        observers, operation = self.forward.transport.observers, self.future.operation
        if not observers:
            return await self.thread.run_in_user_thread(
                partial(self.prepared.evaluate, self.prepared.data, logprobs)
            )
        began, reports = observers.clock.monotonic(), list[Event]()
        observers.notify(
            CustomLossStarted(operation=operation, datum_count=len(self.prepared.data))
        )
        evaluate = partial(
            evaluate_with_reports, reports, self.prepared.evaluate, self.prepared.data, logprobs
        )
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
    weights = (
        TensorData.from_numpy_sparse(-gradient) if sparse else TensorData.from_numpy(-gradient)
    )
    return attrs.evolve(datum, loss_fn_inputs={**datum.loss_fn_inputs, "weights": weights})


def _merge_metrics(server: Mapping[str, float], evaluated: Evaluated) -> dict[str, float]:
    metrics = {(_SURROGATE if name == _LOSS else name): value for name, value in server.items()}
    return {**metrics, **evaluated.metrics, _LOSS: evaluated.loss}
