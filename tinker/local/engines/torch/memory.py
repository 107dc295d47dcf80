"""Memory that is free but still held: glibc keeps what torch has freed, in pieces that the next step's tensors do not fit."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

SLACK = 128 << 20  # bytes by which the process may grow beyond what it had after a first step
STATM = Path("/proc/self/statm")


def find_trim() -> Callable[[int], object] | None:
    """Return glibc's ``malloc_trim``; None on a system without it."""
    if not sys.platform.startswith("linux"):
        return None
    trim: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def read_resident() -> int:
    """Return the bytes of memory that this process has; only on Linux."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class MemoryReturn:
    """Gives free memory back to the system when the process has grown, so that a server does not grow with its steps.

    What a step has freed is kept for the next one: asking the system for it anew takes a quarter of a step of a small model.
    So the level is what the process has after the first step that follows, and growth beyond it is what goes back.
    """

    def __init__(self, trim: Callable[[int], object] | None, resident: Callable[[], int] = read_resident) -> None:
        self._trim, self._resident = trim, resident
        self._level: int | None = 0  # the first step gives back what loading the model left

    def count_step(self) -> None:
        """Note one more step, and give back what is free if there is much more of it."""
        if self._trim is None:
            return
        resident = self._resident()
        if self._level is None:
            self._level = resident
        elif resident > self._level + SLACK:
            self._trim(0)
            self._level = None
