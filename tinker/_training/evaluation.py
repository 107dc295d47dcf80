"""The user's function: how it is called, what it may return, and its gradient by the log-probabilities."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import msgspec

from tinker._installation import install_command
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients
from tinker.observing import Event
from tinker.types._numpy import np
from tinker.types.datum import Datum
from tinker.types.tensor_data import is_torch

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Logprobs: TypeAlias = list["NDArray[np.float32]"]


class Evaluated(msgspec.Struct, frozen=True):
    """The result of the user's function: the loss, its gradient by the log-probabilities of each datum, and metrics."""

    loss: float
    gradients: Logprobs
    metrics: Mapping[str, float]


Evaluate: TypeAlias = Callable[[list[Datum], Logprobs], Evaluated]


def evaluator(loss_fn: CustomLossFn | LossWithGradients | LossHandle) -> Evaluate:
    """Choose how to evaluate a loss. ImportError when torch is needed and missing, TypeError for other objects."""
    if isinstance(loss_fn, LossWithGradients):
        return partial(_with_gradients, loss_fn)
    function = partial(_sum_losses, loss_fn) if isinstance(loss_fn, LossHandle) else loss_fn
    if not callable(function):
        raise TypeError(f"loss_fn must be a function, with_gradients(function) or a LossHandle, got {type(loss_fn).__name__}")
    _check_parameters(function)
    require_torch()
    return partial(_by_torch, function)


def _check_parameters(function: Callable[..., object]) -> None:
    """Raise TypeError for a function that cannot be called with the data and the log-probabilities."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind((), ())
    except TypeError as error:
        raise TypeError(f"a custom loss is called as loss_fn(data, logprobs), but this function takes {signature}") from error


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
    """Read the result of a loss that computes its gradient; ValueError unless it fits the log-probabilities."""
    if not is_tuple(returned, 2, 3):
        raise ValueError("the custom loss must return (loss, gradients) or (loss, gradients, metrics)")
    loss = read_number("the custom loss", returned[0])
    gradients = [np.asarray(gradient, np.float32) for gradient in returned[1]]
    metrics = read_metrics(returned[2] if len(returned) == 3 else {})
    return check_evaluation(Evaluated(loss, gradients, metrics), logprobs)


def is_tuple(value: object, *lengths: int) -> TypeGuard[tuple[Any, ...]]:
    """Return whether the value is a tuple of one of these lengths."""
    return isinstance(value, tuple) and len(cast("Sequence[object]", value)) in lengths


def make_leaves(logprobs: Logprobs) -> list[torch.Tensor]:
    """Return the log-probabilities as tensors by which torch can differentiate; the memory is shared."""
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
            raise ValueError(f"the custom loss must return (loss, metrics), got {type(returned).__name__}{advice}")
        loss, metrics = cast("tuple[torch.Tensor, Mapping[str, float]]", returned)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"the custom loss must return the loss as a tensor with one value, got {describe_value(loss)}")
        if not loss.requires_grad:
            raise ValueError("the custom loss does not depend on the log-probabilities, or was detached from them")
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [_gradient(index, leaf) for index, leaf in enumerate(leaves)]
    return check_evaluation(Evaluated(read_number("the custom loss", loss), gradients, read_metrics(metrics)), logprobs)


def _gradient(index: int, leaf: torch.Tensor) -> NDArray[np.float32]:
    if leaf.grad is None:
        raise ValueError(
            f"the custom loss does not depend on logprobs[{index}], so it has no gradient there; leave out data[{index}], "
            f"or add 0 * logprobs[{index}].sum()"
        )
    return leaf.grad.numpy()


def check_evaluation(evaluated: Evaluated, logprobs: Logprobs) -> Evaluated:
    """Return the evaluation; ValueError unless its gradients are finite and have the shapes of the log-probabilities."""
    if len(evaluated.gradients) != len(logprobs):
        raise ValueError(f"the custom loss returned {len(evaluated.gradients)} gradients for {len(logprobs)} datums")
    for index, (gradient, part) in enumerate(zip(evaluated.gradients, logprobs, strict=True)):
        if gradient.shape != part.shape:
            shapes = f"shape {list(gradient.shape)}, but the log-probabilities have {list(part.shape)}"
            raise ValueError(f"the gradient of the custom loss for data[{index}] has {shapes}")
        if not np.isfinite(gradient).all():
            raise ValueError(f"the gradient of the custom loss for data[{index}] contains NaN or infinity")
    return evaluated


def read_metrics(metrics: object) -> dict[str, float]:
    """Read the metrics of a loss; ValueError unless they are a mapping of names to numbers."""
    if not isinstance(metrics, Mapping):
        raise ValueError(f"the metrics of the custom loss must be a mapping, got {type(metrics).__name__}")
    named = cast("Mapping[str, Any]", metrics).items()
    return {str(name): read_number(f"metrics[{name!r}] of the custom loss", value) for name, value in named}


def read_number(what: str, value: Any) -> float:
    """Return a number, also of a tensor with one value; ValueError for anything else."""
    try:
        return float(value.detach() if is_torch(value) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{what} must be a number, got {describe_value(value)}") from None


def describe_value(value: object) -> str:
    """Describe a value: the shape of a tensor, with how to make it one number, otherwise the type."""
    if not is_torch(value):
        return type(value).__name__ + (": leave out .item()" if isinstance(value, float) else "")
    return f"a tensor of shape {list(value.shape)}" + (": use .sum() or .mean()" if value.numel() > 1 else "")


def _sum_losses(handle: LossHandle, data: list[Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Return a loss per datum over all of them: losses added up, metrics as their names say."""
    import torch

    losses: list[torch.Tensor] = []
    totals: dict[str, float] = {}
    for datum, leaf in zip(data, logprobs, strict=True):
        inputs = [datum.loss_fn_inputs[name].to_torch() for name in handle.input_names]
        loss, metrics = handle.graph(leaf, *inputs)
        losses.append(loss)
        for name, value in metrics.items():
            totals[name] = totals.get(name, 0.0) + read_number(f"metrics[{name!r}] of the custom loss", value)
    means = {name: total / len(data) for name, total in totals.items() if name.endswith(":mean")}
    return torch.stack(losses).sum(), {**totals, **means}


# ---------------------------------------------------------------------------------------------- reports to observers

_reports: ContextVar[list[Event] | None] = ContextVar("reports of a loss", default=None)


def report(event: Event) -> None:
    """Keep an event for the observers of the client for which a loss is being evaluated; without any, forget it."""
    if (reports := _reports.get()) is not None:
        reports.append(event)


def evaluate_with_reports(reports: list[Event], evaluate: Evaluate, data: list[Datum], logprobs: Logprobs) -> Evaluated:
    """Evaluate a loss; its reports are in ``reports`` afterwards, also when it fails."""
    token = _reports.set(reports)
    try:
        return evaluate(data, logprobs)
    finally:
        _reports.reset(token)
