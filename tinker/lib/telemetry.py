"""A path that older code imports from, and the decorator of the methods of a class
with a reporter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

from tinker_wire import models

from tinker._session import Capture, Telemetry, is_user_error, wrap
from tinker.lib.telemetry_provider import TelemetryProvider

P = ParamSpec("P")
R = TypeVar("R")


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
    """Decorate a method so that exceptions that leave it are reported; its object has a method
    ``get_telemetry``.

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


__all__ = ["Telemetry", "capture_exceptions", "is_user_error"]
