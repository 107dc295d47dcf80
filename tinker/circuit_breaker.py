"""Circuit breaker that stops the calls of a client after repeated failures.

    breaker = tinker.CircuitBreaker(failures=5, reset_seconds=30)
    service = tinker.ServiceClient(circuit_breaker=breaker)

A circuit is *closed* while calls pass. After a number of failures in a row it is *open*: calls
raise CircuitOpenError at once. After the reset time it is *half open*: a few calls pass as probes,
and the others raise CircuitOpenError. The first probe that succeeds closes the circuit; a probe
that fails opens it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tinker._basics.checks import check_count, check_function, check_number, check_type
from tinker._basics.events import CircuitChange, CircuitState
from tinker._http import retry
from tinker._http.circuits import CircuitRegistry
from tinker.errors import CircuitOpenError

__all__ = ["CircuitBreaker", "CircuitOpenError", "CircuitStatus"]


class CircuitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a circuit at one moment.

    Attributes:
        circuit: The name of the circuit.
        state: The state, ``closed``, ``open`` or ``half_open``.
        failures: The number of failures in a row.
        retry_after: The seconds until a call may pass; 0 if a call may pass now.
    """

    circuit: str
    state: CircuitState
    failures: int
    retry_after: float


class CircuitBreaker:
    """A circuit breaker: it stops calls that would probably fail.

    Passed to ``ServiceClient(circuit_breaker=...)``, it has one circuit for each server, credential
    and kind of call. The kinds are the tags of the contract (``training``, ``sampling``,
    ``service``, ...). Clients with the same breaker share its circuits. All methods are safe in any
    thread and event loop.

    Args:
        failures: The number of failures in a row that opens a circuit, 1 or more.
        reset_seconds: The time in seconds for which a circuit stays open.
        probes: The maximum number of concurrent calls while a circuit is half open, 1 or more. A
            call without an outcome after ``reset_seconds`` is no longer counted.
        counts: A function that returns whether an error is a failure of the server. By default
            these are failures: connection errors, timeouts, invalid responses, and statuses that
            indicate a server error. A response that rejects the request counts as a success,
            because the server is available.
        on_change: A function called with every :class:`tinker.observing.CircuitChange`, on the
            client's I/O thread. Its exceptions are logged. Observers of a client also receive the
            changes that its calls cause. Optional.
        clock: A function that returns the time in seconds, for tests.

    Raises:
        TypeError: A value is not a number, or a function is not callable.
        ValueError: A number is out of range.

    >>> import tinker
    >>> breaker = tinker.CircuitBreaker(failures=1, reset_seconds=30)
    >>> service = tinker.ServiceClient(
    ...     base_url="http://localhost:1", patience_seconds=5, circuit_breaker=breaker
    ... )
    >>> for _ in range(2):
    ...     try:
    ...         capabilities = service.get_server_capabilities()
    ...     except tinker.CircuitOpenError as error:
    ...         print(type(error).__name__, breaker.state(error.circuit))
    CircuitOpenError open
    CircuitOpenError open
    """

    def __init__(
        self,
        failures: int = 5,
        reset_seconds: float = 30.0,
        probes: int = 1,
        *,
        counts: Callable[[BaseException], bool] | None = None,
        on_change: Callable[[CircuitChange], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_count("failures", failures)
        check_count("probes", probes)
        check_number("reset_seconds", reset_seconds, positive=True)
        for name, function in (("counts", counts), ("on_change", on_change), ("clock", clock)):
            check_function(name, function)
        self._registry = CircuitRegistry(
            failures=failures,
            reset_seconds=float(reset_seconds),
            probes=probes,
            monotonic=clock,
            is_failure=counts or retry.is_server_failure,
            on_change=on_change,
        )

    def __repr__(self) -> str:
        rules = self._registry
        return (
            f"CircuitBreaker(failures={rules.failures}, reset_seconds={rules.reset_seconds:g}, "
            f"probes={rules.probes}, "
            f"circuits={len(rules.circuits)})"
        )

    def state(self, name: str) -> CircuitState:
        """Return the state of a circuit; ``closed`` if it was never used.

        Args:
            name: The name of the circuit, as in :meth:`circuits`.

        Returns:
            The state, ``closed``, ``open`` or ``half_open``.
        """
        for one in self._registry.circuits:
            if one.name == name:
                return one.state
        return "closed"

    def circuits(self) -> list[CircuitStatus]:
        """Return the status of every circuit used so far, in the order of first use."""
        return [
            CircuitStatus(
                circuit=one.name,
                state=one.state,
                failures=one.failures,
                retry_after=one.retry_after,
            )
            for one in self._registry.circuits
        ]

    def reset(self, name: str | None = None) -> None:
        """Close circuits and reset their counts.

        Args:
            name: The name of the circuits. None means all.
        """
        for one in self._registry.circuits:
            if name is None or one.name == name:
                one.reset(self._registry.tell)


def registry_of(breaker: CircuitBreaker) -> CircuitRegistry:
    """Return the circuits of a breaker. Raises TypeError for anything else."""
    check_type("circuit_breaker", breaker, CircuitBreaker)
    return breaker._registry  # pyright: ignore[reportPrivateUsage]
