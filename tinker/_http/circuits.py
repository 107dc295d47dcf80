"""Circuits: stop calls for a while after repeated failures, then let a few probes through, and close when one succeeds.

A :class:`Circuit` counts failures and may be used from any thread. Each request of a client holds a :class:`CircuitGuard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from tinker._http.auth import Auth, CredentialSource
from tinker._http.limits import Admission
from tinker._http.messages import Purpose
from tinker._http.observers import Observers
from tinker._http.retry import ONE_SHOT, Policy
from tinker._http.statuses import is_server_failure
from tinker.errors import APIError, APIStatusError, CircuitOpenError
from tinker.observing import CircuitChange, CircuitState

Tell: TypeAlias = Callable[[CircuitChange], object]
# Calls that are refused while others probe are asked to try again after this time.
PROBE_SECONDS = 1.0
# Beyond this number of circuits, as with ever changing keys, idle ones are dropped.
MAX_CIRCUITS = 1000


class CircuitRules(msgspec.Struct, frozen=True, kw_only=True):
    """When circuits change their state."""

    failures: int
    reset_seconds: float
    probes: int
    monotonic: Callable[[], float]
    is_failure: Callable[[BaseException], bool] = is_server_failure

    def judge(self, error: BaseException | None) -> bool | None:
        """Return True for a success, False for a failure, None for an outcome that says nothing about the server."""
        if error is None:
            return True
        if not isinstance(error, APIError):
            return None
        if self.is_failure(error):
            return False
        return True if isinstance(error, APIStatusError) else None


class Permit(msgspec.Struct, frozen=True, eq=False):
    """The right to one call, given at a time in one state of a circuit."""

    given: float
    era: int


class Circuit:
    """One circuit. The outcome of a call that began in one state has no effect in a later one."""

    def __init__(self, name: str, rules: CircuitRules) -> None:
        self.name = name
        self._rules = rules
        self._lock = threading.Lock()
        self._state: CircuitState = "closed"
        self.failures: int = 0  # in a row
        self._era = 0
        self._changed_at = 0.0
        self._probing: set[Permit] = set()
        self._sleepers: set[Callable[[], object]] = set()

    def admit(self, tell: Tell) -> Permit:
        """Let one call pass, which must be settled; CircuitOpenError otherwise."""
        now = self._rules.monotonic()
        with self._lock:
            change = self._change("half_open") if self._is_due(now) else None
            admitted = self._state == "closed" or (self._state == "half_open" and self._has_room(now))
            permit = Permit(now, self._era)
            if admitted and self._state == "half_open":
                self._probing.add(permit)
        if change is not None:
            tell(change)
        if not admitted:
            raise self.error()
        return permit

    def settle(self, permit: Permit, success: bool | None, tell: Tell) -> None:
        """Note the outcome of a call."""
        with self._lock:
            self._probing.discard(permit)
            change = None if permit.era != self._era or success is None else self._note(success)
            sleepers = tuple(self._sleepers) if self._state == "open" and change is not None else ()
        if change is not None:
            tell(change)
        for wake in sleepers:
            wake()

    def reset(self, tell: Tell) -> None:
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
            return "half_open" if self._is_due(self._rules.monotonic()) else self._state

    @property
    def is_idle(self) -> bool:
        """Return whether it is like a new one."""
        return self._state == "closed" and self.failures == 0

    @property
    def retry_after(self) -> float:
        """Return the seconds until a call may pass."""
        now = self._rules.monotonic()
        with self._lock:
            if self._state == "open":
                return max(0.0, self._changed_at + self._rules.reset_seconds - now)
            is_full = self._state == "half_open" and not self._has_room(now)
            return min(PROBE_SECONDS, self._rules.reset_seconds) if is_full else 0.0

    def error(self) -> CircuitOpenError:
        """Return the error for a call that may not pass."""
        seconds, state = self.retry_after, self.state
        why = "another call is testing it" if state == "half_open" else f"after {self.failures} failures in a row"
        return CircuitOpenError(
            f"the circuit of {self.name!r} is open ({why}); try again in {seconds:.3g} s", self.name, seconds
        )

    def listen(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call ``wake()`` when the circuit opens, on any thread. Returns a function that stops this."""
        with self._lock:
            self._sleepers.add(wake)
        return lambda: self._forget(wake)

    def _forget(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._sleepers.discard(wake)

    def _is_due(self, now: float) -> bool:
        return self._state == "open" and now - self._changed_at >= self._rules.reset_seconds

    def _has_room(self, now: float) -> bool:
        """Return whether another probe may go; one that has no outcome for as long as a circuit stays open does not count."""
        recent = [one for one in self._probing if now - one.given < self._rules.reset_seconds]
        return len(recent) < self._rules.probes

    def _note(self, success: bool) -> CircuitChange | None:
        self.failures = 0 if success else self.failures + 1
        if success:
            return self._change("closed") if self._state == "half_open" else None
        return self._change("open") if self._state == "half_open" or self.failures >= self._rules.failures else None

    def _change(self, state: CircuitState) -> CircuitChange:
        self._state, self._changed_at = state, self._rules.monotonic()
        self._era += 1
        self._probing.clear()
        return CircuitChange(circuit=self.name, state=state, failures=self.failures)


class CircuitRegistry:
    """The circuits of one breaker, created on first use."""

    def __init__(self, rules: CircuitRules, on_change: Tell | None) -> None:
        self.rules = rules
        self._on_change = on_change
        self._lock = threading.Lock()
        self._circuits: dict[tuple[str, CredentialSource | None], Circuit] = {}

    def circuit(self, name: str, credential: CredentialSource | None = None) -> Circuit:
        """Return the circuit of a name, under one credential."""
        with self._lock:
            found = self._circuits.get((name, credential))
            if found is None:
                if len(self._circuits) >= MAX_CIRCUITS:
                    self._circuits = {key: one for key, one in self._circuits.items() if not one.is_idle}
                found = self._circuits[name, credential] = Circuit(name, self.rules)
            return found

    @property
    def circuits(self) -> list[Circuit]:
        """Return all circuits that were used and not forgotten."""
        with self._lock:
            return list(self._circuits.values())

    def tell(self, change: CircuitChange) -> None:
        """Call the user's function with a change."""
        if self._on_change is not None:
            self._on_change(change)


class Circuits(msgspec.Struct, frozen=True):
    """The circuits of one client: one for each kind of call, which it shares with clients of the same server and key."""

    registry: CircuitRegistry
    base_url: str
    auth: Auth
    observers: Observers

    def guard(self, operation: str, purpose: Purpose, policy: Policy, admit: Admission | None) -> CircuitGuard | None:
        """Return the guard of a request, which holds ``admit`` too; None for a request that no circuit may stop.

        Heartbeats continue while a circuit is open. So do polls for accepted work: they are single attempts.
        """
        if purpose is Purpose.HEARTBEAT or policy is ONE_SHOT:
            return None
        from tinker_wire.operations import OPERATIONS  # a long table, for clients with a breaker

        circuit = self.registry.circuit(f"{self.base_url} {OPERATIONS[operation].tag}", self.auth.source)
        return CircuitGuard(circuit, self.registry.rules, self._tell, admit)

    def _tell(self, change: CircuitChange) -> None:
        if self.observers:
            self.observers.notify(change)
        self.registry.tell(change)


class CircuitGuard(msgspec.Struct, eq=False):
    """What each attempt of one request holds: its admission, then a permit. Used on the loop only."""

    _circuit: Circuit
    _rules: CircuitRules
    _tell: Tell
    _admit: Admission | None
    _permit: Permit | None = None
    _last: BaseException | None = None

    def try_enter(self) -> bool:
        """Hold what an attempt needs if it is free now; CircuitOpenError while the circuit is open."""
        if self._admit is not None and not self._admit.try_enter():
            return False
        self._ask()
        return True

    async def enter(self) -> None:
        """Wait for what an attempt needs, and hold it; CircuitOpenError while the circuit is open."""
        if self._admit is not None:
            await self._admit.enter()
        self._ask()

    def _ask(self) -> None:
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
            verdict = self._rules.judge(error)
        finally:
            self._circuit.settle(permit, verdict, self._tell)
            if self._admit is not None:
                self._admit.leave(error, pause_seconds)

    async def sleep(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Sleep until the next attempt; CircuitOpenError as soon as the circuit is open."""
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with limit:
                stop_listening = self._circuit.listen(lambda: loop.call_soon_threadsafe(_end_now, limit))
                try:
                    if self._circuit.state == "open":
                        raise self._circuit.error() from self._last
                    await sleep(seconds)
                finally:
                    stop_listening()
        except TimeoutError:
            if limit.expired():
                raise self._circuit.error() from self._last
            raise


def _end_now(limit: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        limit.reschedule(0)
