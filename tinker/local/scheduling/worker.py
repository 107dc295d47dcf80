"""The engine's thread: queues take turns in lanes, so that no run starves another, and training and
samples share the time.

Each base model has lanes of its own, so that a busy one leaves the others their share. The queues
are guarded by the server's lock, which is never held while a step runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic
from weakref import WeakKeyDictionary

from tinker.local.engines.opening import check_distinct
from tinker.local.engines.protocol import Engine, Sampler
from tinker.local.scheduling.queues import (
    EngineStep,
    ModelNotLoaded,
    ModelQueue,
    Open,
    Opened,
    OpenEngine,
    OpenSampler,
    SampleQueue,
    StepQueue,
    WorkerStep,
    log,
)
from tinker.local.storage.futures import RequestFailure, ServerFuture


class ServedModel:
    """One of the base models, its engine and its sampler, which are None until the thread of each
    has opened it.

    Without ``open_sampler`` the engine is the sampler. Else ``samples`` are for the sampler,
    ``scores`` for the engine all the same.
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        samples: SampleQueue,
        open_sampler: OpenSampler | None = None,
        scores: SampleQueue | None = None,
    ) -> None:
        self._open, self._open_sampler = open_engine, open_sampler
        self.samples = samples
        self.scores: SampleQueue = scores or samples
        # in the order in which they were made
        self.queues: WeakKeyDictionary[ModelQueue, None] = WeakKeyDictionary()
        self.engine: Engine | None = None
        self.sampler: Sampler | None = None

    @property
    def is_own_sampler(self) -> bool:
        """Return whether the engine samples, in its thread; else the sampler has another one."""
        return self._open_sampler is None

    def open(self) -> Engine:
        """Return the engine; only in the engine's thread. A failed attempt is repeated by the next
        step.

        Raises ModelNotLoaded when something is missing: a package, a file, a device.
        """
        self.engine = self.engine or _load(self._open)
        return self.engine

    def open_sampler(self) -> Sampler:
        """Return the sampler; only in its thread. Raises ModelNotLoaded as :meth:`open` does."""
        self.sampler = self.sampler or (
            self.open() if self._open_sampler is None else _load(self._open_sampler)
        )
        return self.sampler

    def close(self) -> None:
        """End what runs outside this process; both threads have ended."""
        if self.engine is not None:
            self.engine.close()
        if self.sampler is not None and self.sampler is not self.engine:
            self.sampler.close()


def _load(open_one: Open[Opened]) -> Opened:
    try:
        return open_one()
    except (ImportError, OSError, ValueError) as error:
        raise ModelNotLoaded(f"the model could not be loaded: {error}") from error


