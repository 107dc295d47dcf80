"""Recovery of many runs that no loop of this process trains: a bounded executor, and a monitor that
asks for their state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

import attrs
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api

from tinker._checks import check_count, check_function, check_kind, check_number
from tinker._futures import EventLabels
from tinker._http import Budget, retry, statuses
from tinker._runtime import Runtime, run
from tinker._training import Creation
from tinker.errors import APIError, ClientClosedError, TinkerError
from tinker.futures import APIFuture
from tinker.observing import RecoveryChange
from tinker.recovery.attempts import RecoveryAttempts, adapter_of
from tinker.recovery.policy import (
    LATEST,
    Recovery,
    RecoveryFailedError,
    RecoveryPolicy,
    SavePoint,
    call_user,
)
from tinker.training_client import TrainingClient

if TYPE_CHECKING:
    from tinker.service_client import ServiceClient

logger: logging.Logger = logging.getLogger("tinker")


class RunMarkedCorrupted(TinkerError):
    """The server has marked a training run as corrupted.

    Attributes:
        run_id: The run.
    """

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


RunMarkedCorrupted.__module__ = "tinker.recovery"


@attrs.frozen(kw_only=True)
class RecoveredRun:
    """The client of a run that replaced a lost one.

    Attributes:
        client: The training client of the new run.
        recovery: What was lost, and from which checkpoint the new run starts.
    """

    client: TrainingClient
    recovery: Recovery


class RecoveryExecutor:
    """Executor that recovers runs by id, several at a time, each into its own training client.

    It asks the server for the last checkpoint of a run, or, for a policy with a function, for every
    checkpoint that can be trained further.

    Args:
        service: The service client that the new runs belong to.
        policy: How often to try, and from which checkpoint; None means ``RecoveryPolicy()``.
        at_once: The number of runs that are recovered at the same time, 1 or more; the others wait.
        on_recovery: Optional. A function called with each :class:`RecoveredRun` on the client's I/O
            thread; it must not block.
        on_failure: Optional. A function called with each RecoveryFailedError on that thread.

    Raises:
        TypeError: An argument of the wrong kind.
        ValueError: A number out of its range.

    >>> import tinker
    >>> service = tinker.ServiceClient(base_url="local://toy")
    >>> training = service.create_lora_training_client("tinker/toy", rank=4)
    >>> saved = training.save_state("before-the-loss").result(timeout=30)
    >>> recovered = (
    ...     RecoveryExecutor(service, at_once=2).recover(training.model_id).result(timeout=30)
    ... )
    >>> recovered.recovery.save.path == saved.path
    True
    """

    def __init__(
        self,
        service: ServiceClient,
        policy: RecoveryPolicy | None = None,
        *,
        at_once: int = 1,
        on_recovery: Callable[[RecoveredRun], object] | None = None,
        on_failure: Callable[[RecoveryFailedError], object] | None = None,
    ) -> None:
        self._policy = RecoveryPolicy() if policy is None else policy
        check_kind("policy", self._policy, RecoveryPolicy)
        check_count("at_once", at_once)
        check_function("on_recovery", on_recovery)
        check_function("on_failure", on_failure)
        self.runtime: Runtime = service._runtime()  # pyright: ignore[reportPrivateUsage]
        self._slots = Budget(at_once)
        self._on_recovery, self._on_failure = on_recovery, on_failure
        self._lock = threading.Lock()
        self._pending: WeakValueDictionary[str, APIFuture[RecoveredRun]] = WeakValueDictionary()

    def recover(
        self,
        run_id: str,
        error: Exception | None = None,
        *,
        last_checkpoint: str | None = None,
        user_metadata: Mapping[str, object] | None = None,
    ) -> APIFuture[RecoveredRun]:
        """Recover a run.

        Args:
            run_id: The id of the run.
            error: Why it is lost, for the record; None if that is unknown.
            last_checkpoint: The path of its last checkpoint; None asks the server.
            user_metadata: What the new run is described by; None takes that of the lost run, where
                the server still knows it.

        Returns:
            A future of the new run; the same one while a recovery of the run is under way or waits.
                It fails with RecoveryFailedError.
        """
        why = error or TinkerError(f"the training run {run_id} is lost")
        with self._lock:
            pending = self._pending.get(run_id)
            if pending is not None and not pending.done():
                return pending
            labels = EventLabels(training_run_id=run_id, user_metadata=user_metadata)
            future = self._pending[run_id] = run(
                self.runtime,
                "recover",
                self._recover,
                run_id,
                why,
                last_checkpoint,
                labels,
                labels=labels,
            )
            return future

    async def _recover(
        self,
        _: APIFuture[RecoveredRun],
        run_id: str,
        error: Exception,
        last_checkpoint: str | None,
        labels: EventLabels,
    ) -> RecoveredRun:
        async with self._slots.take():
            attempts = RecoveryAttempts(self.runtime, self._policy)
            try:
                new, recovery = await attempts.make(
                    run_id, error, lambda: self._choose(run_id, last_checkpoint, labels)
                )
            except RecoveryFailedError as failure:
                call_user(self._on_failure, failure)
                raise
        recovered = RecoveredRun(client=TrainingClient(new), recovery=recovery)
        call_user(self._on_recovery, recovered)
        return recovered

    async def _choose(
        self, run_id: str, last_checkpoint: str | None, labels: EventLabels
    ) -> tuple[SavePoint | None, Creation]:
        """Return the checkpoint that the policy wants of the run; TinkerError without one."""
        is_needed = self._policy.checkpoint == LATEST and last_checkpoint is None
        found = (
            await self._find(run_id, is_needed=is_needed)
            if is_needed or labels.user_metadata is None
            else None
        )
        if labels.user_metadata is None and found is not None:
            labels.user_metadata = found.user_metadata
        if callable(self._policy.checkpoint):
            saves = await self._list(run_id)
        elif last_checkpoint is not None:
            saves = [SavePoint(path=last_checkpoint)]
        else:
            saves = (
                []
                if found is None or found.last_checkpoint is None
                else [_save_of(found.last_checkpoint)]
            )
        save = self._policy.choose(saves)
        if save is None:
            raise TinkerError(
                f"the training run {run_id} has no checkpoint that it can be recovered from"
            )
        return save, adapter_of(save, self._policy, dict(labels.user_metadata or {}) or None)

    async def _find(self, run_id: str, *, is_needed: bool) -> models.TrainingRun | None:
        """Return the server's record of a run; None where it is unknown and not required."""
        try:
            return (
                await self.runtime.transport.send(
                    training_api.get_training_run(training_run_id=run_id), retry.SUBMIT
                )
            ).value
        except APIError as error:
            if is_needed or not statuses.is_absent(error):
                raise
            return None

    async def _list(self, run_id: str) -> list[SavePoint]:
        answer = (
            await self.runtime.transport.send(
                weights_api.list_checkpoints(training_run_id=run_id), retry.SUBMIT
            )
        ).value
        found = [one for one in answer.checkpoints if one.checkpoint_type == "training"]
        return [_save_of(one) for one in sorted(found, key=lambda one: one.time)]


