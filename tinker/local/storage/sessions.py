"""The records of sessions, models and samplers, and the events between the parts of a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs
from tinker_wire import models

from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError, ExpectedLoss, Sampler
from tinker.local.errors import APIProblem
from tinker.local.losses.graph import LossGraph
from tinker.local.storage.futures import CompletionLog, RequestOutcome, RequestResult, ServerFuture
from tinker.local.storage.records import RunHistory, UsageKey
from tinker.local.storage.trace import Span

if TYPE_CHECKING:
    from tinker.local.scheduling.models import ModelQueue

LoadWeights: TypeAlias = Callable[[Sampler], object | None]
MAX_CLIENTS = 10**9  # numbers of clients of one sampling session; numbers of requests are made from the client's
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
            raise APIProblem(400, f"session {self.session_id!r} has ended; create a new one", code="session_ended")
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
    """A loss with its gradient that is cheaper together with others of the same ``shape``: the number of data, the longest."""

    shape: tuple[int, int]
    expect: Callable[[Engine], ExpectedLoss]


@attrs.frozen(eq=False)
class ModelTask:
    """One request of a model: its work with the engine, and the future of its result.

    ``number`` is the client's own; ``known_failure`` is that of the last failure that it knew of, None where it did not say.
    ``small`` is not None where it may share a pass with requests of other models.
    """

    future: ServerFuture
    run: Callable[[Engine], RequestResult]
    operation: str
    number: int
    known_failure: int | None = None
    small: SmallLoss | None = None


UNLOADED = "was unloaded"  # a reason why a model is closed


@attrs.define(eq=False, kw_only=True)
class ModelRecord:
    """One training run. ``creation_error`` says why its creation failed, ``closed_reason`` why it refuses
    requests.

    ``base_model`` and ``requested_name`` are what the server and its client call the base model, ``engine_model`` is what the
    engine goes by. ``optimizer`` is a family. ``inflight`` is what its inflight
    samplers sample from; ``reserved_paths`` are the checkpoint paths that accepted saves will take. ``created_at`` and
    ``last_request_at`` are times of day.
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
        """Raise EngineError when its creation failed, PrecedingFailure when the request that runs now is behind a failure."""
        if self.creation_error is not None:
            raise EngineError(f"model {self.model_id!r} was not created: {self.creation_error}")
        self.queue.require_success()

    def is_forgettable(self) -> bool:
        """Return whether it is closed and was never created, or was unloaded without a step, a report or metadata."""
        is_unused = not (self.history.step_count or self.history.reports or self.user_metadata)
        return bool(self.closed_reason and self.creation_error) or (self.closed_reason == UNLOADED and is_unused)

    def inflight_weights(self, sampler: Sampler) -> object | None:
        """Return the current weights of inflight samplers. Raises EngineError if the model no longer exists."""
        if self.inflight is None:
            raise EngineError(f"model {self.model_id!r} is gone, and the weights of its samplers with it")
        return self.inflight(sampler)


@attrs.define(eq=False, kw_only=True)
class SamplerRecord:
    """One sampling session. ``weights`` is None until they are saved; ``client_count`` is the last number given to a copy.

    Completions are numbered from ``first_completion`` on, which is beyond all numbers of earlier processes.

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
            raise APIProblem(403, f"sampling session {self.sampler_id!r} has no more numbers for clients", code="limit_reached")
        self.client_count += 1
        return self.client_count

    def drop_client(self) -> None:
        """Undo the last :meth:`add_client`."""
        self.client_count -= 1

    def completion_log(self, client: int) -> CompletionLog:
        """Return the log of one of its clients. Raises APIProblem 403 when there are too many of them."""
        if client not in self.completions and len(self.completions) >= MAX_LOGS:
            raise APIProblem(
                403, f"sampling session {self.sampler_id!r} has {MAX_LOGS} clients; open another one", code="limit_reached"
            )
        return self.completions.setdefault(client, CompletionLog(self.first_completion))


class ServerEvents(Protocol):
    """The events of a server's parts, handled by its state."""

    def handle_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Handle a result before anybody can see it."""

    def handle_dropped_result(self, request_id: str) -> None:
        """Handle the end of a result that is kept no longer."""

    def handle_session_end(self, session: SessionRecord) -> None:
        """Handle the end of a session."""

    def handle_model_end(self, model: ModelRecord) -> None:
        """Handle the end of a model: requests submitted before still run."""

    def find_last_save(self, run: str) -> str:
        """Return what to add to the refusal of a run that is unknown: where it was saved last; empty without a save."""
        ...
