"""Circuits: stop calls for a while after repeated failures, then let a few probes through, and
close when one succeeds.

A :class:`Circuit` counts failures and may be used from any thread. Each request of a client holds a
:class:`CircuitGuard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import TypeAlias

import attrs
import msgspec
from tinker_wire.operations import OPERATIONS

from tinker._basics.events import CircuitChange, CircuitState
from tinker._http.auth import CredentialSource
from tinker._http.limits import Admission
from tinker._http.messages import PreparedRequest
from tinker._http.retry import is_server_failure
from tinker._http.transport import Transport
from tinker.errors import APIError, APIStatusError, CircuitOpenError

logger: logging.Logger = logging.getLogger("tinker")
Callback: TypeAlias = Callable[[CircuitChange], object]
_CircuitKey: TypeAlias = tuple[str, CredentialSource | None]
# Calls that are refused while others probe are asked to try again after this time.
PROBE_SECONDS = 1.0
# Beyond this number of circuits, as with ever changing keys, idle ones are dropped.
MAX_CIRCUITS = 1000


class Permit(msgspec.Struct, frozen=True, eq=False):
    """The right to one call, given at a time in one state of a circuit."""

    given: float
    era: int


class Circuit:
    """One circuit. The outcome of a call that began in one state has no effect in a later one."""

    def __init__(self, name: str, rules: CircuitRegistry) -> None:
        self.name = name
        self.rules = rules
        self._lock = threading.Lock()
        self._state: CircuitState = "closed"
        self.failures: int = 0  # in a row
        self._era = 0
        self._changed_at = 0.0
        self._probing: set[Permit] = set()
        self._sleepers: set[Callable[[], object]] = set()

    def admit(self, tell: Callback) -> Permit:
        """Let one call pass, which must be settled; CircuitOpenError otherwise."""
        now = self.rules.monotonic()
        with self._lock:
            change = self._change("half_open") if self._is_due(now) else None
            admitted = self._state == "closed" or (
                self._state == "half_open" and self._has_room(now)
            )
            permit = Permit(now, self._era)
            if admitted and self._state == "half_open":
                self._probing.add(permit)
        if change is not None:
            tell(change)
        if not admitted:
            raise self.error()
        return permit

    def settle(self, permit: Permit, success: bool | None, tell: Callback) -> None:
        """Note the outcome of a call."""
        with self._lock:
            self._probing.discard(permit)
            change = None if permit.era != self._era or success is None else self._note(success)
            sleepers = tuple(self._sleepers) if self._state == "open" and change is not None else ()
        if change is not None:
            tell(change)
        for wake in sleepers:
            wake()

    def reset(self, tell: Callback) -> None:
        """Close the circuit, and count from zero."""
        with self._lock:
            self.failures = 0
            change = None if self._state == "closed" else self._change("closed")
        if change is not None:
            tell(change)

    @property
    def state(self) -> CircuitState:
        """Return the state now; an open circuit that would let a call pass is half open."""
        with self._lock:
            return "half_open" if self._is_due(self.rules.monotonic()) else self._state

    @property
    def is_idle(self) -> bool:
        """Return whether it is like a new one."""
        return self._state == "closed" and self.failures == 0

    @property
    def retry_after(self) -> float:
        """Return the seconds until a call may pass."""
        now = self.rules.monotonic()
        with self._lock:
            if self._state == "open":
                return max(0.0, self._changed_at + self.rules.reset_seconds - now)
            is_full = self._state == "half_open" and not self._has_room(now)
            return min(PROBE_SECONDS, self.rules.reset_seconds) if is_full else 0.0

    def error(self) -> CircuitOpenError:
        """Return the error for a call that may not pass."""
        seconds, state = self.retry_after, self.state
        why = (
            "another call is testing it"
            if state == "half_open"
            else f"after {self.failures} failures in a row"
        )
        return CircuitOpenError(
            f"the circuit of {self.name!r} is open ({why}); try again in {seconds:.3g} s",
            self.name,
            seconds,
        )

    @contextlib.contextmanager
    def listening(self, wake: Callable[[], object]) -> Generator[None]:
        """Call ``wake()`` when the circuit opens during the block, on any thread."""
        with self._lock:
            self._sleepers.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._sleepers.discard(wake)

    def _is_due(self, now: float) -> bool:
        return self._state == "open" and now - self._changed_at >= self.rules.reset_seconds

    def _has_room(self, now: float) -> bool:
        """Return whether another probe may go; one that has no outcome for as long as a circuit
        stays open does not count.
        """
        recent = [one for one in self._probing if now - one.given < self.rules.reset_seconds]
        return len(recent) < self.rules.probes

    def _note(self, success: bool) -> CircuitChange | None:
        self.failures = 0 if success else self.failures + 1
        if success:
            return self._change("closed") if self._state == "half_open" else None
        return (
            self._change("open")
            if self._state == "half_open" or self.failures >= self.rules.failures
            else None
        )

    def _change(self, state: CircuitState) -> CircuitChange:
        self._state, self._changed_at = state, self.rules.monotonic()
        self._era += 1
        self._probing.clear()
        return CircuitChange(circuit=self.name, state=state, failures=self.failures)


@attrs.define(eq=False, kw_only=True)
class CircuitRegistry:
    """When circuits change their state; and the circuits of one breaker, created on first use."""

    failures: int
    reset_seconds: float
    probes: int
    monotonic: Callable[[], float]
    is_failure: Callable[[BaseException], bool] = is_server_failure
    on_change: Callback | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _circuits: dict[_CircuitKey, Circuit] = attrs.field(
        factory=lambda: dict[_CircuitKey, Circuit](), init=False
    )

    def circuit(self, name: str, credential: CredentialSource | None = None) -> Circuit:
        """Return the circuit of a name, under one credential."""
        with self._lock:
            found = self._circuits.get((name, credential))
            if found is None:
                if len(self._circuits) >= MAX_CIRCUITS:
                    self._circuits = {
                        key: one for key, one in self._circuits.items() if not one.is_idle
                    }
                found = self._circuits[name, credential] = Circuit(name, self)
            return found

    def guard(
        self, transport: Transport, prepared: PreparedRequest, admit: Admission | None
    ) -> CircuitGuard:
        """Return the guard of a request, which holds ``admit`` too."""
        name = f"{transport.config.base_url} {OPERATIONS[prepared.operation].tag}"

        def tell(change: CircuitChange) -> None:
            transport.observers.notify(change)
            self.tell(change)

        return CircuitGuard(self.circuit(name, transport.auth.source), tell, admit)

    def judge(self, error: BaseException | None) -> bool | None:
        """Return True for a success, False for a failure, None for an outcome that says nothing
        about the server.
        """
        if error is None:
            return True
        if not isinstance(error, APIError):
            return None
        if self.is_failure(error):
            return False
        return True if isinstance(error, APIStatusError) else None

    @property
    def circuits(self) -> list[Circuit]:
        """Return all circuits that were used and not forgotten."""
        with self._lock:
            return list(self._circuits.values())

    def tell(self, change: CircuitChange) -> None:
        """Call the user's function with a change. Its failures are logged and do not affect the
        call.
        """
        try:
            if self.on_change is not None:
                self.on_change(change)
        except Exception:
            logger.exception(
                "on_change of a circuit breaker failed; the circuit %r is %s",
                change.circuit,
                change.state,
            )


class CircuitGuard(msgspec.Struct, eq=False):
    """What each attempt of one request holds: its admission, then a permit. Used on
    the loop only.
    """

    _circuit: Circuit
    _tell: Callback
    _admit: Admission | None
    _permit: Permit | None = None
    _last: BaseException | None = None

    async def enter(self) -> None:
        """Wait for what an attempt needs, and hold it; CircuitOpenError while the
        circuit is open.
        """
        if self._admit is not None:
            await self._admit.enter()
        try:
            self._permit = self._circuit.admit(self._tell)
        except CircuitOpenError as error:
            if self._admit is not None:
                self._admit.leave(None)
            raise error from self._last

    def leave(self, error: BaseException | None, pause_seconds: float | None = None) -> None:
        """Record how the attempt ended, and release its permit."""
        permit, self._permit, self._last = self._permit, None, error
        assert permit is not None
        verdict: bool | None = None
        try:
            verdict = self._circuit.rules.judge(error)
        finally:
            self._circuit.settle(permit, verdict, self._tell)
            if self._admit is not None:
                self._admit.leave(error, pause_seconds)

    async def sleep(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Sleep until the next attempt; CircuitOpenError as soon as the circuit is open."""
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with limit:
                with self._circuit.listening(lambda: loop.call_soon_threadsafe(_end_now, limit)):
                    if self._circuit.state == "open":
                        raise self._circuit.error() from self._last
                    await sleep(seconds)
        except TimeoutError:
            if limit.expired():
                raise self._circuit.error() from self._last
            raise


def _end_now(limit: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        limit.reschedule(0)
