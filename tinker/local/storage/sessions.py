"""Sessions, models and samplers by id, and snapshots of their weights on disk."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
from tinker_wire import models

from tinker.local.call import APIProblem, conflict, make_not_found
from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError, ExpectedLoss, Sampler
from tinker.local.losses import LossGraph
from tinker.local.settings import Settings
from tinker.local.storage import Owner, ServerFolder, folder_name, new_folder
from tinker.local.storage.futures import (
    FOLDER,
    CompletionLog,
    Journal,
    JournalRun,
    RequestResult,
    ServerFuture,
    Span,
)
from tinker.local.storage.records import RunHistory, UsageKey

if TYPE_CHECKING:
    from tinker.local.scheduling import ModelQueue
    from tinker.local.state import State

LoadWeights: TypeAlias = Callable[[Sampler], object | None]
# numbers of clients of one sampling session; numbers of requests are made from the client's
MAX_CLIENTS = 10**9
MAX_LOGS = 10_000  # clients of one sampling session that ask for something


@attrs.frozen(kw_only=True)
class SessionEnd:
    """How a session ended. ``reason`` is its client's, None when the server ended it."""

    reason: models.ClientSessionFinishReason | None
    detail: str | None


@attrs.define(eq=False, kw_only=True)
class SessionRecord:
    """One client. ``end`` is None while it lives. ``losses`` are its custom losses by id.

    ``last_seen`` and ``started`` are the clock's, ``created_at`` is a time of day.
    """

    session_id: str
    request: models.CreateSessionRequest
    project_id: str
    created_at: float
    started: float
    last_seen: float
    spans: deque[Span]
    end: SessionEnd | None = None
    models: dict[int, ModelRecord] = attrs.field(factory=lambda: dict[int, ModelRecord]())
    samplers: dict[int, SamplerRecord] = attrs.field(factory=lambda: dict[int, SamplerRecord]())
    losses: dict[str, LossGraph] = attrs.field(factory=lambda: dict[str, LossGraph]())

    def require_alive(self) -> SessionRecord:
        """Return the session. Raises APIProblem 400 when it has ended."""
        if self.end is not None:
            raise APIProblem(
                400,
                f"session {self.session_id!r} has ended; create a new one",
                code="session_ended",
            )
        return self

    def usage_key(self, base_model: str | None) -> UsageKey:
        """Return the key under which usage of this session is counted."""
        return self.project_id, self.session_id, base_model

    def new_span(self, operation: str, track: str) -> Span:
        """Add a line to the trace."""
        span = Span(operation=operation, track=track)
        self.spans.append(span)
        return span


@attrs.frozen(eq=False)
class SmallLoss:
    """A loss with its gradient that is cheaper together with others of the same ``shape``: the
    number of data, the longest.
    """

    shape: tuple[int, int]
    expect: Callable[[Engine], ExpectedLoss]


@attrs.frozen(eq=False)
class ModelTask:
    """One request of a model: its work with the engine, and the future of its result.

    ``number`` is the client's own; ``known_failure`` is that of the last failure that it knew of,
    None where it did not say. ``small`` is not None where it may share a pass with requests of
    other models.
    """

    future: ServerFuture
    execute: Callable[[Engine], RequestResult]
    operation: str
    number: int
    known_failure: int | None = None
    small: SmallLoss | None = None


UNLOADED = "was unloaded"  # a reason why a model is closed


