"""The state of one server: its store, futures, checkpoints and the engine's thread, put together and closed together.

Bound to no event loop: the same state serves clients on several loops, and a thread of its own runs the engine.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tinker_wire import models

from tinker.local.engines import Engine, EngineError
from tinker.local.errors import APIProblem
from tinker.local.scheduling import ModelQueue, OpenEngine, PeriodicTask, SampleQueue, Worker, to_failure
from tinker.local.settings import Settings
from tinker.local.storage import (
    Accounts,
    AuditLog,
    Checkpoints,
    FutureStore,
    Links,
    ModelRecord,
    Owner,
    RequestFailure,
    ServerFuture,
    Signer,
    Snapshots,
    Store,
    TraceExports,
    Uploads,
    UsageMeter,
)

T = TypeVar("T")
OFFLOAD_NBYTES = 1 << 20  # encoding or decoding more than this would hold up the loop for longer than a few milliseconds
SHUTTING_DOWN = RequestFailure("the server is shutting down", "server")


class State:
    """Everything a server remembers. Nothing starts before the first request; :meth:`aclose` ends it.

    ``open_engine`` is called once, in the engine's thread, when the engine is needed first. ``clock`` counts seconds,
    ``now`` is the time of day.
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings: Settings = settings or Settings()
        self.lock: threading.RLock = threading.RLock()
        self.clock = clock
        self.now = now
        self.signer: Signer = Signer(now)
        self.accounts: Accounts = Accounts(self.settings, self.signer)
        self.links: Links = Links(self.settings, self.signer, now)
        self.exports: TraceExports = TraceExports(self.settings.link_seconds, self.lock, clock, self.submit_task)
        self.audit: AuditLog = AuditLog(self.settings.max_audit_entries, now)
        self.usage: UsageMeter = UsageMeter(self.settings.max_audit_entries, now)
        self.futures: FutureStore = FutureStore(self.settings, self.lock, clock)
        self.store: Store = Store(self.settings, clock, now, self._drop_model)
        self._owner = Owner(self.settings.data_dir)
        self.checkpoints: Checkpoints = Checkpoints(self.settings.data_dir, now, self._owner)
        self.snapshots: Snapshots = Snapshots(self.settings.data_dir, self._owner)
        self.uploads: Uploads = Uploads(self.settings.data_dir, self._owner, now)
        self.telemetry: deque[models.TelemetryEvent] = deque(maxlen=self.settings.max_telemetry_events)
        self.other_model_names: set[str] = set()  # of base models, which clients were given another one for
        self.samples: SampleQueue = SampleQueue(self.futures, self.settings.sample_batch_tokens)
        self._worker = Worker(open_engine, self.lock, clock)
        self._worker.add(self.samples)
        self._worker.add(
            PeriodicTask(self.settings.idle_session_seconds / 10, lambda: self.store.has_sessions, self.store.end_idle)
        )
        self._codecs: ThreadPoolExecutor | None = None
        self._closed = False

    # Work

    def notify(self) -> None:
        """Tell the engine's thread that there is something to do."""
        self._worker.notify()

    def require_open(self) -> None:
        """Raise APIProblem 503 once closing has begun."""
        if self._closed:
            raise APIProblem(503, SHUTTING_DOWN.error)

    async def engine(self) -> Engine:
        """Return the engine, opened first if need be; read its properties only. Raises APIProblem 500 when it does not open."""
        if self._worker.engine is None:
            opened = ServerFuture("engine")
            with self.lock:
                self.require_open()
                self._worker.submit_task(lambda open_engine: _open(open_engine, opened))
            outcome = await opened.wait()
            if isinstance(outcome, RequestFailure):
                raise APIProblem(503 if self._closed else 500, f"the engine could not be started: {outcome.error}")
        assert self._worker.engine is not None
        return self._worker.engine

    async def run_in_engine(self, work: Callable[[Engine], None]) -> None:
        """Do something with the engine, between two steps. Raises APIProblem 400 when it refuses, 500 when it fails."""
        done = ServerFuture("engine")
        with self.lock:
            self.require_open()
            self._worker.submit_task(lambda open_engine: _work(open_engine, work, done))
        outcome = await done.wait()
        if isinstance(outcome, RequestFailure):
            status = 503 if self._closed else 400 if outcome.category == "user" else 500
            raise APIProblem(status, outcome.error)

    def new_queue(self) -> ModelQueue:
        """Add a queue for the requests of one more model."""
        queue = ModelQueue(self.futures, self.settings.gap_seconds)
        self._worker.add(queue)
        return queue

    def submit_task(self, work: Callable[[], None]) -> None:
        """Do something in the engine's thread, between two steps. What is left when the server closes is not done."""
        self._worker.submit_task(lambda _: work())

    def _drop_model(self, model: ModelRecord) -> None:
        """Forget a model's weights once what was submitted for it has run."""
        failure = RequestFailure(f"model {model.model_id!r} {model.closed_reason}", "user")
        model.queue.close(failure, lambda open_engine: self._forget_model(model, open_engine))
        self.notify()

    def _forget_model(self, model: ModelRecord, open_engine: OpenEngine) -> None:
        self._worker.remove(model.queue)
        self.snapshots.forget(model.model_id)
        open_engine().drop_adapter(model.model_id)

    # Bytes

    async def offload(self, nbytes: int, function: Callable[[], T]) -> T:
        """Call ``function``, which handles about ``nbytes`` bytes: here when they are few, else in a thread."""
        return function() if nbytes < OFFLOAD_NBYTES else await self.offload_always(function)

    async def offload_always(self, function: Callable[[], T]) -> T:
        """Call ``function``, which blocks, in a thread."""
        with self.lock:
            self.require_open()
            if self._codecs is None:
                self._codecs = ThreadPoolExecutor(2, thread_name_prefix="tinker-codec")
            pool = self._codecs
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    # End

    def close(self) -> None:
        """Fail what is pending, wait for the step that runs, and end every thread. Blocks; calling it again is harmless."""
        self.begin_close()
        self._worker.join()
        self.snapshots.clear()
        self.uploads.clear()
        if self._codecs is not None:
            self._codecs.shutdown()
        self._owner.release()

    async def aclose(self) -> None:
        """Call :meth:`close` without blocking the loop while the step runs."""
        self.begin_close()
        await self._worker.closed.wait()
        self.close()

    def begin_close(self) -> None:
        """Refuse new work, fail what is pending and release the waiters. Does not block."""
        with self.lock:
            self._closed = True
            self._worker.stop(_refuse)
        self.futures.fail_all(SHUTTING_DOWN)


def _open(open_engine: OpenEngine, opened: ServerFuture) -> None:
    try:
        open_engine()
    except Exception as error:  # noqa: BLE001 - the reason goes to whoever asked
        opened.resolve(to_failure(error))
    else:
        opened.resolve(models.HealthResponse(status="ok"))


def _work(open_engine: OpenEngine, work: Callable[[Engine], None], done: ServerFuture) -> None:
    try:
        work(open_engine())
    except Exception as error:  # noqa: BLE001 - the reason goes to whoever asked
        done.resolve(to_failure(error))
    else:
        done.resolve(models.HealthResponse(status="ok"))


def _refuse() -> Engine:
    raise EngineError(SHUTTING_DOWN.error)
