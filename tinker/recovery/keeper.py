"""The shared state of a recovering client and its loops: the run, its checkpoints, and its
replacement by another run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from tinker._runtime import run
from tinker._training import Creation, TrainingRun
from tinker.errors import SessionLostError, TinkerError
from tinker.futures import APIFuture, failure_of, on_done
from tinker.recovery.attempts import RecoveryAttempts, adapter_of, is_loss, root_of
from tinker.recovery.policy import (
    Recovery,
    RecoveryFailedError,
    RecoveryPolicy,
    SavePoint,
    call_user,
)
from tinker.types.results import SaveWeightsResponse

RecoveryNews: TypeAlias = tuple[Recovery | None, bool]
"""A recovery, None where nothing was lost, and whether nobody has received it yet."""


def _session_of(error: TinkerError) -> str | None:
    """Return the session that an error says is lost."""
    root = root_of(error)
    return root.session_id if isinstance(root, SessionLostError) else None


@attrs.frozen(kw_only=True)
class SaveCall:
    """One call of ``save_state``: by which loop, if any, and after how many of its steps."""

    future: APIFuture[SaveWeightsResponse]
    loop: object | None
    step: int | None
    user_metadata: Mapping[str, str]

    @property
    def save(self) -> SavePoint | None:
        """Return the checkpoint; None before it is saved, and when the save failed."""
        future = self.future
        if not future.done() or future.cancelled() or failure_of(future) is not None:
            return None
        return SavePoint(
            path=future.result(0).path, step=self.step, user_metadata=self.user_metadata
        )


class CallTracker:
    """The requests of one client that are under way or have failed, and how many there were. May be
    used from any thread.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._lock = threading.Lock()
        self._tracked: dict[APIFuture[Any], None] = {}

    @property
    def tracked(self) -> list[APIFuture[Any]]:
        """Return the pending and failed calls, in their order."""
        with self._lock:
            return list(self._tracked)

    def track(self, future: APIFuture[Any]) -> None:
        """Track a request until it succeeds."""
        with self._lock:
            self.count += 1
            self._tracked[future] = None
        on_done(future, self._settle)

    def forget(self, future: APIFuture[Any]) -> None:
        """Track one request no longer."""
        with self._lock:
            self._tracked.pop(future, None)

    def dismiss(self) -> None:
        """Track none of the requests so far any longer: their failure is reported
        in another way.
        """
        with self._lock:
            futures, self._tracked = list(self._tracked), {}
        for future in futures:
            future.receipt.mark_passed_on()

    def _settle(self, future: APIFuture[Any]) -> None:
        if failure_of(future) is None:
            self.forget(future)
        elif future not in self.tracked:
            future.receipt.mark_passed_on()


class RunKeeper:
    """Keeps one client's run going."""

    def __init__(
        self,
        first: TrainingRun,
        use: Callable[[TrainingRun], object],
        policy: RecoveryPolicy,
        on_recovery: Callable[[Recovery], object] | None,
        on_failure: Callable[[RecoveryFailedError], object] | None,
    ) -> None:
        self.run: TrainingRun = first
        self.calls: CallTracker = CallTracker()
        first.on_call = self.calls.track
        self._use = use
        self._first: Creation = first.creation
        self._policy = policy
        self._attempts = RecoveryAttempts(first.runtime, policy)
        self._on_recovery, self._on_failure = on_recovery, on_failure
        self._save_calls: list[SaveCall] = []
        self._calls_at_save = 0
        self._saves_at_recovery = 0
        self._recovering = asyncio.Lock()
        # runs and sessions, whose errors say nothing about the present run
        self._lost: set[str | None] = set()
        self._last: Recovery | None = None
        self.steps_done = 0  # by all loops

    def note_save(self, call: SaveCall) -> None:
        """Record the last call as a save."""
        self._save_calls.append(call)
        self._calls_at_save = self.calls.count

    def saves(self, loop: object | None = None) -> list[SavePoint]:
        """Return the checkpoints of one loop or of all; of two saves of the same path the later
        one.
        """
        found = [call.save for call in self._save_calls if loop is None or call.loop is loop]
        return list({save.path: save for save in found if save is not None}.values())

    def adopt_last_save(self, loop: object) -> bool:
        """Let the last save be one of a loop that begins, if nothing was called since; return
        whether none is needed.
        """
        if self.calls.count != self._calls_at_save:
            return False
        if not self._save_calls:
            return True
        last = self._save_calls[-1]
        if last.save is None:
            return False
        self._save_calls.append(attrs.evolve(last, loop=loop, step=0))
        return True

    def start(self, error: BaseException, loop: object | None = None) -> APIFuture[RecoveryNews]:
        """Begin a recovery, if the error means that the run is lost."""
        labels = self.run.created.progress.labels
        return run(self.run.runtime, "recover", self._recover, error, loop, labels=labels)

    def finish(self, future: APIFuture[RecoveryNews]) -> Recovery | None:
        """Return the recovery whose future is done, after the user's functions have heard of it,
        each of them once.
        """
        failure = failure_of(future)
        if isinstance(failure, RecoveryFailedError):
            self.calls.dismiss()
            call_user(self._on_failure, failure)
        recovery, is_new = future.result()
        if recovery is not None and is_new:
            call_user(self._on_recovery, recovery)
        return recovery

    async def _recover(
        self, _: APIFuture[RecoveryNews], error: BaseException, loop: object | None
    ) -> RecoveryNews:
        """Recover the run once for all the errors of one loss; a loop, which has gone on since,
        gets no recovery twice.
        """
        async with self._recovering:
            if not isinstance(error, TinkerError):
                return None, False
            if self._lost.isdisjoint({error.training_run_id, _session_of(error)}):
                return await self._replace(error, loop), True
            return self._last if loop is None else None, False

    async def _replace(self, error: TinkerError, loop: object | None) -> Recovery | None:
        lost = self.run
        if lost.model is None or not await is_loss(lost.runtime, lost.model.model_id, error):
            return None
        run_id = lost.model.model_id
        saved = len(self.saves())
        if saved != self._saves_at_recovery:
            self._attempts.count, self._saves_at_recovery = 0, saved
        run, self._last = await self._attempts.make(run_id, error, lambda: self._choose(loop))
        self._replace_run(run)
        self._calls_at_save = self.calls.count
        error.training_run_id = error.training_run_id or run_id
        self._lost.update({run_id, _session_of(error)} - {None})
        return self._last

    def _replace_run(self, run: TrainingRun) -> None:
        """Use another run from now on; drop the calls of the previous one, whose failures need not
        be read.
        """
        self.calls.dismiss()
        run.on_call = self.calls.track
        self.run = run
        self._use(run)

    async def _choose(self, loop: object | None) -> tuple[SavePoint | None, Creation]:
        save = self._policy.choose(self.saves(loop))
        return save, self._first if save is None else adapter_of(
            save, self._policy, self._first.user_metadata
        )