class RecoveryMonitor:
    """Monitor that checks runs periodically, and has the executor recover the corrupted or missing
    ones.

    It works while something is watched, in the background, and ends with its block or
    :meth:`close`. A run that is handed to the executor is watched no longer; nor is it recovered
    twice. A failed question is an event for observers, and is asked again.

    Args:
        executor: What recovers the runs.
        poll_seconds: The time in seconds from one question to the next.

    Raises:
        TypeError: An argument of the wrong kind.
        ValueError: A time out of its range.

    >>> import tinker
    >>> service = tinker.ServiceClient(base_url="local://toy")
    >>> training = service.create_lora_training_client("tinker/toy", rank=4)
    >>> with RecoveryMonitor(RecoveryExecutor(service), poll_seconds=30) as monitor:
    ...     monitor.watch(training.model_id)
    ...     len(monitor.watched)
    1
    """

    def __init__(self, executor: RecoveryExecutor, *, poll_seconds: float = 30.0) -> None:
        check_kind("executor", executor, RecoveryExecutor)
        check_number("poll_seconds", poll_seconds)
        self._executor = executor
        self._poll_seconds = poll_seconds
        self._watched: dict[str, models.TrainingRun | None] = {}  # the server's last record, by run
        self._task = f"recovery monitor {id(self)}"

    @property
    def watched(self) -> Mapping[str, str | None]:
        """Return the last known checkpoint of each run that is watched, by the id of the run."""
        return {run_id: _last_path(found) for run_id, found in tuple(self._watched.items())}

    def watch(self, run_id: str) -> None:
        """Ask for the state of a run from now on.

        Args:
            run_id: The id of the run.

        Raises:
            TypeError: The id is no text.
        """
        check_kind("run_id", run_id, str)
        self._watched[run_id] = None
        tasks = self._executor.runtime.tasks
        self._executor.runtime.thread.call(lambda: tasks.background(self._task, self._poll))

    def unwatch(self, run_id: str) -> None:
        """Ask no longer for the state of a run; nothing happens where none is watched.

        Args:
            run_id: The id of the run.
        """
        self._watched.pop(run_id, None)

    def close(self) -> None:
        """Stop watching. Recoveries that have begun continue."""
        self._watched.clear()
        tasks = self._executor.runtime.tasks
        self._executor.runtime.thread.call(lambda: tasks.cancel(self._task))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _poll(self) -> None:
        """Ask for one run after the other, until none is watched."""
        while self._watched:
            for run_id in list(self._watched):
                try:
                    lost = await self._find_loss(run_id)
                except ClientClosedError:
                    return
                except TinkerError as error:
                    self._report(run_id, error)
                    continue
                if lost is not None and run_id in self._watched:
                    known = self._watched.pop(run_id)
                    metadata = None if known is None else known.user_metadata or {}
                    self._executor.recover(
                        run_id, lost, last_checkpoint=_last_path(known), user_metadata=metadata
                    )
            await self._executor.runtime.clock.timer(self._poll_seconds)

    async def _find_loss(self, run_id: str) -> TinkerError | None:
        """Ask for the state of a run; return why it is lost, None where it is not."""
        request = training_api.get_training_run(training_run_id=run_id)
        try:
            found = (await self._executor.runtime.transport.send(request, retry.SUBMIT)).value
        except APIError as error:
            if not statuses.is_absent(error) or _last_path(self._watched.get(run_id)) is None:
                raise
            return error
        if run_id in self._watched:
            self._watched[run_id] = found
        message = f"the server has marked the training run {run_id} as corrupted"
        return RunMarkedCorrupted(message, run_id) if found.corrupted else None

    def _report(self, run_id: str, error: TinkerError) -> None:
        logger.debug("the state of the training run %s is not known: %s", run_id, error)
        if observers := self._executor.runtime.transport.observers:
            observers.notify(
                RecoveryChange(run_id=run_id, training_run_id=run_id, stage="unknown", error=error)
            )


def _last_path(run: models.TrainingRun | None) -> str | None:
    return None if run is None or run.last_checkpoint is None else run.last_checkpoint.tinker_path


def _save_of(checkpoint: models.Checkpoint) -> SavePoint:
    return SavePoint(
        path=checkpoint.tinker_path, user_metadata=dict(checkpoint.user_metadata or {})
    )
