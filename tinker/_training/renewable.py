"""A run that another one can take the place of, under the same client; it remembers which of its requests failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from tinker_wire import models

from tinker._runtime import Runtime
from tinker._training.custom_loss import PreparedLoss
from tinker._training.loss_requests import LossJob
from tinker._training.requests import RunRequest
from tinker._training.run import Model, SavedForSampling, TrainingRun
from tinker.futures import APIFuture, failure_of, on_done
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput

T = TypeVar("T")


class TrackedCall(msgspec.Struct, eq=False):
    """One request of a run, and whether the user has its error."""

    future: APIFuture[Any]
    received: bool = False

    def note_received(self) -> None:
        """Note that the user has the error."""
        self.received = True

    @property
    def error(self) -> BaseException | None:
        """Return the error of the request; None for success, and for one that is under way or cancelled."""
        return failure_of(self.future)


class RenewableRun:
    """What a training client needs of a run, done by the one that is present."""

    def __init__(self, present: TrainingRun) -> None:
        self.present: TrainingRun = present
        self.calls: int = 0
        self.on_replaced: Callable[[APIFuture[None]], object] | None = None
        self._lock = threading.Lock()
        self._tracked: dict[int, TrackedCall] = {}  # what is under way, and what has failed

    @property
    def runtime(self) -> Runtime:
        """Return what the clients of the session share."""
        return self.present.runtime

    @property
    def model(self) -> Model | None:
        """Return the model of the present run."""
        return self.present.model

    @property
    def created(self) -> APIFuture[None]:
        """Return the creation of the present run."""
        return self.present.created

    def info(self) -> models.GetInfoResponse:
        """Return what the model of the present run is."""
        return self.present.info()

    @property
    def context_length(self) -> int | None:
        """Return the most tokens that the model of the present run takes."""
        return self.present.context_length

    def send(self, request: RunRequest[T]) -> APIFuture[T]:
        """Send one request in its turn and wait for its result."""
        return self._track(self.present.send(request))

    def compute_loss(self, operation: str, data: list[Datum], job: LossJob) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss that the server knows."""
        return self._track(self.present.compute_loss(operation, data, job))

    def compute_custom_loss(self, prepared: PreparedLoss) -> APIFuture[ForwardBackwardOutput]:
        """Compute a loss of the user's."""
        return self._track(self.present.compute_custom_loss(prepared))

    def save_for_sampling(self, kind: models.SamplingClientKind) -> SavedForSampling:
        """Save the weights under no name, for a sampling client."""
        saved = self.present.save_for_sampling(kind)
        self._track(saved.saved)
        return saved

    @property
    def tracked(self) -> list[TrackedCall]:
        """Return what is under way and what has failed, in the order of the calls."""
        with self._lock:
            return list(self._tracked.values())

    def replace(self, run: TrainingRun) -> None:
        """Let another run do what comes; nothing is remembered of the one before, whose failures need not be looked at."""
        self.dismiss()
        with self._lock:
            self.present = run
        if self.on_replaced is not None:
            self.on_replaced(run.created)

    def dismiss(self) -> None:
        """Forget every request: its failure is told in another way."""
        with self._lock:
            calls, self._tracked = list(self._tracked.values()), {}
        for call in calls:
            call.future.receipt.mark_passed_on()

    def forget(self, call: TrackedCall) -> None:
        """Remember one request no longer."""
        with self._lock:
            self._tracked.pop(id(call.future), None)

    def _track(self, future: APIFuture[T]) -> APIFuture[T]:
        call = TrackedCall(future)
        future.receipt.add_action(call.note_received)
        with self._lock:
            self.calls += 1
            self._tracked[id(future)] = call
        on_done(future, partial(self._settle, call))
        return future

    def _settle(self, call: TrackedCall, _: object) -> None:
        if call.error is None:
            self.forget(call)
        elif not self._is_tracked(call):
            call.future.receipt.mark_passed_on()

    def _is_tracked(self, call: TrackedCall) -> bool:
        with self._lock:
            return id(call.future) in self._tracked
