"""The engine's thread: queues take turns in lanes, so that no run starves another, and training and samples share the time.

Each base model has lanes of its own, so that a busy one leaves the others their share. The queues are guarded by the
server's lock, which is never held while a step runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tinker.local.engines.opening import check_distinct
from tinker.local.engines.protocol import Engine
from tinker.local.scheduling.samples import SampleQueue
from tinker.local.scheduling.steps import EngineStep, ModelNotLoaded, OpenEngine, StepQueue, log
from tinker.local.storage.futures import RequestFailure, ServerFuture


class ServedModel:
    """One of the base models. ``engine`` is None until the engine's thread has opened it."""

    def __init__(self, open_engine: OpenEngine, samples: SampleQueue) -> None:
        self._open = open_engine
        self.samples = samples
        self.engine: Engine | None = None

    def open(self) -> Engine:
        """Return the engine; only in the engine's thread. A failed attempt is repeated by the next step.

        Raises ModelNotLoaded when something is missing: a package, a file, a device.
        """
        if self.engine is None:
            try:
                self.engine = self._open()
            except (ImportError, OSError, ValueError) as error:
                raise ModelNotLoaded(f"the model could not be loaded: {error}") from error
        return self.engine


class ServedModels:
    """All of them, the first of which is the default. ``engines`` is empty until every one is open."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models: tuple[ServedModel, ...] = tuple(models)
        self.engines: Sequence[Engine] = ()

    def open_all(self, open_first: OpenEngine) -> None:
        """Open every engine, the first one by ``open_first``; only in the engine's thread. ValueError for two of one name."""
        open_first()
        engines = [model.open() for model in self.models]
        check_distinct(engines)
        self.engines = engines

    def find(self, engine_model: str) -> ServedModel:
        """Return the base model whose engine, which is open, goes by this name."""
        return next(one for one in self.models if one.engine is not None and one.engine.base_model == engine_model)

    def drop_sample(self, future: ServerFuture) -> None:
        """Take a sample out that has not begun."""
        for model in self.models:
            model.samples.drop(future)


WORKER_CLOSED = RequestFailure("the engine's thread has ended", "server")


class PeriodicTask:
    """A queue that calls ``work`` every ``seconds``, while there is a ``need`` for it; what that returns is its step."""

    def __init__(self, seconds: float, need: Callable[[], bool], work: Callable[[], EngineStep | None]) -> None:
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


class Lane:
    """Queues of one engine that take turns, step by step, and the time that their steps have ``used``."""

    def __init__(self, open_engine: OpenEngine, used: float = 0.0) -> None:
        self.queues: deque[StepQueue] = deque()
        self.open_engine = open_engine
        self.used = used

    def take(self, now: float) -> EngineStep | None:
        for _ in range(len(self.queues)):
            queue = self.queues[0]
            self.queues.rotate(-1)
            if (step := queue.take(now)) is not None:
                return step
        return None


class Worker:
    """The engine's thread. Lanes with steps get equal shares of its time; an idle lane builds up no claim.

    Started by the first step, ended by :meth:`stop`. Lanes and tasks without an engine of their own get ``open_engine``."""

    def __init__(self, open_engine: OpenEngine, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self._open, self._clock = open_engine, clock
        self._wake = threading.Condition(lock)
        self._lanes: dict[str, Lane] = {}
        self._tasks: deque[tuple[EngineStep, OpenEngine]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.closed: ServerFuture = ServerFuture("the engine's thread")

    def add(self, queue: StepQueue, lane: str = "training", open_engine: OpenEngine | None = None) -> None:
        """Serve one more queue, in turn with the others of its lane, all of which have one engine."""
        with self._wake:
            if lane not in self._lanes:
                used = max((other.used for other in self._lanes.values()), default=0.0)
                self._lanes = {lane: Lane(open_engine or self._open, used), **self._lanes}
            self._lanes[lane].queues.append(queue)

    def remove(self, queue: StepQueue) -> None:
        """Remove a queue; its waiting requests never run."""
        with self._wake:
            for lane in self._lanes.values():
                if queue in lane.queues:
                    lane.queues.remove(queue)

    def submit_task(self, step: EngineStep, open_engine: OpenEngine | None = None) -> None:
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

    def stop(self, on_pending: OpenEngine) -> None:
        """Stop after the running step. Tasks that did not run are called with ``on_pending`` as engine."""
        with self._wake:
            self._closing = True
            tasks, self._tasks = self._tasks, deque()
            self._wake.notify()
            if self._thread is None:
                self.closed.resolve(WORKER_CLOSED)
        for step, _ in tasks:
            step(on_pending)

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with ignore_warnings():
                while (found := self._next()) is not None:
                    self._carry_out(*found)
        finally:
            self.closed.resolve(WORKER_CLOSED)

    def _carry_out(self, lane: Lane, step: EngineStep) -> None:
        """Take a step, whose time counts for its lane."""
        began = self._clock()
        try:
            step(lane.open_engine)
        except Exception:  # noqa: BLE001 - this thread is the server's only one
            log.exception("internal error in a step; continuing with the next one")
        lane.used += self._clock() - began

    def _next(self) -> tuple[Lane, EngineStep] | None:
        with self._wake:
            while not self._closing:
                if self._tasks:
                    step, open_engine = self._tasks.popleft()
                    return Lane(open_engine), step
                now = self._clock()
                if (found := self._take(now)) is not None:
                    return found
                times = [at for lane in self._lanes.values() for one in lane.queues if (at := one.next_wake()) is not None]
                self._wake.wait(max(0.0, min(times) - now) if times else None)
            return None

    def _take(self, now: float) -> tuple[Lane, EngineStep] | None:
        """Take a step from the lane that has used the least; among equals, from the one whose turn is the longest ago."""
        tried: list[Lane] = []
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
    """The module ``warnings``. Threads that ignore warnings see ``IGNORE`` before the filters of the process."""

    @property
    def filters(self) -> list[Any]:
        found: list[Any] = vars(self)["filters"]
        return [IGNORE, *found] if _thread.is_ignoring else found

    @filters.setter
    def filters(self, value: list[Any]) -> None:
        vars(self)["filters"] = [one for one in value if one is not IGNORE] if _thread.is_ignoring else value


@contextmanager
def ignore_warnings() -> Generator[None]:
    """Ignore all warnings of this thread inside the block, whatever the filters of the process say.

    With ``warnings.simplefilter("error")`` in a program, a warning of a library would raise in the middle of a request of the
    server in the same process. Filters belong to the process, and the program may change them at any moment, so that
    ``warnings.catch_warnings()`` in this thread would not hold, and would disturb the program. Instead, this thread sees one
    filter more, in front of those of the process. That is sound because each warning, of Python and of C code alike, looks up
    the filters as an attribute of the module ``warnings``, which the class of a module may compute, and the list of the process
    never contains the additional one.
    """
    sys.modules[warnings.__name__].__class__ = _Warnings
    _thread.is_ignoring = True
    try:
        yield
    finally:
        _thread.is_ignoring = False
