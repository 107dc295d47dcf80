"""Definitions that only older code uses. The modules that it imports them from are made, and define
nothing: ``generated/older``.
"""

from __future__ import annotations

import concurrent.futures
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import (
    Any,
    NoReturn,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    overload,
    runtime_checkable,
)

import httpx
from tinker_wire import models

from tinker._basics.installation import PATCHING_PACKAGES
from tinker._http import retry
from tinker._session.telemetry import Capture, Telemetry, wrap
from tinker._training.losses import REDUCTIONS, combine
from tinker.futures import APIFuture
from tinker.types import ForwardBackwardOutput

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_INTERNALS = "tinker.lib.internal_client_holder"


class QueueState(StrEnum):
    """Queue states, as strings."""

    ACTIVE = "active"
    PAUSED_RATE_LIMIT = "paused_rate_limit"
    PAUSED_CAPACITY = "paused_capacity"
    UNKNOWN = "unknown"


class RequestOptions(TypedDict, total=False):
    """What could be said about one request. No method takes it; arguments of ``ServiceClient`` say
    such things.
    """

    headers: Mapping[str, str]
    max_retries: int
    timeout: float | httpx.Timeout | None
    params: Mapping[str, object]
    extra_json: Mapping[str, Any]
    idempotency_key: str
    follow_redirects: bool


class AwaitableConcurrentFuture(APIFuture[T]):
    """An APIFuture that follows a ``concurrent.futures.Future``; for code and tests that make
    futures of their own.

    >>> source: concurrent.futures.Future[int] = concurrent.futures.Future()
    >>> source.set_result(7)
    >>> AwaitableConcurrentFuture(source).result()
    7
    """

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        super().__init__()
        self._future = future
        future.add_done_callback(self._follow)

    def future(self) -> concurrent.futures.Future[T]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the future that was given."""
        return self._future

    def cancel(self) -> bool:
        """Cancel the future that was given."""
        return self._future.cancel()

    def _follow(self, done: concurrent.futures.Future[T]) -> None:
        if done.cancelled():
            super().cancel()
        elif (error := done.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(done.result())


@runtime_checkable
class TelemetryProvider(Protocol):
    """A class with a reporter of failures, such as the clients."""

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter; None where telemetry is off."""
        ...


@overload
def capture_exceptions(
    func: Callable[P, R], *, fatal: bool = False, severity: models.Severity | None = None
) -> Callable[P, R]: ...
@overload
def capture_exceptions(
    *, fatal: bool = False, severity: models.Severity | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def capture_exceptions(
    func: Callable[P, R] | None = None,
    *,
    fatal: bool = False,
    severity: models.Severity | None = None,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a method so that exceptions that leave it are reported; its object has a
    method ``get_telemetry``.

    Args:
        func: The method, or coroutine method.
        fatal: Whether an exception ends the program, see :meth:`Telemetry.log_fatal_exception`.
        severity: As of :meth:`Telemetry.log_exception`.

    Returns:
        The method; without ``func``, a decorator.
    """

    def find(args: tuple[object, ...]) -> Capture:
        provider = args[0] if args else None
        telemetry = provider.get_telemetry() if isinstance(provider, TelemetryProvider) else None
        return Capture(telemetry, fatal, severity)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return wrap(function, find)

    return decorate if func is None else decorate(func)


def is_retryable_status_code(status_code: int) -> bool:
    """Return whether this client sends a request again that was answered with the status.

    >>> is_retryable_status_code(503), is_retryable_status_code(404)
    (True, False)
    """
    return retry.is_retryable_status(status_code)


def _weigh_alike(name: str) -> Callable[..., float]:
    """Return a reduction that may be called without weights, one value of as many outputs as
    another then.
    """
    reduction = REDUCTIONS[name]

    def reduce(values: Sequence[float], weights: Sequence[int] | None = None) -> float:
        return reduction(values, [1] * len(values) if weights is None else weights)

    return reduce


def _keep_all(values: Sequence[float]) -> Sequence[float]:
    return values


#: How the metrics are reduced whose names end in these words; ``unique`` ones are not reduced.
REDUCE_MAP: dict[str, Callable[..., float] | Callable[[Sequence[float]], Sequence[float]]] = {
    **{name: _weigh_alike(name) for name in REDUCTIONS},
    "unique": _keep_all,
}


def combine_fwd_bwd_output_results(
    results: Sequence[ForwardBackwardOutput],
) -> ForwardBackwardOutput:
    """Return one result: outputs in order, metrics reduced by the last word of their names.

    >>> halves = [ForwardBackwardOutput("ArrayRecord", [{}], {"loss:sum": 1.5}) for _ in range(2)]
    >>> combine_fwd_bwd_output_results(halves).loss
    3.0
    """
    return combine(results) if results else ForwardBackwardOutput("", [], {})


def refuse_internals(name: str) -> NoReturn:
    """Raise AttributeError for internals of the official client; packages that change them are told
    that it has no effect.
    """
    advice = [advice for module, advice in PATCHING_PACKAGES.values() if module in sys.modules]
    if advice and not name.startswith(
        "__"
    ):  # such packages take the ImportError for "not installed", and say nothing
        warnings.warn(
            f"{_INTERNALS}.{name} is internal to the official client. {'; '.join(advice)}",
            stacklevel=2,
        )
    raise AttributeError(
        f"module {_INTERNALS!r} has no attribute {name!r}: it is internal to the official client"
    )