class ServedModels:
    """All of them, the first of which is the default. ``engines`` is empty until
    every one is open.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models: tuple[ServedModel, ...] = tuple(models)
        self.engines: Sequence[Engine] = ()

    def open_all(self, open_first: OpenEngine) -> None:
        """Open every engine, the first one by ``open_first``; only in the engine's thread.
        ValueError for two of one name.
        """
        open_first()
        engines = [model.open() for model in self.models]
        check_distinct(engines)
        self.engines = engines

    def close(self) -> None:
        """End what runs outside this process."""
        for model in self.models:
            model.close()

    def find(self, engine_model: str) -> ServedModel:
        """Return the base model whose engine, which is open, goes by this name."""
        return next(
            one
            for one in self.models
            if one.engine is not None and one.engine.base_model == engine_model
        )

    def drop_sample(self, future: ServerFuture) -> None:
        """Take a sample out that has not begun."""
        for model in self.models:
            model.samples.drop(future)
            model.scores.drop(future)


WORKER_CLOSED = RequestFailure("the engine's thread has ended", "server")


class PeriodicTask:
    """A queue that calls ``work`` every ``seconds``, while there is a ``need`` for it; what that
    returns is its step.
    """

    def __init__(
        self, seconds: float, need: Callable[[], bool], work: Callable[[], EngineStep | None]
    ) -> None:
        self._seconds, self._need, self._work = seconds, need, work
        self._due: float | None = None

    def take(self, now: float) -> EngineStep | None:
        if not self._need():
            self._due = None
        elif self._due is None:
            self._due = now + self._seconds
        elif now >= self._due:
            self._due = now + self._seconds
            return self._work()
        return None

    def next_wake(self) -> float | None:
        return self._due


class Lane(Generic[Opened]):
    """Queues of one engine that take turns, step by step, and the time that their steps have
    ``used``.
    """

    def __init__(self, open_engine: Open[Opened], used: float = 0.0) -> None:
        self.queues: deque[StepQueue[Opened]] = deque()
        self.open_engine = open_engine
        self.used = used

    def take(self, now: float) -> WorkerStep[Opened] | None:
        for _ in range(len(self.queues)):
            queue = self.queues[0]
            self.queues.rotate(-1)
            if (step := queue.take(now)) is not None:
                return step
        return None


class Worker(Generic[Opened]):
    """The engines' thread, or a sampler's. Lanes with steps get equal shares of its time; an idle
    lane builds up no claim.

    Started by the first step, ended by :meth:`stop`. Lanes and tasks without an engine of their own
    get ``open_engine``.
    """

    def __init__(
        self, open_engine: Open[Opened], lock: threading.RLock, clock: Callable[[], float]
    ) -> None:
        self._open, self._clock = open_engine, clock
        self._wake = threading.Condition(lock)
        self._lanes: dict[str, Lane[Opened]] = {}
        self._tasks: deque[tuple[WorkerStep[Opened], Open[Opened]]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.closed: ServerFuture = ServerFuture("the engine's thread")

    def add(
        self,
        queue: StepQueue[Opened],
        lane: str = "training",
        open_engine: Open[Opened] | None = None,
    ) -> None:
        """Serve one more queue, in turn with the others of its lane, all of which
        have one engine.
        """
        with self._wake:
            if lane not in self._lanes:
                used = max((other.used for other in self._lanes.values()), default=0.0)
                self._lanes = {lane: Lane(open_engine or self._open, used), **self._lanes}
            self._lanes[lane].queues.append(queue)

    def remove(self, queue: StepQueue[Opened]) -> None:
        """Remove a queue; its waiting requests never run."""
        with self._wake:
            for lane in self._lanes.values():
                if queue in lane.queues:
                    lane.queues.remove(queue)

    def submit_task(
        self, step: WorkerStep[Opened], open_engine: Open[Opened] | None = None
    ) -> None:
        """Run a step of no queue, before any other."""
        with self._wake:
            self._tasks.append((step, open_engine or self._open))
            self.notify()

    def notify(self) -> None:
        """Wake the thread, or start it: a queue has a step."""
        with self._wake:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="tinker-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self, on_pending: Open[Opened]) -> None:
        """Stop after the running step. Tasks that did not run are called with ``on_pending`` as
        engine.
        """
        with self._wake:
            self._closing = True
            tasks, self._tasks = self._tasks, deque()
            self._wake.notify()
            if self._thread is None:
                self.closed.resolve(WORKER_CLOSED)
        for step, _ in tasks:
            step(on_pending)

    def join(self) -> None:
        """Wait for the end of the thread, unless the interpreter ends, which has stopped it."""
        if self._thread is not None and not sys.is_finalizing():
            self._thread.join()

    def _run(self) -> None:
        try:
            with ignore_warnings():
                while (found := self._next()) is not None:
                    self._carry_out(*found)
        finally:
            self.closed.resolve(WORKER_CLOSED)

    def _carry_out(self, lane: Lane[Opened], step: WorkerStep[Opened]) -> None:
        """Take a step, whose time counts for its lane."""
        began = self._clock()
        try:
            step(lane.open_engine)
        except Exception:  # noqa: BLE001 - this thread is the server's only one
            log.exception("internal error in a step; continuing with the next one")
        lane.used += self._clock() - began

    def _next(self) -> tuple[Lane[Opened], WorkerStep[Opened]] | None:
        with self._wake:
            while not self._closing:
                if self._tasks:
                    step, open_engine = self._tasks.popleft()
                    return Lane(open_engine), step
                now = self._clock()
                if (found := self._take(now)) is not None:
                    return found
                times = [
                    at
                    for lane in self._lanes.values()
                    for one in lane.queues
                    if (at := one.next_wake()) is not None
                ]
                self._wake.wait(max(0.0, min(times) - now) if times else None)
            return None

    def _take(self, now: float) -> tuple[Lane[Opened], WorkerStep[Opened]] | None:
        """Take a step from the lane that has used the least; among equals, from the one whose turn
        is the longest ago.
        """
        tried: list[Lane[Opened]] = []
        for name, lane in sorted(self._lanes.items(), key=lambda item: item[1].used):
            if (step := lane.take(now)) is not None:
                for idle in tried:
                    idle.used = lane.used
                self._lanes[name] = self._lanes.pop(name)
                return lane, step
            tried.append(lane)
        return None


IGNORE = ("ignore", None, Warning, None, 0)


class _Thread(threading.local):
    is_ignoring: bool = False


_thread = _Thread()


class _Warnings(ModuleType):
    """The module ``warnings``. Threads that ignore warnings see ``IGNORE`` before the filters of
    the process.
    """

    @property
    def filters(self) -> list[Any]:
        found: list[Any] = vars(self)["filters"]
        return [IGNORE, *found] if _thread.is_ignoring else found

    @filters.setter
    def filters(self, value: list[Any]) -> None:
        vars(self)["filters"] = (
            [one for one in value if one is not IGNORE] if _thread.is_ignoring else value
        )


@contextmanager
def ignore_warnings() -> Generator[None]:
    """Ignore all warnings of this thread inside the block, whatever the filters of the process say.

    With ``warnings.simplefilter("error")`` in a program, a warning of a library would raise in the
    middle of a request of the server in the same process. Filters belong to the process, and the
    program may change them at any moment, so that ``warnings.catch_warnings()`` in this thread
    would not hold, and would disturb the program. Instead, this thread sees one filter more, in
    front of those of the process. That is sound because each warning, of Python and of C code
    alike, looks up the filters as an attribute of the module ``warnings``, which the class of a
    module may compute, and the list of the process never contains the additional one.
    """
    sys.modules[warnings.__name__].__class__ = _Warnings
    _thread.is_ignoring = True
    try:
        yield
    finally:
        _thread.is_ignoring = False
