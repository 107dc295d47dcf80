"""The engine's thread: it takes one step from each queue in turn, so that no model starves another.

The queues are guarded by the server's lock, which is never held while a step runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tinker.local.engines import Engine
from tinker.local.scheduling.steps import OpenEngine, Step, StepQueue
from tinker.local.storage import RequestFailure, ServerFuture

WORKER_CLOSED = RequestFailure("the engine's thread has ended", "server")


class PeriodicTask:
    """A queue that has no steps: it does something itself every ``seconds``, while there is a ``need`` for it."""

    def __init__(self, seconds: float, need: Callable[[], bool], work: Callable[[], None]) -> None:
        self._seconds, self._need, self._work = seconds, need, work
        self._due: float | None = None

    def take(self, now: float) -> Step | None:
        if not self._need():
            self._due = None
        elif self._due is None:
            self._due = now + self._seconds
        elif now >= self._due:
            self._due = now + self._seconds
            self._work()
        return None

    def next_wake(self) -> float | None:
        return self._due


class Worker:
    """The engine's thread. Started by the first step, ended by :meth:`close`; the engine is opened in it, on first use."""

    def __init__(self, open_engine: OpenEngine, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self._open, self._clock = open_engine, clock
        self._wake = threading.Condition(lock)
        self._queues: deque[StepQueue] = deque()
        self._tasks: deque[Step] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.closed: ServerFuture = ServerFuture("the engine's thread")
        self.engine: Engine | None = None

    def add(self, queue: StepQueue) -> None:
        """Serve one more queue."""
        with self._wake:
            self._queues.append(queue)

    def remove(self, queue: StepQueue) -> None:
        """Serve it no more; what waits in it never runs."""
        with self._wake:
            if queue in self._queues:
                self._queues.remove(queue)

    def submit_task(self, step: Step) -> None:
        """Run a step of no queue, before any other."""
        with self._wake:
            self._tasks.append(step)
            self.notify()

    def notify(self) -> None:
        """Wake the thread, or start it: a queue has a step."""
        with self._wake:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="tinker-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self, on_pending: OpenEngine) -> None:
        """Take no further step; the one that runs is finished. Tasks that did not run are given ``on_pending`` as engine."""
        with self._wake:
            self._closing = True
            tasks, self._tasks = self._tasks, deque()
            self._wake.notify()
            if self._thread is None:
                self.closed.resolve(WORKER_CLOSED)
        for step in tasks:
            step(on_pending)

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join()

    def open_engine(self) -> Engine:
        """Return the engine; only in this thread. A failed attempt is repeated by the next step."""
        if self.engine is None:
            self.engine = self._open()
        return self.engine

    def _run(self) -> None:
        try:
            while (step := self._next()) is not None:
                step(self.open_engine)
        finally:
            self.closed.resolve(WORKER_CLOSED)

    def _next(self) -> Step | None:
        with self._wake:
            while not self._closing:
                if self._tasks:
                    return self._tasks.popleft()
                now = self._clock()
                for _ in range(len(self._queues)):
                    queue = self._queues[0]
                    self._queues.rotate(-1)
                    if (step := queue.take(now)) is not None:
                        return step
                times = [at for queue in self._queues if (at := queue.next_wake()) is not None]
                self._wake.wait(max(0.0, min(times) - now) if times else None)
            return None
