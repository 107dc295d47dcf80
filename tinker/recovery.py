"""Continue with training when the server has lost the run: from a checkpoint, with exactly the work
that was lost repeated.

    training = service.create_lora_training_client("tinker/toy", rank=4, seed=1)
    client = tinker.recovery.RecoveringTrainingClient(training)
    for step in client.steps(200, save_every=10):
        with step:
            client.forward_backward(batches[step], "cross_entropy")
            client.optim_step(params)

Nothing of this is used unless you ask for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import attrs
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api

from tinker._basics.checks import check_count, check_field, check_function, check_kind, check_number
from tinker._basics.events import RecoveryChange, RecoveryStage
from tinker._futures import EventLabels
from tinker._http import retry
from tinker._http.limits import Budget
from tinker._runtime import Runtime, run
from tinker._training import Creation, SavedAdapter, TrainingRun
from tinker._validate import check_model_path, check_name, read_ttl
from tinker.errors import (
    APIError,
    CircuitOpenError,
    ClientClosedError,
    PrecedingRequestFailed,
    RequestFailedError,
    SessionLostError,
    TinkerError,
    copy_error,
)
from tinker.futures import APIFuture, failure_of, on_done, take_over
from tinker.training_client import TrainingClient
from tinker.types.results import SaveWeightsResponse

if TYPE_CHECKING:
    from tinker.service_client import ServiceClient

logger: logging.Logger = logging.getLogger("tinker")
T = TypeVar("T")
LATEST = "latest"


@attrs.frozen(kw_only=True)
class SavePoint:
    """A checkpoint from which a run can be recovered.

    Attributes:
        path: The path of the checkpoint.
        step: The number of steps done when it was saved; None for one that was not saved by
            :meth:`steps`.
        user_metadata: The text that was stored with it.
    """

    path: str
    step: int | None = None
    user_metadata: Mapping[str, str] = attrs.field(factory=dict[str, str])


@attrs.frozen(kw_only=True)
class Recovery:
    """A recovery: the lost run, and the step from which work is repeated.

    Attributes:
        run_id: The run that was lost.
        new_run_id: The run that took its place.
        save: The checkpoint that the new run starts from; None for a new run, from which all work
            has to be repeated.
        step: The number of steps that the new run has done: the loop continues with the step of
            this number. None where the checkpoint is not one of the loop's.
        attempt: The number of the attempt that succeeded, from 1.
        with_optimizer: Whether the optimizer's state was restored too.
        error: The error that the loss was noticed by.
    """

    run_id: str
    new_run_id: str
    save: SavePoint | None
    step: int | None
    attempt: int
    with_optimizer: bool
    error: Exception


class RecoveryFailedError(TinkerError):
    """A lost run could not be recovered in as many attempts as the policy allows; ``__cause__`` is
    the last failure.

    Attributes:
        run_id: The run that was lost.
        attempts: The number of attempts since the last save.
    """

    def __init__(self, message: str, run_id: str, attempts: int) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.attempts = attempts


CheckpointChoice: TypeAlias = str | Callable[[SavePoint], float]
"""Which checkpoint a recovery loads: ``latest``, a path, or a function that scores save points; the
highest score wins.
"""


def call_user(function: Callable[[T], object] | None, value: T) -> None:
    """Call a function of the user, whose failure does not undo the recovery."""
    if function is None:
        return
    try:
        function(value)
    except Exception:
        logger.exception("%r failed; the recovery continues", function)


def _check_choice(_: object, __: object, value: object) -> None:
    if callable(value) or value == LATEST:
        return
    if not isinstance(value, str):
        raise TypeError(
            "checkpoint must be 'latest', a path or a function of a SavePoint, got "
            f"{type(value).__name__}"
        )
    check_model_path("checkpoint", value)


@attrs.frozen(kw_only=True)
class RecoveryPolicy:
    """How lost runs are recovered.

    Attributes:
        attempts: The number of attempts in a row without a save in between, 1 or more.
        backoff_seconds: The time in seconds before the second attempt; each later one waits twice
            as long as the one before.
        max_backoff_seconds: The longest of these times.
        checkpoint: ``latest`` for the last save, a path for that checkpoint, or a function: the
            save of which it returns the greatest number is taken.
        with_optimizer: Whether the state of the optimizer is restored; False begins with a fresh
            one.

    Raises:
        TypeError: A value of the wrong kind.
        ValueError: A value out of its range, or a path without a scheme.

    >>> [RecoveryPolicy(backoff_seconds=5).delay(attempt) for attempt in (1, 2, 3, 9)]
    [0.0, 5.0, 10.0, 60.0]
    """

    attempts: int = attrs.field(default=3, validator=check_field(check_count))
    backoff_seconds: float = attrs.field(default=5.0, validator=check_field(check_number))
    max_backoff_seconds: float = attrs.field(default=60.0, validator=check_field(check_number))
    checkpoint: CheckpointChoice = attrs.field(default=LATEST, validator=_check_choice)
    with_optimizer: bool = attrs.field(default=True, validator=check_field(check_kind, kind=bool))

    def delay(self, attempt: int) -> float:
        """Return the time in seconds before an attempt, 0 before the first.

        Args:
            attempt: The number of the attempt, from 1.
        """
        if attempt == 1:
            return 0.0
        return float(
            retry.longest_delay(self.backoff_seconds, self.max_backoff_seconds, attempt - 2)
        )

    def choose(self, saves: list[SavePoint]) -> SavePoint | None:
        """Return the save to recover from; None without one.

        Args:
            saves: The saves of the run, the last one at the end.
        """
        if isinstance(self.checkpoint, str):
            if self.checkpoint != LATEST:
                return next(
                    (save for save in saves if save.path == self.checkpoint),
                    SavePoint(path=self.checkpoint),
                )
            return saves[-1] if saves else None
        return max(reversed(saves), key=self.checkpoint, default=None)


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
    if isinstance(root, SessionLostError | CircuitOpenError) or retry.is_server_failure(root):
        return True
    if retry.is_lost(root):
        return not retry.is_absent(root) or not await _is_known(runtime, run_id)
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
            future.receipt.mark_delegated()

    def _settle(self, future: APIFuture[Any]) -> None:
        if failure_of(future) is None:
            self.forget(future)
        elif future not in self.tracked:
            future.receipt.mark_delegated()


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
        return run(self.run.runtime, "recover", lambda _: self._recover(error, loop), labels=labels)

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

    async def _recover(self, error: BaseException, loop: object | None) -> RecoveryNews:
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


# What the loop waits for: whoever drives it comes back when the future is done. It returns whether
# the run was lost.
Waits: TypeAlias = Generator[APIFuture[Any], None, bool]


class TrainingStep(int):
    """The number of a step, from 0, and the block in which the step is done.

    An error that leaves the block and means that the run is lost ends the block; after that, the
    loop continues with the first step that has to be repeated.
    """

    _loop: Steps

    @classmethod
    def of(cls, loop: Steps, number: int) -> Self:
        """Return a step of a loop.

        Args:
            loop: The loop.
            number: The number of the step.
        """
        step = cls(number)
        step._loop = loop
        return step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, Exception) and _drive(self._loop.recover(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, Exception) and await _drive_async(self._loop.recover(error))


class Steps:
    """Iterator over steps; see :meth:`RecoveringTrainingClient.steps`."""

    def __init__(
        self,
        keeper: RunKeeper,
        save: Callable[[str, int | None], APIFuture[SaveWeightsResponse]],
        count: int,
        save_every: int,
        name: str,
        ttl_seconds: int | None,
    ) -> None:
        check_count("count", count, least=0)
        check_count("save_every", save_every)
        check_name(name)
        self._keeper, self._save_as = keeper, save
        self._count, self._save_every = count, save_every
        self._name, self._ttl_seconds = name, read_ttl(ttl_seconds)
        self._done = 0  # the steps whose body has run, without the lost ones
        self._offset = keeper.steps_done
        self._begun = self._rewound = False

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> TrainingStep:
        _drive(self._advance())
        if self._done >= self._count:
            raise StopIteration
        return TrainingStep.of(self, self._done)

    async def __anext__(self) -> TrainingStep:
        await _drive_async(self._advance())
        if self._done >= self._count:
            raise StopAsyncIteration
        return TrainingStep.of(self, self._done)

    def recover(self, error: BaseException) -> Waits:
        """Recover the run and go back to the first lost step, if the error means that; returns
        whether it does.

        Args:
            error: What a request failed with.
        """
        future = self._keeper.start(error, self)
        yield future
        recovery = self._keeper.finish(future)
        if recovery is None:
            return False
        self._done = recovery.step or 0
        self._rewound = True
        return True

    def _advance(self) -> Waits:
        """End the step before, and do what lies between it and the next one."""
        if not self._begun:
            return (yield from self._begin())
        if self._rewound:
            self._rewound = False
            return True
        if self._done >= self._count:
            return False
        self._done += 1
        is_boundary = self._done % self._save_every == 0 or self._done == self._count
        lost = (
            yield from self._save(f"{self._offset + self._done:06}")
            if is_boundary
            else self._look()
        )
        self._rewound = False
        return lost

    def _begin(self) -> Waits:
        """Save the state before the loop, unless it is saved. Failures of earlier calls are not the
        loop's.
        """
        self._begun = True
        if not self._keeper.adopt_last_save(self):
            save = self._call_save(f"{self._offset:06}-start")
            yield save
            save.result(0)
        for future in self._keeper.calls.tracked:
            if failure_of(future) is not None:
                self._keeper.calls.forget(future)
        return False

    def _look(self) -> Waits:
        """Recover if a failed request means that the run is lost; raise any other failure that was
        not read.
        """
        for future in self._keeper.calls.tracked:
            if (error := failure_of(future)) is None:
                continue
            if (yield from self.recover(error)):
                return True
            self._keeper.calls.forget(future)
            if not future.receipt.is_received:
                future.receipt.mark_received()
                raise copy_error(error)
        return False

    def _save(self, name: str) -> Waits:
        """Save and wait for all calls, then check for failures."""
        self._call_save(name)
        yield from self._keeper.calls.tracked
        lost = yield from self._look()
        if not lost:
            self._keeper.steps_done = self._offset + self._done
        return lost

    def _call_save(self, name: str) -> APIFuture[SaveWeightsResponse]:
        future = self._save_as(f"{self._name}-{name}", self._ttl_seconds)
        self._keeper.note_save(
            SaveCall(future=future, loop=self, step=self._done, user_metadata={})
        )
        return future


def _drive(waits: Waits) -> bool:
    try:
        while True:
            concurrent.futures.wait([next(waits)])
    except StopIteration as end:
        return bool(end.value)


async def _drive_async(waits: Waits) -> bool:
    try:
        while True:
            await next(waits).wait()
    except StopIteration as end:
        return bool(end.value)


class RecoveringTrainingClient(TrainingClient):
    """A training client that continues from the last checkpoint in a new run if the server loses
    its run.

    It takes over a new training client, and stays the same object whatever happens to the run. A
    run counts as lost if the server was restarted, does not know the run or its session, has marked
    the run as corrupted, or failed in a way that leaves its state unknown. Nothing runs in the
    background: the next request notices the loss.

    :meth:`steps` is a training loop that repeats exactly what was lost. In your own loop, call
    :meth:`recover` with the error, and repeat what you did after the save that it names.

    Args:
        training: A training client; do not use it any more yourself.
        policy: How often to try, and from which checkpoint; None means ``RecoveryPolicy()``.
        on_recovery: Optional. A function called with each :class:`Recovery`, on the thread of the
            loop.
        on_failure: Optional. A function called with the RecoveryFailedError before it is raised.

    Raises:
        TypeError: An argument of the wrong kind.

    >>> import tinker
    >>> service = tinker.ServiceClient(base_url="local://toy")
    >>> client = RecoveringTrainingClient(
    ...     service.create_lora_training_client("tinker/toy", rank=4, seed=1)
    ... )
    >>> for step in client.steps(4, save_every=2):
    ...     with step:
    ...         done = client.optim_step(tinker.AdamParams()).result(timeout=30)
    >>> [save.step for save in client.saves]
    [2, 4]
    """

    def __init__(
        self,
        training: TrainingClient,
        policy: RecoveryPolicy | None = None,
        *,
        on_recovery: Callable[[Recovery], object] | None = None,
        on_failure: Callable[[RecoveryFailedError], object] | None = None,
    ) -> None:
        check_kind("training", training, TrainingClient)
        if isinstance(training, RecoveringTrainingClient):
            raise TypeError(
                "training must be a client that a service client made, got a "
                f"{type(training).__name__}"
            )
        chosen = RecoveryPolicy() if policy is None else policy
        check_kind("policy", chosen, RecoveryPolicy)
        check_function("on_recovery", on_recovery)
        check_function("on_failure", on_failure)
        self._keeper = RunKeeper(training._run, self._use, chosen, on_recovery, on_failure)
        super().__init__(training._run)

    def _use(self, run: TrainingRun) -> None:
        self._run, self._ready = run, run.created

    @property
    def saves(self) -> list[SavePoint]:
        """Return the checkpoints that the run can be recovered from, in the order in which they
        were saved.
        """
        return self._keeper.saves()

    def steps(
        self,
        count: int,
        *,
        save_every: int = 10,
        name: str = "step",
        ttl_seconds: int | None = None,
    ) -> Steps:
        """Iterate over the numbers of steps, 0 to ``count - 1``, and repeat the steps lost with a
        run.

        After every ``save_every`` steps, and after the last one, the loop waits for the results of
        all requests and saves. When a request says that the run is lost, the run is recovered, and
        the loop continues after the step of the save.

        Use it with ``for``, or with ``async for`` in a coroutine. A body that looks at results is a
        block of the step, ``with step:`` or ``async with step:``: an error that means a loss ends
        the block, and not the loop. The failure of a request whose future you did not look at is
        raised by the loop, no later than at the next save.

        Args:
            count: The number of steps.
            save_every: The number of steps from one save to the next, 1 or more.
            name: The checkpoints are called by it and the number of steps done: ``step-000010``.
            ttl_seconds: Seconds until a checkpoint expires, an hour to ten years; None keeps it
                forever.

        Returns:
            An iterator of steps, which are numbers.

        Raises:
            TypeError: A value is not a number.
            ValueError: A number is out of its range, or a name cannot be one.
            RecoveryFailedError: From the loop, when the run could not be recovered.
        """
        return Steps(self._keeper, super().save_state, count, save_every, name, ttl_seconds)

    def recover(self, error: BaseException) -> Recovery:
        """Put a new run in the place of a lost one, and block until it is there.

        Several threads may call it; a loss is recovered once. An error of a run that was replaced
        before changes nothing, and returns the recovery that the present run comes from.

        Args:
            error: The error of a request of this client, or of a sampler that was made of it.

        Returns:
            What was lost: repeat what you did after its ``save``.

        Raises:
            RecoveryFailedError: No attempt is left.
            BaseException: The error itself, when it does not mean that the run is lost.
        """
        future = self._keeper.start(error)
        concurrent.futures.wait([future])
        return self._end(future, error)

    async def recover_async(self, error: BaseException) -> Recovery:
        """Await what :meth:`recover` returns."""
        future = self._keeper.start(error)
        await future.wait()
        return self._end(future, error)

    def _end(self, future: APIFuture[RecoveryNews], error: BaseException) -> Recovery:
        recovery = self._keeper.finish(future)
        if recovery is None:
            raise error
        return recovery

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: Mapping[str, str] | None = None,
        *,
        keep_last: int | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save the weights and the optimizer state under a name, as TrainingClient does, as
        something to recover from.

        Args:
            name: The last part of the checkpoint's path, without ``/``.
            ttl_seconds: Seconds until the checkpoint expires, an hour to ten years; None keeps it
                forever.
            overwrite: Whether to replace a checkpoint of the same name; otherwise the future fails
                with ConflictError.
            user_metadata: Text by name, stored with the checkpoint and part of its
                :class:`SavePoint`. Optional.
            keep_last: How many checkpoints of this run and kind to keep. None keeps all.

        Returns:
            A future whose result has the ``path``.

        Raises:
            ValueError: At once, for an invalid name or time.
        """
        future = super().save_state(
            name, ttl_seconds, overwrite, user_metadata, keep_last=keep_last
        )
        self._keeper.note_save(
            SaveCall(future=future, loop=None, step=None, user_metadata=dict(user_metadata or {}))
        )
        return future


class RunMarkedCorrupted(TinkerError):
    """The server has marked a training run as corrupted.

    Attributes:
        run_id: The run.
    """

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


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
                lambda _: self._recover(run_id, why, last_checkpoint, labels),
                labels=labels,
            )
            return future

    async def _recover(
        self,
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
            if is_needed or not retry.is_absent(error):
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
            if not retry.is_absent(error) or _last_path(self._watched.get(run_id)) is None:
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


__all__ = [
    "CheckpointChoice",
    "RecoveringTrainingClient",
    "RecoveredRun",
    "Recovery",
    "RecoveryExecutor",
    "RecoveryFailedError",
    "RecoveryMonitor",
    "RecoveryPolicy",
    "RunMarkedCorrupted",
    "SavePoint",
    "Steps",
    "TrainingStep",
]
