"""Ctrl-C and SIGTERM while steps run: the first asks for an end after what was sent, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_NOTICE = b"\nWaiting for the steps already sent, then saving. Ctrl-C again stops at once.\n"


class StopRequest:
    """Whether an end was asked for, and by which signal."""

    signal_number: int | None = None

    @property
    def is_made(self) -> bool:
        """Return whether it was."""
        return self.signal_number is not None

    def take(self, number: int, _: FrameType | None) -> None:
        """Note the signal; raise KeyboardInterrupt for a second one."""
        if self.is_made:
            raise KeyboardInterrupt
        self.signal_number = number
        os.write(2, _NOTICE)  # not print: the handler may have interrupted one


@contextmanager
def watch_signals() -> Generator[StopRequest]:
    """Note the signals of the block instead of ending it; only the main thread gets signals."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
