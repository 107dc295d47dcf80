"""Circuit breaker that stops calls after repeated failures, for a client or around any call.

    breaker = tinker.CircuitBreaker(failures=5, reset_seconds=30)
    service = tinker.ServiceClient(circuit_breaker=breaker)

A circuit is *closed* while calls pass. After a number of failures in a row it is *open*: calls raise CircuitOpenError at once.
After the reset time it is *half open*: a few calls pass as probes, and the others raise CircuitOpenError. The first probe that
succeeds closes the circuit; a probe that fails opens it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec

from tinker._checks import check_count, check_function, check_number, check_type
from tinker._http import Circuit, CircuitRegistry, CircuitRules, Permit, is_server_failure
from tinker.errors import CircuitOpenError, TinkerError
from tinker.observing import CircuitChange, CircuitState

__all__ = ["CircuitBlock", "CircuitBreaker", "CircuitOpenError", "CircuitStatus"]

logger: logging.Logger = logging.getLogger("tinker")
P = ParamSpec("P")
T = TypeVar("T")


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

    Passed to ``ServiceClient(circuit_breaker=...)``, it has one circuit for each server, credential and kind of call. The kinds
    are the tags of the contract (``training``, ``sampling``, ``service``, ...). Clients with the same breaker share its
    circuits. You can also guard any other call, under a name that you choose. All methods are safe in any thread and event
    loop.

    Args:
        failures: The number of failures in a row that opens a circuit, 1 or more.
        reset_seconds: The time in seconds for which a circuit stays open.
        probes: The maximum number of concurrent calls while a circuit is half open, 1 or more. A call without an outcome after
            ``reset_seconds`` is no longer counted.
        counts: A function that returns whether an exception is a failure of the called service. By default these are failures:
            connection errors, timeouts, invalid responses, statuses that indicate a server error, and any exception of other
            code except ValueError and TypeError. A response that rejects the request counts as a success, because the server
            is available.
        on_change: A function called with every :class:`tinker.observing.CircuitChange`, on the thread of the call that caused
            it. Its exceptions are logged. Observers of a client also receive the changes that its calls cause. Optional.
        clock: A function that returns the time in seconds, for tests.

    Raises:
        TypeError: A value is not a number, or a function is not callable.
        ValueError: A number is out of range.

    >>> now = [0.0]
    >>> breaker = CircuitBreaker(failures=2, reset_seconds=30, clock=lambda: now[0])
    >>> def fetch():
    ...     raise ConnectionError("nobody answers")
    >>> for _ in range(3):
    ...     try:
    ...         breaker.call(fetch)
    ...     except (ConnectionError, CircuitOpenError) as error:
    ...         print(error)
    nobody answers
    nobody answers
    the circuit of 'fetch' is open (after 2 failures in a row); try again in 30 s
    >>> now[0] = 31.0
    >>> breaker.state("fetch")
    'half_open'
    >>> with breaker.guard("fetch"):
    ...     answer = "somebody answers again"
    >>> breaker.state("fetch")
    'closed'
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
        rules = CircuitRules(
            failures=failures, reset_seconds=float(reset_seconds), probes=probes, monotonic=clock, is_failure=counts or _counts
        )
        self._registry = CircuitRegistry(rules, None if on_change is None else _Told(on_change))

    def __repr__(self) -> str:
        rules = self._registry.rules
        return (
            f"CircuitBreaker(failures={rules.failures}, reset_seconds={rules.reset_seconds:g}, probes={rules.probes}, "
            f"circuits={len(self._registry.circuits)})"
        )

    def guard(self, name: str) -> CircuitBlock:
        """Return a context manager, for ``with`` or ``async with``, whose outcome counts for a circuit.

        Args:
            name: The name of the circuit.

        Returns:
            The context manager. Entering it raises CircuitOpenError if the circuit is open.

        Raises:
            TypeError: The name is not a string.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a string, got {type(name).__name__}")
        return CircuitBlock(self._registry, self._registry.circuit(name))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, guarded by the circuit of its name.

        Args:
            function: The function.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            The return value of the function.

        Raises:
            CircuitOpenError: The circuit is open, so the function was not called.
            Exception: Any exception that the function raises.
        """
        with self.guard(_name_of(function)):
            return function(*args, **kwargs)

    async def call_async(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await the coroutine or future that a function returns, guarded by the circuit of its name.

        Args:
            function: The function.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            The result.

        Raises:
            CircuitOpenError: The circuit is open, so the function was not called.
            Exception: Any exception that the function raises.
        """
        async with self.guard(_name_of(function)):
            return await function(*args, **kwargs)

    def state(self, name: str) -> CircuitState:
        """Return the state of a circuit; ``closed`` if it was never used.

        Args:
            name: The name of the circuit, as of :meth:`guard`.

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
            CircuitStatus(circuit=one.name, state=one.state, failures=one.failures, retry_after=one.retry_after)
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


class CircuitBlock:
    """Context manager whose outcome counts for a circuit. Created by :meth:`CircuitBreaker.guard`; not reentrant."""

    def __init__(self, registry: CircuitRegistry, circuit: Circuit) -> None:
        self._registry = registry
        self._circuit = circuit
        self._permit: Permit | None = None

    def __enter__(self) -> None:
        if self._permit is not None:
            raise RuntimeError(f"the guard of the circuit {self._circuit.name!r} is in use; create one for each call")
        self._permit = self._circuit.admit(self._registry.tell)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        permit, self._permit = self._permit, None
        assert permit is not None
        says: bool | None = None
        try:
            says = self._registry.rules.judge(error)
        finally:
            self._circuit.settle(permit, says, self._registry.tell)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def registry_of(breaker: CircuitBreaker | None) -> CircuitRegistry | None:
    """Return the circuits of a breaker; None for None. Raises TypeError for anything else."""
    check_type("circuit_breaker", breaker, CircuitBreaker)
    return None if breaker is None else breaker._registry  # pyright: ignore[reportPrivateUsage]


class _Told(msgspec.Struct, frozen=True):
    """Calls the user's function. Its failures do not affect the call."""

    function: Callable[[CircuitChange], object]

    def __call__(self, change: CircuitChange) -> None:
        try:
            self.function(change)
        except Exception:
            logger.exception("on_change of a circuit breaker failed; the circuit %r is %s", change.circuit, change.state)


def _counts(error: BaseException) -> bool:
    if isinstance(error, TinkerError):
        return is_server_failure(error)
    return not isinstance(error, ValueError | TypeError)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
