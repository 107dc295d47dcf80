"""What an observer is told: one class for each kind of event, and what observers may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import attrs


class Timings(NamedTuple):
    """Hold the times of a request; None for a stage that it did not reach, or not yet.

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


@attrs.frozen(kw_only=True)
class RequestAttempt:
    """Report that one exchange with the server ended.

    Waiting for a result takes several attempts of ``retrieve_future``; those with the status 408 only say that it is not there
    yet.

    Attributes:
        operation: The name in the contract, such as ``optim_step`` or ``retrieve_future``.
        started: When the attempt began.
        seconds: How long the attempt took.
        sent_nbytes: The size of the body that was sent.
        status: The HTTP status; None when no answer came.
        received_nbytes: The size of the body of the answer.
        error: The reason for a failure; None for success, and for an attempt that was given up.
    """

    operation: str
    started: float
    seconds: float
    sent_nbytes: int
    status: int | None
    received_nbytes: int
    error: Exception | None


@attrs.frozen(kw_only=True)
class RequestRetry:
    """Report that an attempt failed and another one will follow.

    Attributes:
        operation: The name in the contract.
        failures: The number of failures in a row.
        delay_seconds: The time until the next attempt.
        error: The error of the failed attempt.
    """

    operation: str
    failures: int
    delay_seconds: float
    error: Exception


@attrs.frozen(kw_only=True)
class QueueChange:
    """Report that the server said something new about a waiting request.

    Attributes:
        operation: The name of the method.
        request_id: The server's id of the request.
        state: The state of the queue: ``active``, ``paused_capacity``, ...
        reason: The server's reason for people; None where it gave none.
    """

    operation: str
    request_id: str
    state: str
    reason: str | None


@attrs.frozen(kw_only=True)
class FutureSettled:
    """Report that a future has its outcome: a result when ``error`` is None and ``cancelled`` is False.

    Attributes:
        operation: The name of the method.
        request_id: The server's id of the request; None when it was never accepted.
        seconds: The time from the call to the outcome.
        timings: The times of the stages in between.
        error: The error of the operation; None for success.
        cancelled: Whether the future was cancelled.
    """

    operation: str
    request_id: str | None
    seconds: float
    timings: Timings
    error: BaseException | None
    cancelled: bool


QueueCallback: TypeAlias = Callable[[str, str | None], object]


class QueueStateObserver(Protocol):
    """Define the object that :meth:`APIFuture.observe_queue` accepts instead of a function."""

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """Receive a state of the queue.

        Args:
            queue_state: The state, such as ``paused_capacity``.
            queue_state_reason: The server's reason for people; None where it gave none.
        """
        ...


QueueObserver: TypeAlias = QueueCallback | QueueStateObserver
Event: TypeAlias = RequestAttempt | RequestRetry | QueueChange | FutureSettled
Observer: TypeAlias = Callable[[Event], object]
