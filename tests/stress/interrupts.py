"""A caller in the main thread that is interrupted repeatedly, as by Ctrl-C, at random moments."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from workload import Work

T = TypeVar("T")
Wait: TypeAlias = Callable[[], "str | None"]
IN_FLIGHT = 32
CALLS_OF_A_CLIENT = 200
CALLS_AT_LEAST, WITHIN_SECONDS = 80, 30.0  # so that busy machines see some interrupts as well
SHARE = 0.5  # of the calls and the waits in which an interrupt may come
IN_A_CALL_SECONDS, IN_A_WAIT_SECONDS = 0.0005, 0.02  # the latest moment


class CtrlC(KeyboardInterrupt):
    """An interrupt from here, which tells it from any other."""


class Interrupts:
    """Raises CtrlC in the main thread at a random moment of a call."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self._are_on = False
        self._current: CtrlC | None = None  # the one that a running call may get
        self._random = random.Random(seed)

    def during(self, function: Callable[[], T], longest_seconds: float) -> T:
        """Call the function; CtrlC may be raised at any of its bytecodes, and is raised at most
        once.
        """
        if self._are_on and self._random.random() < SHARE:
            self._current = CtrlC()
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, longest_seconds))
        try:
            return function()
        finally:
            self._current = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGALRM, self._raise)
        self._are_on = True
        return self

    def __exit__(self, *_: object) -> None:
        self._are_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        error, self._current = self._current, None
        if error is not None:
            self.count += 1
            raise error


class _Failed(Exception):
    """Something failed, which the record says."""


class InterruptedCaller:
    """Trains with one client after the other. A call that is interrupted may be lost, and nothing
    else.

    Ends with the first failure, so that a client that hangs is waited for once.
    """

    def __init__(self, work: Work, interrupts: Interrupts, planned: int) -> None:
        self._work, self._interrupts, self._planned = work, interrupts, planned
        self._clients, self._done, self._began = 0, 0, time.monotonic()
        self._pending: deque[tuple[str, int, Wait]] = deque()

    def run(self) -> None:
        """Call while there is work to do; then the last client and a new one must work as if
        nothing had happened.
        """
        with contextlib.suppress(_Failed):
            self._run()

    def _run(self) -> None:
        self._change_client()
        with self._interrupts:
            while self._work.more(self._done, self._planned) or self._is_short():
                self._go_on()
        self._finish()
        self._change_client()
        self._finish()

    def _is_short(self) -> bool:
        return self._done < CALLS_AT_LEAST and time.monotonic() - self._began < WITHIN_SECONDS

    def _go_on(self) -> None:
        if self._calls >= CALLS_OF_A_CLIENT:
            self._change_client()
        elif len(self._pending) < IN_FLIGHT:
            self._call()
        else:
            self._wait()

    def _change_client(self) -> None:
        """Create a client; interrupts hit the call only, as each client that is lost takes room on
        the server.
        """
        self._settle_all()
        while not self._created():
            pass
        self._calls = 0
        self._name = str(self._client.model_id)

    def _created(self) -> bool:
        self._clients += 1
        try:
            client = self._interrupts.during(
                lambda: self._work.new_client(self._clients), IN_A_CALL_SECONDS
            )
        except CtrlC:
            return False
        self._client = client
        self._note(
            f"interrupted client {self._clients}", "create", 0, lambda: self._work.ready(client)
        )
        return True

    def _call(self) -> None:
        self._calls += 1
        operation, number = (
            "forward_backward" if self._calls % 2 else "optim_step",
            (self._calls + 1) // 2,
        )
        try:
            wait = self._interrupts.during(
                lambda: self._work.begin(self._client, operation, number), IN_A_CALL_SECONDS
            )
        except CtrlC:
            self._done += 1
            self._work.note_interrupted(self._name, operation, number)
        else:
            self._pending.append((operation, number, wait))

    def _wait(self) -> None:
        """Wait for the oldest call; an interrupt leaves its future as it is, so that it can be
        waited for again.
        """
        try:
            self._interrupts.during(self._pending[0][2], IN_A_WAIT_SECONDS)
        except CtrlC:
            return
        except TimeoutError as error:
            self._work.note_failed(self._name, *self._pending[0][:2], error)
            raise _Failed from error
        except Exception:  # noqa: BLE001 - raised again for the record
            pass
        self._settle()

    def _settle(self) -> None:
        self._done += 1
        self._note(self._name, *self._pending.popleft())

    def _note(self, client: str, operation: str, number: int, wait: Wait) -> None:
        if not self._work.note(client, operation, number, wait):
            raise _Failed

    def _settle_all(self) -> None:
        while self._pending:
            self._settle()

    def _finish(self) -> None:
        """Two more steps without an interrupt."""
        for _ in range(4):
            self._call()
        self._settle_all()
