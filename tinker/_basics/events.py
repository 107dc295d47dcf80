"""The events that observers receive, and what a client knows of its server. Users import them from
:mod:`tinker.observing`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec


class Timings(NamedTuple):
    """The times of a request; None for a stage that it has not reached.

    If an operation makes several requests, ``submitted`` and ``running`` belong to the first, and
    ``fetched`` to the last.

    Attributes:
        queued: When the method was called.
        submitted: When the server accepted the request.
        running: When the server first reported that it was working on the request. Servers may omit
            this.
        fetched: When the result arrived.
    """

    queued: float | None = None
    submitted: float | None = None
    running: float | None = None
    fetched: float | None = None


_NO_METADATA: Mapping[str, object] = MappingProxyType({})


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The client that an event belongs to; every kind of event has these attributes.

    Attributes:
        operation: The name of the method; for exchanges, the operation in the contract.
        session_id: The session; None before it exists, and for clients without a session.
        training_run_id: The training run; None before it exists, and for events without a run.
        sampling_session_id: The sampling session; None before it exists, and for events without
            one.
        request_id: The server's id of the request; None before the server accepted it.
        user_metadata: The ``user_metadata`` of the session, overridden by that of the training run.
    """

    operation: str
    session_id: str | None = None
    training_run_id: str | None = None
    sampling_session_id: str | None = None
    request_id: str | None = None
    user_metadata: Mapping[str, object] = _NO_METADATA

    def __repr__(self) -> str:
        shown = (
            f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
            if name != "user_metadata"
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class FutureStarted(ClientEvent, frozen=True, kw_only=True):
    """An operation started: a method was called, and its work begins."""


class AttemptStarted(ClientEvent, frozen=True, kw_only=True):
    """One exchange with the server starts.

    Attributes:
        started: When it started.
        sent_nbytes: The size of the request body in bytes.
    """

    started: float
    sent_nbytes: int


class RequestAttempt(ClientEvent, frozen=True, kw_only=True):
    """One exchange with the server ended.

    Waiting for a result takes several attempts of ``retrieve_future``. The status 408 means that
    the result is not ready yet.

    Attributes:
        started: When the attempt started.
        seconds: How long the attempt took.
        sent_nbytes: The size of the request body in bytes.
        status: The HTTP status; None if there was no response.
        received_nbytes: The size of the response body in bytes.
        error: The reason for a failure; None for success, and for an abandoned attempt.
    """

    started: float
    seconds: float
    sent_nbytes: int
    status: int | None
    received_nbytes: int
    error: Exception | None


class RequestRetry(ClientEvent, frozen=True, kw_only=True):
    """An attempt failed and will be retried.

    Attributes:
        failures: The number of failures in a row.
        delay_seconds: The time until the next attempt.
        error: The error of the failed attempt.
    """

    failures: int
    delay_seconds: float
    error: Exception


class QueueChange(ClientEvent, frozen=True, kw_only=True):
    """The server reported a new state of a waiting request.

    Attributes:
        state: The state of the queue: ``active``, ``paused_capacity``, ...
        reason: The server's reason, in words; None if it gave no reason.
    """

    state: str
    reason: str | None


class FutureSettled(ClientEvent, frozen=True, kw_only=True):
    """A future has its outcome: a result if ``error`` is None and ``cancelled`` is False.

    Attributes:
        seconds: The time from the call to the outcome.
        timings: The times of the stages in between.
        error: The error of the operation; None for success.
        cancelled: Whether the future was cancelled.
    """

    seconds: float
    timings: Timings
    error: BaseException | None
    cancelled: bool


class TokensUsed(ClientEvent, frozen=True, kw_only=True):
    """The tokens of one request, as servers bill them.

    Attributes:
        base_model: The base model; None if it is not known.
        trained: Tokens processed by ``forward`` or ``forward_backward``.
        prefilled: Prompt tokens that the server had to process.
        cached: Prompt tokens that the server found in its cache.
        sampled: Tokens that the server generated.
        is_confirmed: Whether the result arrived. False means that the server accepted the request,
            but the outcome is not known, for example because you cancelled it. It may be billed.
    """

    base_model: str | None = None
    trained: int = 0
    prefilled: int = 0
    cached: int = 0
    sampled: int = 0
    is_confirmed: bool = True


class CustomLossStarted(ClientEvent, frozen=True, kw_only=True):
    """The loss function of a ``forward_backward_custom`` is called.

    Attributes:
        datum_count: The number of datums that it receives.
    """

    datum_count: int


class CustomLossEvaluated(ClientEvent, frozen=True, kw_only=True):
    """The loss function of a ``forward_backward_custom`` has returned.

    Attributes:
        seconds: How long it took, including its gradient.
        loss: The loss; None if the function failed.
        metrics: The metrics of the function.
        error: The reason for a failure; None for success.
    """

    seconds: float
    loss: float | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=lambda: dict[str, float]())
    error: BaseException | None = None


