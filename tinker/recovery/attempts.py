"""Is a run lost, and the attempts to put another one in its place. Used on the loop only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
from tinker_wire import models
from tinker_wire.api import training as training_api

from tinker._http import retry, statuses
from tinker._runtime import Runtime
from tinker._training import Creation, SavedAdapter, TrainingRun
from tinker.errors import (
    CircuitOpenError,
    ClientClosedError,
    PrecedingRequestFailed,
    RequestFailedError,
    SessionLostError,
    TinkerError,
)
from tinker.futures import take_over
from tinker.observing import RecoveryChange, RecoveryStage
from tinker.recovery.policy import Recovery, RecoveryFailedError, RecoveryPolicy, SavePoint

Choose = Callable[[], Awaitable[tuple[SavePoint | None, Creation]]]


def root_of(error: BaseException) -> BaseException:
    """Return the failure because of which a request was not sent; the error itself where it was."""
    is_follower = isinstance(error, PrecedingRequestFailed) and error.__cause__ is not None
    return error.__cause__ or error if is_follower else error


async def is_loss(runtime: Runtime, run_id: str, error: BaseException) -> bool:
    """Return whether a failure means that the run cannot continue, or that its state is unknown."""
    root = root_of(error)
    if isinstance(root, RequestFailedError):
        return root.category != "user" and await is_corrupted(runtime, run_id)
    if isinstance(root, SessionLostError | CircuitOpenError) or statuses.is_server_failure(root):
        return True
    if statuses.is_lost(root):
        return not statuses.is_absent(root) or not await _is_known(runtime, run_id)
    return False


async def is_corrupted(runtime: Runtime, run_id: str) -> bool:
    """Return whether the server has marked the run as one that cannot continue; False where it does
    not say.
    """
    try:
        found = await runtime.transport.send_optional(
            training_api.get_training_run(training_run_id=run_id), retry.SUBMIT
        )
    except TinkerError:
        return False
    return found is not None and found.corrupted


async def _is_known(runtime: Runtime, run_id: str) -> bool:
    """Return whether the server still has the model of the run."""
    try:
        request = training_api.get_info(models.GetInfoRequest(model_id=run_id))
        return await runtime.transport.send_optional(request, retry.SUBMIT) is not None
    except TinkerError:
        return False


def adapter_of(
    save: SavePoint, policy: RecoveryPolicy, metadata: dict[str, object] | None
) -> SavedAdapter:
    """Return what makes a run from a save."""
    return SavedAdapter(
        path=save.path, user_metadata=metadata, with_optimizer=policy.with_optimizer
    )


@attrs.define
class RecoveryAttempts:
    """The attempts to recover one run. They count on until there was progress."""

    runtime: Runtime
    policy: RecoveryPolicy
    count: int = 0

    async def make(
        self, run_id: str, error: Exception, choose: Choose
    ) -> tuple[TrainingRun, Recovery]:
        """Make a run in the place of a lost one; RecoveryFailedError when the policy allows no
        other attempt.
        """
        self._tell(run_id, "detected", error=error)
        last = error
        while self.count < self.policy.attempts:
            self.count += 1
            least = last.retry_after if isinstance(last, CircuitOpenError) else 0.0
            await self.runtime.transport.sleep(max(self.policy.delay(self.count), least))
            try:
                run, save = await self._attempt(run_id, choose)
                return run, self._describe(run, save, run_id, error)
            except ClientClosedError:
                raise
            except TinkerError as failure:
                self._tell(run_id, "failed", error=failure)
                last = failure
        self._tell(run_id, "exhausted", error=last)
        message = (
            f"the training run {run_id} is lost; {self.count} attempts since the last save have "
            f"not recovered it: {last}"
        )
        raise RecoveryFailedError(message, run_id, self.count) from last

    async def _attempt(self, run_id: str, choose: Choose) -> tuple[TrainingRun, SavePoint | None]:
        save, creation = await choose()
        path = None if save is None else save.path
        self._tell(run_id, "started", path)
        run = TrainingRun(self.runtime, "recover", creation)
        await take_over(run.created)
        self._tell(run_id, "completed", path)
        return run, save

    def _describe(
        self, run: TrainingRun, save: SavePoint | None, run_id: str, error: Exception
    ) -> Recovery:
        assert run.model is not None
        root = root_of(error)
        return Recovery(
            run_id=run_id,
            new_run_id=run.model.model_id,
            save=save,
            step=0 if save is None else save.step,
            attempt=self.count,
            with_optimizer=save is not None and self.policy.with_optimizer,
            error=root if isinstance(root, Exception) else error,
        )

    def _tell(
        self,
        run_id: str,
        stage: RecoveryStage,
        path: str | None = None,
        error: Exception | None = None,
    ) -> None:
        if observers := self.runtime.transport.observers:
            change = RecoveryChange(
                run_id=run_id, stage=stage, attempt=self.count, path=path, error=error
            )
            observers.notify(change)
