"""Memory that is free but still held: glibc keeps what torch has freed, in pieces that the next step's tensors do not fit."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

SLACK = 128 << 20  # bytes that may be held beyond what was resident when the last memory was given back
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

    Giving back takes longer than a step of a small model, and looking how large the process is takes no time.
    """

    def __init__(self, trim: Callable[[int], object] | None, resident: Callable[[], int] = read_resident) -> None:
        self._trim, self._resident = trim, resident
        self._floor: int | None = None

    def count_step(self) -> None:
        """Note one more step, and give back what is free if there is much of it."""
        if self._trim is not None and (self._floor is None or self._resident() > self._floor + SLACK):
            self._trim(0)
            self._floor = self._resident()
