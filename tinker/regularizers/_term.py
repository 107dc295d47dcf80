"""One term: what it is called, how much it counts, and how its function runs."""

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import numpy as np

from tinker._training import (
    Evaluated,
    Logprobs,
    check_evaluation,
    describe_value,
    is_tuple,
    make_leaves,
    read_gradients,
    read_metrics,
    read_number,
)
from tinker.custom_loss import CustomLossFn, LossHandle, LossWithGradients, Tensor
from tinker.errors import LossTermError
from tinker.regularizers._schedules import WeightSchedule, check_weight
from tinker.types.datum import Datum
from tinker.types.tensor_data import is_torch

if TYPE_CHECKING:
    import torch

AsyncTermFn: TypeAlias = Callable[
    [list[Datum], list[Tensor]], Awaitable[tuple[Tensor, dict[str, float]]]
]
"""A coroutine function that returns a loss and its metrics."""
TermFn: TypeAlias = CustomLossFn | LossWithGradients | AsyncTermFn
"""A custom loss, in torch or by ``with_gradients``, or a coroutine function in torch."""

TermMode: TypeAlias = Literal["inline", "thread", "async"]
"""Where a term is computed: on the thread of the loss, on a thread of its own, or
as a coroutine.
"""
MODES = ("inline", "thread", "async")
RESERVED_METRICS = frozenset({"value", "weight", "contribution", "grad_norm", "grad_norm_weighted"})


@attrs.frozen(init=False)
class Regularizer:
    """One weighted term of a loss made by :func:`regularized`.

    Attributes:
        fn: The function of the term: one of this module's, or your own custom loss, in torch or by
            ``tinker.with_gradients``. ``check(data)``, if it has such a method, is called before
            anything is sent and may raise.
        weight: The factor of its value: a number of 0 or more, or a function of the step, such as
            :class:`WarmUpWeight`.
        name: The name in metrics and errors, without ``/``; by default that of the function: ``kl``
            for ``KL``.
        mode: How the function runs: ``inline``, on the thread of the loss, in the order of the
            terms; ``thread``, on its own thread, in parallel to the others; ``async`` runs a
            coroutine function in its own event loop.

    >>> Regularizer(lambda data, logprobs: (logprobs[0].sum(), {}), 0.1, "sum").name
    'sum'
    """

    fn: TermFn
    weight: float | WeightSchedule
    name: str
    mode: TermMode

    def __init__(
        self,
        fn: TermFn,
        weight: float | WeightSchedule = 1.0,
        name: str | None = None,
        mode: TermMode = "inline",
    ) -> None:
        _check_function(fn, mode)
        if not callable(weight):
            check_weight("weight", weight)
        self.__attrs_init__(fn, weight, _check_name(_name_of(fn) if name is None else name), mode)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

    def weight_at(self, step: int) -> float:
        """Return the weight at a step.

        Args:
            step: The step of the loss, from 0.

        Returns:
            The weight, finite and not negative.

        Raises:
            TypeError: The schedule returned no number.
            ValueError: The schedule returned a number that is negative or not finite.
        """
        return check_weight("weight", self.weight(step) if callable(self.weight) else self.weight)


def _check_function(fn: object, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    function = fn.fn if isinstance(fn, LossWithGradients) else fn
    if isinstance(fn, (LossHandle, type)) or not callable(function):
        raise TypeError(
            "fn must be a function (data, logprobs), or one wrapped "
            f"by tinker.with_gradients; got {fn!r}"
        )
    if mode != "async" and inspect.iscoroutinefunction(function):
        raise ValueError("fn is a coroutine function; give it mode='async'")


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {name!r}")
    if not name or "/" in name or name.startswith("<"):
        raise ValueError(f"a term needs a name, without '/', for its metrics; got {name!r}")
    return name


def _name_of(fn: TermFn) -> str:
    function = fn.fn if isinstance(fn, LossWithGradients) else fn
    name = getattr(function, "__name__", None)
    return (
        name
        if isinstance(name, str)
        else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(function).__name__).lower()
    )


# ----------------------------------------------------------------------------------------- one step


@attrs.frozen
class TermResult:
    """What the function of a term gave, and how long it took; ``depends`` says whether on the
    log-probabilities.
    """

    value: float
    gradients: Logprobs
    metrics: dict[str, float]
    depends: bool
    seconds: float

    @property
    def grad_norm(self) -> float:
        """Return the L2 norm of the gradient over all log-probabilities."""
        return norm_of(self.gradients)


