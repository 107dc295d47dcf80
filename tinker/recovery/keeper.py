"""What a recovering client and its loops share: the run, what was saved of it, and how another run takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tinker._runtime import run
from tinker._training import Creation, NewAdapter, RenewableRun, SavedAdapter, TrainingRun
from tinker.errors import TinkerError
from tinker.futures import APIFuture, failure_of
from tinker.recovery.attempts import NewRun, RecoveryAttempts, adapter_of, is_loss, root_of
from tinker.recovery.policy import Recovery, RecoveryFailedError, RecoveryPolicy, SavePoint, call_user
from tinker.types.results import SaveWeightsResponse


@attrs.frozen(kw_only=True)
class SaveCall:
    """One call of ``save_state``: by which loop, if any, and after how many of its steps."""

    future: APIFuture[SaveWeightsResponse]
    loop: object | None
    step: int | None
    user_metadata: Mapping[str, str]

    @property
    def save(self) -> SavePoint | None:
        """Return what was saved; None before it is, and when it failed."""
        future = self.future
        if not future.done() or future.cancelled() or failure_of(future) is not None:
            return None
        return SavePoint(path=future.result(0).path, step=self.step, user_metadata=self.user_metadata)


class RunKeeper:
    """Keeps one client's run going."""

    def __init__(
        self,
        first: TrainingRun,
        policy: RecoveryPolicy,
        on_recovery: Callable[[Recovery], object] | None,
        on_failure: Callable[[RecoveryFailedError], object] | None,
    ) -> None:
        self.run: RenewableRun = RenewableRun(first)
        self._first: Creation = first.creation
        self._policy = policy
        self._attempts = RecoveryAttempts(first.runtime, policy)
        self._on_recovery, self._on_failure = on_recovery, on_failure
        self._save_calls: list[SaveCall] = []
        self._calls_at_save = 0
        self._saves_at_recovery = 0
        self.steps_done = 0  # by all loops

    def note_save(self, call: SaveCall) -> None:
        """Remember what was just called."""
        self._save_calls.append(call)
        self._calls_at_save = self.run.calls

    def saves(self, loop: object | None = None) -> list[SavePoint]:
        """Return what was saved, by one loop or at all; of two saves of the same path the later one."""
        found = [call.save for call in self._save_calls if loop is None or call.loop is loop]
        return list({save.path: save for save in found if save is not None}.values())

    def adopt_last_save(self, loop: object) -> bool:
        """Let the last save be one of a loop that begins, if nothing was called since; return whether none is needed."""
        if self.run.calls != self._calls_at_save:
            return False
        if not self._save_calls:
            return True
        last = self._save_calls[-1]
        if last.save is None:
            return False
        self._save_calls.append(attrs.evolve(last, loop=loop, step=0))
        return True

    def start(self, error: BaseException, loop: object | None = None) -> APIFuture[Recovery | None]:
        """Begin a recovery, if the error means that the run is lost."""
        return run(self.run.runtime, "recover", self._recover, error, loop)

    def finish(self, future: APIFuture[Recovery | None]) -> Recovery | None:
        """Return the recovery whose future is done, after the user's functions have heard of it."""
        failure = failure_of(future)
        if isinstance(failure, RecoveryFailedError):
            self.run.dismiss()
            call_user(self._on_failure, failure)
        recovery = future.result()
        if recovery is not None:
            call_user(self._on_recovery, recovery)
        return recovery

    async def _recover(self, _: APIFuture[Recovery | None], error: BaseException, loop: object | None) -> Recovery | None:
        lost = self.run.present
        if not isinstance(error, TinkerError) or lost.model is None:
            return None
        run_id = lost.model.model_id
        if not await is_loss(lost.runtime, run_id, error):
            return None
        saved = len(self.saves())
        if saved != self._saves_at_recovery:
            self._attempts.count, self._saves_at_recovery = 0, saved
        new = await self._attempts.make(run_id, error, lambda: self._choose(loop))
        self.run.replace(new.run)
        self._calls_at_save = self.run.calls
        return self._describe(new, run_id, error)

    async def _choose(self, loop: object | None) -> tuple[SavePoint | None, Creation]:
        save = self._policy.choose(self.saves(loop))
        metadata = self._first.user_metadata if isinstance(self._first, NewAdapter | SavedAdapter) else None
        return save, self._first if save is None else adapter_of(save, self._policy, metadata)

    def _describe(self, new: NewRun, run_id: str, error: TinkerError) -> Recovery:
        assert new.run.model is not None
        root = root_of(error)
        return Recovery(
            run_id=run_id,
            new_run_id=new.run.model.model_id,
            save=new.save,
            step=0 if new.save is None else new.save.step,
            attempt=new.attempt,
            with_optimizer=new.save is not None and self._policy.with_optimizer,
            error=root if isinstance(root, Exception) else error,
        )
