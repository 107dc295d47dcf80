"""Every session, model and sampler by its id, in memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from tinker_wire import models

from tinker.local.errors import APIProblem, conflict, make_not_found
from tinker.local.settings import Settings
from tinker.local.storage.sessions import LoadWeights, ModelRecord, SamplerRecord, ServerEvents, SessionEnd, SessionRecord

DEFAULT_PROJECT = "default"
PROCESS_COMPLETIONS = 10**9  # numbers of completions for the samplers of one process


class Store:
    """Every session, by id. ``clock`` counts seconds, ``now`` is the time of day.

    ``starts`` is the number of servers that have used the same data before: each numbers completions beyond those before it.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        now: Callable[[], float],
        events: ServerEvents,
        starts: int = 0,
    ) -> None:
        self._settings, self._clock, self._now, self._events = settings, clock, now, events
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
        return sorted(everyone, key=lambda session: (session.created_at, session.session_id), reverse=True)

    def create_session(self, request: models.CreateSessionRequest) -> SessionRecord:
        """Open a session. Raises APIProblem 429, so that clients wait for room, when too many are open."""
        try:
            self._make_room(self._count_sessions, self._settings.max_sessions, "sessions")
        except APIProblem as problem:
            raise APIProblem(429, problem.detail, {"retry-after": "5"}) from problem
        return self.restore_session(self._ids.session(), request, self._now())

    def restore_session(self, session_id: str, request: models.CreateSessionRequest, created_at: float) -> SessionRecord:
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
        """Return an open session. Raises APIProblem 404 when unknown, 400 when ended. Counts as a sign of life."""
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
        self._events.handle_session_end(session)
        self._ended[session.session_id] = self._live.pop(session.session_id)
        while len(self._ended) > self._settings.max_sessions:
            self._forget(self._ended.popitem(last=False)[1])

    def _forget(self, session: SessionRecord) -> None:
        for model in session.models.values():
            self._models.pop(model.model_id, None)
        for sampler in session.samplers.values():
            self._samplers.pop(sampler.sampler_id, None)

    def _make_room(self, count: Callable[[], int], limit: int, what: str) -> None:
        if count() >= limit:
            self._end_silent(min(self._settings.silent_session_seconds, self._settings.idle_session_seconds))
        if count() >= limit:
            detail = f"this server takes at most {limit} {what} at once (max_{what}); finish a session first"
            raise APIProblem(403, detail, code="limit_reached")

    def _count_sessions(self) -> int:
        return len(self._live)

    def _count_models(self) -> int:
        return sum(model.closed_reason is None for model in self._models.values())

    def _count_samplers(self) -> int:
        return sum(len(session.samplers) for session in self._live.values())

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
        """Return every remembered model, also closed ones unless they left nothing, as the run of an export."""
        return [one for one in self._models.values() if not one.is_forgettable()]

    def add_model(self, session: SessionRecord, number: int, make: Callable[[str], ModelRecord]) -> ModelRecord:
        """Return the model of that number of the session, made if necessary. Raises APIProblem 403 when too many are open."""
        if not self._ids.by_number:
            number = len(session.models)
        if number not in session.models:
            self._make_room(self._count_models, self._settings.max_models, "models")
            model = session.models[number] = make(self._ids.model(session.session_id, number))
            self._models[model.model_id] = model
        return session.models[number]

    def discard_model(self, model: ModelRecord) -> None:
        """Undo the creation of a model."""
        del self._models[model.model_id]
        model.session.models = {number: one for number, one in model.session.models.items() if one is not model}

    def close_model(self, model: ModelRecord, why: str) -> None:
        """Let submitted requests run, refuse later ones, and drop the weights."""
        if model.closed_reason is None:
            model.closed_reason, model.inflight = why, None
            self._events.handle_model_end(model)

    def find_model(self, wanted: str) -> ModelRecord | None:
        """Return the model, also a closed one; None when unknown."""
        return self._models.get(wanted)

    def model(self, wanted: str) -> ModelRecord:
        """Return an open model. Raises APIProblem 404 when unknown, 400 when closed. Counts as a sign of life."""
        model = self._models.get(wanted)
        if model is None:
            raise make_not_found("model_not_found", wanted, self._events.find_last_save(wanted))
        if model.closed_reason is not None:
            raise APIProblem(400, f"model {wanted!r} {model.closed_reason}", code="model_closed")
        self.touch(model.session)
        return model

    # Samplers

    def new_sampler(
        self,
        session: SessionRecord,
        number: int,
        base_model: str,
        engine_model: str,
        model_path: str | None,
        weights: LoadWeights | None,
    ) -> SamplerRecord:
        """Make a sampling session for :meth:`add_sampler`."""
        return SamplerRecord(
            sampler_id=self._ids.sampler(session.session_id, number),
            session=session,
            base_model=base_model,
            engine_model=engine_model,
            model_path=model_path,
            weights=weights,
            first_completion=self._first_completion,
        )

    def add_sampler(self, number: int, sampler: SamplerRecord) -> None:
        """Add a sampling session. Raises APIProblem 409 when the number is taken, 403 when too many are open."""
        samplers = sampler.session.samplers
        if not self._ids.by_number:
            number = max(samplers, default=-1) + 1
        if number in samplers:
            raise conflict(f"{sampler.sampler_id!r} exists and samples from something else")
        self._make_room(self._count_samplers, self._settings.max_samplers, "samplers")
        samplers[number] = self._samplers[sampler.sampler_id] = sampler

    def drop_sampler(self, sampler: SamplerRecord) -> None:
        """Remove a sampling session whose weights were never saved."""
        samplers = sampler.session.samplers
        for number in [number for number, one in samplers.items() if one is sampler]:
            del samplers[number]
        self._samplers.pop(sampler.sampler_id, None)

    def sampler(self, wanted: str) -> SamplerRecord:
        """Return a sampler. Raises APIProblem 404 when unknown, 400 when its session has ended. Counts as a sign of life."""
        sampler = self._samplers.get(wanted)
        if sampler is None:
            raise make_not_found("sampling_session_not_found", wanted)
        sampler.session.require_alive()
        if sampler.weights is None:
            raise make_not_found("sampling_session_not_found", wanted)
        self.touch(sampler.session)
        return sampler
