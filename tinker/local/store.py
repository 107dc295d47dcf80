"""What a server knows: sessions, and their models and samplers. In memory; guarded by the lock of the state."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import attrs
from tinker_wire import models

from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError
from tinker.local.problem import Problem, exists, not_found
from tinker.local.schedule import NumberedLane
from tinker.local.settings import Settings

Weights: TypeAlias = Callable[[Engine], object | None]


@attrs.define(eq=False, kw_only=True)
class Session:
    """One client. ``ended`` is why it ended, None while it lives."""

    session_id: str
    request: models.CreateSessionRequest
    last_seen: float
    ended: models.FinishSessionRequest | None = None
    models: dict[int, Model] = attrs.field(factory=lambda: dict[int, Model]())
    samplers: dict[int, Sampler] = attrs.field(factory=lambda: dict[int, Sampler]())

    def require_alive(self) -> Session:
        """The session; Problem 400 when it has ended."""
        if self.ended is not None:
            raise Problem(400, f"session {self.session_id!r} has ended; create a new one")
        return self


@attrs.define(eq=False, kw_only=True)
class Model:
    """One training run. ``failure`` is why its creation failed; ``inflight`` is what its inflight samplers sample from.

    ``names`` are the checkpoint paths that accepted saves will take.
    """

    model_id: str
    session: Session
    base_model: str
    spec: AdapterSpec
    lane: NumberedLane
    user_metadata: models.Metadata | None = None
    failure: str | None = None
    inflight: object | None = None
    names: set[str] = attrs.field(factory=lambda: set[str]())

    def require_made(self) -> None:
        """EngineError when its creation failed."""
        if self.failure is not None:
            raise EngineError(f"model {self.model_id!r} was not created: {self.failure}")

    def inflight_weights(self, engine: Engine) -> object:
        """What inflight samplers sample from now; EngineError once the session has ended."""
        if self.inflight is None:
            raise EngineError(f"session {self.session.session_id!r} has ended")
        return self.inflight


@attrs.define(eq=False, kw_only=True)
class Sampler:
    """One sampling session. ``weights`` is None until they are saved."""

    sampler_id: str
    session: Session
    base_model: str
    model_path: str | None = None
    weights: Weights | None = None


class Store:
    """Every session, by id. ``drop`` is told of each model that goes."""

    def __init__(self, settings: Settings, clock: Callable[[], float], drop: Callable[[Model], None]) -> None:
        self._settings, self._clock, self._drop = settings, clock, drop
        self._live: OrderedDict[str, Session] = OrderedDict()
        self._ended: OrderedDict[str, Session] = OrderedDict()

    # Sessions

    def create_session(self, request: models.CreateSessionRequest) -> Session:
        """A new session. Problem 403 when too many live."""
        self._make_room(self._count_sessions, self._settings.max_sessions, "sessions")
        session = Session(session_id=str(uuid.uuid4()), request=request, last_seen=self._clock())
        self._live[session.session_id] = session
        return session

    def session(self, session_id: str) -> Session:
        """Problem 404 when unknown."""
        session = self._live.get(session_id) or self._ended.get(session_id)
        if session is None:
            raise not_found("session", session_id)
        return session

    def live_session(self, session_id: str) -> Session:
        """Problem 404 when unknown, 400 when ended. Counts as a sign of life."""
        session = self.session(session_id).require_alive()
        session.last_seen = self._clock()
        return session

    def end_session(self, session: Session, reason: models.FinishSessionRequest) -> None:
        """The first reason wins; the models go, the checkpoints stay."""
        if session.ended is not None:
            return
        session.ended = reason
        for model in session.models.values():
            self._drop(model)
        for sampler in session.samplers.values():
            sampler.weights = None
        self._ended[session.session_id] = self._live.pop(session.session_id)
        while len(self._ended) > self._settings.max_sessions:
            self._ended.popitem(last=False)

    def _make_room(self, count: Callable[[], int], limit: int, what: str) -> None:
        if count() >= limit:
            self._end_idle()
        if count() >= limit:
            raise Problem(403, f"this server takes at most {limit} {what} at once (max_{what}); finish a session first")

    def _count_sessions(self) -> int:
        return len(self._live)

    def _count_models(self) -> int:
        return sum(len(session.models) for session in self._live.values())

    def _count_samplers(self) -> int:
        return sum(len(session.samplers) for session in self._live.values())

    def _end_idle(self) -> None:
        reason = models.ClientSessionFinishReason(type="interrupted")
        since = self._clock() - self._settings.idle_session_seconds
        for session in [session for session in self._live.values() if session.last_seen <= since]:
            self.end_session(session, models.FinishSessionRequest(reason=reason, detail="silent for too long"))

    # Models

    def add_model(self, session: Session, number: int, make: Callable[[str], Model]) -> Model:
        """The model of that number of the session, made now unless it is there. Problem 403 when too many live."""
        if number not in session.models:
            self._make_room(self._count_models, self._settings.max_models, "models")
            session.models[number] = make(model_id(session.session_id, number))
        return session.models[number]

    def model(self, wanted: str) -> Model:
        """Problem 404 when unknown, 400 when its session has ended."""
        session_id, _, number = wanted.rpartition(TRAIN)
        session = self._owner(session_id)
        model = session.models.get(int(number)) if session and _is_number(number) else None
        if model is None:
            raise not_found("model", wanted)
        model.session.require_alive()
        return model

    # Samplers

    def add_sampler(self, session: Session, number: int, sampler: Sampler) -> None:
        """Problem 409 when the number is taken, 403 when too many live."""
        if number in session.samplers:
            raise exists(f"{sampler.sampler_id!r} exists and samples from something else")
        self._make_room(self._count_samplers, self._settings.max_samplers, "samplers")
        session.samplers[number] = sampler

    def sampler(self, wanted: str) -> Sampler:
        """Problem 404 when unknown, 400 when its session has ended."""
        session_id, _, number = wanted.rpartition(SAMPLE)
        session = self._owner(session_id)
        sampler = session.samplers.get(int(number)) if session and _is_number(number) else None
        if session is None or sampler is None:
            raise not_found("sampling session", wanted)
        session.require_alive()
        if sampler.weights is None:
            raise not_found("sampling session", wanted)
        return sampler

    def _owner(self, session_id: str) -> Session | None:
        return self._live.get(session_id) or self._ended.get(session_id)


TRAIN, SAMPLE = ":train:", ":sample:"


def model_id(session_id: str, number: int) -> str:
    """Part of the protocol: clients compute it too."""
    return f"{session_id}{TRAIN}{number}"


def sampler_id(session_id: str, number: int) -> str:
    """The sampling session of that number."""
    return f"{session_id}{SAMPLE}{number}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