@attrs.define(eq=False, kw_only=True)
class ModelRecord:
    """One training run. ``creation_error`` says why its creation failed, ``closed_reason`` why it
    refuses requests.

    ``base_model`` and ``requested_name`` are what the server and its client call the base model,
    ``engine_model`` is what the engine goes by. ``optimizer`` is a family. ``inflight`` is what its
    inflight samplers sample from; ``reserved_paths`` are the checkpoint paths that accepted saves
    will take. ``created_at`` and ``last_request_at`` are times of day.
    """

    model_id: str
    session: SessionRecord
    base_model: str
    engine_model: str
    requested_name: str | None = None
    spec: AdapterSpec
    queue: ModelQueue
    created_at: float
    last_request_at: float
    optimizer: str
    user_metadata: models.Metadata | None = None
    creation_error: str | None = None
    closed_reason: str | None = None
    inflight: LoadWeights | None = None
    history: RunHistory
    reserved_paths: set[str] = attrs.field(factory=lambda: set[str]())

    def require_ready(self) -> None:
        """Raise EngineError when its creation failed, PrecedingFailure when the request that runs
        now is behind a failure.
        """
        if self.creation_error is not None:
            raise EngineError(f"model {self.model_id!r} was not created: {self.creation_error}")
        self.queue.require_success()

    def is_forgettable(self) -> bool:
        """Return whether it is closed and was never created, or was unloaded without a step, a
        report or metadata.
        """
        is_unused = not (self.history.step_count or self.history.reports or self.user_metadata)
        return bool(self.closed_reason and self.creation_error) or (
            self.closed_reason == UNLOADED and is_unused
        )

    def create(self, make: Callable[[Engine], RequestResult], engine: Engine) -> RequestResult:
        """Make the model, or note why that failed for the errors of its later requests."""
        try:
            return make(engine)
        except Exception as error:
            self.creation_error = str(error)
            raise

    def inflight_weights(self, sampler: Sampler) -> object | None:
        """Return the current weights of inflight samplers. Raises EngineError if the model no
        longer exists.
        """
        if self.inflight is None:
            raise EngineError(
                f"model {self.model_id!r} is gone, and the weights of its samplers with it"
            )
        return self.inflight(sampler)


@attrs.define(eq=False, kw_only=True)
class SamplerRecord:
    """One sampling session. ``weights`` is None until they are saved; ``client_count`` is the last
    number given to a copy.

    Completions are numbered from ``first_completion`` on, which is beyond all numbers of earlier
    processes.

    The names of the base model are as in :class:`ModelRecord`.
    """

    sampler_id: str
    session: SessionRecord
    base_model: str
    engine_model: str
    requested_name: str | None = None
    model_path: str | None = None
    weights: LoadWeights | None = None
    client_count: int = 0
    first_completion: int = 0
    completions: dict[int, CompletionLog] = attrs.field(factory=lambda: dict[int, CompletionLog]())

    def add_client(self) -> int:
        """Return a new client's number, which is never reused."""
        if self.client_count >= MAX_CLIENTS:
            raise APIProblem(
                403,
                f"sampling session {self.sampler_id!r} has no more numbers for clients",
                code="limit_reached",
            )
        self.client_count += 1
        return self.client_count

    def drop_client(self) -> None:
        """Undo the last :meth:`add_client`."""
        self.client_count -= 1

    def completion_log(self, client: int) -> CompletionLog:
        """Return the log of one of its clients. Raises APIProblem 403 when there are too many of
        them.
        """
        if client not in self.completions and len(self.completions) >= MAX_LOGS:
            raise APIProblem(
                403,
                f"sampling session {self.sampler_id!r} has {MAX_LOGS} clients; open another one",
                code="limit_reached",
            )
        return self.completions.setdefault(client, CompletionLog(self.first_completion))


DEFAULT_PROJECT = "default"
PROCESS_COMPLETIONS = 10**9  # numbers of completions for the samplers of one process