def norm_of(gradients: Logprobs) -> float:
    """Return the L2 norm of all arrays together."""
    return float(np.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in gradients)))


def compute_term(
    term: Regularizer, data: list[Datum], logprobs: Logprobs, timeout_seconds: float
) -> TermResult:
    """Call the function of a term with log-probabilities of its own. LossTermError, which names the
    term, for any failure.
    """
    started = time.monotonic()
    own = [part.copy() for part in logprobs]
    try:
        evaluated, depends = _evaluate(term, data, own, timeout_seconds)
        if not np.isfinite(evaluated.loss):
            raise ValueError(f"its value is {evaluated.loss}")
        if taken := sorted(RESERVED_METRICS & evaluated.metrics.keys()):
            raise ValueError(f"its metric {taken[0]!r} has the name of one that every term has")
    except BaseException as error:
        raise fail_term(term, error) from error
    seconds = time.monotonic() - started
    return TermResult(
        evaluated.loss, evaluated.gradients, dict(evaluated.metrics), depends, seconds
    )


def fail_term(term: Regularizer, error: BaseException) -> LossTermError:
    """Return the error that names the term, and is raised from the term's own."""
    said = str(error) or "without a word"
    return LossTermError(
        f"the regularizer {term.name!r} failed: {type(error).__name__}: {said}", term.name
    )


def _evaluate(
    term: Regularizer, data: list[Datum], logprobs: Logprobs, timeout_seconds: float
) -> tuple[Evaluated, bool]:
    if isinstance(term.fn, LossWithGradients):
        return read_gradients(
            _call(term, term.fn.fn, data, logprobs, timeout_seconds), logprobs
        ), True
    import torch

    leaves = make_leaves(logprobs)
    with torch.enable_grad():
        return _differentiate(_call(term, term.fn, data, leaves, timeout_seconds), leaves, logprobs)


def _call(
    term: Regularizer,
    function: Callable[..., Any],
    data: list[Datum],
    logprobs: Any,
    timeout_seconds: float,
) -> object:
    if term.mode != "async":
        return function(data, logprobs)
    return asyncio.run(_await_in_time(function(data, logprobs), timeout_seconds))


async def _await_in_time(awaitable: object, timeout_seconds: float) -> object:
    if not inspect.isawaitable(awaitable):
        raise TypeError("mode='async' needs a coroutine function")
    try:
        return await asyncio.wait_for(awaitable, timeout_seconds)
    except TimeoutError as error:
        raise error if str(error) else timeout_error(timeout_seconds) from None


def timeout_error(timeout_seconds: float) -> TimeoutError:
    """Return the error of a term that took too long."""
    return TimeoutError(f"no result within {timeout_seconds:g} s")


def _differentiate(
    returned: object, leaves: list[Tensor], logprobs: Logprobs
) -> tuple[Evaluated, bool]:
    """Read what a function in torch returned, and whether it depends on the log-probabilities; not
    all datums need matter.
    """
    import torch

    if not is_tuple(returned, 2):
        raise ValueError("it must return (value, metrics)")
    value, metrics = returned[0], read_metrics(returned[1])
    if not is_torch(value) or value.numel() != 1:
        if isinstance(value, (int, float)):
            return Evaluated(
                float(value), [np.zeros_like(part) for part in logprobs], metrics
            ), False
        raise ValueError(
            f"it must return its value as a tensor with one value, got {describe_value(value)}"
        )
    found: list[torch.Tensor | None] = [None] * len(leaves)
    if value.requires_grad:
        found = list(torch.autograd.grad(value.sum(), leaves, allow_unused=True))
    gradients = [
        np.zeros_like(part) if one is None else one.detach().numpy()
        for one, part in zip(found, logprobs, strict=True)
    ]
    depends = any(one is not None for one in found)
    return check_evaluation(
        Evaluated(read_number("its value", value), gradients, metrics), logprobs
    ), depends


def start_term(
    term: Regularizer, data: list[Datum], logprobs: Logprobs, timeout_seconds: float
) -> Future[TermResult]:
    """Compute a term: inline at once, others on a thread of their own, which does not keep the
    interpreter from ending.
    """
    future: Future[TermResult] = Future()

    def settle() -> None:
        try:
            future.set_result(compute_term(term, data, logprobs, timeout_seconds))
        except BaseException as error:  # noqa: BLE001  (whoever waits gets it)
            future.set_exception(error)

    if term.mode == "inline":
        settle()
    else:
        threading.Thread(target=settle, name=f"tinker-term-{term.name}", daemon=True).start()
    return future
