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

from tinker.local.accounts import Accounts
from tinker.local.checkpoints import Checkpoints
from tinker.local.downloads import Exports, Links
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.futures import Failure, Future, Futures
from tinker.local.ledger import Ledger
from tinker.local.owners import Owner
from tinker.local.problem import Problem
from tinker.local.schedule import Chore, NumberedLane, OpenEngine, SampleLane, Worker, failure_of
from tinker.local.settings import Settings
from tinker.local.signing import Signer
from tinker.local.snapshots import Snapshots
from tinker.local.store import Model, Store

T = TypeVar("T")

LARGE = 1 << 20  # bytes; encoding and decoding more than this would hold up the loop for longer than a few milliseconds
GOODBYE = Failure("the server is shutting down", "server")


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
        self.exports: Exports = Exports(self)
        self.ledger: Ledger = Ledger(self.settings.max_audit_entries, now)
        self.futures: Futures = Futures(self.settings, self.lock, clock)
        self.store: Store = Store(self.settings, clock, now, self._drop)
        self._owner = Owner(self.settings.data_dir)
        self.checkpoints: Checkpoints = Checkpoints(self.settings.data_dir, now, self._owner)
        self.snapshots: Snapshots = Snapshots(self.settings.data_dir, self._owner)
        self.telemetry: deque[models.TelemetryEvent] = deque(maxlen=self.settings.max_telemetry_events)
        self.foreign_names: set[str] = set()  # of base models, which clients were given another one for
        self.samples: SampleLane = SampleLane(self.futures, self.settings.sample_batch_tokens)
        self._worker = Worker(open_engine, self.lock, clock)
        self._worker.add(self.samples)
        self._worker.add(Chore(self.settings.idle_session_seconds / 10, lambda: self.store.has_sessions, self.store.end_idle))
        self._codecs: ThreadPoolExecutor | None = None
        self._closed = False

    # Work

    def notify(self) -> None:
        """Tell the engine's thread that there is something to do."""
        self._worker.notify()

    def require_open(self) -> None:
        """Problem 503 once closing has begun."""
        if self._closed:
            raise Problem(503, GOODBYE.error)

    async def engine(self) -> Engine:
        """The engine, opened first if need be; read its properties only. Problem 500 when it cannot be opened."""
        if self._worker.engine is None:
            opened = Future("engine")
            with self.lock:
                self.require_open()
                self._worker.errand(lambda open_engine: _open(open_engine, opened))
            outcome = await opened.wait()
            if isinstance(outcome, Failure):
                raise Problem(503 if self._closed else 500, f"the engine could not be started: {outcome.error}")
        assert self._worker.engine is not None
        return self._worker.engine

    def new_lane(self) -> NumberedLane:
        """A lane for the requests of one more model."""
        lane = NumberedLane(self.futures, self.settings.gap_seconds)
        self._worker.add(lane)
        return lane

    def errand(self, work: Callable[[], None]) -> None:
        """Do something in the engine's thread, between two steps. What is left when the server closes is not done."""
        self._worker.errand(lambda _: work())

    def _drop(self, model: Model) -> None:
        """Forget a model's weights once what was submitted for it has run."""
        leftovers = Failure(f"model {model.model_id!r} {model.closed}", "user")
        model.lane.close(leftovers, lambda open_engine: self._forget(model, open_engine))
        self.notify()

    def _forget(self, model: Model, open_engine: OpenEngine) -> None:
        self._worker.remove(model.lane)
        self.snapshots.forget(model.model_id)
        open_engine().drop_adapter(model.model_id)

    # Bytes

    async def offload(self, nbytes: int, function: Callable[[], T]) -> T:
        """Call ``function``, which handles about ``nbytes`` bytes: here when they are few, else in a thread."""
        return function() if nbytes < LARGE else await self.offload_always(function)

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
        if self._codecs is not None:
            self._codecs.shutdown()
        self._owner.release()

    async def aclose(self) -> None:
        """As :meth:`close`, without blocking the loop while the step runs."""
        self.begin_close()
        await self._worker.ended.wait()
        self.close()

    def begin_close(self) -> None:
        """Refuse new work, fail what is pending and let those who wait for it go. Does not block."""
        with self.lock:
            self._closed = True
            self._worker.stop(_refuse)
        self.futures.fail_all(GOODBYE)


def _open(open_engine: OpenEngine, opened: Future) -> None:
    try:
        open_engine()
    except Exception as error:  # noqa: BLE001 - the reason goes to whoever asked
        opened.resolve(failure_of(error))
    else:
        opened.resolve(models.HealthResponse(status="ok"))


def _refuse() -> Engine:
    raise EngineError(GOODBYE.error)
