"""Blocks and functions whose exceptions a telemetry reporter reports before they go on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import msgspec
from tinker_wire import models

from tinker.futures import APIFuture

P = ParamSpec("P")
R = TypeVar("R")


class Reporter(Protocol):
    """What a block needs of `Telemetry`."""

    def log_exception(self, exception: BaseException, severity: models.Severity | None = None) -> APIFuture[bool]:
        """Report an exception."""
        ...

    def log_fatal_exception(self, exception: BaseException, severity: models.Severity | None = None) -> APIFuture[bool]:
        """Report an exception that ends the program; the future is done when it is sent, or given up."""
        ...

    def log_fatal_exception_sync(self, exception: BaseException, severity: models.Severity | None = None) -> bool:
        """Report an exception that ends the program, and wait until it is sent, or given up."""
        ...


class Capture(msgspec.Struct, frozen=True):
    """A block, ``with`` or ``async with``, and a decorator of functions; ``reporter`` None reports nothing."""

    reporter: Reporter | None
    fatal: bool
    severity: models.Severity | None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception) and self.reporter is not None:
            if self.fatal:
                self.reporter.log_fatal_exception_sync(error, self.severity)
            else:
                self.reporter.log_exception(error, self.severity)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self.reporter is not None:
            log = self.reporter.log_fatal_exception if self.fatal else self.reporter.log_exception
            await log(error, self.severity)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function, or a coroutine function, that runs in such a block."""
        return wrap(function, lambda _: self)


def wrap(function: Callable[P, R], find: Callable[[tuple[object, ...]], Capture]) -> Callable[P, R]:
    """Return the function, run in the block that ``find`` returns for its positional arguments."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with find(args):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", call_async)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with find(args):
            return function(*args, **kwargs)

    return call