class Store:
    """Every session, by id. ``clock`` counts seconds, ``now`` is the time of day. ``state`` hears
    of what ends.

    ``starts`` is the number of servers that have used the same data before: each numbers
    completions beyond those before it.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        now: Callable[[], float],
        state: State,
        starts: int = 0,
    ) -> None:
        self._settings, self._clock, self._now, self._state = settings, clock, now, state
        self._first_completion = starts * PROCESS_COMPLETIONS
        self._ids = settings.profile.ids
        self._live: OrderedDict[str, SessionRecord] = OrderedDict()
        self._ended: OrderedDict[str, SessionRecord] = OrderedDict()
        self._models: dict[str, ModelRecord] = {}
        self._samplers: dict[str, SamplerRecord] = {}

    # Sessions

    def sessions(self) -> list[SessionRecord]:
        """Return every remembered session, newest first."""
        everyone = [*self._live.values(), *self._ended.values()]
        return sorted(
            everyone, key=lambda session: (session.created_at, session.session_id), reverse=True
        )

    def create_session(self, request: models.CreateSessionRequest) -> SessionRecord:
        """Open a session. Raises APIProblem 429, so that clients wait for room, when too many are
        open.
        """
        try:
            self._make_room(lambda: len(self._live), self._settings.max_sessions, "sessions")
        except APIProblem as problem:
            raise APIProblem(429, problem.detail, {"retry-after": "5"}) from problem
        return self.restore_session(self._ids.session(), request, self._now())

    def restore_session(
        self, session_id: str, request: models.CreateSessionRequest, created_at: float
    ) -> SessionRecord:
        """Open a session under an id, as one of an earlier process of this server."""
        session = SessionRecord(
            session_id=session_id,
            request=request,
            project_id=request.project_id or DEFAULT_PROJECT,
            created_at=created_at,
            started=self._clock(),
            last_seen=self._clock(),
            spans=deque(maxlen=self._settings.max_trace_spans),
        )
        self._live[session.session_id] = session
        return session

    def discard(self, session: SessionRecord) -> None:
        """Undo the creation of a session."""
        del self._live[session.session_id]

    def touch(self, session: SessionRecord) -> None:
        """Note that its client lives."""
        session.last_seen = self._clock()

    def session(self, session_id: str) -> SessionRecord:
        """Return a session. Raises APIProblem 404 when unknown."""
        session = self._live.get(session_id) or self._ended.get(session_id)
        if session is None:
            raise make_not_found("session_not_found", session_id)
        return session

    def live_session(self, session_id: str) -> SessionRecord:
        """Return an open session. Raises APIProblem 404 when unknown, 400 when ended. Counts as a
        sign of life.
        """
        session = self.session(session_id).require_alive()
        self.touch(session)
        return session

    def end_session(self, session: SessionRecord, end: SessionEnd) -> None:
        """End a session; a second end changes nothing. Its models go, its checkpoints stay."""
        if session.end is not None:
            return
        session.end = end
        for model in session.models.values():
            self.close_model(model, f"is gone: session {session.session_id!r} has ended")
        for sampler in session.samplers.values():
            sampler.weights = None
        self._state.handle_session_end(session)
        self._ended[session.session_id] = self._live.pop(session.session_id)
        while len(self._ended) > self._settings.max_sessions:
            _, forgotten = self._ended.popitem(last=False)
            for model in forgotten.models.values():
                self._models.pop(model.model_id, None)
            for sampler in forgotten.samplers.values():
                self._samplers.pop(sampler.sampler_id, None)

    def _make_room(self, count: Callable[[], int], limit: int, what: str) -> None:
        if count() >= limit:
            self._end_silent(
                min(self._settings.silent_session_seconds, self._settings.idle_session_seconds)
            )
        if count() >= limit:
            detail = (
                f"this server takes at most {limit} {what} at once (max_{what}); "
                "finish a session first"
            )
            raise APIProblem(403, detail, code="limit_reached")

    def is_live(self, session_id: str) -> bool:
        """Return whether there is such a session that has not ended."""
        return session_id in self._live

    @property
    def has_sessions(self) -> bool:
        """Return whether any session lives."""
        return bool(self._live)

    def end_idle(self) -> None:
        """End the sessions whose clients have been silent for longer than any that lives."""
        self._end_silent(self._settings.idle_session_seconds)

    def _end_silent(self, seconds: float) -> None:
        since = self._clock() - seconds
        for session in [session for session in self._live.values() if session.last_seen <= since]:
            self.end_session(session, SessionEnd(reason=None, detail="silent for too long"))

    # Models

    def models(self) -> list[ModelRecord]:
        """Return every remembered model, also closed ones unless they left nothing, as the run of
        an export.
        """
        return [one for one in self._models.values() if not one.is_forgettable()]

    def add_model(
        self, session: SessionRecord, number: int, make: Callable[[str], ModelRecord]
    ) -> ModelRecord:
        """Return the model of that number of the session, made if necessary. Raises APIProblem 403
        when too many are open.
        """
        if not self._ids.by_number:
            number = len(session.models)
        if number not in session.models:
            self._make_room(
                lambda: sum(one.closed_reason is None for one in self._models.values()),
                self._settings.max_models,
                "models",
            )
            model = session.models[number] = make(self._ids.model(session.session_id, number))
            self._models[model.model_id] = model
        return session.models[number]

    def discard_model(self, model: ModelRecord) -> None:
        """Undo the creation of a model."""
        del self._models[model.model_id]
        model.session.models = {
            number: one for number, one in model.session.models.items() if one is not model
        }

    def close_model(self, model: ModelRecord, why: str) -> None:
        """Let submitted requests run, refuse later ones, and drop the weights."""
        if model.closed_reason is None:
            model.closed_reason, model.inflight = why, None
            self._state.handle_model_end(model)

    def find_model(self, wanted: str) -> ModelRecord | None:
        """Return the model, also a closed one; None when unknown."""
        return self._models.get(wanted)

    def model(self, wanted: str) -> ModelRecord:
        """Return an open model. Raises APIProblem 404 when unknown, 400 when closed. Counts as a
        sign of life.
        """
        model = self._models.get(wanted)
        if model is None:
            raise make_not_found(
                "model_not_found", wanted, self._state.checkpoints.describe_last_save(wanted)
            )
        if model.closed_reason is not None:
            raise APIProblem(400, f"model {wanted!r} {model.closed_reason}", code="model_closed")
        self.touch(model.session)
        return model

    # Samplers

    def new_sampler(
        self, session: SessionRecord, number: int, base_model: str, engine_model: str
    ) -> SamplerRecord:
        """Make a sampling session for :meth:`add_sampler`."""
        return SamplerRecord(
            sampler_id=self._ids.sampler(session.session_id, number),
            session=session,
            base_model=base_model,
            engine_model=engine_model,
            first_completion=self._first_completion,
        )

    def add_sampler(self, number: int, sampler: SamplerRecord) -> None:
        """Add a sampling session. Raises APIProblem 409 when the number is taken, 403 when too many
        are open.
        """
        samplers = sampler.session.samplers
        if not self._ids.by_number:
            number = max(samplers, default=-1) + 1
        if number in samplers:
            raise conflict(f"{sampler.sampler_id!r} exists and samples from something else")
        self._make_room(
            lambda: sum(len(session.samplers) for session in self._live.values()),
            self._settings.max_samplers,
            "samplers",
        )
        samplers[number] = self._samplers[sampler.sampler_id] = sampler

    def drop_sampler(self, sampler: SamplerRecord) -> None:
        """Remove a sampling session whose weights were never saved."""
        samplers = sampler.session.samplers
        for number in [number for number, one in samplers.items() if one is sampler]:
            del samplers[number]
        self._samplers.pop(sampler.sampler_id, None)

    def sampler(self, wanted: str) -> SamplerRecord:
        """Return a sampler. Raises APIProblem 404 when unknown, 400 when its session has ended.
        Counts as a sign of life.
        """
        sampler = self._samplers.get(wanted)
        if sampler is None:
            raise make_not_found("sampling_session_not_found", wanted)
        sampler.session.require_alive()
        if sampler.weights is None:
            raise make_not_found("sampling_session_not_found", wanted)
        self.touch(sampler.session)
        return sampler


IN_MEMORY = 8
SPOOL = ".unnamed"


_Key: TypeAlias = tuple[Path, float, int]  # the folder, when it was made, and the sampler


class Snapshots:
    """The snapshots of one server, most recently used first in memory."""

    def __init__(self, root: Path, owner: Owner, keep: Path | None = None) -> None:
        self._place = ServerFolder(root / SPOOL, owner, keep)
        self._lock = threading.Lock()  # held for no longer than it takes to look something up
        self._recent: OrderedDict[_Key, object] = OrderedDict()
        self._numbers = itertools.count()

    def get(self, sampler: Sampler, folder: Path, created_at: float = 0.0) -> object:
        """Return the weights in a folder; ``created_at`` tells them from later ones in the same
        folder.
        """
        key = (folder, created_at, id(sampler))
        with self._lock:
            found = self._recent.get(key)
        if found is None:
            if not folder.is_dir():
                raise EngineError("the weights of this sampling session are gone with its model")
            found = sampler.load_snapshot(folder)
        self._remember(key, found)
        return found

    def save(
        self, engine: Engine, adapter_id: str, name: str = "", *, in_memory: bool = True
    ) -> LoadWeights:
        """Keep the adapter's present weights; :meth:`restore` finds them by the name.

        Those ``in_memory`` are for the engine's own sampler; any other one reads them from the
        disk.
        """
        folder = self._folder(adapter_id) / (name or str(next(self._numbers)))
        with new_folder(folder):
            engine.save(adapter_id, folder, optimizer=False)
        if in_memory:
            self._remember((folder, 0.0, id(engine)), engine.snapshot(adapter_id))
        return lambda sampler: self.get(sampler, folder)

    def restore(self, adapter_id: str, name: str) -> LoadWeights:
        """Return the weights that an earlier process of this server kept under a name."""
        folder = self._folder(adapter_id) / name
        return lambda sampler: self.get(sampler, folder)

    def forget(self, adapter_id: str) -> None:
        """Drop everything saved from this adapter."""
        if not self._place.is_made:
            return
        folder = self._folder(adapter_id)
        with self._lock:
            for key in [key for key in self._recent if key[0].parent == folder]:
                del self._recent[key]
        shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Drop everything."""
        self._recent.clear()
        self._place.clear()

    def _remember(self, key: _Key, weights: object) -> None:
        with self._lock:
            self._recent[key] = weights
            self._recent.move_to_end(key)
            while len(self._recent) > IN_MEMORY:
                self._recent.popitem(last=False)

    def _folder(self, adapter_id: str) -> Path:
        return self._place.path() / folder_name(adapter_id)


