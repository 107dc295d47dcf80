"""The state of one server, put together and closed together, and recovered from its journal."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeAlias, TypeVar

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import service, training, weights
from tinker_wire.operations import OPERATIONS

from tinker.local import scheduling
from tinker.local.call import KNOWN_FAILURE, APICall, APIProblem, log
from tinker.local.engines.protocol import Engine, EngineError, Sampler
from tinker.local.settings import Settings
from tinker.local.storage import (
    Accounts,
    CheckpointRecord,
    Checkpoints,
    Links,
    Owner,
    ServerFolder,
    Signer,
    Uploads,
    futures,
)
from tinker.local.storage.futures import (
    JournalRequest,
    JournalResult,
    RequestFailure,
    RequestOutcome,
    ServerFuture,
)
from tinker.local.storage.records import (
    RUN_TABLES,
    AuditLog,
    RecordedSequences,
    RunHistory,
    UsageMeter,
    find_former_runs,
)
from tinker.local.storage.sessions import (
    MAX_CLIENTS,
    KeptRuns,
    LoadWeights,
    ModelRecord,
    SessionRecord,
    Snapshots,
    Store,
)

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
CANCELLED = RequestFailure("the request was cancelled by its client", "user")
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


class State:
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
        open_engine: scheduling.OpenEngine | Sequence[scheduling.OpenEngine],
        settings: Settings | None = None,
        *,
        samplers: Sequence[scheduling.OpenSampler | None] = (),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings: Settings = settings or Settings()
        self.clock = clock
        self.now = now
        root, lock = self.settings.data_dir, threading.RLock()
        self.journal: futures.Journal = futures.Journal(
            root if self.settings.durability == "step" else None
        )
        self.journal.add_tables(*RUN_TABLES)
        self.repeating: frozenset[str] | None = None
        self.signer: Signer = Signer(now, self.journal.secret())
        self.accounts: Accounts = Accounts(self.settings, self.signer)
        self.links: Links = Links(self.settings, self.signer, now)
        self.exports: futures.TraceExports = futures.TraceExports(
            self.settings.link_seconds, lock, clock, self.submit_task
        )
        self.futures: futures.FutureStore = futures.FutureStore(self.settings, lock, clock, self)
        self.owner: Owner = Owner(root)
        self.checkpoints: Checkpoints = Checkpoints(root, now, self.owner, self._handle_expiry)
        self.archives: ServerFolder = ServerFolder(root / ".archives", self.owner)
        self.runs: KeptRuns = KeptRuns(root, self.journal, SUPERSEDED)
        self.snapshots: Snapshots = Snapshots(
            root, self.owner, self.runs.snapshots if self.journal.is_kept else None
        )
        self._shared = SharedData(
            store=Store(self.settings, clock, now, self, self.journal.starts),
            usage=UsageMeter(self.settings.max_audit_entries, now, self.journal),
            audit=AuditLog(self.settings.max_audit_entries, now, self.journal),
            recorded=RecordedSequences(self.settings, now, self.journal),
            uploads=Uploads(root, self.owner, now),
            telemetry=deque(maxlen=self.settings.max_telemetry_events),
        )
        self._lock = lock
        openers = [open_engine] if callable(open_engine) else open_engine
        pairs = itertools.zip_longest(openers, samplers[: len(openers)])
        self.served: scheduling.ServedModels = scheduling.ServedModels(
            [self._new_model(*pair) for pair in pairs]
        )
        self._worker: scheduling.Worker[Engine] = scheduling.Worker(
            self.served.models[0].open, lock, clock
        )
        self._workers: list[scheduling.Worker[Engine] | scheduling.Worker[Sampler]] = [self._worker]
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
                sampler = scheduling.Worker(served.open_sampler, lock, self.clock)
                sampler.add(served.samples)
                self._workers.append(sampler)
        store = self._shared.store
        self._worker.add(
            scheduling.PeriodicTask(
                self.settings.idle_session_seconds / 10, lambda: store.has_sessions, store.end_idle
            )
        )
        self._worker.add(
            scheduling.PeriodicTask(
                SWEEP_SECONDS, lambda: self.checkpoints.may_expire, lambda: self._sweep
            )
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
                # else somebody has to fix the server first
                self.require_open()
                raise APIProblem(500, failure.error, {"x-should-retry": "false"})
        return self.served.engines

    async def run_in_engine(self, engine_model: str, work: Callable[[Engine], None]) -> None:
        """Run ``work`` with an engine, between two steps. Raises APIProblem 400 if it is refused,
        500 if it fails.
        """

        def step(open_engine: scheduling.OpenEngine) -> None:
            work(open_engine())
            self.journal.flush()

        failure = await self._do_in_engine(step, engine_model)
        if failure is not None:
            status = 503 if self._closed else 400 if failure.category == "user" else 500
            raise APIProblem(status, failure.error)

    async def _do_in_engine(
        self, step: scheduling.EngineStep, engine_model: str | None = None
    ) -> RequestFailure | None:
        """Run a step between two others, with this engine or the first one; return its failure."""
        done = ServerFuture("engine")

        def attempt(open_engine: scheduling.OpenEngine) -> None:
            try:
                step(open_engine)
            except Exception as error:  # noqa: BLE001 - reported to the caller
                # Imports that fail while the process ends say nothing useful.
                done.resolve(SHUTTING_DOWN if self._closed else scheduling.to_failure(error))
            else:
                done.resolve(models.HealthResponse(status="ok"))

        with self._lock:
            self.require_open()
            self._worker.submit_task(
                attempt, None if engine_model is None else self.served.find(engine_model).open
            )
        outcome = await done.wait()
        return outcome if isinstance(outcome, RequestFailure) else None

    def new_queue(self, engine_model: str) -> scheduling.ModelQueue:
        """Add a queue for the requests of one more model of this engine."""
        served = self.served.find(engine_model)
        queue = scheduling.ModelQueue(self.futures, self.settings.gap_seconds, served.queues)
        self._worker.add(queue, f"training {self.served.models.index(served)}", served.open)
        return queue

    def _new_model(
        self, open_engine: scheduling.OpenEngine, open_sampler: scheduling.OpenSampler | None
    ) -> scheduling.ServedModel:
        """Make a model; a sampler that is elsewhere has limits of its own."""
        own = self._new_samples(self.settings.sample_batch_tokens)
        return scheduling.ServedModel(
            open_engine,
            own if open_sampler is None else self._new_samples(sys.maxsize),
            open_sampler,
            own,
        )

    def _new_samples(self, batch_tokens: int) -> scheduling.SampleQueue:
        return scheduling.SampleQueue(self.futures, batch_tokens, self.settings.sample_seconds)

    def submit_task(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the engine's thread, between two steps. Work still queued when the server
        closes is dropped.
        """
        self._worker.submit_task(lambda _: work())

    def _sweep(self, _: scheduling.OpenEngine) -> None:
        self.checkpoints.remove_expired()
        self.journal.flush()

    def discard_model(self, model: ModelRecord) -> None:
        """Forget a model whose creation was refused."""
        self._worker.remove(model.queue)
        self._shared.store.discard_model(model)

    def cancel_sample(self, future: ServerFuture) -> None:
        """Cancel a waiting sample, or discard the result of a running one. Other requests are
        unaffected.
        """
        with self._lock:
            if future.is_sample:
                self.served.drop_sample(future)
                self.futures.resolve(future, CANCELLED)

    # Events

    def handle_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Handle a result before anybody can see it."""
        if self._shared.store.is_live(future.key.partition(":")[0]):
            self.journal.add_result(future, outcome)
        else:
            self.journal.flush()

    def handle_gap(self, future: ServerFuture) -> None:
        """Handle that a request of a run is next: the numbers missing before it are given up."""
        self.journal.settle_numbers(*futures.split_request_key(future.key))

    def handle_dropped_result(self, request_id: str) -> None:
        """Handle the end of a result that is kept no longer."""
        self.journal.drop_superseded_result(request_id, SUPERSEDED)

    def handle_session_end(self, session: SessionRecord) -> None:
        """Handle the end of a session."""
        self._shared.recorded.drop_session(session.session_id)
        self.journal.drop_session(session.session_id)

    def handle_model_end(self, model: ModelRecord) -> None:
        """Handle the end of a model: requests submitted before still run."""
        failure = RequestFailure(f"model {model.model_id!r} {model.closed_reason}", "user")
        model.queue.close(failure, lambda open_engine: self._forget_model(model, open_engine))
        self.notify()

    def _handle_expiry(self, record: CheckpointRecord) -> None:
        with self.lock() as shared:
            shared.usage.record_deletion(record)

    def _forget_model(self, model: ModelRecord, open_engine: scheduling.OpenEngine) -> None:
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
        self.owner.release()

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


Handlers: TypeAlias = Mapping[str, Callable[[State, APICall], Awaitable[object]]]
_CREATIONS = {training.create_model.__name__, weights.load_weights.__name__}
_ALWAYS = {training.create_custom_loss.__name__, training.unload_model.__name__}


async def recover(state: State, handlers: Handlers) -> None:
    """Restore the state from the journal. Nothing else may use the state meanwhile."""
    if not state.journal.is_kept:
        return
    restart = _Restart(state, handlers)
    state.repeating = restart.again
    try:
        await restart.run()
    finally:
        state.repeating = None


class _Restart:
    """One recovery: the requests of the journal in their order, and ``again``, those repeated
    though they have a result.
    """

    def __init__(self, state: State, handlers: Handlers) -> None:
        self._state, self._handlers = state, handlers
        journal = state.journal
        self._requests = journal.read(futures.REQUESTS)
        self._runs = {run.model_id: run for run in journal.read(futures.RUNS)}
        results = journal.read(futures.RESULTS)
        self._lost = self._find_lost(results)
        self._requests = [one for one in self._requests if one.subject not in self._lost]
        accepted = {one.request_id for one in self._requests}
        readable = {
            one.request_id: one
            for one in results
            if futures.split_request_key(one.request_id)[0] not in self._lost and _is_readable(one)
        }
        self._results: dict[str, JournalResult] = {
            name: one for name, one in readable.items() if name in accepted or self._is_final(name)
        }
        for name in readable.keys() - self._results.keys():
            journal.drop_result(name)
        self.again: frozenset[str] = frozenset(
            one.request_id
            for one in self._requests
            if one.request_id in self._results and self._must_repeat(one)
        )

    def _find_lost(self, results: list[JournalResult]) -> set[str]:
        """Return the runs of which something cannot be read; without it they would continue with
        other weights.
        """
        damaged = {one.request_id for one in results if not _is_readable(one)}
        unreadable = {
            *(
                futures.split_request_key(name)[0]
                for name in damaged | self._state.journal.unreadable
            ),
            *(one.subject for one in self._requests if not self._can_repeat(one)),
        }
        lost = {name for name in unreadable if ":train:" in name}
        for name in sorted(lost):
            log.error(
                "the run %s is lost: what the journal says of it cannot be "
                "read; its checkpoints stay",
                name,
            )
        return lost

    def _can_repeat(self, request: JournalRequest) -> bool:
        try:
            _to_call(request)
        except (KeyError, ValueError):
            return False
        return request.operation in self._handlers

    async def run(self) -> None:
        """Restore results, then repeat or pass over each request."""
        for name in self.again:
            del self._results[name]
        for result in self._results.values():
            self._state.futures.restore(result.request_id, result.fingerprint, result.outcome)
        for request in self._requests:
            try:
                await self._repeat(request)
            except (APIProblem, KeyError, ValueError) as problem:
                log.warning(
                    "%s of %s could not be repeated: %s",
                    request.operation,
                    request.subject,
                    problem,
                )
        self._settle_numbers()
        self._announce_samples()
        self._forget_others()
        if self._requests:
            log.info("restored %d runs from before the restart", len(self._runs))

    def _settle_numbers(self) -> None:
        """Give up again the numbers that the earlier process gave up."""
        with self._state.lock() as shared:
            for run in self._runs.values():
                if (model := shared.store.find_model(run.model_id)) is not None:
                    model.queue.settle(run.settled or 0, self._state.clock())
        self._state.notify()

    def _forget_others(self) -> None:
        """Remove the folders of runs that are gone, and find their curves.

        A run whose base model is not served now is not gone: the next server may have it.
        """
        with self._state.lock() as shared:
            live = {model.model_id for model in shared.store.models()}
            shared.former_runs[:] = find_former_runs(self._state.journal, live)
        self._state.runs.forget_others(live | self._runs.keys() | self._lost)

    def _is_final(self, request_id: str) -> bool:
        """Return whether a result without its request counts; of a run only up to its last step:
        later ones were refused.
        """
        subject, number = futures.split_request_key(request_id)
        return ":train:" not in subject or (
            number is not None and not self._is_behind(subject, number)
        )

    def _is_behind(self, model_id: str, number: int) -> bool:
        """Return whether a request comes after the last saved step of a run."""
        return model_id not in self._runs or number > self._runs[model_id].number

    def _must_repeat(self, request: JournalRequest) -> bool:
        """Return whether a request with a result is repeated, because its gradient or the server's
        state is lost.
        """
        is_gradient = request.operation == training.forward_backward.__name__
        if not is_gradient or request.request_id is None or request.number is None:
            return request.operation in _ALWAYS
        return (
            self._is_behind(request.subject, request.number)
            and not self._results[request.request_id].is_failure
        )

    async def _repeat(self, request: JournalRequest) -> None:
        if request.operation == service.create_session.__name__:
            body = msgspec.json.decode(request.content, type=models.CreateSessionRequest)
            with self._state.lock() as shared:
                shared.store.restore_session(request.subject, body, request.created_at)
            return
        result = self._results.get(request.request_id or "")
        is_creation = request.operation in _CREATIONS and request.number == 0
        if result is None or is_creation or request.number is None:
            await self._handlers[request.operation](self._state, _to_call(request))
        with self._state.lock() as shared:
            model = shared.store.find_model(request.subject)
        if result is None or model is None or request.number is None:
            return
        if is_creation:
            await self._restore_run(model, result)
        else:
            self._pass_over(request, request.number, result, model)

    async def _restore_run(self, model: ModelRecord, created: JournalResult) -> None:
        """Load the saved weights of a run, or set the creation error with which its
        requests fail.
        """
        outcome, run = created.outcome, self._runs.get(model.model_id)
        model.creation_error = (
            outcome.error if isinstance(outcome, RequestFailure) else await self._load(model, run)
        )
        with self._state.lock():
            model.queue.start_at(1 if run is None else run.number + 1)

    async def _load(self, model: ModelRecord, run: futures.JournalRun | None) -> str | None:
        """Load the weights of a run; return why that is impossible."""
        if run is None:
            return "its weights are lost"
        try:
            await self._state.run_in_engine(
                model.engine_model, lambda engine: self._state.runs.load(engine, model, run)
            )
        except APIProblem as problem:
            log.warning(
                "the weights of %s could not be restored: %s", model.model_id, problem.detail
            )
            return f"its weights are lost: {problem.detail}"
        return None

    def _pass_over(
        self, request: JournalRequest, number: int, result: JournalResult, model: ModelRecord
    ) -> None:
        """Leave out a request that is done; the sampling session that it made is opened again."""
        outcome = result.outcome
        with self._state.lock():
            failure = outcome if isinstance(outcome, RequestFailure) else None
            model.queue.skip(number, self._state.clock(), request.operation, failure)
        if (
            isinstance(outcome, models.SaveWeightsForSamplerResponseInternal)
            and outcome.sampling_session_id is not None
        ):
            body = msgspec.json.decode(request.content, type=models.SaveWeightsForSamplerRequest)
            kept = self._state.snapshots.restore(model.model_id, str(number))
            if body.sampling_session_seq_id is not None:
                self._restore_sampler(
                    model, body.sampling_session_seq_id, kept, is_inflight=body.kind == "inflight"
                )

    def _restore_sampler(
        self, model: ModelRecord, number: int, kept: LoadWeights, *, is_inflight: bool
    ) -> None:
        if is_inflight:
            model.inflight = kept
        with self._state.lock() as shared:
            sampler = shared.store.new_sampler(
                model.session, number, model.base_model, model.engine_model
            )
            sampler.requested_name = model.requested_name
            sampler.weights = model.inflight_weights if is_inflight else kept
            shared.store.add_sampler(number, sampler)

    def _announce_samples(self) -> None:
        """Announce the samples that their clients have not fetched yet; cursors of earlier
        processes are behind all of them.
        """
        with self._state.lock() as shared:
            for result in self._results.values():
                sampler_id, number = futures.split_request_key(result.request_id)
                if ":sample:" in sampler_id and number is not None:
                    log_of_client = shared.store.sampler(sampler_id).completion_log(
                        number // MAX_CLIENTS
                    )
                    log_of_client.add(result.request_id, failed=result.is_failure)


def _is_readable(result: JournalResult) -> bool:
    try:
        result.outcome  # noqa: B018
    except Exception:  # noqa: BLE001 - whatever another version, or a damaged file, has put there
        return False
    return True


def _to_call(request: JournalRequest) -> APICall:
    known = {} if request.known_failure is None else {KNOWN_FAILURE: str(request.known_failure)}
    return APICall(
        operation=OPERATIONS[request.operation],
        path=msgspec.json.decode(request.path, type=dict[str, str]),
        headers={"content-type": request.content_type, **known},
        content=request.content,
    )
