"""What an observer is told: one class for each kind of event, and what observers may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec


class Timings(NamedTuple):
    """The times of a request; None for a stage that it has not reached.

    Where an operation makes several requests, ``submitted`` and ``running`` are of the first of them, ``fetched`` of the last.

    Attributes:
        queued: When the method was called.
        submitted: When the server had accepted the request.
        running: When the server first said that it is working on the request, which it need not say.
        fetched: When the result was here.
    """

    queued: float | None = None
    submitted: float | None = None
    running: float | None = None
    fetched: float | None = None


_NO_METADATA: Mapping[str, object] = MappingProxyType({})


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The client that an event belongs to; every kind of event has these attributes.

    Attributes:
        operation: The name of the method, or, for exchanges, that in the contract.
        session_id: The session; None before there is one, and for clients without.
        training_run_id: The training run; None before it exists, and for what belongs to none.
        sampling_session_id: The sampling session; None before it exists, and for what belongs to none.
        request_id: The server's id of the request; None before the server accepted it.
        user_metadata: What you told of the session, and over it of the training run, as ``user_metadata``.
    """

    operation: str
    session_id: str | None = None
    training_run_id: str | None = None
    sampling_session_id: str | None = None
    request_id: str | None = None
    user_metadata: Mapping[str, object] = _NO_METADATA

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "user_metadata")
        return f"{type(self).__name__}({', '.join(shown)})"


class FutureStarted(ClientEvent, frozen=True, kw_only=True):
    """An operation began: a method was called, and its work starts now."""


class AttemptStarted(ClientEvent, frozen=True, kw_only=True):
    """One exchange with the server begins.

    Attributes:
        started: When it began.
        sent_nbytes: The size of the body that is sent.
    """

    started: float
    sent_nbytes: int


class RequestAttempt(ClientEvent, frozen=True, kw_only=True):
    """One exchange with the server ended.

    Waiting for a result takes several attempts of ``retrieve_future``; those with the status 408 only say that it is not there
    yet.

    Attributes:
        started: When the attempt began.
        seconds: How long the attempt took.
        sent_nbytes: The size of the body that was sent.
        status: The HTTP status; None when no response came.
        received_nbytes: The size of the body of the response.
        error: The reason for a failure; None for success, and for an attempt that was given up.
    """

    started: float
    seconds: float
    sent_nbytes: int
    status: int | None
    received_nbytes: int
    error: Exception | None


class RequestRetry(ClientEvent, frozen=True, kw_only=True):
    """An attempt failed, and another one will follow.

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
        reason: The server's reason for people; None where it gave none.
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
        base_model: The base model; None where it is not known.
        trained: Tokens that went through ``forward`` or ``forward_backward``.
        prefilled: Tokens of prompts that the server had to read.
        cached: Tokens of prompts that the server says it had in its cache.
        sampled: Tokens that the server generated.
        is_confirmed: Whether the result came. False means that the server accepted the request and its outcome is not known,
            as when you cancelled it: it may be billed.
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
        datum_count: The number of datums that it gets.
    """

    datum_count: int


class CustomLossEvaluated(ClientEvent, frozen=True, kw_only=True):
    """The loss function of a ``forward_backward_custom`` has returned.

    Attributes:
        seconds: How long it took, with its gradient.
        loss: The loss; None when the function failed.
        metrics: The metrics of the function.
        error: The reason of a failure; None for success.
    """

    seconds: float
    loss: float | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=lambda: dict[str, float]())
    error: BaseException | None = None


class LossTerm(ClientEvent, frozen=True, kw_only=True):
    """A term of a loss made by :func:`tinker.regularizers.regularized` was computed, or failed.

    Attributes:
        name: The name of the term.
        step: The step of the loss, from 0, by which a schedule sets the weight.
        weight: The weight of the term at that step; None where it could not be had.
        value: The value of the term without its weight; None when it failed.
        contribution: The weight times the value; None when it failed.
        grad_norm: The L2 norm of the gradient of the value by all log-probabilities; None when the term failed or does not
            depend on them.
        seconds: How long the function of the term ran; None when it failed.
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
    """The session is lost: the server does not know it, or accepted no heartbeat for longer than the settings allow.

    Attributes:
        silent_seconds: The time since the server accepted the last heartbeat.
        error: What the last heartbeat failed with.
    """

    silent_seconds: float
    error: Exception


CircuitState: TypeAlias = Literal["closed", "open", "half_open"]


class CircuitChange(ClientEvent, frozen=True, kw_only=True):
    """A circuit breaker changed its state.

    Attributes:
        circuit: The name of the circuit; a client has one for each server, credential and kind of call.
        state: The new state, ``closed``, ``open`` or ``half_open``.
        failures: The number of failures in a row.
    """

    operation: str = "circuit_breaker"
    circuit: str
    state: CircuitState
    failures: int


class ModelLoading(ClientEvent, frozen=True, kw_only=True):
    """The server of this process (``local://``) is loading a model that requests wait for, or has finished loading it.

    Attributes:
        what: What is loaded, such as ``torch and tinker/babble``.
        seconds: How long it took; None where it begins.
    """

    operation: str = "loading"
    what: str
    seconds: float | None = None


RecoveryStage: TypeAlias = Literal["detected", "started", "failed", "completed", "exhausted", "unknown"]


class RecoveryChange(ClientEvent, frozen=True, kw_only=True):
    """A stage of the recovery of a training run, see :mod:`tinker.recovery`.

    Attributes:
        run_id: The run that was lost.
        stage: What happened: the loss was ``detected``, an attempt ``started``, ``failed`` or ``completed``, or no attempt is
            left and the recovery is ``exhausted``. ``unknown`` means that a monitor could not ask for the run's state.
        attempt: The number of the attempt, from 1; 0 before the first.
        path: The checkpoint of the attempt; None for a run that begins anew, and where there is no attempt.
        error: The loss, or the failure of the attempt; None where it started or completed.
    """

    operation: str = "recovery"
    run_id: str
    stage: RecoveryStage
    attempt: int = 0
    path: str | None = None
    error: Exception | None = None


QueueCallback: TypeAlias = Callable[[str, str | None], object]


class QueueStateObserver(Protocol):
    """An object that :meth:`APIFuture.observe_queue` accepts instead of a function."""

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """Receive a state of the queue.

        Args:
            queue_state: The state, such as ``paused_capacity``.
            queue_state_reason: The server's reason for people; None where it gave none.
        """
        ...


QueueObserver: TypeAlias = QueueCallback | QueueStateObserver
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
Observer: TypeAlias = Callable[[Event], object]