class KeptRuns:
    """One folder for each run, with one for the step that the journal names; others
    are leftovers.
    """

    def __init__(self, root: Path, journal: Journal, droppable: frozenset[str]) -> None:
        self._root = root / FOLDER / "runs"
        self._journal = journal
        self._droppable = droppable

    @property
    def snapshots(self) -> Path:
        """Return where the weights of sampling sessions are kept."""
        return self._root.with_name("snapshots")

    def save(
        self,
        engine: Engine,
        model: ModelRecord,
        number: int,
        future: ServerFuture,
        result: RequestResult,
    ) -> None:
        """Keep the weights after a request, whose result is written down at the same moment.

        Where that fails, the run stays kept as it was, and the result is written when it is kept
        next.
        """
        self._journal.hold_result(model.model_id, future, result)
        folder = self._folder(model.model_id, number)
        run = JournalRun(model_id=model.model_id, number=number, optimizer=model.optimizer)
        with new_folder(folder):
            engine.save(model.model_id, folder, optimizer=True)
            self._journal.add_run(run, self._droppable)
        self._clean(folder)

    def load(self, engine: Engine, model: ModelRecord, run: JournalRun) -> None:
        """Load the weights of a run into the engine."""
        folder = self._folder(run.model_id, run.number)
        model.spec = engine.load(run.model_id, folder, optimizer=True)
        model.optimizer = run.optimizer
        self._clean(folder)

    def forget(self, model_id: str) -> None:
        """Remove the weights of a run that has ended."""
        self._journal.release_results(model_id)
        shutil.rmtree(self._root / folder_name(model_id), ignore_errors=True)

    def forget_others(self, model_ids: Iterable[str]) -> None:
        """Remove what belongs to no run: a server that was killed while it forgot one left it
        behind.
        """
        known = {folder_name(model_id) for model_id in model_ids}
        for place in (self._root, self.snapshots):
            for folder in place.iterdir() if place.is_dir() else ():
                if folder.name not in known:
                    shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, model_id: str, number: int) -> Path:
        return self._root / folder_name(model_id) / str(number)

    def _clean(self, kept: Path) -> None:
        for folder in kept.parent.iterdir():
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
