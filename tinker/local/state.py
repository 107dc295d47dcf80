"""The state of one server: its store, futures, checkpoints and the engine's thread, put together
and closed together.

Bound to no event loop: the same state serves clients on several loops, and a thread of its own runs
the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

import attrs
from tinker_wire import models
from tinker_wire.api import training, weights

from tinker.local.engines.protocol import Engine, EngineError, Sampler
from tinker.local.errors import APIProblem, unavailable
from tinker.local.scheduling.queues import (
    EngineStep,
    ModelQueue,
    OpenEngine,
    OpenSampler,
    SampleQueue,
    to_failure,
)
from tinker.local.scheduling.worker import PeriodicTask, ServedModel, ServedModels, Worker
from tinker.local.settings import Settings
from tinker.local.storage.access import Accounts, Links, Signer
from tinker.local.storage.checkpoints import CheckpointRecord, Checkpoints
from tinker.local.storage.disk import Owner, ServerFolder
from tinker.local.storage.futures import FutureStore, RequestFailure, RequestOutcome, ServerFuture
from tinker.local.storage.journal import Journal
from tinker.local.storage.recorded import RecordedSequences
from tinker.local.storage.records import RUN_TABLES, AuditLog, RunHistory, UsageMeter
from tinker.local.storage.sessions import ModelRecord, ServerEvents, SessionRecord, Store
from tinker.local.storage.snapshots import KeptRuns, Snapshots
from tinker.local.storage.trace import TraceExports
from tinker.local.storage.uploads import Uploads

T = TypeVar("T")
SWEEP_SECONDS = 60.0  # between two looks for checkpoints that have expired
# encoding or decoding more than this would hold up the loop for longer than a few milliseconds
OFFLOAD_NBYTES = 1 << 20
#: Requests of a run that nobody needs once the run is kept as it is after them.
SUPERSEDED = frozenset(
    one.__name__
    for one in (
        training.forward,
        training.forward_backward,
        training.optim_step,
        weights.save_weights,
        weights.load_weights,
    )
)
SHUTTING_DOWN = RequestFailure("the server is shutting down", "server")


@attrs.frozen(kw_only=True)
class SharedData:
    """The data that a server's lock guards; :meth:`State.lock` hands it out. Functions that take it
    need the lock held.

    ``former_runs`` are those of earlier processes.
    """

    store: Store
    usage: UsageMeter
    audit: AuditLog
    recorded: RecordedSequences
    uploads: Uploads
    telemetry: deque[models.TelemetryEvent]
    former_runs: list[RunHistory] = attrs.field(factory=lambda: list[RunHistory]())


class State(ServerEvents):
    """Everything a server remembers. Nothing starts before the first request; :meth:`aclose` ends
    it.

    ``open_engine`` is called once, in the engine's thread, when the engine is needed first; several
    make a server of several base models, of which the first one is the default. ``samplers`` are
    those of the first models that are elsewhere, None for an engine that is its own; each is opened
    in a thread of its own. ``clock`` counts seconds, ``now`` is the time of day.

    ``repeating`` is None, except while a restarted server repeats what its journal holds: then it
    has the ids of the requests that are carried out again though they have a result.
    """

    def __init__(
        self,
        open_engine: OpenEngine | Sequence[OpenEngine],
        settings: Settings | None = None,
        *,
        samplers: Sequence[OpenSampler | None] = (),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings: Settings = settings or Settings()
        self.clock = clock
        self.now = now
        root, lock = self.settings.data_dir, threading.RLock()
        self.journal: Journal = Journal(root if self.settings.durability == "step" else None)
        self.journal.add_tables(*RUN_TABLES)
        self.repeating: frozenset[str] | None = None
        self.signer: Signer = Signer(now, self.journal.secret())
        self.accounts: Accounts = Accounts(self.settings, self.signer)
        self.links: Links = Links(self.settings, self.signer, now)
        self.exports: TraceExports = TraceExports(
            self.settings.link_seconds, lock, clock, self.submit_task
        )
        self.futures: FutureStore = FutureStore(self.settings, lock, clock, self)
        self._owner = Owner(root)
        self.checkpoints: Checkpoints = Checkpoints(root, now, self._owner, self._handle_expiry)
        self.archives: ServerFolder = ServerFolder(root / ".archives", self._owner)
        self.runs: KeptRuns = KeptRuns(root, self.journal, SUPERSEDED)
        self.snapshots: Snapshots = Snapshots(
            root, self._owner, self.runs.snapshots if self.journal.is_kept else None
        )
        self._shared = SharedData(
            store=Store(self.settings, clock, now, self, self.journal.starts),
            usage=UsageMeter(self.settings.max_audit_entries, now, self.journal),
            audit=AuditLog(self.settings.max_audit_entries, now, self.journal),
            recorded=RecordedSequences(self.settings, now, self.journal),
            uploads=Uploads(root, self._owner, now),
            telemetry=deque(maxlen=self.settings.max_telemetry_events),
        )
        self._lock = lock
        openers = [open_engine] if callable(open_engine) else open_engine
        pairs = itertools.zip_longest(openers, samplers[: len(openers)])
        self.served: ServedModels = ServedModels([self._new_model(*pair) for pair in pairs])
        self._worker: Worker[Engine] = Worker(self.served.models[0].open, lock, clock)
        self._samplers: list[Worker[Sampler]] = []
        self._add_queues(lock)
        self._codecs: ThreadPoolExecutor | None = None
        # of base models, which clients were given another one for
        self.other_model_names: set[str] = set()
        self._closed = False
        self.close_error: OSError | None = None  # of an application that served it

    def _add_queues(self, lock: threading.RLock) -> None:
        for place, served in enumerate(self.served.models):
            self._worker.add(served.scores, f"sampling {place}", served.open)
            if not served.is_own_sampler:
                self._samplers.append(Worker(served.open_sampler, lock, self.clock))
                self._samplers[-1].add(served.samples)
        store = self._shared.store
        self._worker.add(
            PeriodicTask(
                self.settings.idle_session_seconds / 10, lambda: store.has_sessions, store.end_idle
            )
        )
        self._worker.add(
            PeriodicTask(SWEEP_SECONDS, lambda: self.checkpoints.may_expire, lambda: self._sweep)
        )

    @contextlib.contextmanager
    def lock(self) -> Generator[SharedData]:
        """Hold the lock in the block: ``with state.lock() as shared``. It is reentrant."""
        with self._lock:
            yield self._shared

    # Work

    def notify(self) -> None:
        """Wake the engine's thread, and those of samplers that are elsewhere."""
        for worker in self._workers:
            worker.notify()

    @property
    def _workers(self) -> Sequence[Worker[Engine] | Worker[Sampler]]:
        return self._worker, *self._samplers

    def require_open(self) -> None:
        """Raise APIProblem 503 once closing has begun."""
        if self._closed:
            raise APIProblem(503, SHUTTING_DOWN.error)

    async def engines(self) -> Sequence[Engine]:
        """Return the engine of each base model, opened first if need be; read their properties
        only.

        Raises APIProblem 500 when one does not open; clients do not ask again by themselves.
        """
        if not self.served.engines:
            failure = await self._do_in_engine(self.served.open_all)
            if failure is not None:
                raise (
                    APIProblem(503, SHUTTING_DOWN.error)
                    if self._closed
                    else unavailable(failure.error)
                )
        return self.served.engines

    async def run_in_engine(self, engine_model: str, work: Callable[[Engine], None]) -> None:
        """Run ``work`` with an engine, between two steps. Raises APIProblem 400 if it is refused,
        500 if it fails.
        """

        def step(open_engine: OpenEngine) -> None:
            work(open_engine())
            self.journal.flush()

        failure = await self._do_in_engine(step, engine_model)
        if failure is not None:
            status = 503 if self._closed else 400 if failure.category == "user" else 500
            raise APIProblem(status, failure.error)

    async def _do_in_engine(
        self, step: EngineStep, engine_model: str | None = None
    ) -> RequestFailure | None:
        """Run a step between two others, with this engine or the first one; return its failure."""
        done = ServerFuture("engine")

        def attempt(open_engine: OpenEngine) -> None:
            try:
                step(open_engine)
            except Exception as error:  # noqa: BLE001 - reported to the caller
                # Imports that fail while the process ends say nothing useful.
                done.resolve(SHUTTING_DOWN if self._closed else to_failure(error))
            else:
                done.resolve(models.HealthResponse(status="ok"))

        with self._lock:
            self.require_open()
            self._worker.submit_task(
                attempt, None if engine_model is None else self.served.find(engine_model).open
            )
        outcome = await done.wait()
        return outcome if isinstance(outcome, RequestFailure) else None

    def new_queue(self, engine_model: str) -> ModelQueue:
        """Add a queue for the requests of one more model of this engine."""
        served = self.served.find(engine_model)
        queue = ModelQueue(self.futures, self.settings.gap_seconds, served.queues)
        self._worker.add(queue, f"training {self.served.models.index(served)}", served.open)
        return queue

    def _new_model(self, open_engine: OpenEngine, open_sampler: OpenSampler | None) -> ServedModel:
        """Make a model; a sampler that is elsewhere has limits of its own."""
        own = self._new_samples(self.settings.sample_batch_tokens)
        return ServedModel(
            open_engine,
            own if open_sampler is None else self._new_samples(sys.maxsize),
            open_sampler,
            own,
        )

    def _new_samples(self, batch_tokens: int) -> SampleQueue:
        return SampleQueue(self.futures, batch_tokens, self.settings.sample_seconds)

    def submit_task(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the engine's thread, between two steps. Work still queued when the server
        closes is dropped.
        """
        self._worker.submit_task(lambda _: work())

    def _sweep(self, _: OpenEngine) -> None:
        self.checkpoints.remove_expired()
        self.journal.flush()

    def discard_model(self, model: ModelRecord) -> None:
        """Forget a model whose creation was refused."""
        self._worker.remove(model.queue)
        self._shared.store.discard_model(model)

    # Events

    def handle_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        if self._shared.store.is_live(future.key.partition(":")[0]):
            self.journal.add_result(future, outcome)
        else:
            self.journal.flush()

    def handle_dropped_result(self, request_id: str) -> None:
        self.journal.drop_superseded_result(request_id, SUPERSEDED)

    def handle_session_end(self, session: SessionRecord) -> None:
        self._shared.recorded.drop_session(session.session_id)
        self.journal.drop_session(session.session_id)

    def handle_model_end(self, model: ModelRecord) -> None:
        failure = RequestFailure(f"model {model.model_id!r} {model.closed_reason}", "user")
        model.queue.close(failure, lambda open_engine: self._forget_model(model, open_engine))
        self.notify()

    def find_last_save(self, run: str) -> str:
        return self.checkpoints.describe_last_save(run)

    def _handle_expiry(self, record: CheckpointRecord) -> None:
        with self.lock() as shared:
            shared.usage.record_deletion(record)

    def _forget_model(self, model: ModelRecord, open_engine: OpenEngine) -> None:
        self._worker.remove(model.queue)
        self.snapshots.forget(model.model_id)
        self.runs.forget(model.model_id)
        open_engine().drop_adapter(model.model_id)

    # Bytes

    async def offload(self, nbytes: int, function: Callable[[], T]) -> T:
        """Call ``function``, which handles about ``nbytes`` bytes: here when they are few, else in
        a thread.
        """
        return function() if nbytes < OFFLOAD_NBYTES else await self.offload_always(function)

    async def offload_always(self, function: Callable[[], T]) -> T:
        """Call ``function``, which blocks, in a thread."""
        with self._lock:
            self.require_open()
            if self._codecs is None:
                self._codecs = ThreadPoolExecutor(2, thread_name_prefix="tinker-codec")
            pool = self._codecs
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    def shares_folder(self) -> bool:
        """Return whether another server that lives uses the data folder; others see from now on
        that this one does.
        """
        return self._owner.has_company()

    # End

    def close(self) -> None:
        """Fail pending requests, wait for the running step, and end every thread. Blocks; may be
        called again.
        """
        self.begin_close()
        for worker in self._workers:
            worker.join()
        self.snapshots.clear()
        self.archives.clear()
        self.served.close()
        self._shared.uploads.clear()
        if self._codecs is not None:
            self._codecs.shutdown()
        self.journal.close()
        self._owner.release()

    async def wait_for_step(self, seconds: float) -> bool:
        """Wait after :meth:`begin_close` for the end of the steps that run; whether they have
        ended.
        """
        return all([await worker.closed.wait(seconds) is not None for worker in self._workers])

    async def aclose(self) -> None:
        """Call :meth:`close` without blocking the loop while the step runs."""
        self.begin_close()
        for worker in self._workers:
            await worker.closed.wait()
        self.close()

    def begin_close(self) -> None:
        """Refuse new work, fail pending requests but not the running one, and release the waiters.
        Does not block.
        """
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.stop(_refuse)
        self.futures.fail_all(SHUTTING_DOWN)


def _refuse() -> NoReturn:
    raise EngineError(SHUTTING_DOWN.error)
