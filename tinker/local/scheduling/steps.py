"""The steps that the engine's thread runs, and the failures that its errors become."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from tinker.local.engines.protocol import Engine, EngineError, Sampler, is_out_of_memory
from tinker.local.storage.futures import RequestFailure

Opened = TypeVar("Opened")
Opened_contra = TypeVar("Opened_contra", contravariant=True)
Open: TypeAlias = Callable[[], Opened]
WorkerStep: TypeAlias = Callable[[Open[Opened]], None]
OpenEngine: TypeAlias = Open[Engine]
OpenSampler: TypeAlias = Open[Sampler]
EngineStep: TypeAlias = WorkerStep[Engine]
SampleStep: TypeAlias = WorkerStep[Sampler]
log: logging.Logger = logging.getLogger("tinker.local")


class ModelNotLoaded(Exception):
    """A base model cannot be loaded, for a reason that the message gives."""


class StepQueue(Protocol[Opened_contra]):
    """A source of steps, each of which opens the engine or sampler that it works with."""

    def take(self, now: float) -> WorkerStep[Opened_contra] | None:
        """Return the next step that may run now."""
        ...

    def next_wake(self) -> float | None:
        """Return when a step may become ready by itself."""
        ...


class PrecedingFailure(Exception):
    """A request is not run, because ``operation`` failed before it."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"the {operation} before it failed: {reason}")
        self.operation = operation


def to_failure(error: Exception) -> RequestFailure:
    """Return the failure reported to the user; log an unexpected error with its traceback."""
    if isinstance(error, EngineError):
        return RequestFailure(str(error), "user")
    if isinstance(error, PrecedingFailure):
        return RequestFailure(str(error), "user", error.operation)
    if isinstance(error, ModelNotLoaded):
        log.error("%s", error)
        return RequestFailure(str(error), "server")
    if is_out_of_memory(error):
        log.error("the server has too little memory for a request: %s", error)
        return RequestFailure(f"the server has too little memory for this request; ask for less at once ({error})", "user")
    log.error("the engine failed", exc_info=error)
    return RequestFailure(f"{type(error).__name__}: {error}", "server")
