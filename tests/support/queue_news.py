"""What a server says of a queue, and the wait until observers know it."""

from __future__ import annotations

import threading

from tinker._loop import loop_thread


def waiting(state: str, reason: str | None = None) -> dict[str, object]:
    return {
        "type": "try_again",
        "request_id": "x",
        "queue_state": state,
        "queue_state_reason": reason,
    }


def all_told() -> None:
    """Let the I/O thread deliver pending events to the observers."""
    told = threading.Event()
    loop_thread().call(told.set)
    assert told.wait(10)