class LossTerm(ClientEvent, frozen=True, kw_only=True):
    """A term of a loss made by :func:`tinker.regularizers.regularized` was computed, or failed.

    Attributes:
        name: The name of the term.
        step: The step of the loss, from 0, which a schedule uses to set the weight.
        weight: The weight of the term at that step; None if it could not be computed.
        value: The value of the term without its weight; None if it failed.
        contribution: The weight times the value; None if it failed.
        grad_norm: The L2 norm of the gradient of the value by all log-probabilities; None if the
            term failed or does not depend on them.
        seconds: How long the function of the term ran; None if it failed.
        error: The error of the term; None for success.
    """

    name: str
    step: int
    weight: float | None
    value: float | None
    contribution: float | None
    grad_norm: float | None
    seconds: float | None
    error: Exception | None


class SessionLost(ClientEvent, frozen=True, kw_only=True):
    """The session is lost: the server does not know it, or accepted no heartbeat for longer than
    the settings allow.

    Attributes:
        silent_seconds: The time since the server accepted the last heartbeat.
        error: The error of the last heartbeat.
    """

    silent_seconds: float
    error: Exception


CircuitState: TypeAlias = Literal["closed", "open", "half_open"]
"""The state of a circuit: requests pass, end at once, or one passes as a probe."""


class CircuitChange(ClientEvent, frozen=True, kw_only=True):
    """The state of a circuit breaker changed.

    Attributes:
        circuit: The name of the circuit; a client has one for each server, credential and kind of
            call.
        state: The new state, ``closed``, ``open`` or ``half_open``.
        failures: The number of failures in a row.
    """

    operation: str = "circuit_breaker"
    circuit: str
    state: CircuitState
    failures: int


class ModelLoading(ClientEvent, frozen=True, kw_only=True):
    """The server in this process (``local://``) is loading a model that requests wait for, or has
    finished loading it.

    Attributes:
        what: What is being loaded, such as ``torch and tinker/babble``.
        seconds: How long it took; None when loading starts.
    """

    operation: str = "loading"
    what: str
    seconds: float | None = None


RecoveryStage: TypeAlias = Literal[
    "detected", "started", "failed", "completed", "exhausted", "unknown"
]
"""The stage of the recovery of a lost run."""


class RecoveryChange(ClientEvent, frozen=True, kw_only=True):
    """A stage of the recovery of a training run, see :mod:`tinker.recovery`.

    Attributes:
        run_id: The run that was lost.
        stage: What happened: the loss was ``detected``; an attempt ``started``, ``failed`` or
            ``completed``; or no attempt is left and the recovery is ``exhausted``. ``unknown``
            means that a monitor could not get the run's state.
        attempt: The number of the attempt, from 1; 0 before the first.
        path: The checkpoint of the attempt; None if the run starts from scratch, or there is no
            attempt.
        error: The loss, or the failure of the attempt; None if it started or completed.
    """

    operation: str = "recovery"
    run_id: str
    stage: RecoveryStage
    attempt: int = 0
    path: str | None = None
    error: Exception | None = None


QueueCallback: TypeAlias = Callable[[str, str | None], object]
"""A function that receives a state of the queue and the server's reason for it."""


class QueueStateObserver(Protocol):
    """An object that :meth:`APIFuture.observe_queue` accepts instead of a function."""

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """Receive a state of the queue.

        Args:
            queue_state: The state, such as ``paused_capacity``.
            queue_state_reason: The server's reason, in words; None if it gave no reason.
        """
        ...


QueueObserver: TypeAlias = QueueCallback | QueueStateObserver
"""What :meth:`APIFuture.observe_queue` accepts: a function, or an object with a method."""
Event: TypeAlias = (
    FutureStarted
    | FutureSettled
    | AttemptStarted
    | RequestAttempt
    | RequestRetry
    | QueueChange
    | TokensUsed
    | CustomLossStarted
    | CustomLossEvaluated
    | LossTerm
    | SessionLost
    | CircuitChange
    | RecoveryChange
    | ModelLoading
)
"""Any event that an observer receives."""
Observer: TypeAlias = Callable[[Event], object]
"""A function that receives every event of a client."""


class ServerFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that a client discovered about a server.

    Attributes:
        operation: The operation that revealed it, by its name in the contract.
        finding: What the client does since then, or what the server lacks.
        evidence: The server's response.
    """

    operation: str
    finding: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.finding} ({self.evidence})"


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a client has discovered about its server so far. ``str()`` is safe for bug
    reports: it has no secrets.

    Attributes:
        base_url: The address of the server.
        sdk_version: The SDK version that the client sends to the server.
        facts: The facts in the order of discovery. A newer fact replaces an older one about the
            same subject.

    >>> fact = ServerFact(operation="telemetry", finding="absent", evidence="404")
    >>> print(ServerInfo(base_url="http://server", sdk_version="0.38.0", facts=(fact,)))
    http://server, client reported as SDK 0.38.0
    telemetry: absent (404)
    """

    base_url: str
    sdk_version: str
    facts: tuple[ServerFact, ...]

    def __str__(self) -> str:
        return "\n".join(
            (f"{self.base_url}, client reported as SDK {self.sdk_version}", *map(str, self.facts))
        )


for _kind in tuple(globals().values()):
    if isinstance(_kind, type) and _kind.__module__ == __name__:
        _kind.__module__ = "tinker.observing.events"  # as pickles and reprs of the classes name it
