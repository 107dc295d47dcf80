"""Interrupts of the main thread, as by Ctrl-C, at random moments."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
SHARE = 0.5  # of the calls and the waits in which an interrupt may come
IN_A_CALL_SECONDS, IN_A_WAIT_SECONDS = 0.0005, 0.02  # the latest moment


class CtrlC(KeyboardInterrupt):
    """An interrupt from here, which tells it from any other."""


class Interrupts:
    """Raises CtrlC in the main thread at a random moment of a call."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self.are_on = False
        self._current: CtrlC | None = None  # the one that a running call may get
        self._random = random.Random(seed)

    def during(self, function: Callable[[], T], longest_seconds: float) -> T:
        """Call the function; CtrlC may be raised at any of its bytecodes, and is raised at most
        once.
        """
        if self.are_on and self._random.random() < SHARE:
            self._current = CtrlC()
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, longest_seconds))
        try:
            return function()
        finally:
            self._current = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGALRM, self._raise)
        self.are_on = True
        return self

    def __exit__(self, *_: object) -> None:
        self.are_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        error, self._current = self._current, None
        if error is not None:
            self.count += 1
            raise error
